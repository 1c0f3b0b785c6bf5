"""tune: search for fast schedules of one workload or several, and keep every measurement in a log.

The tasks take turns, a batch each, so that an interrupted run has served all of them.  A run with a log that is there already
goes on where it ended: what was measured counts and is not measured again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from tunesmith.codegen.llvm_host import check_runs_here
from tunesmith.costmodel.registry import find_model, make_model
from tunesmith.ir.target import Target
from tunesmith.measure.builder import Builder, InProcessBuilder
from tunesmith.measure.database import Database
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.machine_rates import calibrated
from tunesmith.measure.measurer import MeasurePolicy, Measurer
from tunesmith.measure.record_log import RecordLog
from tunesmith.measure.runner import Runner
from tunesmith.progress import ProgressView
from tunesmith.report import Report, TaskReport
from tunesmith.search.sampler import Sampler
from tunesmith.search.samplers import find_sampler, make_sampler
from tunesmith.search.space_rules import Rule
from tunesmith.search.task import Task
from tunesmith.search.tuner import Callback, Progress, Tuning
from tunesmith.support.errors import TunesmithError, UserError
from tunesmith.workloads import WorkloadLike, find_subjects

if TYPE_CHECKING:
    from tunesmith.costmodel.model import CostModel


def tune(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    target: str | Target | None = None,
    trials: int = 128,
    log: str | PathLike[str] | None = "log.jsonl",
    seed: int = 0,
    *,
    sampler: str | type[Sampler] = "evolutionary",
    model: str | Callable[..., CostModel] = "xgb",
    batch: int = 32,
    workers: int | None = None,
    rules: Sequence[Rule] | None = None,
    policy: MeasurePolicy | None = None,
    leaders: int = 4,
    progress: bool = True,
) -> Report:
    """Search for fast schedules.

    Args:
        workloads: one or several: operators' texts, `"path.py:function"`, PrimFuncs, modules, lists of tensors.
        target: where they will run, which is here; by default this machine.  Rates of the machine that the analytic model uses are
            measured once and remembered, unless a Target is given, which is taken as it is.
        trials: measured candidates for each workload, those of the log included.
        log: file of records: read first, then appended to as measurements come.  None keeps nothing.
        seed: the same seed proposes the same candidates, as long as the measurements are the same.
        sampler: what proposes candidates: a name, `"path.py:Class"`, or a class.
        model: the learned cost model, for samplers that use one: a registered name, or what makes a fresh model.
        batch: candidates of a workload that are built and measured before the next has its turn.
        workers: processes that compile; by default one for each core.  0 compiles and runs in this process, where a candidate
            that crashes takes everything with it.
        rules: of the space; by default those of the target.
        policy: how candidates are measured.
        leaders: so many of the best are verified and timed in turn at the end; 0 leaves this out.
        progress: show on standard error what goes on.
    Returns:
        What was found, for each workload.  Ctrl-C ends the search early and is no error; a workload that fails does not stop the others.
    Raises:
        UserError: an argument makes no sense; nothing was measured then.
        RecordError: the log cannot be read or written.
        BuildError: the target's code cannot run here.
    """
    if trials < 1 or batch < 1 or leaders < 0:
        raise UserError(f"trials and batch count from 1, leaders from 0; got trials={trials}, batch={batch}, leaders={leaders}")
    found = find_subjects(workloads)
    kind, maker = find_sampler(sampler), find_model(model)
    target = _target_here(target)
    tasks = [s.task(target, rules) for s in found]
    journal = None if log is None else RecordLog(log)
    database = Database() if journal is None else _known(journal)
    with contextlib.ExitStack() as stack:
        view = stack.enter_context(ProgressView()) if progress else None
        builder, runner = stack.enter_context(_builder(workers)), stack.enter_context(_runner(workers, target))
        measurer = stack.enter_context(Measurer(target, builder, runner, policy, journal))
        search = _Search(measurer, database, trials, batch, seed, leaders, () if view is None else (view.show,))
        return search.run(tasks, lambda task: make_sampler(kind, task, lambda: make_model(maker, seed), seed))


class _Search:
    """The tunings of one run, in turns."""

    def __init__(
        self, measurer: Measurer, database: Database, trials: int, batch: int, seed: int, leaders: int, callbacks: tuple[Callback, ...]
    ) -> None:
        self._measurer, self._database, self._leaders = measurer, database, leaders
        self._settings: dict[str, Any] = {"trials": trials, "batch": batch, "seed": seed, "callbacks": callbacks}
        self._tunings: dict[str, Tuning] = {}
        self._failures: dict[str, str] = {}

    def run(self, tasks: Sequence[Task], sampler_of: Callable[[Task], Sampler]) -> Report:
        interrupted = False
        try:
            for task in tasks:
                self._guarded(task.name, partial(self._begin, task, sampler_of))
            left = list(self._tunings)
            while left:
                left = [name for name in left if self._guarded(name, self._tunings[name].step)]
            for name, tuning in self._tunings.items():
                if self._leaders and name not in self._failures and tuning.progress.trials > tuning.progress.resumed:
                    self._guarded(name, partial(tuning.rank, self._leaders))
        except KeyboardInterrupt:
            interrupted = True
        return Report(tuple([self._report(task) for task in tasks]), interrupted)

    def _begin(self, task: Task, sampler_of: Callable[[Task], Sampler]) -> None:
        self._tunings[task.name] = Tuning(task, sampler_of(task), self._measurer, database=self._database, **self._settings)

    def _guarded(self, name: str, action: Callable[[], bool | None]) -> bool:
        """Do something for one task; False when it is over, or has failed, which is noted."""
        try:
            return bool(action())
        except TunesmithError as error:
            self._failures[name] = str(error)
            return False

    def _report(self, task: Task) -> TaskReport:
        tuning = self._tunings.get(task.name)
        failure = self._failures.get(task.name, "")
        if tuning is None:
            return TaskReport.of(Progress(task, 0), None, failure or "interrupted before it began")
        best = self._database.best(task.digest, task.target.to_json())
        if best is None and not failure:
            failure = "no candidate was built, ran and gave the right result"
        return TaskReport.of(tuning.progress, best, failure)


def _target_here(target: str | Target | None) -> Target:
    if isinstance(target, Target):
        check_runs_here(target)
        return target
    return calibrated(None if target is None else Target(target))


def _known(journal: RecordLog) -> Database:
    contents = journal.load()
    database = Database(contents.records, contents.workloads.values())
    database.report = contents.report
    return database


def _builder(workers: int | None) -> Builder:
    if workers is not None and workers < 0:
        raise UserError(f"workers counts processes from 1, or is 0 for none, got {workers}")
    return InProcessBuilder() if workers == 0 else LocalBuilder(workers)


def _runner(workers: int | None, target: Target) -> Runner:
    return InProcessRunner() if workers == 0 else LocalRunner(target.num_cores)
