"""Search for fast schedules of one or several workloads, and log every measurement.

A scheduler allocates batches to the tasks in turn, so that an interrupted run has served all of them.  A run with an existing log
resumes it: logged measurements count as trials and are not repeated.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

from tunesmith.codegen.build import pass_changes
from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.registry import find_model, make_model
from tunesmith.display.model_check import ModelCheck
from tunesmith.display.progress import ProgressView
from tunesmith.display.report import Report, TaskReport, noise_notes
from tunesmith.display.tables import plural
from tunesmith.display.tensorboard import TensorBoardScalars
from tunesmith.driver.compile import as_target
from tunesmith.driver.model_check.check_models import check_models, whole_models
from tunesmith.driver.search_run import Limits, SearchRun
from tunesmith.driver.size_buckets import Sizes, parse_sizes
from tunesmith.driver.tune_options import (
    EARLIER,
    FIRST,
    Budget,
    Search,
    as_budget,
    as_search,
    default_batch,
    target_here,
    target_remote,
)
from tunesmith.driver.workloads import Loaded, Subject, WorkloadLike, find_subjects, module_of, with_files_loaded
from tunesmith.graph.passes.to_mixed_precision import Precision, with_precision
from tunesmith.ir.remarks import checked
from tunesmith.ir.target.target import Target
from tunesmith.measure.builder import Builder, InProcessBuilder
from tunesmith.measure.local_builder import LocalBuilder
from tunesmith.measure.local_runner import InProcessRunner, LocalRunner
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.run_manifest import manifest_path, recorded_run
from tunesmith.measure.runner import Runner
from tunesmith.search.samplers.drafting_sampler import DraftingSampler
from tunesmith.search.samplers.proposals import asked_once
from tunesmith.search.samplers.registry import find_sampler, make_sampler
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.space.rules_table import find_rules
from tunesmith.search.space_pool import SpacePool
from tunesmith.search.task import Task
from tunesmith.search.task_scheduler import Allocator, TaskScheduler, TaskState, as_total, check_weight, make_allocator
from tunesmith.search.tuner import Callback
from tunesmith.support.arguments import as_count, as_factor, refuse_keywords
from tunesmith.support.code_digest import code_digests
from tunesmith.support.errors import TunesmithError, UserError
from tunesmith.support.free_memory import return_free_memory
from tunesmith.support.seeds import recorded_seed


@refuse_keywords(**EARLIER)
def tune(
    workloads: WorkloadLike | Iterable[WorkloadLike],
    target: str | Target | None = None,
    log: str | PathLike[str] | None = "log.jsonl",
    *,
    budget: Budget | int | None = None,
    search: Search | str | type[Sampler] | None = None,
    sizes: Sizes | None = None,
    precision: Precision | None = None,
    workers: int | str | None = None,
    policy: MeasurePolicy | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    tensorboard: str | PathLike[str] | None = None,
) -> Report:
    """Search for fast schedules.

    Args:
        workloads: operators' texts, `"path.py:function"`, PrimFuncs, modules, lists of tensors.  Equal programs are measured once.
        target: target of the programs; by default that of the `with target:` around, else this machine.  The rates of this machine are
            measured once and cached, unless a Target object is given.
        log: file of records, read first and then appended to; missing folders are made.  `LOG.runs` beside it records the run.  None
            disables the log.
        budget: when the search ends; a number is the trials of each workload, by default 128.
        search: sampler, cost model, seed and the rest of the method; a name or a class is the sampler.
        sizes: dynamic sizes to tune for: `"n=1..128"`, `"n=16,64,128"`, or a mapping from names to numbers, lists or ranges.  A range is
            cut at powers of two.  Each part is a workload: it is measured at its largest size, and its schedule is used for all its sizes.
        precision: of models, as for `compile`: the programs of a model depend on it.
        workers: compiling processes; by default one per core.  0 compiles and runs in this process, which a crashing candidate ends.
            "ray" or "ray:N" compiles and runs with Ray actors, N or one per processor, in the cluster at RAY_ADDRESS or a local Ray.
        policy: how candidates are measured; by default with warm caches, and for a model with its weights not in the caches.
        progress: show progress on standard error.
        callbacks: called with the progress of a workload after each batch.
        tensorboard: folder of TensorBoard curves; needs the extra `tensorboard`.
    Returns:
        The results of each workload.  Ctrl-C ends the search early and is not an error; a failed workload does not stop the others.
    Raises:
        UserError: an argument is invalid; raised before any measurement.
        RecordError: the log cannot be read or written.
        BuildError: the target's code cannot run here.
    """
    b, s = as_budget(budget), as_search(search)
    trials = 128 if b.trials is None and not b.is_shared and b.min_gain is None else b.trials
    total = None if b.total_trials is None else as_total(b.total_trials)
    trials, leaders = None if trials is None else as_count("trials", trials), as_count("leaders", s.leaders, 0)
    rules, callbacks = None if s.rules is None else find_rules(s.rules), _callbacks(callbacks)
    growth = as_factor("error_growth", s.error_growth, "it is a factor of the errors of direct sums, at least 1")
    _check(workers, policy, s.weights, tensorboard)
    allocator = make_allocator(("gain" if b.is_shared else "round-robin") if s.allocation is None else s.allocation)
    batch = None if s.batch is None else as_count("batch", s.batch)
    given = _in_precision(with_files_loaded(workloads), precision)
    models = whole_models(given) if s.check_models and s.rules is None else []  # those of other rules have no schedules to compare with
    found = find_subjects(given, None if sizes is None else parse_sizes(sizes), as_target(target))
    if policy is None and any(x.in_model for x in found):
        policy = MeasurePolicy(race=RacePolicy(constant_bytes=COLD_BYTES))
    seed = recorded_seed(s.seed)
    kind, maker = find_sampler(s.sampler), find_model(s.model)
    warnings = list(dict.fromkeys([f"{x.unsized_name}: {remark}" for x in found for remark in checked(x.func)]))
    target = target_remote(target) if isinstance(workers, str) else target_here(target)
    named = _weighted([x.task(target, rules, growth) for x in found], s.weights or {})
    tasks, equal = _distinct(named)
    each = trials if trials is not None else None if total is None else max(1, total // len(tasks))
    scheduler = _scheduler(allocator, batch, each, total, b, tasks)
    groups = [{x.name: _group(x) for x in found}[task.name] for task in tasks]
    journal = None if log is None else RecordLog(log)
    database = (Database() if journal is None else _loaded(journal)).compiled_with(pass_changes(target))
    once = [asked_once(batch, each)] if batch is not None and each is not None and batch >= each else []
    before = copy.copy(database) if models else database
    notes = [*once, *equal, *warnings]
    with contextlib.ExitStack() as stack:
        shown: list[Callback] = [*callbacks]
        if tensorboard is not None:
            shown.append(stack.enter_context(TensorBoardScalars(tensorboard)).show)
        if progress:
            view = stack.enter_context(ProgressView(total=total, seconds=b.seconds, tasks=len(tasks)))
            for note in notes:
                view.note(note)
            shown.append(view.show)
        builder, runner = builder_and_runner(workers, target, stack)
        measurer = stack.enter_context(Measurer(target, builder, runner, policy, journal))
        settings = _settings(b, s, trials, scheduler.batch, leaders, type(allocator).__name__, workers, sizes, precision)
        facts = {"workloads": [task.name for task in named], "settings": settings, "code": code_digests([kind, maker, *(rules or ())])}
        path = None if log is None else manifest_path(log)
        manifest = stack.enter_context(recorded_run(path, seed=seed, target=target, **facts))
        spaces = stack.enter_context(SpacePool(_inputs(kind, maker), 1 if workers == 0 else None))
        limits = Limits(trials, leaders, seed)
        samplers = partial(_sampler, kind, maker, seed)
        run = SearchRun(tasks, groups, samplers, measurer, database, scheduler, spaces, limits, shown, transfer=s.transfer)
        begun = time.perf_counter()
        report = run.run()
        notes += _remarks(report, b, None if log is None else str(log), leaders > 0, tasks)
        measured = any(t.trials > t.resumed for t in report.tasks)
        if models and measured and target.is_cpu and not isinstance(workers, str) and not report.interrupted:
            search_s = time.perf_counter() - begun
            checks, failed = check_models(
                models, target, before, database, tasks, growth, journal, search_s, spaces, view.say if progress else lambda text: None
            )
            report, notes = _checked(report, checks, database, target), notes + failed
        if not any(t.trials for t in report.tasks):
            notes = [note for note in notes if note not in once]  # the progress has it, and no sampler was asked
        report = dataclasses.replace(_with_equal_programs(report, named), notes=(*report.notes, *notes))
        manifest["tasks"] = [_manifest_entry(t) for t in report.tasks]
        if failure := _failure(report):
            manifest["outcome"] = failure
    return_free_memory()
    return report


def _checked(report: Report, checks: tuple[ModelCheck, ...], database: Database, target: Target) -> Report:
    """The report with the comparisons, and the best records after their choices and withdrawals."""
    tasks = report.tasks
    if any(check.withdrawn or check.chosen for check in checks):
        best = {t.digest: database.best(t.digest, target.to_json()) for t in tasks if t.best is not None}
        tasks = tuple([dataclasses.replace(t, best=best.get(t.digest)) for t in tasks])
    return dataclasses.replace(report, models=checks, tasks=tasks)


def _settings(
    b: Budget,
    s: Search,
    trials: int | None,
    batch: int | None,
    leaders: int,
    allocation: str,
    workers: int | str | None,
    sizes: Sizes | None,
    precision: Precision | None,
) -> dict[str, object]:
    """The settings in the run manifest."""
    return {
        "trials": trials,
        "total_trials": b.total_trials,
        "seconds": None if b.seconds is None else float(b.seconds),
        "early_stop": b.early_stop,
        "min_gain": None if b.min_gain is None else float(b.min_gain),
        "batch": batch,
        "sampler": s.sampler if isinstance(s.sampler, str) else s.sampler.__qualname__,
        "model": str(s.model),
        "allocation": allocation,
        "leaders": leaders,
        "transfer": s.transfer,
        "error_growth": None if math.isinf(s.error_growth) else float(s.error_growth),
        "workers": workers,
        "sizes": None if sizes is None else str(sizes),
        **({} if precision is None else {"precision": str(precision)}),
    }


def _failure(report: Report) -> str | None:
    """The outcome of a run that did not end well, for its manifest."""
    if report.interrupted:
        return "interrupted"
    failed = report.tasks and all(t.failure for t in report.tasks)
    return f"failed: {report.tasks[0].failure}" if failed else None


def _manifest_entry(task: TaskReport) -> dict[str, object]:
    """The entry of a task in the run manifest."""
    failure = {"failure": task.failure} if task.failure else {}
    return {"workload": task.workload, "digest": task.digest, "trials": task.trials, "resumed": task.resumed, **failure}


COLD_BYTES = 256 << 20
"""Memory from which the weights of a model's layers are taken in rotation: several times a last-level cache, which keeps part of a smaller
one (on 32 MB, 64 MB of rotating weights made 17 MB of transformed filters look twice as fast as 256 MB did)."""


def _scheduler(
    allocator: Allocator, batch: int | None, each: int | None, total: int | None, b: Budget, tasks: Sequence[Task]
) -> TaskScheduler:
    """The scheduler of a run; `each` is a task's share of the trials.  UserError if a weight is invalid, or the budget too small."""
    used = batch if batch is not None else default_batch(total if allocator.begins else each)
    first = min(FIRST, used) if batch is None else None
    made = TaskScheduler(allocator, used, first=first, total=total, seconds=b.seconds, early_stop=b.early_stop, min_gain=b.min_gain)
    made.check([TaskState(task.name, (), task.weight) for task in tasks])
    return made


