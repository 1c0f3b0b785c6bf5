"""tune: search for fast schedules of one workload or several, and keep every measurement in a log.

The tasks take turns, a batch each, so that an interrupted run has served all of them; a scheduler says whose turn it is.  A run with
a log that is there already goes on where it ended: what was measured counts and is not measured again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from tunesmith.codegen.backends.backend import check_kind
from tunesmith.codegen.build import check_runs_here
from tunesmith.costmodel.models.registry import find_model, make_model
from tunesmith.display.failures import examples_of
from tunesmith.display.progress import ProgressView
from tunesmith.display.report import Report, TaskReport
from tunesmith.display.tensorboard import TensorBoardScalars
from tunesmith.driver.compile import as_target
from tunesmith.driver.workloads import Subject, WorkloadLike, find_subjects
from tunesmith.ir.remarks import checked
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import Builder, InProcessBuilder
from tunesmith.measure.calibration.cpu import calibrated
from tunesmith.measure.calibration.gpu import calibrated_device
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.measurer import MeasurePolicy, Measurer
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.run_manifest import manifest_path, recorded_run
from tunesmith.measure.runner import Runner
from tunesmith.measure.timing_policy import RacePolicy
from tunesmith.search.samplers.proposals import asked_once
from tunesmith.search.samplers.registry import find_sampler, make_sampler
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.space.rules_table import Rule, find_rules
from tunesmith.search.task import Task
from tunesmith.search.task_scheduler import Allocator, TaskScheduler, TaskState, make_allocator
from tunesmith.search.tuner import Callback, Progress, Tuning
from tunesmith.support.arguments import as_count
from tunesmith.support.errors import InternalError, TunesmithError, UserError
from tunesmith.support.seeds import recorded_seed
from tunesmith.support.user_code import described

if TYPE_CHECKING:
    from tunesmith.costmodel.models.model import CostModel


def tune(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    target: str | Target | None = None,
    trials: int | None = None,
    log: str | PathLike[str] | None = "log.jsonl",
    seed: int = 0,
    *,
    sampler: str | type[Sampler] = "evolutionary",
    model: str | Callable[..., CostModel] = "xgb",
    batch: int = 32,
    workers: int | str | None = None,
    rules: Sequence[str | Rule] | None = None,
    policy: MeasurePolicy | None = None,
    leaders: int = 4,
    progress: bool = True,
    allocation: str | Allocator | None = None,
    total_trials: int | None = None,
    seconds: float | None = None,
    early_stop: int | None = None,
    weights: Mapping[str, float] | None = None,
    callbacks: Sequence[Callback] = (),
    tensorboard: str | PathLike[str] | None = None,
) -> Report:
    """Search for fast schedules.

    Args:
        workloads: one or several: operators' texts, `"path.py:function"`, PrimFuncs, modules, lists of tensors.
        target: where they will run, which is here unless workers are elsewhere; by default this machine.  Rates of the machine that
            the analytic model uses are measured once and remembered, unless a Target is given, which is taken as it is.
        trials: measured candidates for each workload, those of the log included; by default 128, or no bound where
            `total_trials` or `seconds` is given.
        log: file of records: read first, then appended to as measurements come.  The run itself is noted in `LOG.runs` beside it
            (see `measure.records.run_manifest`).  None keeps nothing.
        seed: the same seed proposes the same candidates, as long as the measurements are the same.
        sampler: what proposes candidates: a name, `"path.py:Class"`, or a class.
        model: the cost model, for samplers that use one: a registered name, `"path.py:Class"`, a file of a saved model, which is updated
            on top of what it knew, or what makes a fresh model.
        batch: candidates of a workload that are built and measured before the next has its turn.
        workers: processes that compile; by default one for each core.  0 compiles and runs in this process, where a candidate
            that crashes takes everything with it.  "ray" or "ray:N" has Ray actors compile, N or one for each processor, and run: those
            of the cluster at RAY_ADDRESS, or of a Ray that is started here.
        rules: of the space, functions or names in `search.space.rules_table.SEARCH_RULES`; by default those of the target.
        policy: how candidates are measured; by default with warm caches, and of a model with weights that are not in them.
        leaders: so many of the best are verified and timed in turn at the end; 0 leaves this out.
        progress: show on standard error what goes on.
        allocation: who is next: "round-robin", "gradient" (Ansor's), or an `Allocator`.  By default the gradient where
            `total_trials` or `seconds` is to be shared, turns otherwise.
        total_trials: measured candidates of all workloads together, those of the log included.
        seconds: no batch begins later than this.  A run that resumes has as many again.
        early_stop: a workload ends when its best has not become 1 % faster over so many trials.
        weights: how often a workload occurs in what is to be fast, by name; 1 where it is not said.  The gradient looks at them.
        callbacks: called with the progress of a workload after each of its batches.
        tensorboard: folder for curves that TensorBoard shows; needs the extra `tensorboard`.
    Returns:
        What was found, for each workload.  Ctrl-C ends the search early and is no error; a workload that fails does not stop the others.
    Raises:
        UserError: an argument makes no sense; nothing was measured then.
        RecordError: the log cannot be read or written.
        BuildError: the target's code cannot run here.
    """
    shared = total_trials is not None or seconds is not None
    trials = 128 if trials is None and not shared else trials
    trials, leaders = None if trials is None else as_count("trials", trials), as_count("leaders", leaders, 0)
    rules, callbacks = None if rules is None else find_rules(rules), _callbacks(callbacks)
    _check(workers, policy, weights, tensorboard)
    allocator = make_allocator(allocation or ("gradient" if shared else "round-robin"))
    scheduler = TaskScheduler(allocator, as_count("batch", batch), total=total_trials, seconds=seconds, early_stop=early_stop)
    found = find_subjects(workloads)
    if policy is None and any(s.in_model for s in found):
        policy = MeasurePolicy(race=RacePolicy(constant_bytes=COLD_BYTES))
    seed = recorded_seed(seed)
    kind, maker = find_sampler(sampler), find_model(model)
    odd = [f"{s.name}: {remark}" for s in found for remark in checked(s.func)]
    target = _target_there(target) if isinstance(workers, str) else _target_here(target)
    tasks = _weighted([s.task(target, rules) for s in found], weights or {})
    groups = [_group(s) for s in found]
    scheduler.check([_state(task, group) for task, group in zip(tasks, groups, strict=True)])
    journal = None if log is None else RecordLog(log)
    database = Database() if journal is None else _known(journal)
    with contextlib.ExitStack() as stack:
        shown: list[Callback] = [*callbacks]
        if tensorboard is not None:
            shown.append(stack.enter_context(TensorBoardScalars(tensorboard)).show)
        if progress:
            shown.append(stack.enter_context(ProgressView(total=total_trials)).show)
        builder, runner = _staff(workers, target, stack)
        measurer = stack.enter_context(Measurer(target, builder, runner, policy, journal))
        settings = {
            "trials": trials,
            "total_trials": total_trials,
            "seconds": seconds,
            "early_stop": early_stop,
            "batch": batch,
            "sampler": sampler if isinstance(sampler, str) else sampler.__qualname__,
            "model": str(model),
            "allocation": type(allocator).__name__,
            "leaders": leaders,
            "workers": workers,
        }
        names = [task.name for task in tasks]
        path = None if log is None else manifest_path(log)
        noted = stack.enter_context(recorded_run(path, seed=seed, target=target, workloads=names, settings=settings))
        each = trials if trials is not None else None if total_trials is None else total_trials // len(tasks)
        notes = [asked_once(batch, each)] if each is not None and batch >= each else []
        notes += odd
        search = _Search(measurer, database, scheduler, trials, seed, leaders, shown, notes)
        report = search.run(tasks, groups, lambda task: make_sampler(kind, task, lambda: make_model(maker, seed), seed))
        noted["tasks"] = [_noted(t) for t in report.tasks]
        if report.interrupted:
            noted["outcome"] = "interrupted"
        elif report.tasks and all(t.failure for t in report.tasks):
            noted["outcome"] = f"failed: {report.tasks[0].failure}"
    return report


def _noted(task: TaskReport) -> dict[str, object]:
    """A task in the manifest of the run."""
    failure = {"failure": task.failure} if task.failure else {}
    return {"workload": task.workload, "digest": task.digest, "trials": task.trials, "resumed": task.resumed, **failure}


COLD_BYTES = 64 << 20
"""Memory that the weights of a model's layers are taken from in turns: more than caches of the second level hold."""


class _Search:
    """The tunings of one run, in turns."""

    def __init__(
        self,
        measurer: Measurer,
        database: Database,
        scheduler: TaskScheduler,
        trials: int | None,
        seed: int,
        leaders: int,
        callbacks: Sequence[Callback],
        notes: Sequence[str] = (),
    ) -> None:
        self._measurer, self._database, self._scheduler, self._leaders = measurer, database, scheduler, leaders
        self._settings: dict[str, Any] = {"trials": trials, "batch": scheduler.batch, "seed": seed, "callbacks": callbacks}
        self._tunings: dict[str, Tuning] = {}
        self._failures: dict[str, str] = {}
        self._exhausted: set[str] = set()
        self._notes = tuple(notes)

    def run(self, tasks: Sequence[Task], groups: Sequence[str], sampler_of: Callable[[Task], Sampler]) -> Report:
        interrupted = False
        start = time.monotonic()
        try:
            for task in tasks:
                self._guarded(task.name, partial(self._begin, task, sampler_of))
            while (turn := self._scheduler.next(self._states(tasks, groups), time.monotonic() - start)) is not None:
                name = tasks[turn.task].name
                if not self._guarded(name, partial(self._tunings[name].step, turn.trials)):
                    self._exhausted.add(name)
            for name, tuning in self._tunings.items():
                if self._leaders and name not in self._failures and tuning.progress.trials > tuning.progress.resumed:
                    self._guarded(name, partial(tuning.rank, self._leaders))
        except KeyboardInterrupt:
            interrupted = True
        return Report(tuple([self._report(task) for task in tasks]), interrupted, self._notes)

    def _states(self, tasks: Sequence[Task], groups: Sequence[str]) -> list[TaskState]:
        """The tasks as the scheduler sees them; one that could not begin, has failed, or has no more candidates, is done."""
        out = []
        for task, group in zip(tasks, groups, strict=True):
            tuning, limit = self._tunings.get(task.name), self._settings["trials"]
            done = tuning is None or task.name in self._failures or task.name in self._exhausted
            out.append(_state(task, group, () if tuning is None else tuple(tuning.progress.curve), limit, done))
        return out

    def _begin(self, task: Task, sampler_of: Callable[[Task], Sampler]) -> None:
        self._tunings[task.name] = Tuning(task, sampler_of(task), self._measurer, database=self._database, **self._settings)

    def _guarded(self, name: str, action: Callable[[], bool | None]) -> bool:
        """Do something for one task; False when it is over, or has failed, which is noted."""
        try:
            return bool(action())
        except TunesmithError as error:
            self._failures[name] = str(error)
        except (Exception, SystemExit) as error:  # a bug in a rule or a sampler, ours or a plug-in's, costs one task
            self._failures[name] = _unexpected(error)
        return False

    def _report(self, task: Task) -> TaskReport:
        tuning = self._tunings.get(task.name)
        failure = self._failures.get(task.name, "")
        if tuning is None:
            return TaskReport.of(Progress(task, 0), None, failure or "interrupted before it began")
        best = self._database.best(task.digest, task.target.to_json(), task.func)
        examples = examples_of(self._database.records(task.digest, task.target.to_json()))
        if best is None and not failure:
            failure = "no candidate was built, ran and gave the right result"
        return TaskReport.of(tuning.progress, best, failure, examples)


def _unexpected(error: BaseException) -> str:
    """An exception that no part raises on purpose, with the place that raised it."""
    text, is_users = described(error)
    return text if is_users or isinstance(error, (OSError, MemoryError, SystemExit)) else str(InternalError(text))


def _state(task: Task, group: str, curve: Sequence[float | None] = (), limit: int | None = None, done: bool = False) -> TaskState:
    return TaskState(task.name, curve, task.weight, limit, done, task.flops, group)


def _group(subject: Subject) -> str:
    """Workloads of one operator and about as many operations should reach similar rates; the base of the logarithm is Ansor's."""
    if subject.operator is None or not subject.flops:
        return ""
    return f"{subject.operator.operator.name}/{int(math.log(subject.flops + 1, 1.618))}"


def _check(workers: object, policy: object, weights: object, tensorboard: object) -> None:
    """Refuse arguments of other kinds, before anything is measured."""
    if isinstance(workers, str):
        _ray_workers(workers)
    elif workers is not None:
        try:
            as_count("workers", workers, 0)
        except UserError as error:
            raise UserError(f'{error}: workers counts processes from 1, or is 0 for none, or "ray" or "ray:N"') from None
    if policy is not None and not isinstance(policy, MeasurePolicy):
        raise UserError(f"policy={policy!r:.200}: a MeasurePolicy is wanted")
    if weights is not None and not isinstance(weights, Mapping):
        raise UserError(f"weights={weights!r:.200}: a mapping from names of workloads to numbers is wanted")
    if tensorboard is not None and not isinstance(tensorboard, (str, PathLike)):
        raise UserError(f"tensorboard={tensorboard!r:.200}: the path of a folder is wanted")


def _callbacks(given: object) -> list[Callback]:
    found = None if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if found is None or not all(callable(c) for c in found):
        raise UserError(f"callbacks={given!r:.200}: a list of functions is wanted, which take the progress of a workload")
    return found


def _weighted(tasks: Sequence[Task], weights: Mapping[str, float]) -> list[Task]:
    """The tasks with their weights.  UserError if a weight is for none of them."""
    unknown = sorted(weights.keys() - {task.name for task in tasks})
    if unknown:
        raise UserError(f"there is a weight for {unknown[0]!r}, which is not tuned; {', '.join(task.name for task in tasks)} is")
    return [dataclasses.replace(task, weight=weights.get(task.name, task.weight)) for task in tasks]


def _target_here(target: str | Target | None) -> Target:
    if target is not None:
        check_kind(as_target(target))
    if isinstance(target, Target):
        check_runs_here(target)
        return target
    there = as_target(target)
    if there.is_cpu:
        return calibrated(there)
    check_runs_here(there)
    return calibrated_device(there)


def _target_there(target: str | Target | None) -> Target:
    """For runners elsewhere, which refuse what they are not; one that is not this machine cannot be calibrated here."""
    named, here = Target.detect() if target is None else Target(target), Target.detect()
    is_here = named.is_cpu and (named.mcpu, named.num_cores) == (here.mcpu, here.num_cores)
    return _target_here(target) if is_here else named


def _known(journal: RecordLog) -> Database:
    contents = journal.load()
    database = Database(contents.records, contents.workloads.values())
    database.report = contents.report
    return database


def _staff(workers: int | str | None, target: Target, stack: contextlib.ExitStack) -> tuple[Builder, Runner]:
    """What builds and what runs; the stack closes them."""
    if isinstance(workers, str):
        return _ray_staff(workers, target, stack)
    builder = InProcessBuilder() if workers == 0 else LocalBuilder(workers)
    return stack.enter_context(builder), stack.enter_context(InProcessRunner() if workers == 0 else LocalRunner(target.num_cores))


def _ray_staff(workers: str, target: Target, stack: contextlib.ExitStack) -> tuple[Builder, Runner]:
    from tunesmith.measure.ray.ray_builder import RayBuilder
    from tunesmith.measure.ray.ray_cluster import RayCluster
    from tunesmith.measure.ray.ray_runner import RayRunner

    count = _ray_workers(workers)
    cluster = stack.enter_context(RayCluster(count))
    return stack.enter_context(RayBuilder(cluster, count)), stack.enter_context(RayRunner(cluster, target))


def _ray_workers(workers: str) -> int | None:
    """How many "ray:N" names; None for "ray"."""
    kind, _, number = workers.partition(":")
    if kind != "ray" or (number and not number.isdecimal()) or workers.endswith(":"):
        raise UserError(f'workers is a number of processes, "ray" or "ray:N", got {workers!r}')
    return int(number) if number else None
