"""The best known candidate of a workload on a target, and which candidates were measured already.

Everything is keyed by workload *and* target: a record of one target is never an answer for another.  A candidate that
was measured more than once is judged by one record, its standing (see `Database`).
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.measure.record import CandidateKey, Record, WorkloadLine, target_key
from tunesmith.measure.record_log import LogReport, PathLike, load, verdict

_Standing = tuple[float, float, str]


@dataclass(slots=True)
class _Task:
    """The records of one workload on one target."""

    records: dict[str, Record] = field(default_factory=dict)
    by_candidate: dict[CandidateKey, dict[str, Record]] = field(default_factory=dict)
    standing: dict[CandidateKey, Record] = field(default_factory=dict)
    leader: CandidateKey | None = None

    def add(self, record: Record) -> bool:
        known = self.records.get(record.identity)
        if known is not None and verdict(record) <= verdict(known):
            return False
        self.records[record.identity] = record
        candidate = record.candidate
        measured = self.by_candidate.setdefault(candidate, {})
        measured[record.identity] = record
        self._settle(candidate, _standing(measured.values()))
        return known is None

    def _settle(self, candidate: CandidateKey, record: Record | None) -> None:
        """Note the candidate's standing and who leads now."""
        if record is None:
            self.standing.pop(candidate, None)
        else:
            self.standing[candidate] = record
        if candidate == self.leader:  # it may have lost the lead: only now are all candidates compared
            self.leader = min(self._eligible(), key=lambda key: _rank(self.standing[key]), default=None)
        elif record is not None and record.verified:
            if self.leader is None or _rank(record) < _rank(self.standing[self.leader]):
                self.leader = candidate

    def _eligible(self) -> Iterable[CandidateKey]:
        return (key for key, record in self.standing.items() if record.verified)


class Database:
    """Records in memory, kept in order as they arrive.  All methods may be called from any thread.

    The *standing* of a candidate is one of its records without an error: a verified one before an unverified one, a
    clean one before a noisy one, then the latest.  So the interleaved comparison at the end of a search overrules a
    lucky first measurement.  A wrong result ends the standing of everything measured up to then.

    Args:
        records: records to begin with.
        workloads: programs to begin with.
    """

    def __init__(self, records: Iterable[Record] = (), workloads: Iterable[WorkloadLine] = ()) -> None:
        self.report = LogReport()
        """What was found in the logs this database was loaded from, bad lines included."""
        self._lock = threading.RLock()
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._workloads: dict[str, WorkloadLine] = {}
        self._count = 0
        for line in workloads:
            self.add_workload(line)
        for record in records:
            self.add(record)

    @classmethod
    def from_log(cls, paths: PathLike | Sequence[PathLike]) -> Database:
        """Load one log or several.  `report` tells what could not be used.

        Raises:
            RecordError: a file is not there or cannot be read.  No content of it raises.
        """
        contents = load([paths] if isinstance(paths, (str, os.PathLike)) else list(paths))
        database = cls(contents.records, contents.workloads.values())
        database.report = contents.report
        return database

    def __len__(self) -> int:
        """Number of distinct measurements, failed ones included."""
        return self._count

    def add(self, record: Record) -> bool:
        """Take in one record.  False if this measurement was known; a graver verdict on it is taken over all the same."""
        key = (record.workload, target_key(record.target))
        with self._lock:
            is_new = self._tasks.setdefault(key, _Task()).add(record)
            self._count += is_new
            return is_new

    def add_workload(self, line: WorkloadLine) -> None:
        """Take in a program.  The first definition of a digest stays."""
        with self._lock:
            self._workloads.setdefault(line.digest, line)

    def best(self, workload: str, target: Mapping[str, object]) -> Record | None:
        """The standing of the fastest candidate that is verified and free of errors, in constant time.

        Equal times are decided by age, then by identity: the order of `add` does not matter.
        """
        with self._lock:
            task = self._tasks.get((workload, target_key(target)))
            return task.standing[task.leader] if task is not None and task.leader is not None else None

    def top(self, workload: str, target: Mapping[str, object], k: int, *, unverified: bool = False) -> list[Record]:
        """The standings of the k fastest candidates, fastest first.

        Args:
            workload: digest.
            target: plain JSON of the target.
            k: so many at most.
            unverified: take candidates in whose output nobody compared, as a search does to choose whom to verify.
        """
        with self._lock:
            task = self._tasks.get((workload, target_key(target)))
            if task is None:
                return []
            return heapq.nsmallest(k, (r for r in task.standing.values() if unverified or r.verified), key=_rank)

    def measured(self, workload: str, target: Mapping[str, object]) -> set[CandidateKey]:
        """All candidates that were tried, failures included: what a search that resumes need not try again."""
        with self._lock:
            task = self._tasks.get((workload, target_key(target)))
            return set(task.by_candidate) if task is not None else set()

    def records(self, workload: str | None = None, target: Mapping[str, object] | None = None) -> list[Record]:
        """All records, or those of a workload, of a target or of both, in the order of arrival within each."""
        wanted = None if target is None else target_key(target)
        with self._lock:
            return [
                record
                for (digest, key), task in self._tasks.items()
                if workload in (None, digest) and wanted in (None, key)
                for record in task.records.values()
            ]

    def workloads(self) -> dict[str, WorkloadLine]:
        """The known programs by digest.  A workload that has only records is not among them, see `tasks`."""
        with self._lock:
            return dict(self._workloads)

    def tasks(self) -> list[tuple[str, Mapping[str, object]]]:
        """Workload digest and target of everything that has records, in the order of arrival."""
        with self._lock:
            return [(digest, next(iter(task.records.values())).target) for (digest, _), task in self._tasks.items()]


def _standing(records: Iterable[Record]) -> Record | None:
    """The record that speaks for a candidate, see `Database`."""
    records = list(records)
    wrong = max((r.timestamp for r in records if r.error is not None and r.error.kind == "wrong_result"), default=-1.0)
    valid = [r for r in records if r.error is None and r.timestamp > wrong]
    return max(valid, key=lambda r: (r.verified, r.clean, r.timestamp, r.identity), default=None)


def _rank(record: Record) -> _Standing:
    return record.seconds, record.timestamp, record.identity
