"""Show the contents of a log (best records, curves, errors, schedules) or the search space of a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType

from tunesmith.display.failures import examples_of, render_example_data
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import (
    NOISY,
    as_comment,
    code,
    comment,
    counted,
    microseconds,
    plain_table,
    plural,
    printable,
    rate,
    sparkline,
)
from tunesmith.driver.compile import Records, as_target, open_records
from tunesmith.driver.size_buckets import Sizes, parse_sizes
from tunesmith.driver.workloads import WorkloadLike, find_subject, find_subjects
from tunesmith.graph.tuning.apply_records import apply_record
from tunesmith.ir.analysis.operation_count import operation_count
from tunesmith.ir.remarks import remarks
from tunesmith.ir.script.printer import script as print_script
from tunesmith.ir.target.attributes import TILE_STRUCTURE
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.status import WITHDRAWN, is_measurement
from tunesmith.ops.workload import workload as operator_workload
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.sketch import Sketch
from tunesmith.search.task import Task
from tunesmith.support.errors import BuildError, TargetError, UserError
from tunesmith.support.seeds import stream


@dataclass(frozen=True)
class Shown(Rendered):
    """Data to show: `data` as plain JSON, `render` for a terminal."""

    data: Any
    parts: tuple[RenderableType, ...]

    def render(self) -> RenderableType:
        """The data for a terminal."""
        return Group(*self.parts)


def show_log(log: Records, *, script: bool = False, trace: bool = False) -> Shown:
    """Each workload and target of a log: its best record, errors with an example per class, and the best-so-far curve of the records.

    A search measures its leaders again at the end, so records can outnumber trials, which count candidates.  With `script` or `trace`
    tables and messages are comments, so that the text is valid Python.

    Args:
        log: the log of records.
        script: include the program of the best schedule.
        trace: include the best schedule as Python.
    Raises:
        RecordError: the log cannot be read.
    """
    database = open_records(log)
    data = [_log_entry(view, digest, target, script, trace) for view in database.views() for digest, target in view.tasks()]
    cells = [
        [
            e["workload"],
            str(e["trials"]) + (f" (+{e['records'] - e['trials']} again)" if e["records"] > e["trials"] else ""),
            microseconds(None if e["best_us"] is None else e["best_us"] * 1e-6, e["best_clean"]),
            rate(e["gflops"]),
            e["sketch"] or "-",
            counted(e["errors"]) or "none",
            sparkline(e["curve"]),
        ]
        for e in data
    ]
    columns = ["workload", "trials", "best us", "GFLOP/s", "sketch", "errors", "curve"]
    parts: list[RenderableType] = []
    for target in dict.fromkeys(e["target"] for e in data):
        rows = [c for c, e in zip(cells, data, strict=True) if e["target"] == target]
        is_noisy = not all(e["best_clean"] for e in data if e["target"] == target)
        parts.append(plain_table(target + (NOISY if is_noisy else ""), columns, rows, left=["sketch", "errors", "curve"]))
    for e in data:
        parts += render_example_data(e["workload"], e["examples"])
        if e["withdrawn"]:
            parts.append(
                printable(f"! {e['workload']}: {plural(e['withdrawn'], 'schedule')} withdrawn, because slower in a model", "yellow")
            )
    if not data:
        parts.append(printable("the log holds no record"))
    if database.report.bad_count:
        parts.append(printable(f"! {database.report}", style="yellow"))
    programs = [_program(e["workload"], e[key]) for e in data for key in ("script", "trace") if e.get(key)]
    return Shown(data, (*(map(as_comment, parts) if script or trace else parts), *programs))


def _program(name: str, text: str) -> RenderableType:
    """A program under its name."""
    return code(f"\n{comment(name)}\n{text}")


def show_workload(
    workload: WorkloadLike,
    *,
    target: str | Target | None = None,
    space: bool = True,
    script: bool = False,
    trace: bool = False,
    sizes: Sizes | None = None,
) -> Shown:
    """A workload: its program, and the sketches of its search space, with their sizes.

    Args:
        workload: one workload, in the forms that `tune` accepts.
        target: target of the sketches; by default the current target, else this machine.
        space: list the sketches.
        script: print the unscheduled program.
        trace: print the steps of each sketch as Python, with free parameters.
        sizes: dynamic sizes, as for `tune`: each part is shown, and the data is a list.
    Raises:
        UserError: unknown workload, or it has dynamic shapes and `sizes` is not given.
    """
    machine = as_target(target)
    subjects = [find_subject(workload)] if sizes is None else find_subjects(workload, parse_sizes(sizes))
    entries: list[dict[str, Any]] = []
    parts: list[RenderableType] = []
    programs: list[RenderableType] = []
    lines: set[str] = set()
    for subject in subjects:
        task = subject.task(machine)
        data: dict[str, Any] = {"workload": subject.name, "digest": task.digest, "target": str(machine), "flops": subject.flops}
        operations = f"{subject.flops:,} operations" if subject.flops else "no arithmetic operations"
        parts.append(printable(f"{subject.name}  digest {task.digest}  {operations}"))
        odd = [str(remark) for remark in remarks(subject.func)]
        data["remarks"] = odd
        parts += _new_lines(odd, lines)
        if script:
            data["script"] = print_script(subject.func)
            programs.append(code(f"\n{data['script']}"))
        entries.append(data)
        if space or trace:
            try:
                data |= _space_entry(task, trace)
            except BuildError as error:
                if sizes is None:
                    raise
                data["failure"] = str(error)
                parts.append(printable(f"! {error}", style="red"))
                continue
            parts.append(_sketch_table(data))
            parts += _new_lines([*task.space.missing, *task.space.plain, *data["notes"]], lines)
            programs += [_program(s["name"], s["trace"]) for s in data["sketches"] if trace]
    return Shown(entries[0] if sizes is None else entries, (*(map(as_comment, parts) if programs else parts), *programs))


def _new_lines(found: Sequence[str], printed: set[str]) -> list[RenderableType]:
    """The lines that were not printed before, which other parts of the sizes have too."""
    new = [line for line in dict.fromkeys(found) if line not in printed]
    printed.update(new)
    return [printable(f"! {line}", style="yellow") for line in new]


def _space_entry(task: Task, trace: bool) -> dict[str, Any]:
    """The data of a search space."""
    return {
        "size": task.space.size(),
        "sketches": [_sketch_entry(s, trace) for s in task.space.sketches],
        "left_out": list(task.space.left_out),
        "refused": list(task.space.refused),
        "plain": list(task.space.plain),
        "notes": _unused_structure(task),
    }


def _sketch_table(data: Mapping[str, Any]) -> RenderableType:
    sketches = data["sketches"]
    cells = [[s["name"], f"{s['size']:.3g}", f"{s['acceptance']:.2g}", str(len(s["params"])), str(len(s["constraints"]))] for s in sketches]
    title = f"{plural(len(sketches), 'sketch', 'sketches')}, about {data['size']:.3g} candidates"
    return plain_table(title, ["sketch", "size", "legal share", "params", "constraints"], cells)


def _unused_structure(task: Task) -> list[str]:
    """A line if the target has another `tile_structure` than the default, and no sketch depends on it."""
    if not task.target.is_cpu or task.target.tile_structure == TILE_STRUCTURE:
        return []
    default = replace(task, target=task.target.with_attributes(tile_structure=TILE_STRUCTURE))
    if [s.trace.to_json() for s in default.space.sketches] != [s.trace.to_json() for s in task.space.sketches]:
        return []
    return [
        f"-tile-structure={task.target.tile_structure} changes no sketch: it has the levels of loops of matrix products and convolutions, "
        "without an epilogue if it has two reduction levels"
    ]


def _log_entry(database: Database, digest: str, target: Mapping[str, object], script: bool, trace: bool) -> dict[str, Any]:
    line = database.workloads().get(digest)
    name = digest if line is None else line.name
    records = database.records(digest, target)
    best = database.best(digest, target)
    flops = _flops(name, None if line is None else line.script)
    measured = [r for r in records if is_measurement(r)]
    failed = {(r.candidate, r.error.kind): None for r in measured if r.error is not None}  # a candidate may fail several times
    errors = Counter(kind for _, kind in failed)
    entry: dict[str, Any] = {
        "workload": name,
        "digest": digest,
        "target": _target_text(target) + (f", with changed passes {database.changes}" if database.changes else ""),
        "records": len(measured),
        "trials": len({r.candidate for r in records}),
        "errors": dict(errors),
        "withdrawn": sum(r.error is not None and r.error.kind == WITHDRAWN for r in records),
        "examples": [e.to_json() for e in examples_of(records)],
        "best_us": None if best is None else best.seconds * 1e6,
        "best_clean": best is None or best.clean,
        "noisy": sum(not r.clean for r in measured),
        "gflops": flops / best.seconds / 1e9 if best is not None and flops else None,
        "sketch": None if best is None else best.sketch,
        "row": None if best is None else list(best.row),
        "curve": _curve(records),
    }
    if records and records[-1].sizes is not None:
        entry["sizes"] = str(records[-1].sizes.box)
    if best is not None and trace:
        entry["trace"] = _steps(best)
    if best is not None and script:
        entry["script"] = _scheduled(best, None if line is None else line.script)
    return entry


def _steps(best: Record) -> str:
    """The schedule of a record as Python, or the reason why there is none as a comment."""
    try:
        return Trace.from_json(best.trace).as_python()
    except UserError as error:
        return comment(f"the record holds no schedule: {error}")


def _scheduled(best: Record, text: str | None) -> str:
    """The scheduled program of a record, or the reason why there is none as a comment."""
    if text is None:
        return comment("the log has no line with the program")
    try:
        return print_script(apply_record(best, parse_function(text)))
    except UserError as error:
        return comment(f"the record does not apply: {error}")


def _curve(records: Sequence[Record]) -> list[float | None]:
    """Microseconds of the best so far, after each record."""
    out: list[float | None] = []
    best: float | None = None
    for r in records:
        if r.error is None and r.verified and (best is None or r.seconds * 1e6 < best):
            best = r.seconds * 1e6
        out.append(best)
    return out


def _flops(name: str, text: str | None) -> int:
    """Operations of an operator's workload, or of the program in the log; 0 without either.  Names in a log are never used as paths."""
    try:
        return operator_workload(name).flops
    except UserError:
        pass  # another workload
    try:
        return 0 if text is None else operation_count(parse_function(text)) or 0
    except UserError:
        return 0


def _target_text(target: Mapping[str, object]) -> str:
    try:
        return str(Target(target))
    except TargetError:
        return str(dict(target))


def _sketch_entry(sketch: Sketch, trace: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": sketch.name,
        "size": sketch.space.size(),
        "acceptance": sketch.space.acceptance(stream(0, "show", sketch.name)),
        "params": [{"name": p.name, "domain": list(p.domain)} for p in sketch.params],
        "constraints": [c.label for c in sketch.constraints],
    }
    if trace:
        entry["trace"] = sketch.trace.as_python()
    return entry
