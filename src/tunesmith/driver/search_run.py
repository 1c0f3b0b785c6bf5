"""Tune the tasks of one run in the order of a scheduler; spaces are generated in parallel when their tasks begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tunesmith.display.report import Report, TaskReport
from tunesmith.display.tables import plural
from tunesmith.ir.analysis.least_time import least_seconds
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.records.database import Database
from tunesmith.search.samplers.sampler import Sampler
from tunesmith.search.space_pool import SpacePool
from tunesmith.search.task import Task
from tunesmith.search.task_scheduler import TaskScheduler, TaskState
from tunesmith.search.transfer import Transfer
from tunesmith.search.tuner import Callback, Progress, Tuning
from tunesmith.support.errors import InternalError, TunesmithError
from tunesmith.support.user_code import described

RANKING_SHARE = 0.2
"""Share of a time budget that is kept for timing the leaders of all tasks again, at most."""
RANKING_SECONDS = 0.8
"""Seconds that timing the leaders of one task again usually takes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What each task of a run gets.

    Attributes:
        trials: trials of each task; None for no limit of its own.
        leaders: candidates of each task that are timed again at the end; 0 for none.
        seed: seed of the search.
    """

    trials: int | None
    leaders: int
    seed: int


class SearchRun:
    """The tunings of one run.

    Args:
        tasks: distinct tasks.
        groups: for each task the name of its group of similar tasks, see `TaskState`.
        sampler_of: makes the sampler of a task.
        measurer: measures candidates.
        database: earlier records; new ones are added.
        scheduler: assigns turns.
        spaces: generates the spaces of several tasks in parallel.
        limits: what each task gets.
        callbacks: called with the progress of a task.
        transfer: whether candidates that were fast for similar workloads are tried, of this run and of earlier ones.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        groups: Sequence[str],
        sampler_of: Callable[[Task], Sampler],
        measurer: Measurer,
        database: Database,
        scheduler: TaskScheduler,
        spaces: SpacePool,
        limits: Limits,
        callbacks: Sequence[Callback] = (),
        *,
        transfer: bool = True,
    ) -> None:
        self._tasks, self._sampler_of = tuple(tasks), sampler_of
        self._states = [
            TaskState(t.name, (), t.weight, limits.trials, flops=t.flops, group=group, least=least_seconds(t.func, t.target))
            for t, group in zip(tasks, groups, strict=True)
        ]
        self._database, self._scheduler, self._spaces, self._leaders = database, scheduler, spaces, limits.leaders
        self._tuning = partial(
            Tuning,
            measurer=measurer,
            trials=limits.trials,
            database=database,
            batch=scheduler.batch,
            seed=limits.seed,
            callbacks=callbacks,
            transfer=Transfer(database, {t.digest: t.func for t in tasks}) if transfer else None,
        )
        self._tunings: dict[str, Tuning] = {}
        self._failures: dict[str, str] = {}
        self._exhausted: set[str] = set()
        self._start_seconds: dict[str, float] = {}

    def run(self) -> Report:
        """Search until the budgets are spent; Ctrl-C ends the search early."""
        interrupted = False
        start = time.monotonic()
        try:
            self._begin([i for i, t in enumerate(self._tasks) if self._must_begin(t)])
            while (turn := self._scheduler.next(self._now(), time.monotonic() - start + self._reserve())) is not None:
                name = self._tasks[turn.task].name
                if name not in self._tunings:
                    self._begin(self._together(turn.task))
                elif not self._guarded(name, partial(self._tunings[name].step, turn.trials)):
                    self._exhausted.add(name)
            self._spaces.close()
            self._rank(start)
        except KeyboardInterrupt:
            interrupted = True
        left_out = self._scheduler.allocator.begins and self._measured()  # by choice of the allocator, which is no failure
        missed = "interrupted before it started" if interrupted else "" if left_out else "the budget ended before its first trial"
        return Report(tuple([self._report(task, missed) for task in self._tasks]), interrupted, self._notes())

    def _rank(self, start: float) -> None:
        """Time the leaders again, those of the tasks with the largest times first, because time may run out."""
        seconds = self._scheduler.seconds
        # The last turn may have ended late: the leaders have their time all the same.
        limit = None if seconds is None else max(seconds, time.monotonic() - start + self._reserve())
        for name, tuning in sorted(self._tunings.items(), key=lambda item: -_seconds(item[1].progress)):
            p = tuning.progress
            # A best time that was measured once, or beside other load, is measured again even if no trial is left.
            is_open = p.trials > p.resumed or not tuning.is_ranked
            is_late = limit is not None and time.monotonic() - start > limit
            if self._leaders and name not in self._failures and is_open and not is_late:
                self._guarded(name, partial(tuning.rank, self._leaders))

    def _measured(self) -> bool:
        """Whether any task has a trial."""
        return any(tuning.progress.trials for tuning in self._tunings.values())

    def _must_begin(self, task: Task) -> bool:
        """Whether a task begins before the first turn: the scheduler does not choose which, or the task has trials that count."""
        return not self._scheduler.allocator.begins or bool(self._database.records(task.digest, task.target.to_json()))

    def _together(self, task: int) -> list[int]:
        """The task and those that probably begin next, as many as there are processes: their spaces take no longer than one."""
        waiting = [i for i, t in enumerate(self._tasks) if i != task and t.name not in self._tunings and t.name not in self._failures]
        waiting.sort(key=lambda i: -self._states[i].weight * self._states[i].least)
        return [task, *waiting[: self._spaces.workers - 1]]

    def _begin(self, which: Sequence[int]) -> None:
        """Begin tasks, whose spaces are generated together."""
        tasks = [self._tasks[i] for i in which]
        begun = time.perf_counter()
        self._spaces.generate(tasks)
        shared = (time.perf_counter() - begun) / max(len(tasks), 1)
        for task in tasks:
            begun = time.perf_counter()
            self._guarded(task.name, partial(self._begin_one, task))
            self._start_seconds[task.name] = shared + time.perf_counter() - begun

    def _begin_one(self, task: Task) -> None:
        self._tunings[task.name] = self._tuning(task, self._sampler_of(task))

    def _reserve(self) -> float:
        """Seconds of a time budget that the ranking of the leaders will take."""
        if self._scheduler.seconds is None or not self._leaders:
            return 0.0
        return min(RANKING_SECONDS * len(self._tunings), RANKING_SHARE * self._scheduler.seconds)

    def _now(self) -> list[TaskState]:
        """The tasks as seen by the scheduler; a task that could not start, has failed, or has no more candidates, is done."""
        return [self._state(task, state) for task, state in zip(self._tasks, self._states, strict=True)]

    def _state(self, task: Task, state: TaskState) -> TaskState:
        tuning = self._tunings.get(task.name)
        done = task.name in self._failures or task.name in self._exhausted
        if tuning is None:
            return replace(state, done=done)
        p = tuning.progress
        timed = self._scheduler.seconds is not None
        return replace(
            state,
            curve=tuple(p.curve),
            done=done,
            is_begun=True,
            start_seconds=self._start_seconds.get(task.name, 0.0) if timed else 0.0,
            trial_seconds=p.seconds["total"] / (p.trials - p.resumed) if timed and p.trials > p.resumed else 0.0,
        )

    def _guarded(self, name: str, action: Callable[[], bool | None]) -> bool:
        """Run an action of one task; False when the task is finished or has failed, which is recorded."""
        try:
            return bool(action())
        except TunesmithError as error:
            self._failures[name] = str(error)
        except (Exception, SystemExit) as error:  # a bug in a rule or a sampler, built-in or plug-in, fails one task only
            self._failures[name] = unexpected(error)
        return False

    def _notes(self) -> tuple[str, ...]:
        """How many measurements were taken again."""
        retaken = sum(tuning.progress.retaken for tuning in self._tunings.values())
        verb = "was" if retaken == 1 else "were"
        return (f"{plural(retaken, 'measurement')} of fast candidates, disturbed by other load, {verb} taken again",) if retaken else ()

    def _report(self, task: Task, missed: str) -> TaskReport:
        """The report of a task; `missed` is the failure of one without trials, empty if others needed them more."""
        tuning = self._tunings.get(task.name)
        failure = self._failures.get(task.name, "")
        if tuning is None:
            return TaskReport.of(Progress(task, 0), None, failure or missed)
        best = self._database.best(task.digest, task.target.to_json(), task.func)
        records = self._database.records(task.digest, task.target.to_json())
        if best is None and not failure:
            if tuning.progress.trials:
                failure = "no candidate was built and ran with a correct result"
            elif task.name in self._exhausted:
                failure = f"{type(tuning.sampler).__name__} proposed no candidates; the space has about {task.space.size():.2g}"
            else:
                failure = missed
        return TaskReport.of(tuning.progress, best, failure, records)


def _seconds(progress: Progress) -> float:
    """Best seconds of all calls of a task; 0 without a success."""
    return 0.0 if progress.best is None else progress.task.weight * progress.best.seconds


def unexpected(error: BaseException) -> str:
    """Message of an unexpected exception, with the line that raised it."""
    text, is_users = described(error)
    return text if is_users or isinstance(error, (OSError, MemoryError, SystemExit)) else str(InternalError(text))
