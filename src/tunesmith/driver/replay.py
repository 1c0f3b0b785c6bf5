"""Check that the best records of a log still apply, and verify and time their programs on request.

A valid log guarantees that the program compiled today is the program that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Group, RenderableType

from tunesmith.codegen.artifact import Code
from tunesmith.codegen.build import build, check_runs_here
from tunesmith.codegen.params import param_specs
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import NOISY, microseconds, plain_table, printable
from tunesmith.driver.compile import Records, open_records
from tunesmith.driver.workloads import Subject
from tunesmith.graph.tuning.apply_records import apply_record
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify as verify_program
from tunesmith.lower.pass_context import PassContext, exactly
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.measure.evaluator.correctness import check_reference, save_reference, tolerance_of
from tunesmith.measure.local_runner import LocalRunner
from tunesmith.measure.policies import RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import LogReport
from tunesmith.measure.runner import RunRequest, RunSetup
from tunesmith.ops.workload import workload
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.temporary_folder import temporary_folder

_ONCE = RacePolicy(min_repeat_ms=0.0, repeats=1, patience_s=0.0)
_TIMING = TimingPolicy(limit_s=4.0)


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """The best record of one workload on one target.

    Attributes:
        workload: name of the workload.
        digest: digest of the unscheduled program.
        ok: the record applies, the program is legal, and its output, if run, is correct.
        ir_digest: digest of the scheduled program; equal digests mean the same program.
        median: seconds of one call, if timed.
        recorded: seconds in the record.
        clean, recorded_clean: other load disturbed no sample of `median` and of `recorded`.
        target: text of the target.
        note: why it is not ok.
    """

    workload: str
    digest: str
    ok: bool
    ir_digest: str = ""
    median: float | None = None
    recorded: float | None = None
    target: str = ""
    note: str = ""
    clean: bool = True
    recorded_clean: bool = True

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith replay --json`."""
        return {
            "workload": self.workload,
            "digest": self.digest,
            "ok": self.ok,
            "ir_digest": self.ir_digest or None,
            "median_us": None if self.median is None else self.median * 1e6,
        }


@dataclass(frozen=True)
class ReplayReport(Rendered):
    """Replay results of all workloads of a log.

    Attributes:
        rows: one per workload and target.
        timed: the programs were timed.
        log: counts of the log's lines, with the bad ones, which are left out.
    """

    rows: tuple[ReplayRow, ...]
    timed: bool = False
    log: LogReport = field(default_factory=LogReport)

    @property
    def ok(self) -> bool:
        """Whether every record is valid, and bad lines are not all that the log has."""
        return all(row.ok for row in self.rows) and (bool(self.rows) or not self.log.bad_count)

    def to_json(self) -> list[dict[str, object]]:
        """The data written by `tunesmith replay --json`."""
        return [row.to_json() for row in self.rows]

    def render(self) -> RenderableType:
        """The results as a table for a terminal."""
        columns = ["workload", "replay", "recorded us", *(["now us"] if self.timed else []), "digest", "program"]
        title = "Replay" + ("" if all(r.clean and r.recorded_clean for r in self.rows) else NOISY)
        parts: list[RenderableType] = [
            plain_table(title, columns, [self._cells(r) for r in self.rows], left=["replay", "digest", "program"])
        ]
        parts += [printable(f"! {r.workload} on {r.target}: {r.note}", style="red") for r in self.rows if not r.ok]
        if not self.rows:
            parts.append(printable("the log holds no record"))
        if self.log.bad_count:
            parts.append(printable(f"! {self.log}", style="yellow"))
        return Group(*parts)

    def _cells(self, r: ReplayRow) -> list[str]:
        now = [microseconds(r.median, r.clean)] if self.timed else []
        return [r.workload, "ok" if r.ok else "FAILED", microseconds(r.recorded, r.recorded_clean), *now, r.digest, r.ir_digest or "-"]