def _sampler(kind: type[Sampler], maker: Callable[..., CostModel], seed: int, task: Task) -> Sampler:
    return make_sampler(kind, task, lambda: make_model(maker, seed), seed)


def _inputs(kind: type[Sampler], maker: Callable[..., CostModel]) -> str | None:
    """The inputs of the models of a search, for which workers make the formulas; None for a sampler that prices no candidates."""
    return getattr(maker, "inputs", "program") if issubclass(kind, DraftingSampler) else None


def _group(subject: Subject) -> str:
    """Group of workloads of one operator and similar operation counts, expected to reach similar rates; the logarithm's base is Ansor's."""
    if subject.operator is None or not subject.flops:
        return ""
    return f"{subject.operator.operator.name}/{int(math.log(subject.flops + 1, 1.618))}"


def _check(workers: object, policy: object, weights: object, tensorboard: object) -> None:
    """Raise UserError for arguments of the wrong type, before any measurement."""
    if isinstance(workers, str):
        _ray_workers(workers)
    elif workers is not None:
        try:
            as_count("workers", workers, 0)
        except UserError as error:
            raise UserError(f'{error}: workers is a number of processes, 0 for none, "ray" or "ray:N"') from None
    if policy is not None and not isinstance(policy, MeasurePolicy):
        raise UserError(f"policy={policy!r:.200}: expected a MeasurePolicy")
    if weights is not None and not isinstance(weights, Mapping):
        raise UserError(f"weights={weights!r:.200}: expected a mapping from workload names to numbers")
    if tensorboard is not None and not isinstance(tensorboard, (str, PathLike)):
        raise UserError(f"tensorboard={tensorboard!r:.200}: expected the path of a folder")


