"""dataset build: pools of measured candidates for research, one for each workload, in a log as they come and in a table at the end.

Unlike a search, which drops a candidate that is clearly behind, every candidate gets a fair time and its output is compared with the
reference.  A run with a log that is there already measures only what is missing; `dataset_pool` says what is measured.
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
from tunesmith.display.tables import as_text, counted, microseconds, plain_table, printable, rate
from tunesmith.driver.workloads import WorkloadLike, find_subjects
from tunesmith.experiments.pools.plan import PoolPlan
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import InProcessBuilder
from tunesmith.measure.calibration.cpu import calibrated
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.measurer import MeasurePolicy, Measurer
from tunesmith.measure.records.log import LogContents, RecordLog
from tunesmith.measure.records.record import Record
from tunesmith.measure.timing_policy import RacePolicy
from tunesmith.search.known_records import known_records
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.rules_table import Rule
from tunesmith.search.task import Task
from tunesmith.search.tuner import Callback, Progress
from tunesmith.support.errors import TunesmithError, UserError

POOL_POLICY = MeasurePolicy(race=RacePolicy(give_up=math.inf, patience_s=0.5), verify="always")
"""Every candidate is timed to the end, whatever the best, with patience for quiet samples, and verified."""

PART = "pool_part"
"""Where a record's `extra` says for which part of the pool it was drawn."""


@dataclass(frozen=True)
class PoolReport:
    """One workload of a run.

    Attributes:
        progress: counts, errors, the best.
        wanted: candidates wanted.
        exhausted: there are fewer, because the space has no more, or none that chance found.
        failure: why the pool is not what was asked for; empty if all is well.
    """

    progress: Progress
    wanted: int
    exhausted: bool
    failure: str

    def to_json(self) -> dict[str, object]:
        """As plain data."""
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
class BuildReport:
    """What a run has measured.

    Attributes:
        pools: a report for each workload.
        table: the pools of all of them.
        path: where the table was written.
        interrupted: it was ended by Ctrl-C.
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
        """As `tunesmith dataset build --json` writes it."""
        return {"table": self.path, "records": len(self.table), "interrupted": self.interrupted, "tasks": [p.to_json() for p in self.pools]}

    def render(self) -> RenderableType:
        """For a terminal."""
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
        columns = ["workload", "candidates", "of them known", "best us", "GFLOP/s", "errors"]
        parts: list[RenderableType] = [plain_table(f"{self.path}: {len(self.table)} records", columns, cells, left=["errors"])]
        parts += [printable(f"! {p.progress.task.name}: {p.failure}", style="yellow") for p in self.pools if p.failure]
        if self.interrupted:
            parts.append(printable("interrupted: what was measured is kept; run again to go on"))
        return Group(*parts)

    def __str__(self) -> str:
        return as_text(self.render())


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
    """Measure a pool of candidates of each workload, and write them as a record table.

    Args:
        workloads: one or several, as `tune` takes them; `suite:NAME` for a suite.
        per_task: candidates of each.  A larger number with the same log adds to what is there.
        out: the table to write; replaced if it is there.
        log: records, read first, then appended to.
        target: where they run, which is here; by default this machine.
        seed: of the choice of candidates.
        batch: candidates of a workload before the next has its turn.
        workers: processes that compile; by default one for each core.  0 compiles and runs in this process.
        rules: of the space; by default those of the target.
        policy: how candidates are measured; it must not give up on any, as such times are no fair ones.
        retake: measure candidates again, once, whose times were disturbed by other processes.
        progress: show on standard error what goes on.
    Returns:
        The table, and a report for each workload.  Ctrl-C ends the run early, keeps everything, and is no error.
    Raises:
        UserError: an argument makes no sense; nothing was measured then.
        RecordError: the log or the table cannot be read or written.
        BuildError: the target's code cannot run here.
    """
    if per_task < 1 or batch < 1 or (workers is not None and workers < 0):
        raise UserError(f"per_task and batch count from 1, workers from 0; got per_task={per_task}, batch={batch}, workers={workers}")
    if policy.race.give_up != math.inf:
        raise UserError(f"a pool needs fair times: give_up must be inf in its policy, and is {policy.race.give_up:g}")
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
    """The pool of one task under way, a batch at a time, so that several can take turns.

    Args:
        task: whose pool.
        measurer: builds, runs and logs.
        size: candidates wanted.
        known: the log as it was.
        seed: of the choice.
        batch: candidates a step.
        retake: measure disturbed candidates again, once, when nothing is missing.
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
        """Measure a batch, and show it; False when nothing is missing any more, or the task has failed."""
        start = time.perf_counter()
        try:
            plan = self._begun()
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
        """The fair measurements of the candidates chosen so far."""
        chosen = () if self._plan is None else self._plan.chosen
        return [self._records[c] for c in chosen if c in self._records]

    def report(self, interrupted: bool) -> PoolReport:
        """How far it came; the best and the errors are those of the measurements that count in the end."""
        right = [r for r in self.records if r.verified]
        self.progress.best = min(right, key=lambda r: r.seconds, default=None)
        self.progress.errors = dict(Counter([r.error.kind for r in self.records if r.error is not None]))
        exhausted = self.progress.trials < self._size and not self._failure and not interrupted
        return PoolReport(self.progress, self._size, exhausted, self._failure)

    def _begun(self) -> PoolPlan:
        """Made at the first step: what is known of the task in the log is read against its space."""
        if self._plan is None:
            self._records = fair_records(self._task, self._known.records)
            known = {c: (_seconds(r), _part(r, self._seed)) for c, r in self._records.items()}
            self._plan = PoolPlan(self._task, self._size, self._seed, known)
        return self._plan

    def _count_known(self, plan: PoolPlan) -> None:
        """Candidates that the plan has chosen since and the log had already."""
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
        """A batch of the disturbed ones; each has its turn once."""
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
    """The measurement of each candidate of a task's space that counts, of those that were timed to the end or failed.

    A record belongs to the space as `known_records` defines it.  A wrong result counts before a time, a time before another failure, a
    quiet time before a disturbed one, then the latest in the log.
    """
    fair = [r for r in records if not gave_up(r)]
    return dict(known_records(task, sorted(fair, key=_weight)))


def _table(pools: Sequence[TaskPool], log: LogContents) -> RecordTable:
    """The pools as they are in the log, where the programs are too."""
    records = [r for p in pools for r in p.records]
    targets: Mapping[str, Target] = {p.progress.task.target.key: p.progress.task.target for p in pools}
    return RecordTable.from_records(records, log.workloads.values(), targets.values(), log.report)


def _seconds(record: Record) -> float:
    return math.inf if record.error is not None else record.seconds


def _weight(record: Record) -> tuple[bool, bool, bool]:
    """Of several records of a candidate the one with the greatest weight counts, see `fair_records`."""
    wrong = record.error is not None and record.error.kind == "wrong_result"
    return wrong, record.error is None, record.clean


def _part(record: Record, seed: int) -> str:
    """The part that a record was drawn for by this seed."""
    return str(record.extra.get(PART, "")) if record.seed == seed else ""


def _target_here(target: str | Target | None) -> Target:
    if isinstance(target, Target):
        check_runs_here(target)
        return target
    return calibrated(None if target is None else Target(target))
