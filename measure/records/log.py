"""A tuning log is an append-only journal of record and workload lines, which can be loaded whatever it holds.

The journal (`support.json_lines`) takes care of locks and torn lines.  Here its lines become records: bad lines are
reported by number, copies of one measurement count once, and of two copies the graver verdict counts.
"""

from __future__ import annotations

import gc
import heapq
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tunesmith.measure.records.fields import Pool
from tunesmith.measure.records.record import Record, WorkloadLine, parse_line
from tunesmith.measure.records.record_decoder import LineReader
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError

MAX_BAD_LINES = 100
"""So many bad lines of a log are kept to be shown; all are counted."""

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
    Raises:
        RecordError: something else than a regular file is there, or no file can have this name.
    """

    def __init__(self, path: PathLike) -> None:
        json_lines.check_journal(path)
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
        return load([self.path]) if json_lines.exists(self.path) else LogContents([], {}, LogReport())


def load(paths: Sequence[PathLike]) -> LogContents:
    """Load several logs as one, whose records are in the order of `merged_order`: which log is named first does not matter.

    Raises:
        RecordError: a file is not there or cannot be read.  No content of it raises.
    """
    for path in paths:
        _refuse_table(path)
    report = LogReport()
    records: dict[str, Record] = {}
    workloads: dict[str, WorkloadLine] = {}
    orders: list[list[tuple[float, str]]] = []
    reader = LineReader()
    with _collector_paused():
        for path in paths:
            orders.append([])
            for number, line in json_lines.read(path, decode=reader.read):
                try:
                    entry = entry_of(line, reader.pool)
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
                orders[-1].append((entry.timestamp, entry.identity))
                kept = records.setdefault(entry.identity, entry)
                if kept is entry:
                    continue
                report.duplicates += 1
                if verdict(entry) > verdict(kept):
                    records[entry.identity] = entry
    report.records, report.workloads = len(records), len(workloads)
    ordered = list(records.values()) if len(paths) == 1 else [records[identity] for identity in merged_order(orders)]
    return LogContents(ordered, workloads, report)


def _refuse_table(path: PathLike) -> None:
    """Refuse a file that ends like a record table and does not begin as one: as a log it would be one without a single good line.

    Raises:
        RecordError: it is such a file.
    """
    if isinstance(path, (str, os.PathLike)) and str(path).endswith(".parquet"):
        with json_lines.open_journal(path) as file:
            start = file.read(4)
        why = (
            "holds a record table, and a log is wanted"
            if start == b"PAR1"
            else "is no parquet file, or damaged; make it again from its log"
        )
        raise RecordError(f"cannot read {os.fspath(path)}: it {why}")


def merged_order(logs: Sequence[Sequence[tuple[float, str]]]) -> list[str]:
    """The records of several logs in one order, which does not depend on the order of the logs.

    The records of a log keep their order, whatever their clock says: of the records that are next in all logs that hold them, the earliest
    comes first.  Logs that contradict each other give way where nothing else goes on.

    Args:
        logs: time and identity of each record, in the order of the log.
    Returns:
        Each identity once.
    """
    ordered: dict[str, None] = {}
    rest = [iter(dict.fromkeys(log)) for log in logs]
    holders = Counter([identity for log in logs for _, identity in dict.fromkeys(log)])
    waiting: dict[tuple[float, str], list[int]] = {}
    ready: list[tuple[float, str]] = []

    def advance(n: int) -> None:
        head = next((record for record in rest[n] if record[1] not in ordered), None)
        if head is not None:
            at = waiting.setdefault(head, [])
            at.append(n)
            if len(at) == holders[head[1]]:
                heapq.heappush(ready, head)

    for n in range(len(logs)):
        advance(n)
    while waiting:
        head = heapq.heappop(ready) if ready else min(waiting)
        ordered[head[1]] = None
        for n in waiting.pop(head):
            advance(n)
    return list(ordered)


def verdict(record: Record) -> int:
    """How grave the verdict on a measurement is: an amendment counts if it is graver.  Failed 2, verified 1, neither 0."""
    return 2 if record.error is not None else int(record.verified)


def entry_of(line: object, pool: Pool) -> Record | WorkloadLine:
    """A line as the journal gives it, checked.

    Raises:
        NewerRecordError: it is of a newer version.
        RecordError: it is bad in any other way.
    """
    if isinstance(line, json_lines.BadLine):
        raise RecordError(line.reason)
    return parse_line(line, pool)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Plain data has no cycles; looking for some again and again in what was read takes a fifth of the time of a large log."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _conflict(digest: str) -> str:
    return f"workload {digest} was defined before with another script; the first definition is used"
