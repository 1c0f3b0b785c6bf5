"""A tuning log is an append-only journal of record and workload lines, which can be merged and loaded whatever it holds.

The journal (`support.json_lines`) takes care of locks and torn lines.  Here its lines become records: bad lines are
reported by number, copies of one measurement count once, and of two copies the graver verdict counts, so that the
result of a merge does not depend on the order of the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from tunesmith.measure.record import Record, WorkloadLine, parse_line
from tunesmith.measure.record_fields import NewerRecordError, Pool, canonical
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError

MAX_BAD_LINES = 100
"""So many bad lines of a log are kept to be shown; all are counted."""

_BATCH = 1000

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class BadEntry:
    """A line that could not be used: in which file, the line number from 1, and why."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(slots=True)
class LogReport:
    """What was found in one or several logs.

    Attributes:
        records: distinct measurements.
        workloads: distinct programs.
        duplicates: lines that repeat a measurement or a program, amended verdicts among them.
        bad_count: lines that could not be used.
        bad: the first `MAX_BAD_LINES` of them.
    """

    records: int = 0
    workloads: int = 0
    duplicates: int = 0
    bad_count: int = 0
    bad: list[BadEntry] = field(default_factory=list)

    def add_bad(self, path: PathLike, line: int, reason: str) -> None:
        """Count a line that could not be used."""
        self.bad_count += 1
        if len(self.bad) < MAX_BAD_LINES:
            self.bad.append(BadEntry(os.fspath(path), line, reason))

    def __str__(self) -> str:
        text = f"{self.records} records, {self.workloads} workloads, {self.duplicates} duplicates, {self.bad_count} bad lines"
        shown = [f"  {entry}" for entry in self.bad[:10]]
        hidden = self.bad_count - len(shown)
        return "\n".join([text, *shown, *([f"  ... and {hidden} more"] if hidden > 0 else [])])


@dataclass(frozen=True, slots=True)
class LogContents:
    """A loaded log: each measurement once, in the order of first appearance, and the programs by digest."""

    records: Sequence[Record]
    workloads: Mapping[str, WorkloadLine]
    report: LogReport


class RecordLog:
    """The journal at one path.  Any number of processes may append to it at once; the object itself holds no state.

    Args:
        path: the file; it is made by the first append.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)

    def append(self, *lines: Record | WorkloadLine, sync: bool = False) -> None:
        """Add the lines, all of them or none.

        Args:
            lines: a workload's line is best written before the first record of it, in every run: copies cost nothing.
            sync: wait for the disk, so that the lines survive a loss of power.

        Raises:
            RecordError: a line is not fit to be read back, or the file cannot be written.
        """
        json_lines.append(self.path, [line.to_json() for line in lines], sync=sync)

    def load(self) -> LogContents:
        """Everything in the log; empty if there is no file yet, which is how a run that resumes begins.

        Raises:
            RecordError: the file is there and cannot be read.  No content of it raises.
        """
        return load([self.path]) if self.path.exists() else LogContents([], {}, LogReport())


def load(paths: Sequence[PathLike]) -> LogContents:
    """Load several logs as one.

    Raises:
        RecordError: a file is not there or cannot be read.  No content of it raises.
    """
    report = LogReport()
    records: dict[str, Record] = {}
    workloads: dict[str, WorkloadLine] = {}
    pool = Pool()
    for path in paths:
        for number, line in json_lines.read(path):
            try:
                entry = _parse(line, pool)
            except RecordError as error:
                report.add_bad(path, number, str(error))
                continue
            if isinstance(entry, WorkloadLine):
                known = workloads.setdefault(entry.digest, entry)
                if known is entry:
                    continue
                report.duplicates += 1
                if known.script != entry.script:
                    report.add_bad(path, number, _conflict(entry.digest))
                continue
            kept = records.setdefault(entry.identity, entry)
            if kept is entry:
                continue
            report.duplicates += 1
            if verdict(entry) > verdict(kept):
                records[entry.identity] = entry
    report.records, report.workloads = len(records), len(workloads)
    return LogContents(list(records.values()), workloads, report)


def merge(paths: Sequence[PathLike], out: PathLike) -> LogReport:
    """Write the distinct lines of several logs to a new one.

    A line is carried over as it stands, with fields that this version does not know; so is a line of a newer version,
    which counts among the bad lines of the report all the same.  Only digests are held in memory.

    Args:
        paths: logs; one may be named twice.
        out: a file that is not there yet: a log that others may be writing to is never replaced.

    Raises:
        RecordError: an input cannot be read, `out` exists or cannot be written.  No content of the inputs raises.
    """
    out = Path(out)
    if out.exists():
        raise RecordError(f"cannot merge into {out}: it exists. Name a new file, and give {out} as one of the inputs to keep its lines")
    report = LogReport()
    chosen = _choose(paths, report)
    partial = out.with_name(out.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        batch: list[object] = []
        for place, line in _places(paths):
            if place in chosen:
                batch.append(line)
            if len(batch) == _BATCH:
                json_lines.append(partial, batch)
                batch.clear()
        json_lines.append(partial, batch, sync=True)
        partial.touch()  # no line at all is a log, too
        out.touch(exist_ok=False)  # fails if somebody made it meanwhile
        partial.replace(out)
        Path(f"{partial}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise RecordError(f"cannot merge into {out}: {error.strerror or error}. Check the path and its permissions") from error
    return report


def verdict(record: Record) -> int:
    """How grave the verdict on a measurement is: an amendment counts if it is graver.  Failed 2, verified 1, neither 0."""
    return 2 if record.error is not None else int(record.verified)


def _parse(line: object, pool: Pool) -> Record | WorkloadLine:
    if isinstance(line, json_lines.BadLine):
        raise RecordError(line.reason)
    return parse_line(line, pool)


def _conflict(digest: str) -> str:
    return f"workload {digest} was defined before with another script; the first definition is used"


Place = tuple[int, int]
"""A line: index of the file, number of the line."""


def _places(paths: Sequence[PathLike]) -> Iterator[tuple[Place, object]]:
    for index, path in enumerate(paths):
        for number, line in json_lines.read(path):
            yield (index, number), line


def _choose(paths: Sequence[PathLike], report: LogReport) -> set[Place]:
    """The places of the lines that a merge keeps, and the counts of all others."""
    best: dict[str, tuple[int, Place]] = {}
    scripts: dict[str, bytes] = {}
    newer: dict[str, Place] = {}
    kept: set[Place] = set()
    for place, line in _places(paths):
        path, number = paths[place[0]], place[1]
        try:
            entry = _parse(line, Pool())
        except NewerRecordError as error:
            report.add_bad(path, number, f"{error}. The line was carried over")
            newer.setdefault(_hash(canonical("line", line)).hex(), place)
            continue
        except RecordError as error:
            report.add_bad(path, number, str(error))
            continue
        if isinstance(entry, WorkloadLine):
            script = _hash(entry.script)
            if entry.digest not in scripts:
                scripts[entry.digest] = script
                kept.add(place)
                continue
            report.duplicates += 1
            if scripts[entry.digest] != script:
                report.add_bad(path, number, _conflict(entry.digest))
            continue
        grave = verdict(entry)
        report.duplicates += entry.identity in best
        if entry.identity not in best or grave > best[entry.identity][0]:
            best[entry.identity] = (grave, place)
    report.records, report.workloads = len(best), len(scripts)
    return kept | set(newer.values()) | {place for _, place in best.values()}


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
