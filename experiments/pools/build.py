"""Measure tabular benchmarks of workloads, logged during the run and written as a record table at the end.

Unlike in a search, which stops timing clearly slower candidates, every candidate gets a comparable time and its output is compared with
the reference.  A run with an existing log measures only the missing candidates; `plan` selects them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath

from rich.console import Group, RenderableType

from tunesmith.codegen.llvm.host import check_runs_here
from tunesmith.datasets.record_columns import gave_up
from tunesmith.datasets.record_table import RecordTable
from tunesmith.display.progress import ProgressView
from tunesmith.display.rendered import Rendered
from tunesmith.display.tables import counted, microseconds, plain_table, printable, rate
from tunesmith.driver.workloads import WorkloadLike, find_subjects
from tunesmith.experiments.pools.plan import PoolPlan
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.calibration.cpu import calibrated
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import LogContents, RecordLog
from tunesmith.measure.records.record import Record
from tunesmith.search.known_records import known_records
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.rules_table import Rule
from tunesmith.search.task import Task
from tunesmith.search.tuner import Callback, Progress
from tunesmith.support.errors import TunesmithError, UserError

POOL_POLICY = MeasurePolicy(race=RacePolicy(give_up=math.inf, patience_s=0.5), verify="always")
"""Measuring policy: every candidate is timed completely, with patience for quiet samples, and verified."""

PART = "pool_part"
"""Key in a record's `extra` for the part of the pool that it was drawn for."""


@dataclass(frozen=True)
class PoolReport:
    """Result for one workload of a run.

    Attributes:
        progress: counts, errors and the best record.
        wanted: requested number of candidates.
        exhausted: the pool is smaller, because the space is exhausted or sampling found nothing new.
        failure: why the pool is incomplete; empty on success.
    """

    progress: Progress
    wanted: int
    exhausted: bool
    failure: str

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        p = self.progress
        return {
            "workload": p.task.name,
            "digest": p.task.digest,
            "candidates": p.trials,
            "wanted": self.wanted,
            "resumed": p.resumed,
            "errors": dict(p.errors),
            "best_us": None if p.best is None else p.best.seconds * 1e6,
            "gflops": p.gflops or None,
            "exhausted": self.exhausted,
            "failure": self.failure,
        }


