"""Append to and load tuning logs: append-only journals of record and workload lines.

The journal (`support.json_lines`) handles locking and torn lines.  Loading converts lines to records and never fails on their content: bad
lines are reported by number, and of several copies of a measurement the one with the highest status rank counts.
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

from tunesmith.measure.records.fields import ValuePool
from tunesmith.measure.records.record import Record, WorkloadLine, parse_line
from tunesmith.measure.records.record_decoder import RecordDecoder
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError

MAX_BAD_LINES = 100
"""Number of bad lines of a log that are stored for display; all are counted."""

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class BadEntry:
    """A bad line: its file, line number (from 1), and the reason."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(slots=True)
class LogReport:
    """Summary of one or several loaded logs.

    Attributes:
        records: distinct measurements.
        workloads: distinct programs.
        duplicates: lines that repeat a measurement or a program, including amended statuses.
        bad_count: number of bad lines.
        bad: the first `MAX_BAD_LINES` bad lines.
    """

    records: int = 0
    workloads: int = 0
    duplicates: int = 0
    bad_count: int = 0
    bad: list[BadEntry] = field(default_factory=list)

    def add_bad(self, path: PathLike, line: int, reason: str) -> None:
        """Count a bad line."""
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
    """The journal at one path.  Any number of processes may append concurrently; the object holds no state.

    Args:
        path: the file; created by the first append.
    Raises:
        RecordError: the path is not a regular file, or not a valid file name.
    """

    def __init__(self, path: PathLike) -> None:
        json_lines.check_journal(path)
        self.path = Path(path)

    def append(self, *lines: Record | WorkloadLine, sync: bool = False) -> None:
        """Append the lines atomically.

        Args:
            lines: lines to append.  Write a workload's line before its first record, in every run: copies are harmless.
            sync: wait for the disk, so that the lines survive a power failure.

        Raises:
            RecordError: a line could not be read back, or the file cannot be written.
        """
        json_lines.append(self.path, [line.to_json() for line in lines], sync=sync)

    def load(self) -> LogContents:
        """Load the log; empty if the file does not exist yet, so that first and resumed runs need no distinction.

        Raises:
            RecordError: the file exists but cannot be read.  Its content never raises.
        """
        return load([self.path]) if json_lines.exists(self.path) else LogContents([], {}, LogReport())


def load(paths: Sequence[PathLike]) -> LogContents:
    """Load several logs as one.  Records are in the order of `merged_order`, which is independent of the order of `paths`.

    Raises:
        RecordError: a file does not exist or cannot be read.  Its content never raises.
    """
    for path in paths:
        _refuse_table(path)
    report = LogReport()
    records: dict[str, Record] = {}
    workloads: dict[str, WorkloadLine] = {}
    orders: list[list[tuple[float, str]]] = []
    reader = RecordDecoder()
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
                first = records.setdefault(entry.identity, entry)
                if first is entry:
                    continue
                report.duplicates += 1
                if status_rank(entry) > status_rank(first):
                    records[entry.identity] = entry
    report.records, report.workloads = len(records), len(workloads)
    ordered = list(records.values()) if len(paths) == 1 else [records[identity] for identity in merged_order(orders)]
    return LogContents(ordered, workloads, report)


def _refuse_table(path: PathLike) -> None:
    """Reject record tables, by the file name: as a log, such a file would consist of bad lines only.

    Raises:
        RecordError: the file name ends in `.parquet`.
    """
    if isinstance(path, (str, os.PathLike)) and str(path).endswith(".parquet"):
        with json_lines.open_journal(path) as file:
            start = file.read(4)
        why = (
            "is a record table, but a log is expected" if start == b"PAR1" else "is not a parquet file, or damaged; rebuild it from its log"
        )
        raise RecordError(f"cannot read {os.fspath(path)}: it {why}")


def merged_order(logs: Sequence[Sequence[tuple[float, str]]]) -> list[str]:
    """Merge the records of several logs into one order, independent of the order of the logs.

    Each log's order is preserved, regardless of timestamps: among the records that are next in all logs containing them, the earliest comes
    first.  If logs contradict each other, the earliest next record of any log is taken.

    Args:
        logs: timestamp and identity of each record, in the order of the log.
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


def status_rank(record: Record) -> int:
    """Rank of a record's status: failed 2, verified 1, otherwise 0.  Of copies of a measurement the one of the highest rank counts."""
    return 2 if record.error is not None else int(record.verified)


def entry_of(line: object, pool: ValuePool) -> Record | WorkloadLine:
    """Parse a line read from the journal.

    Raises:
        NewerRecordError: the line is of a newer version.
        RecordError: the line is invalid.
    """
    if isinstance(line, json_lines.BadLine):
        raise RecordError(line.reason)
    return parse_line(line, pool)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Disable the garbage collector: plain data has no cycles, and searching for them takes a fifth of the load time of a large log."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _conflict(digest: str) -> str:
    return f"workload {digest} is already defined with another script; the first definition is used"
