"""Index records in memory: the best candidate of a workload on a target, and the candidates measured so far.

All queries are keyed by workload *and* target: records are never used for another target.  Records that were compiled with changed passes
are in databases of their own (`compiled_with`).  `status` defines which measurement of a candidate counts and which candidate is best.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.lower.size_ranges import SizeRanges
from tunesmith.measure.records.fields import canonical
from tunesmith.measure.records.log import LogReport, PathLike, load, status_rank
from tunesmith.measure.records.record import CandidateKey, Record, WorkloadLine, target_key
from tunesmith.measure.records.status import Status, leader_of, status_of
from tunesmith.measure.time_floor import SHORTEST, min_seconds
from tunesmith.support.errors import RecordError, UserError

TargetLike = Target | Mapping[str, object]
"""A target, or its plain JSON (`Target.to_json`), as records have it."""


@dataclass(slots=True)
class _Task:
    """The records of one workload on one target.

    Attributes:
        records: by identity, in order.
        by_candidate: records of each candidate, by schedule digest: schedules with equal sketch name and row but different traces, as
            after a change of the rules, are different candidates.
        least: seconds below which a time is impossible.
        statuses: statuses of the candidates that are up to date.
        changed: candidates with new records.
        ordered: all statuses in the order of the records that count; valid if `changed` is empty.
        leader: status of the best candidate; valid if `changed` is empty.
        bounded_by: source of `least`: "line" for the program in the log, "program" for a given one, "" if not computed yet.
    """

    records: dict[str, Record] = field(default_factory=dict)
    by_candidate: dict[str, dict[str, Record]] = field(default_factory=dict)
    least: float = SHORTEST
    statuses: dict[str, Status] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    ordered: list[Status] = field(default_factory=list)
    leader: Status | None = None
    bounded_by: str = ""

    def add(self, record: Record) -> bool:
        known = self.records.get(record.identity)
        if known is not None and status_rank(record) <= status_rank(known):
            return False
        self.records[record.identity] = record
        self.by_candidate.setdefault(record.schedule, {})[record.identity] = record
        self.changed.add(record.schedule)
        return known is None

    def updated(self, least: float) -> list[Status]:
        """Update and return the statuses of all candidates that have one, in the order of the records that count; update `leader`."""
        if least != self.least:
            self.least = least
            self.changed = set(self.by_candidate)
        if self.changed:
            for key in self.changed:
                status = status_of(self.by_candidate[key].values(), least)
                if status is None:
                    self.statuses.pop(key, None)
                else:
                    self.statuses[key] = status
            self.changed.clear()
            positions = {identity: n for n, identity in enumerate(self.records)}

            def position(record: Record) -> int:
                return positions[record.identity]

            self.ordered = sorted(self.statuses.values(), key=lambda s: position(s.record))
            self.leader = leader_of(self.ordered, position)
        return self.ordered


class Database:
    """Records in memory, in order of arrival.  Thread-safe.

    One measurement of each candidate counts, and the best candidate is chosen by these, see `status`.

    Args:
        records: initial records.
        workloads: initial programs.
    """

    def __init__(self, records: Iterable[Record] = (), workloads: Iterable[WorkloadLine] = ()) -> None:
        self.report = LogReport()
        """Report on the logs from which this database was loaded, with their bad lines."""
        self._lock = threading.RLock()
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._workloads: dict[str, WorkloadLine] = {}
        self._sizes: dict[tuple[str, str, SizeRanges, str], None] = {}
        """(function, target, box, workload) of the records for sizes of dynamic shapes, in the order of the last records."""
        self._passes = ""
        """Canonical text of the changes of passes that all records of this database were compiled with."""
        self._others: dict[str, Database] = {"": self}
        """The databases of all changes of passes by their canonical text; shared by these databases."""
        self._count = 0
        for given in (records, workloads):
            if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
                raise UserError(f"a Database takes a list of Records, not {given!r:.200}. Database.from_log(path) loads a log")
        for line in workloads:
            self.add_workload(line)
        for record in records:
            self.add(record)

    @classmethod
    def from_log(cls, paths: PathLike | Sequence[PathLike]) -> Database:
        """Load one or several logs.  `report` lists bad lines.

        Raises:
            RecordError: a file does not exist or cannot be read.  Its content never raises.
        """
        if isinstance(paths, (str, os.PathLike)):
            paths = [paths]
        elif isinstance(paths, bytes) or not isinstance(paths, Iterable):
            raise RecordError(f"expected records as the path of a log, a list of paths, or a Database, got {paths!r:.200}")
        contents = load(list(paths))
        database = cls(contents.records, contents.workloads.values())
        database.report = contents.report
        return database

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are new databases of the same records and programs: a lock can be neither shared nor pickled."""
        records = [r for database in self.views() for r in database.records()]
        return _restored, (records, list(self.workloads().values()), self._passes, self.report)

    def __len__(self) -> int:
        """Number of distinct measurements, including failed ones."""
        return self._count

    def __repr__(self) -> str:
        with self._lock:
            digests = {digest for digest, _ in self._tasks} | self._workloads.keys()
        counts = [f"{n} {name}{'s' * (n != 1)}" for n, name in ((len(self), "record"), (len(digests), "workload"))]
        return f"<Database of {counts[0]} of {counts[1]}>"

    def add(self, record: Record) -> bool:
        """Add a record.  Returns False if the measurement is already present; a copy of higher status rank still replaces it."""
        if self._key(record.passes) != self._passes:
            return self.compiled_with(record.passes).add(record)
        key = (record.workload, target_key(record.target))
        with self._lock:
            is_new = self._tasks.setdefault(key, _Task()).add(record)
            if record.sizes is not None:
                tuned = (record.sizes.function, key[1], record.sizes.box, record.workload)
                self._sizes.pop(tuned, None)
                self._sizes[tuned] = None
            self._count += is_new
            return is_new

    def compiled_with(self, changes: Mapping[str, object]) -> Database:
        """The records that were compiled with these changes of passes (`Record.passes`), as a database with the same programs.

        Records that are added to one of these databases belong to all copies that this method returns.  Without changes it has the records
        of the default passes, which are those that a new database shows.
        """
        key = self._key(changes)
        with self._lock:
            if key not in self._others:
                other = Database()
                other._lock, other._workloads, other._others, other._passes = self._lock, self._workloads, self._others, key
                self._others[key] = other
            found = self._others[key]
            found.report = self.report
            return found

    @property
    def changes(self) -> str:
        """Canonical text of the changes of passes that all records of this database were compiled with; empty for none."""
        return self._passes

    def views(self) -> list[Database]:
        """This database, and those of all other changes of passes."""
        with self._lock:
            return [self, *[other for other in self._others.values() if other is not self]]

    def changes_measured(self, workload: str) -> list[str]:
        """Canonical texts of the changes of passes with which other databases have records of a workload."""
        with self._lock:
            return [key for key, other in self._others.items() if other is not self and other.records(workload)]

    @staticmethod
    def _key(changes: Mapping[str, object]) -> str:
        return canonical("passes", changes) if changes else ""

    def add_workload(self, line: WorkloadLine) -> None:
        """Add a program.  The first definition of a digest is kept."""
        with self._lock:
            self._workloads.setdefault(line.digest, line)

    def best(self, workload: str, target: TargetLike, program: PrimFunc | None = None) -> Record | None:
        """The counting measurement of the best candidate (see `status.leader_of`); constant time if no record was added since.

        Of equal times the first counts.  Times that the target cannot reach are ignored (see `time_floor`).

        Args:
            workload: digest of the workload.
            target: the target, or its plain JSON.
            program: the workload's function if available; by default the program in the log, if any.
        Raises:
            UserError: the workload has the form of a name, or `target` is neither a target nor the JSON of one.
        """
        with self._lock:
            task = self._task(workload, target)
            if task is None:
                return None
            task.updated(self._least(task, workload, target, program))
            return None if task.leader is None else task.leader.record

    def top(self, workload: str, target: TargetLike, k: int, *, unverified: bool = False) -> list[Record]:
        """The counting measurements of the best candidate and of the k - 1 next fastest.

        Args:
            workload: digest of the workload.
            target: the target, or its plain JSON.
            k: maximum number of candidates.
            unverified: return the k fastest, including unverified candidates, from which a search chooses.
        Raises:
            UserError: as `best`.
        """
        return [s.record for s in self._top(workload, target, k, unverified)]

    def evidence(self, workload: str, target: TargetLike, k: int) -> list[Record]:
        """The records that determine `top`, in order: a database of these records alone gives the same statuses for the k candidates."""
        with self._lock:
            kept = {id(r) for s in self._top(workload, target, k, False) for r in (s.first, s.again, s.chosen) if r is not None}
            return [r for r in self.records(workload, target) if id(r) in kept]

    def _task(self, workload: str, target: TargetLike) -> _Task | None:
        """The records of a workload on a target; None without any."""
        found = self._tasks.get((workload, _target_key(target)))
        if found is None:
            self._check_digest(workload)
        return found

    def _check_digest(self, workload: object) -> None:
        """Refuse a workload without records that has the form of a name, or is a program, and hence cannot be a digest."""
        if isinstance(workload, str) and not any(c in workload for c in "(:/."):
            return
        digest = next((repr(d) for d, line in self._workloads.items() if line.name == workload), None)
        known = f"that of this workload is {digest}" if digest is not None else "such as report.tasks[0].digest"
        raise UserError(
            f"workload={workload!r:.200}: expected the digest of a program, {known}; Database.workloads() has the names of all digests"
        )

    def _top(self, workload: str, target: TargetLike, k: int, unverified: bool) -> list[Status]:
        with self._lock:
            task = self._task(workload, target)
            if task is None:
                return []
            statuses = task.updated(self._least(task, workload, target, None))
            if unverified:
                return sorted(statuses, key=lambda s: s.seconds)[:k]
            verified = [s for s in statuses if s.record.verified]
            # The leader is not always the fastest.  Of equal times the candidate that was measured first comes first, as in `leader_of`.
            place = {identity: n for n, identity in enumerate(task.records)}
            return sorted(verified, key=lambda s: (s is not task.leader, s.seconds, place[s.first.identity]))[:k]

    def _least(self, task: _Task, workload: str, target: TargetLike, program: PrimFunc | None) -> float:
        """Lower bound of the workload's seconds; computed once from the program in the log, and once from a given one."""
        line = self._workloads.get(workload)
        if task.bounded_by == "program" or (program is None and (line is None or task.bounded_by == "line")):
            return task.least
        task.bounded_by = "line" if program is None else "program"
        try:
            func = _program_of(line) if program is None and line is not None else program
            return SHORTEST if func is None else min_seconds(func, target if isinstance(target, Target) else Target(target))
        except (UserError, RecursionError):  # the program or the target is invalid
            return SHORTEST

    def tuned_sizes(self, function: str, target: TargetLike) -> list[tuple[SizeRanges, str]]:
        """The sizes for which a function with dynamic shapes was tuned, each with the digest of the workload of its records.

        Of boxes that overlap, the one of the latest record comes first: a function may be tuned again for other ranges.

        Args:
            function: digest of the function.
            target: the target, or its plain JSON.
        """
        key = _target_key(target)
        with self._lock:
            found = [(box, workload) for (f, k, box, workload) in self._sizes if (f, k) == (function, key)]
        return found[::-1]

    def measured(self, workload: str, target: TargetLike) -> set[CandidateKey]:
        """All measured candidates, including failed ones; a resumed search skips them.  Arguments and errors as in `best`."""
        with self._lock:
            task = self._task(workload, target)
            return {r.candidate for r in task.records.values()} if task is not None else set()

    def records(self, workload: str | None = None, target: TargetLike | None = None) -> list[Record]:
        """All records, or those of one workload, one target or both, in order of arrival within each task.

        Arguments and errors as in `best`.
        """
        wanted = None if target is None else _target_key(target)
        with self._lock:
            if workload is not None and all(workload != digest for digest, _ in self._tasks):
                self._check_digest(workload)
            return [
                record
                for (digest, key), task in self._tasks.items()
                if workload in (None, digest) and wanted in (None, key)
                for record in task.records.values()
            ]

    def workloads(self) -> dict[str, WorkloadLine]:
        """The programs by digest.  Workloads that have records but no program are missing, see `tasks`."""
        with self._lock:
            return dict(self._workloads)

    def tasks(self) -> list[tuple[str, Mapping[str, object]]]:
        """Workload digest and target of all tasks with records, in order of arrival."""
        with self._lock:
            return [(digest, next(iter(task.records.values())).target) for (digest, _), task in self._tasks.items()]


def _target_key(target: object) -> str:
    """The key of a target or of its plain JSON.  UserError for anything else, such as its text."""
    if isinstance(target, Target):
        return target_key(target.to_json())
    if not isinstance(target, Mapping):
        raise UserError(f"target={target!r:.200}: expected a Target, such as Target({str(target)!r:.100}), or its JSON")
    return target_key(target)


def _restored(records: list[Record], workloads: list[WorkloadLine], passes: str, report: LogReport) -> Database:
    """A copy of a database."""
    made = Database(records, workloads).compiled_with(json.loads(passes or "{}"))
    made.report = report
    return made


def _program_of(line: WorkloadLine) -> PrimFunc | None:
    """The program of a line; None if its digest does not match the line."""
    func = parse(line.script)
    return func if isinstance(func, PrimFunc) and structural.digest(func) == line.digest else None