@dataclass(frozen=True)
class BuildReport(Rendered):
    """Result of a run.

    Attributes:
        pools: a report per workload.
        table: the candidates of all pools.
        path: path of the table.
        interrupted: Ctrl-C ended the run.
    """

    pools: tuple[PoolReport, ...]
    table: RecordTable
    path: str
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether no workload failed."""
        return not any(p.failure for p in self.pools)

    def to_json(self) -> dict[str, object]:
        """The data written by `tunesmith dataset build --json`."""
        return {"table": self.path, "records": len(self.table), "interrupted": self.interrupted, "tasks": [p.to_json() for p in self.pools]}

    def render(self) -> RenderableType:
        """The report as a table for a terminal."""
        cells = []
        for p in self.pools:
            best = p.progress.best
            cells.append(
                [
                    p.progress.task.name,
                    f"{p.progress.trials}/{p.wanted}" + (" (all)" if p.exhausted else ""),
                    str(p.progress.resumed),
                    microseconds(None if best is None else best.seconds),
                    rate(p.progress.gflops),
                    counted(p.progress.errors) or "none",
                ]
            )
        columns = ["workload", "candidates", "from the log", "best us", "GFLOP/s", "errors"]
        parts: list[RenderableType] = [plain_table(f"{self.path}: {len(self.table)} records", columns, cells, left=["errors"])]
        parts += [printable(f"! {p.progress.task.name}: {p.failure}", style="yellow") for p in self.pools if p.failure]
        if self.interrupted:
            parts.append(printable("interrupted: all measurements are kept; run again to resume"))
        return Group(*parts)


def build(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    per_task: int = 256,
    out: str | PathLike[str] = "pool.parquet",
    log: str | PathLike[str] = "pool.jsonl",
    target: str | Target | None = None,
    seed: int = 0,
    *,
    batch: int = 32,
    workers: int | None = None,
    rules: Sequence[Rule] | None = None,
    policy: MeasurePolicy = POOL_POLICY,
    retake: bool = False,
    progress: bool = True,
) -> BuildReport:
    """Measure a tabular benchmark of each workload and write all as a record table.

    Args:
        workloads: one or several, as in `tune`; `suite:NAME` for a suite.
        per_task: candidates per workload.  A larger number with the same log extends the pools.
        out: the table to write; an existing file is replaced.
        log: log of records: read first, then appended to.
        target: target of the programs, which must run here; by default this machine.
        seed: seed of the candidate selection.
        batch: candidates per turn of a workload.
        workers: compiling processes; by default one per core.  0 compiles and runs in this process.
        rules: rules of the space; by default those of the target.
        policy: how candidates are measured; it must not stop slow candidates early, because such times are not comparable.
        retake: measure candidates again, once, if other processes disturbed their times.
        progress: show progress on standard error.
    Returns:
        The table, and a report per workload.  Ctrl-C ends the run early, keeps all measurements, and is not an error.
    Raises:
        UserError: an argument is invalid; raised before any measurement.
        RecordError: the log or the table cannot be read or written.
        BuildError: the target's code cannot run here.
    """
    if per_task < 1 or batch < 1 or (workers is not None and workers < 0):
        raise UserError(
            f"per_task and batch must be at least 1, workers at least 0; got per_task={per_task}, batch={batch}, workers={workers}"
        )
    if policy.race.give_up != math.inf:
        raise UserError(f"a pool needs comparable times: give_up must be inf in its policy, but is {policy.race.give_up:g}")
    subjects = find_subjects(workloads)
    machine = _target_here(target)
    tasks = [s.task(machine, rules) for s in subjects]
    journal = RecordLog(log)
    known = journal.load()
    interrupted = False
    with contextlib.ExitStack() as stack:
        view = stack.enter_context(ProgressView()) if progress else None
        builder = stack.enter_context(InProcessBuilder() if workers == 0 else LocalBuilder(workers))
        runner = stack.enter_context(InProcessRunner() if workers == 0 else LocalRunner(machine.num_cores))
        measurer = stack.enter_context(Measurer(machine, builder, runner, policy, journal))
        pools = [TaskPool(t, measurer, per_task, known, seed, batch, retake) for t in tasks]
        try:
            left = pools
            while left:
                left = [p for p in left if p.step(None if view is None else view.show)]
        except KeyboardInterrupt:
            interrupted = True
    table = _table(pools, journal.load())
    table.notes = {"made_by": "dataset build", "per_task": per_task, "seed": seed, "time": time.time()}
    table.save(out)
    return BuildReport(tuple([p.report(interrupted) for p in pools]), table, fspath(out), interrupted)


class TaskPool:
    """The pool of one task during a run, measured in batches so that several tasks can alternate.

    Args:
        task: task of the pool.
        measurer: builds, runs and logs.
        size: requested number of candidates.
        known: contents of the log at the start.
        seed: seed of the candidate selection.
        batch: candidates per step.
        retake: measure disturbed candidates again, once, after all others.
    """

    def __init__(self, task: Task, measurer: Measurer, size: int, known: LogContents, seed: int, batch: int, retake: bool = False) -> None:
        self.progress = Progress(task, size)
        self._task, self._measurer, self._size, self._seed, self._batch = task, measurer, size, seed, batch
        self._known = known
        self._plan: PoolPlan | None = None
        self._records: dict[Candidate, Record] = {}
        self._retake = retake
        self._again: list[Candidate] | None = None
        self._failure = ""

    def step(self, show: Callback | None = None) -> bool:
        """Measure a batch, and show progress; False when the pool is complete or the task has failed."""
        start = time.perf_counter()
        try:
            plan = self._initial_plan()
            chosen = plan.next(self._batch)
            self._count_known(plan)
            if chosen:
                self._measure(plan, chosen)
            elif self._retake:
                chosen = self._measure_again(plan)
        except TunesmithError as error:
            self._failure = str(error)
            return False
        finally:
            self.progress.seconds["total"] += time.perf_counter() - start
        if show is not None and (chosen or self.progress.resumed == self.progress.trials):
            show(self.progress)
        return bool(chosen)

    @property
    def records(self) -> list[Record]:
        """The comparable measurements of the candidates selected so far."""
        chosen = () if self._plan is None else self._plan.chosen
        return [self._records[c] for c in chosen if c in self._records]

    def report(self, interrupted: bool) -> PoolReport:
        """The report; its best record and errors use the representative measurements."""
        right = [r for r in self.records if r.verified]
        self.progress.best = min(right, key=lambda r: r.seconds, default=None)
        self.progress.errors = dict(Counter([r.error.kind for r in self.records if r.error is not None]))
        exhausted = self.progress.trials < self._size and not self._failure and not interrupted
        return PoolReport(self.progress, self._size, exhausted, self._failure)

    def _initial_plan(self) -> PoolPlan:
        """The plan, created at the first step from the records of the task in the log."""
        if self._plan is None:
            self._records = fair_records(self._task, self._known.records)
            known = {c: (_seconds(r), _part(r, self._seed)) for c, r in self._records.items()}
            self._plan = PoolPlan(self._task, self._size, self._seed, known)
        return self._plan

    def _count_known(self, plan: PoolPlan) -> None:
        """Count newly selected candidates that were already in the log."""
        for c in plan.chosen[self.progress.trials :]:
            if c in self._records:
                self.progress.add(self._records[c])
                self.progress.resumed += 1

    def _measure(self, plan: PoolPlan, chosen: Sequence[tuple[Candidate, str]]) -> None:
        part = chosen[0][1]
        for c, record in self._stream([c for c, _ in chosen], part):
            self._records[c] = record
            plan.tell(c, _seconds(record), part)
            self.progress.add(record)

    def _measure_again(self, plan: PoolPlan) -> list[tuple[Candidate, str]]:
        """Measure a batch of disturbed candidates again, each once."""
        if self._again is None:
            self._again = [c for c in plan.chosen if not self._records[c].clean]
        batch, self._again = self._again[: self._batch], self._again[self._batch :]
        parts = [str(self._records[c].extra.get(PART, "")) for c in batch]
        for part in dict.fromkeys(parts):
            for c, record in self._stream([c for c, p in zip(batch, parts, strict=True) if p == part], part):
                self._records[c] = max(record, self._records[c], key=_weight)
        return list(zip(batch, parts, strict=True))

    def _stream(self, candidates: Sequence[Candidate], part: str) -> Iterator[tuple[Candidate, Record]]:
        start, ran = time.perf_counter(), 0.0
        rows = [(c.sketch, c.row) for c in candidates]
        for c, record in zip(
            candidates, self._measurer.stream(self._task.measured, rows, seed=self._seed, extra={PART: part}), strict=True
        ):
            ran += float(str(record.extra.get("run_s", 0.0)))
            yield c, record
        self.progress.seconds["measure"] += ran
        self.progress.seconds["build"] += max(0.0, time.perf_counter() - start - ran)


def fair_records(task: Task, records: Iterable[Record]) -> dict[Candidate, Record]:
    """The representative measurement of each candidate of a task's space, among those timed completely or failed.

    A record belongs to the space as defined by `known_records`.  Order of preference: a wrong result, a time, another failure; a quiet
    time before a disturbed one; then the latest in the log.
    """
    fair = [r for r in records if not gave_up(r)]
    return dict(known_records(task, sorted(fair, key=_weight)))


def _table(pools: Sequence[TaskPool], log: LogContents) -> RecordTable:
    """The record table of the pools, with the programs in the log."""
    records = [r for p in pools for r in p.records]
    targets: Mapping[str, Target] = {p.progress.task.target.key: p.progress.task.target for p in pools}
    return RecordTable.from_records(records, log.workloads.values(), targets.values(), log.report)


def _seconds(record: Record) -> float:
    return math.inf if record.error is not None else record.seconds


def _weight(record: Record) -> tuple[bool, bool, bool]:
    """Precedence among the records of a candidate, see `fair_records`."""
    wrong = record.error is not None and record.error.kind == "wrong_result"
    return wrong, record.error is None, record.clean


def _part(record: Record, seed: int) -> str:
    """The part for which a record was drawn with this seed."""
    return str(record.extra.get(PART, "")) if record.seed == seed else ""


def _target_here(target: str | Target | None) -> Target:
    if isinstance(target, Target):
        check_runs_here(target)
        return target
    return calibrated(None if target is None else Target(target))