def replay(log: Records, *, verify: bool = False, time: bool = False) -> ReplayReport:
    """Apply the best record of every workload and target of a log.  Bad lines are reported and left out.

    Programs are compiled with the passes that their records were measured with, whatever the current `PassContext`.

    Args:
        log: the log of records.
        verify: run each program once and compare its output with the operator's numpy reference, or with the unscheduled program for
            other programs.
        time: verify and time each program.
    Raises:
        RecordError: the log cannot be read.
    """
    database = open_records(log)
    rows: list[ReplayRow] = []
    by_target: dict[tuple[str, str], list[tuple[int, Subject, PrimFunc]]] = {}
    targets: dict[str, Target] = {}
    for view, digest, data in [(v, *task) for v in database.views() for task in v.tasks()]:
        subject, row, program = _applied(view, digest, data)
        if program is not None and subject is not None and (verify or time):
            targets[row.target] = Target(data)
            by_target.setdefault((row.target, view.changes), []).append((len(rows), subject, program))
        rows.append(replace(row, target=f"{row.target}, with changed passes {view.changes}") if view.changes else row)
    for (target, changes), work in by_target.items():
        before = [rows[i] for i, _, _ in work]
        try:
            with exactly(PassContext.of_changes(json.loads(changes or "{}"))):
                done = _run(targets[target], before, work, time)
        except UserError as error:  # there is no such pass any more
            done = [replace(row, ok=False, note=str(error)) for row in before]
        for (index, _, _), row in zip(work, done, strict=True):
            rows[index] = row
    return ReplayReport(tuple(rows), time, database.report)


def _applied(database: Database, digest: str, data: Mapping[str, object]) -> tuple[Subject | None, ReplayRow, PrimFunc | None]:
    """The workload as a subject, its row, and the scheduled program; None for the parts that fail."""
    line = database.workloads().get(digest)
    name = digest if line is None else line.name
    row = ReplayRow(name, digest, False, target=json.dumps(dict(data), sort_keys=True))
    try:
        row = replace(row, target=str(Target(data)))
        if line is None:
            raise RecordError("the log has no line with its program: merge in the log that has it")
        func = parse_function(line.script)
        found = structural.digest(func)
        if found != digest:
            raise RecordError(f"its program in the log has the digest {found}: another version of tunesmith wrote it")
        record = database.best(digest, data)
        if record is None:
            raise RecordError("it has no verified record without errors")
        row = replace(row, recorded=record.seconds, recorded_clean=record.clean)
        program = apply_record(record, func)
        verify_program(program)
    except UserError as error:
        return None, replace(row, note=str(error)), None
    return _subject(name, func, digest), replace(row, ok=True, ir_digest=structural.digest(program)), program


def _subject(name: str, func: PrimFunc, digest: str) -> Subject:
    """The operator's workload of that name if the program matches; names in a log are never used as paths."""
    try:
        found = workload(name)
    except UserError:
        return Subject(name, func)
    return Subject(found.text, found.func, found) if structural.digest(found.func) == digest else Subject(name, func)


def _run(target: Target, rows: Sequence[ReplayRow], work: Sequence[tuple[int, Subject, PrimFunc]], time: bool) -> list[ReplayRow]:
    """Run the programs of one target and return the updated rows."""
    try:
        check_runs_here(target)
    except UserError as error:
        return [replace(row, ok=False, note=str(error)) for row in rows]
    out: list[ReplayRow] = []
    with LocalRunner(target.num_cores) as runner, temporary_folder("tunesmith-replay-") as folder:
        for row, (_, subject, program) in zip(rows, work, strict=True):
            try:
                setup = _setup(subject, target, folder / f"{row.digest}.npz")
                artifact = build(program, target, packing="ahead")
                request = RunRequest(setup, artifact.code(), _ONCE, None, "always")
                result = (runner.compare([request], _TIMING) if time else runner.run([request]))[0]
            except UserError as error:
                out.append(replace(row, ok=False, note=str(error)))
                continue
            if result.error is not None:
                out.append(replace(row, ok=False, note=f"{result.error.kind}: {result.error.message}"))
            elif time:
                ordered = sorted(result.samples)
                out.append(replace(row, median=ordered[len(ordered) // 2], clean=result.clean))
            else:
                out.append(row)
    return out


def _setup(subject: Subject, target: Target, path: Path) -> RunSetup:
    """Arguments and reference of a run."""
    params = tuple(param_specs(subject.func))
    ranges = subject.ranges
    reference: str | None = None
    baseline: Code | None = None
    if subject.operator is not None:
        inputs = make_inputs(params, 0, ranges)
        save_reference(path, check_reference(params, subject.operator.reference(inputs)))
        reference = str(path)
    else:
        plain = build(subject.func, target)
        baseline = plain.code()
    facts = json.dumps(target.to_json(facts=True))
    bounds = tuple([(name, low, high) for name, (low, high) in sorted(ranges.items())])
    return RunSetup(f"replay-{path.stem}", facts, params, 0, bounds, tolerance_of(subject.func), reference, baseline)
