"""The best known candidate of a workload on a target, and which candidates were measured already.

Everything is keyed by workload *and* target: a record of one target is never an answer for another.  Which measurement of a candidate
counts and which candidate is best is defined in `standing`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.log import LogReport, PathLike, load, verdict
from tunesmith.measure.records.record import CandidateKey, Record, WorkloadLine, target_key
from tunesmith.measure.records.status import Standing, leader_of, standing_of
from tunesmith.measure.time_floor import SHORTEST, least_seconds
from tunesmith.support.errors import RecordError, UserError


@dataclass(slots=True)
class _Task:
    """The records of one workload on one target.

    Attributes:
        records: by identity, in order.
        by_candidate: those of each candidate, by the digest of its schedule: two schedules that have the name of the sketch and the row
            in common, as after a change of the rules, are two candidates.
        least: seconds below which a time is impossible.
        standings: of candidates whose records were not added to since.
        changed: the other candidates.
        ordered: all standings in the order of the records that count, if `changed` is empty.
        leader: the best, if `changed` is empty.
        bounded_by: what `least` follows from: "line" for the program in the log, "program" for one that was given, "" for neither yet.
    """

    records: dict[str, Record] = field(default_factory=dict)
    by_candidate: dict[str, dict[str, Record]] = field(default_factory=dict)
    least: float = SHORTEST
    standings: dict[str, Standing] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    ordered: list[Standing] = field(default_factory=list)
    leader: Standing | None = None
    bounded_by: str = ""

    def add(self, record: Record) -> bool:
        known = self.records.get(record.identity)
        if known is not None and verdict(record) <= verdict(known):
            return False
        self.records[record.identity] = record
        self.by_candidate.setdefault(record.schedule, {})[record.identity] = record
        self.changed.add(record.schedule)
        return known is None

    def judged(self, least: float) -> list[Standing]:
        """The standings of all candidates that have one, in the order of the records that count; `leader` is then up to date."""
        if least != self.least:
            self.least = least
            self.changed = set(self.by_candidate)
        if self.changed:
            for key in self.changed:
                standing = standing_of(self.by_candidate[key].values(), least)
                if standing is None:
                    self.standings.pop(key, None)
                else:
                    self.standings[key] = standing
            self.changed.clear()
            place = {identity: n for n, identity in enumerate(self.records)}
            self.ordered = sorted(self.standings.values(), key=lambda s: place[s.record.identity])
            self.leader = leader_of(self.ordered)
        return self.ordered


class Database:
    """Records in memory, kept in order as they arrive.  All methods may be called from any thread.

    Each candidate is judged by one of its measurements, its standing, and the best is chosen among them, as `standing` defines it.

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
        for given in (records, workloads):
            if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
                raise UserError(f"a Database is made of a list of Records, not of {given!r:.200}. Database.from_log(path) loads a log")
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
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        elif isinstance(paths, bytes) or not isinstance(paths, Iterable):
            raise RecordError(f"records are given by the path of a log, a list of paths, or a Database, not by {paths!r:.200}")
        contents = load(list(paths))
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

    def best(self, workload: str, target: Mapping[str, object], program: PrimFunc | None = None) -> Record | None:
        """The measurement of the best candidate (see `standing.leader_of`), in constant time if nothing was added since.

        Of equal times the first counts.  Times that the target cannot reach count nothing (see `time_floor`).

        Args:
            workload: digest.
            target: plain JSON of the target.
            program: the workload, if it is at hand; otherwise the program in the log, if it is there.
        """
        with self._lock:
            task = self._tasks.get((workload, target_key(target)))
            if task is None:
                return None
            task.judged(self._least(task, workload, target, program))
            return None if task.leader is None else task.leader.record

    def top(self, workload: str, target: Mapping[str, object], k: int, *, unverified: bool = False) -> list[Record]:
        """The standings of the best and of the next k - 1 fastest candidates.

        Args:
            workload: digest.
            target: plain JSON of the target.
            k: so many at most.
            unverified: the k fastest, including candidates that are not verified: a search chooses from them.
        """
        return [s.record for s in self._top(workload, target, k, unverified)]

    def evidence(self, workload: str, target: Mapping[str, object], k: int) -> list[Record]:
        """The records by which `top` judges: a database of these alone judges the k candidates alike."""
        chosen = {id(r): r for s in self._top(workload, target, k, False) for r in (s.first, s.again) if r is not None}
        return list(chosen.values())

    def _top(self, workload: str, target: Mapping[str, object], k: int, unverified: bool) -> list[Standing]:
        with self._lock:
            task = self._tasks.get((workload, target_key(target)))
            if task is None:
                return []
            judged = task.judged(self._least(task, workload, target, None))
            if unverified:
                return sorted(judged, key=lambda s: s.seconds)[:k]
            verified = [s for s in judged if s.record.verified]
            return sorted(verified, key=lambda s: (s is not task.leader, s.seconds))[:k]  # the leader is not always the fastest

    def _least(self, task: _Task, workload: str, target: Mapping[str, object], program: PrimFunc | None) -> float:
        """Seconds that every schedule of the workload takes; worked out once from the log's program, and once from a given one."""
        line = self._workloads.get(workload)
        if task.bounded_by == "program" or (program is None and (line is None or task.bounded_by == "line")):
            return task.least
        task.bounded_by = "line" if program is None else "program"
        try:
            func = _program_of(line) if program is None and line is not None else program
            return SHORTEST if func is None else least_seconds(func, Target(target))
        except (UserError, RecursionError):  # no program, or no target
            return SHORTEST

    def measured(self, workload: str, target: Mapping[str, object]) -> set[CandidateKey]:
        """All candidates that were tried, failures included: what a search that resumes need not try again."""
        with self._lock:
            task = self._tasks.get((workload, target_key(target)))
            return {r.candidate for r in task.records.values()} if task is not None else set()

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


def _program_of(line: WorkloadLine) -> PrimFunc | None:
    """The program of a line; None if it is not the one that the line says."""
    func = parse(line.script)
    return func if isinstance(func, PrimFunc) and structural.digest(func) == line.digest else None