def _callbacks(given: object) -> list[Callback]:
    found = None if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if found is None or not all(callable(c) for c in found):
        raise UserError(f"callbacks={given!r:.200}: expected a list of functions of the progress of a workload")
    return found


def _in_precision(workloads: list[Any], precision: Precision | None) -> list[Any]:
    """The workloads, with models in a precision; None keeps that of each."""
    if precision is None:
        return workloads
    if not any(module_of(w) is not None for w in workloads):
        shown = f"{workloads[0]!r:.100} is none" if len(workloads) == 1 else f"none of {workloads!r:.100} is one"
        raise UserError(f"precision={precision!r} is for models, and {shown}")
    return [_with_precision(w, precision) for w in workloads]


def _with_precision(workload: Any, precision: Precision) -> Any:
    module = module_of(workload)
    if module is None:
        return workload
    made = with_precision(module, precision)
    return dataclasses.replace(workload, found=made) if isinstance(workload, Loaded) else made


def _weighted(tasks: Sequence[Task], weights: Mapping[str, float]) -> list[Task]:
    """The tasks with their weights.  Raises UserError if a weight matches no task."""
    unknown = sorted(weights.keys() - {task.name for task in tasks})
    if unknown:
        raise UserError(f"the weight {unknown[0]!r} matches no tuned workload; tuned: {', '.join(task.name for task in tasks)}")
    for name, weight in weights.items():
        check_weight(name, weight)
    return [dataclasses.replace(task, weight=weights.get(task.name, task.weight)) for task in tasks]


