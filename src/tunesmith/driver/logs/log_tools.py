"""Audit, count, prune and merge logs, without executing anything in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from tunesmith.display.failures import examples_of, render_example_data
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import NOISY, counted, microseconds, plain_table, printable, sparkline
from tunesmith.ir import structural
from tunesmith.ir.target.target import Target
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import LogReport, PathLike, entry_of
from tunesmith.measure.records.record import Record, WorkloadLine
from tunesmith.measure.records.record_decoder import RecordDecoder
from tunesmith.measure.records.rewrite import PruneReport, merge, prune
from tunesmith.measure.records.run_manifest import manifest_path, read_manifest
from tunesmith.measure.records.status import is_measurement
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.trace import Trace
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, UserError

__all__ = ["Fault", "Stats", "Verdict", "merge", "prune", "render_merge", "render_prune", "stats", "verify"]

_MOST_SECONDS = 1e12
"""Longer times of a record are ignored as invalid."""
MAX_FAULTS = 1000
"""Maximum number of faults kept for display; all are counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An invalid line of a log.

    Attributes:
        line: line number, from 1.
        kind: `line` (it cannot be parsed), `digest` (it does not match the program), `conflict` (two programs for one digest), `workload`
            (the record's program is not in the log), `target`, `trace` or `row` (invalid in the record).
        reason: description of the fault.
    """

    line: int
    kind: str
    reason: str


@dataclass
class Verdict(Rendered):
    """Result of `verify`.

    Attributes:
        path: path of the log.
        records, workloads, duplicates: numbers of valid lines, and of duplicates among them.
        counts: faults by kind.
        faults: the first `MAX_FAULTS`, by line.
    """

    path: str
    records: int = 0
    workloads: int = 0
    duplicates: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the log has no fault."""
        return not self.counts

    def add(self, line: int, kind: str, reason: str) -> None:
        """Count a fault."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(line, kind, reason))

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith log verify --json`."""
        return {
            "log": self.path,
            "ok": self.ok,
            "records": self.records,
            "workloads": self.workloads,
            "duplicates": self.duplicates,
            "faults": dict(sorted(self.counts.items())),
            "lines": [{"line": f.line, "kind": f.kind, "reason": f.reason} for f in self.faults],
        }

    def render(self) -> RenderableType:
        """The result as text for a terminal."""
        found = f"{self.path}: {self.records} records, {self.workloads} workloads, {self.duplicates} duplicates, "
        found += f"faults: {counted(self.counts)}" if self.counts else "no fault"
        hidden = sum(self.counts.values()) - len(self.faults)
        shown = [printable(f"{self.path}:{f.line}: {f.kind}: {f.reason}") for f in self.faults]
        return Group(printable(found), *shown, *([printable(f"... and {hidden} more")] if hidden else []))


def verify(log: PathLike) -> Verdict:
    """Check every line of an untrusted log as far as possible without executing it.

    Checks that each line has the schema of its kind, each program matches its digest, each record's program is in the log, its target is
    valid, its trace consists of known instructions, and its decisions match its row (not required of failed candidates).

    Raises:
        RecordError: the log does not exist or cannot be read.
    """
    verdict = Verdict(str(log))
    reader = RecordDecoder()
    scripts: dict[str, str] = {}
    referenced: dict[str, list[int]] = {}
    seen: set[str] = set()
    targets: dict[int, str] = {}
    for number, value in json_lines.read(log, decode=reader.read):
        try:
            entry = entry_of(value, reader.pool)
        except RecordError as error:
            verdict.add(number, "line", str(error))
            continue
        if isinstance(entry, WorkloadLine):
            _check_workload(verdict, number, entry, scripts)
            continue
        verdict.records += 1
        verdict.duplicates += entry.identity in seen
        seen.add(entry.identity)
        referenced.setdefault(entry.workload, []).append(number)
        if id(entry.target) not in targets:  # the reader interns equal targets
            targets[id(entry.target)] = _target_fault(entry)
        if reason := targets[id(entry.target)]:
            verdict.add(number, "target", reason)
        _check_trace(verdict, number, entry)
    for digest in sorted(referenced.keys() - scripts.keys()):
        for number in referenced[digest]:
            verdict.add(number, "workload", f"the log has no line with the program {digest}")
    verdict.faults.sort(key=lambda f: f.line)
    return verdict


@dataclass(frozen=True)
class Stats(Rendered):
    """Counts of one or several logs, as plain JSON in `data`."""

    data: Mapping[str, Any]
    report: LogReport

    def to_json(self) -> Mapping[str, Any]:
        """The data written by `tunesmith log stats --json`."""
        return self.data

    def render(self) -> RenderableType:
        """The counts as tables for a terminal."""
        rows = [_stats_row(t) for t in self.data["tasks"]]
        columns = ["workload", "trials", "best us", "sketch", "build s", "run s", "errors", "curve"]
        parts: list[RenderableType] = [
            plain_table("Tasks" + ("" if _all_clean(self.data["tasks"]) else NOISY), columns, rows, left=["sketch", "errors", "curve"])
        ]
        sketches = [
            [
                t["workload"],
                name,
                str(s["trials"]),
                microseconds(_seconds(s["fastest_us"]), s["fastest_clean"]),
                counted(s["errors"]) or "none",
            ]
            for t in self.data["tasks"]
            for name, s in t["sketches"].items()
        ]
        parts.append(plain_table("Sketches", ["workload", "sketch", "trials", "fastest us", "errors"], sketches, left=["sketch", "errors"]))
        for t in self.data["tasks"]:
            parts += render_example_data(t["workload"], t["examples"])
        runs = [[str(r.get(name, "")) for name in ("started", "ended", "outcome")] for r in self.data["runs"]]
        if runs:
            parts.append(plain_table("Runs", ["started", "ended", "outcome"], runs, left=["ended", "outcome"]))
        if self.report.bad_count:
            parts.append(printable(f"! {self.report}", style="yellow"))
        return Group(*parts)


def stats(logs: Sequence[PathLike]) -> Stats:
    """Count records of each workload and target: trials, errors by class, the best, sketches, the curve, seconds per phase.

    The best and the curve use verified records only; the fastest of a sketch uses all.

    Raises:
        RecordError: a log does not exist or cannot be read.
    """
    database = Database.from_log(logs)
    workloads = database.workloads()
    tasks = [_task_stats(view, workloads.get(digest), digest, target) for view in database.views() for digest, target in view.tasks()]
    manifests = [path for log in logs if (path := manifest_path(log)).exists()]
    runs = [{k: run.get(k) for k in ("run", "started", "ended", "outcome", "seed")} for path in manifests for run in read_manifest(path)]
    report = database.report
    data = {
        "records": report.records,
        "workloads": report.workloads,
        "duplicates": report.duplicates,
        "bad_lines": report.bad_count,
        "tasks": tasks,
        "runs": runs,
    }
    return Stats(data, report)


def render_merge(out: Path, report: LogReport) -> RenderableType:
    """The result of a merge as text for a terminal."""
    return printable(f"{out}: {report}")


def render_prune(out: Path, report: PruneReport) -> RenderableType:
    """The result of a pruning as text for a terminal."""
    lines = [printable(f"{out}: {report.kept} records kept, {report.dropped} dropped; {report.log}")]
    lines += [printable(f"! workload {digest} has no verified record and is not in {out}") for digest in report.empty]
    return Group(*lines)


def _check_workload(verdict: Verdict, number: int, line: WorkloadLine, scripts: dict[str, str]) -> None:
    verdict.workloads += 1
    known = scripts.setdefault(line.digest, line.script)
    if known is not line.script:
        verdict.duplicates += 1
        if known != line.script:
            verdict.add(number, "conflict", f"workload {line.digest} was defined before with another script")
        else:
            return  # its digest is already checked
    try:
        digest = structural.digest(parse_function(line.script))
    except UserError as error:
        verdict.add(number, "digest", f"the script of {line.digest} is not a program: {str(error).splitlines()[0]}")
        return
    if digest != line.digest:
        verdict.add(number, "digest", f"the script of {line.digest} has the digest {digest}")


def _target_fault(record: Record) -> str:
    try:
        Target(record.target)
    except UserError as error:
        return str(error).splitlines()[0]
    return ""


def _check_trace(verdict: Verdict, number: int, record: Record) -> None:
    try:
        trace = Trace.from_json(record.trace)
    except RecordError as error:
        verdict.add(number, "trace", str(error))
        return
    unknown = next((i.kind for i in trace.instructions if i.kind not in PRIMITIVES), None)
    if unknown is not None:
        verdict.add(number, "trace", f"there is no instruction {unknown[:80]!r}")
    elif record.sketch and record.error is None:
        try:
            decided = trace.configuration()
        except RecordError as error:
            verdict.add(number, "row", str(error).splitlines()[0])
            return
        if decided != record.row:
            verdict.add(number, "row", f"the trace decides {list(decided)}, the row is {list(record.row)}"[:300])


def _task_stats(database: Database, line: WorkloadLine | None, digest: str, target: Mapping[str, object]) -> dict[str, Any]:
    records = database.records(digest, target)
    best = database.best(digest, target)
    errors: dict[str, int] = {}
    sketches: dict[str, dict[str, Any]] = {}
    curve: list[float | None] = []
    known: set[object] = set()
    for r in records:
        if r.candidate in known:
            continue  # the second record of a leader is not a trial
        known.add(r.candidate)
        entry = sketches.setdefault(r.sketch, {"trials": 0, "fastest_us": None, "fastest_clean": True, "errors": {}})
        entry["trials"] += 1
        least = curve[-1] if curve else None
        if r.error is not None:
            for counts in (errors, entry["errors"]):
                counts[r.error.kind] = counts.get(r.error.kind, 0) + 1
        else:
            us = r.seconds * 1e6
            if entry["fastest_us"] is None or us < entry["fastest_us"]:
                entry |= {"fastest_us": us, "fastest_clean": r.clean}
            if r.verified:
                least = us if least is None else min(us, least)
        curve.append(least)
    times = [r.timestamp for r in records]
    return {
        "workload": digest if line is None else line.name,
        "digest": digest,
        "target": dict(target),
        **({"passes": json.loads(database.changes)} if database.changes else {}),
        "trials": len(curve),
        "records": len(records),
        "noisy": sum(not r.clean for r in records if is_measurement(r)),
        "verified": sum(r.verified for r in records),
        "errors": dict(sorted(errors.items())),
        "examples": [e.to_json() for e in examples_of(records)],
        "best_us": None if best is None else best.seconds * 1e6,
        "best_clean": best is None or best.clean,
        "sketch": None if best is None else best.sketch,
        "sketches": dict(sorted(sketches.items())),
        "seconds": {"build": _total(records, "build_s"), "run": _total(records, "run_s"), "span": max(times) - min(times)},
        "curve": curve,
        **({} if records[-1].sizes is None else {"sizes": str(records[-1].sizes.box)}),
    }


def _all_clean(tasks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no time in the tables has the mark of a noisy measurement."""
    return all(t["best_clean"] and all(s["fastest_clean"] for s in t["sketches"].values()) for t in tasks)


def _total(records: Sequence[Record], name: str) -> float:
    """Sum of an extra field of the records; values in a log may have any type."""
    total = 0.0
    for r in records:
        value = r.extra.get(name)
        if isinstance(value, (int, float)) and abs(value) <= _MOST_SECONDS:
            total += value
    return total


def _stats_row(t: Mapping[str, Any]) -> list[str]:
    return [
        t["workload"],
        str(t["trials"]),
        microseconds(_seconds(t["best_us"]), t["best_clean"]),
        t["sketch"] or "-",
        f"{t['seconds']['build']:.1f}",
        f"{t['seconds']['run']:.1f}",
        counted(t["errors"]) or "none",
        sparkline(t["curve"]),
    ]


def _seconds(us: float | None) -> float | None:
    return None if us is None else us * 1e-6