def _distinct(tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
    """One task for each program, with the sum of the weights, and a note for each task without its own search.

    Of several tasks, the first with a numpy reference is chosen, which also has suitable ranges of inputs.
    """
    equal: dict[str, list[Task]] = {}
    for task in tasks:
        equal.setdefault(task.digest, []).append(task)
    chosen, notes = [], []
    for same in equal.values():
        one = min(same, key=lambda task: task.reference is None)
        chosen.append(one if len(same) == 1 else dataclasses.replace(one, weight=sum(task.weight for task in same)))
        notes += [f"{task.name} is the same program as {one.name}, and has its result" for task in same if task is not one]
    return chosen, notes


def _remarks(report: Report, b: Budget, log: str | None, ranked: bool, tasks: Sequence[Task]) -> list[str]:
    """The notes that follow from the results."""
    return [*noise_notes(report.tasks, log, ranked), *_unmeasured(report), *_unsearched(report, b), *_space_notes(tasks)]


def _unmeasured(report: Report) -> list[str]:
    """A note about workloads that got no trial, because others were expected to gain more."""
    names = [t.workload for t in report.tasks if not t.trials and not t.failure]
    if not names:
        return []
    which = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    missed = f"{plural(len(names), 'workload')} got no trial before the budget was spent"
    return [f"{missed}, because others were expected to gain more: {which}"]


def _unsearched(report: Report, b: Budget) -> list[str]:
    """A note if nothing was measured that the log did not have."""
    trials = sum(t.trials for t in report.tasks)
    if report.interrupted or not trials or any(t.trials > t.resumed or t.failure for t in report.tasks):
        return []
    if b.seconds is not None:
        return [f"the budget of {b.seconds:g} s ended before a new candidate was measured: starting the search took it. Give more seconds"]
    return [f"no new candidate was measured: the log has {plural(trials, 'trial')}, which the budget counts. Raise it to search on"]


def _space_notes(tasks: Sequence[Task]) -> list[str]:
    """A note for each schedule of given rules that is missing in a space, and one for each block without a search.

    Built-in rules often have schedules that a workload does not admit; `show` lists them.  Spaces that no search needed are not generated.
    """
    found: list[str] = []
    for task in tasks:
        if not task.has_space:
            continue
        with contextlib.suppress(TunesmithError):  # a task without a space has failed, and its report has the reason
            missing = () if task.rules is None else task.space.missing
            found += [*[f"{task.name}: {line}" for line in missing], *task.space.plain]
    return list(dict.fromkeys(found))


def _with_equal_programs(report: Report, tasks: Sequence[Task]) -> Report:
    """The report of `_distinct` tasks, with an entry for each task."""
    found = {t.digest: t for t in report.tasks}
    entries = [dataclasses.replace(found[task.digest], workload=task.name, flops=task.flops) for task in tasks]
    return dataclasses.replace(report, tasks=tuple(entries))


def _loaded(journal: RecordLog) -> Database:
    contents = journal.load()
    database = Database(contents.records, contents.workloads.values())
    database.report = contents.report
    return database


def builder_and_runner(workers: int | str | None, target: Target, stack: contextlib.ExitStack) -> tuple[Builder, Runner]:
    """Create the builder and the runner; the stack closes them."""
    if isinstance(workers, str):
        return _ray_builder_and_runner(workers, target, stack)
    builder = InProcessBuilder() if workers == 0 else LocalBuilder(workers)
    return stack.enter_context(builder), stack.enter_context(InProcessRunner() if workers == 0 else LocalRunner(target.num_cores))


def _ray_builder_and_runner(workers: str, target: Target, stack: contextlib.ExitStack) -> tuple[Builder, Runner]:
    from tunesmith.measure.ray.ray_builder import RayBuilder
    from tunesmith.measure.ray.ray_cluster import RayCluster
    from tunesmith.measure.ray.ray_runner import RayRunner

    count = _ray_workers(workers)
    cluster = stack.enter_context(RayCluster(count))
    return stack.enter_context(RayBuilder(cluster, count)), stack.enter_context(RayRunner(cluster, target))


def _ray_workers(workers: str) -> int | None:
    """The N of "ray:N"; None for "ray"."""
    kind, _, number = workers.partition(":")
    if kind != "ray" or (number and not number.isdecimal()) or workers.endswith(":"):
        raise UserError(f'workers is a number of processes, "ray" or "ray:N", got {workers!r}')
    return int(number) if number else None
