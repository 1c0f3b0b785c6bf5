"""Test the runs of several tasks with a fake measurer and clock: which tasks begin, when, and the time kept for ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunesmith.display.report import Report
from tunesmith.driver import search_run
from tunesmith.driver.search_run import RANKING_SECONDS, RANKING_SHARE, Limits, SearchRun
from tunesmith.ir.analysis.least_time import least_seconds
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.record import Record
from tunesmith.ops.workload import workload
from tunesmith.search import tuner
from tunesmith.search.gain_allocator import Gain
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.task import Task
from tunesmith.search.task_scheduler import Allocator, RoundRobin, TaskScheduler, TaskState
from tunesmith.support.errors import BuildError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
LARGE, MEDIUM, SMALL, TINY = "matmul(m=256,n=256,k=256)", "matmul(m=128,n=128,k=128)", "matmul(m=64,n=64,k=64)", "relu(shape=64)"


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (search_run, tuner):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made, perf_counter=made))
    return made


class FakeMeasurer:
    """Measures a candidate in 0.1 s, and the leaders of a task in half a second; times are about three times the least one."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.measured, self.ranked = clock, list[str](), list[float]()

    def stream(self, task: Any, candidates: Sequence[Any], *, seed: int = 0) -> Iterator[Record]:
        for c in candidates:
            self.measured.append(task.name)
            self.clock.now += 0.1
            yield record(task, c, len(self.measured))

    def compare(self, task: Any, candidates: Sequence[Any], *, policy: Any, seed: int = 0) -> list[Record]:
        self.clock.now += 0.5
        self.ranked.append(self.clock.now)
        return [record(task, c, 1000 + i) for i, c in enumerate(candidates)]

    def note_best(self, task: Any, seconds: float) -> None:
        pass


def record(task: Any, candidate: Any, timestamp: float) -> Record:
    sketch, row = task.sketches[candidate[0]], tuple(candidate[1])
    seconds = 3 * least_seconds(task.func, TARGET) * (1 + 1e-3 * candidate[0] + 1e-6 * sum(row))
    return Record(
        **{"workload": task.digest, "target": TARGET.to_json(), "trace": sketch.trace_of(row).to_json(), "sketch": sketch.name, "row": row},
        **{"samples": (seconds,), "clean": True, "error": None, "verified": True, "host": {}, "versions": {}},
        **{"seed": 0, "timestamp": float(timestamp), "policy": {}, "extra": {}},
    )


class FakeSpaces:
    """Notes which spaces are generated together; each takes a second."""

    def __init__(self, clock: Clock, workers: int) -> None:
        self.clock, self.workers, self.asked, self.closed = clock, workers, list[list[str]](), 0

    def generate(self, tasks: Sequence[Task]) -> None:
        self.asked.append([t.name for t in tasks])
        self.clock.now += len(tasks)

    def close(self) -> None:
        self.closed += 1


class Run:
    """A run of tasks and its parts."""

    def __init__(
        self, clock: Clock, texts: Sequence[str], scheduler: TaskScheduler, *, workers: int = 1, leaders: int = 0, database: Any = None
    ) -> None:
        made = [workload(t) for t in texts]
        self.tasks = [Task(w.text, w.func, TARGET, w.reference, w.flops) for w in made]
        self.measurer, self.spaces = FakeMeasurer(clock), FakeSpaces(clock, workers)
        self.database = Database() if database is None else database
        self.run = SearchRun(
            self.tasks,
            [""] * len(texts),
            lambda task: RandomSampler(task, 1),
            cast(Any, self.measurer),
            self.database,
            scheduler,
            cast(Any, self.spaces),
            Limits(None, leaders, 0),
            transfer=False,
        )

    def report(self) -> Report:
        return self.run.run()

    def generated(self) -> list[str]:
        return [t.name for t in self.tasks if "space" in t.__dict__]


def named(*texts: str) -> list[str]:
    return [workload(t).text for t in texts]


def test_spaces_of_tasks_without_trials_are_not_generated(clock: Clock) -> None:
    run = Run(clock, [TINY, LARGE, SMALL], TaskScheduler(Gain(), 8, total=24))
    report = run.report()
    assert [t.trials for t in report.tasks] == [0, 24, 0] and [t.failure for t in report.tasks] == [""] * 3
    assert run.generated() == named(LARGE) and run.spaces.asked[1:] == [named(LARGE)] and run.spaces.closed == 1


def test_other_allocators_begin_all_tasks_at_once(clock: Clock) -> None:
    run = Run(clock, [TINY, LARGE], TaskScheduler(RoundRobin(), 8, total=16))
    assert [t.trials for t in run.report().tasks] == [8, 8]
    assert run.spaces.asked == [named(TINY, LARGE)]


def test_tasks_with_records_begin_first(clock: Clock) -> None:
    """Their trials count: they are part of the total."""
    first = Run(clock, [TINY], TaskScheduler(Gain(), 8, total=8))
    first.report()
    run = Run(clock, [SMALL, TINY, LARGE], TaskScheduler(Gain(), 8, total=24), database=first.database)
    report = run.report()
    assert run.spaces.asked == [named(TINY), named(LARGE)]
    assert [(t.trials, t.resumed) for t in report.tasks] == [(0, 0), (8, 8), (16, 0)] and set(run.measurer.measured) == set(named(LARGE))


def test_each_worker_generates_a_space_the_heaviest_tasks_first(clock: Clock) -> None:
    run = Run(clock, [TINY, SMALL, LARGE, MEDIUM], TaskScheduler(Gain(), 8, total=8), workers=3)
    assert [t.trials for t in run.report().tasks] == [0, 0, 8, 0]
    assert run.spaces.asked[1:] == [named(LARGE, MEDIUM, SMALL)] and set(run.generated()) == set(named(LARGE, MEDIUM, SMALL))


def test_a_task_without_a_space_leaves_its_trials_to_others(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(clock, [SMALL, LARGE], TaskScheduler(Gain(), 8, total=16), workers=2)

    def refused(func: PrimFunc, *_: object) -> Any:
        raise BuildError("no sketch rule applies")

    with monkeypatch.context() as patch:
        patch.setattr("tunesmith.search.task.generate", refused)
        assert {t.failure for t in Run(clock, [SMALL, LARGE], TaskScheduler(Gain(), 8, total=16)).report().tasks} == {
            "no sketch rule applies"
        }
    run.tasks[0].space  # noqa: B018
    monkeypatch.setattr("tunesmith.search.task.generate", refused)
    small, large = run.report().tasks
    assert (small.trials, small.failure) == (16, "") and (large.trials, large.failure) == (0, "no sketch rule applies")


class Listening(Gain):
    """Notes the states that it chooses from."""

    def __init__(self) -> None:
        self.asked: list[list[TaskState]] = []

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        self.asked.append(list(states))
        return super().pick(states, open_, batch)


def states(clock: Clock, allocator: Allocator, **budget: Any) -> TaskState:
    """The last state of the task that begins first."""
    Run(clock, [LARGE, TINY], TaskScheduler(allocator, 8, **budget)).report()
    assert isinstance(allocator, Listening)
    before, *_, last = allocator.asked
    assert not before[0].is_begun and before[0].least == least_seconds(workload(LARGE).func, TARGET) and last[0].is_begun
    return last[0]


def test_seconds_count_only_if_they_are_limited(clock: Clock) -> None:
    """Else equal measurements would not give equal orders."""
    state = states(clock, Listening(), total=24)
    assert state.trials == 16 and (state.start_seconds, state.trial_seconds) == (0.0, 0.0)
    state = states(clock, Listening(), total=24, seconds=100.0)
    assert state.start_seconds == pytest.approx(1.0) and state.trial_seconds == pytest.approx(0.1)


@pytest.mark.parametrize(("seconds", "kept"), [(20.0, 2 * RANKING_SECONDS), (4.0, 4.0 * RANKING_SHARE)])
def test_the_ranking_of_the_leaders_has_a_part_of_the_time(clock: Clock, seconds: float, kept: float) -> None:
    """A batch takes 0.8 s, and the ranking of one task 0.5 s."""
    run = Run(clock, [SMALL, MEDIUM], TaskScheduler(RoundRobin(), 8, seconds=seconds), leaders=2)
    run.report()
    ends = run.measurer.ranked[0] - 0.5
    assert seconds - kept - 1e-6 <= ends <= seconds - kept + 0.8 + 1e-6
    without = Run(clock, [SMALL, MEDIUM], TaskScheduler(RoundRobin(), 8, seconds=seconds))
    start = clock.now
    without.report()
    assert clock.now - start >= seconds - 1e-6 and not without.measurer.ranked


def test_the_whole_run_ends_with_its_budget_but_for_the_last_batch(clock: Clock) -> None:
    run = Run(clock, [SMALL, MEDIUM], TaskScheduler(RoundRobin(), 8, seconds=20.0), leaders=2)
    run.report()
    assert len(run.measurer.ranked) == 2 and 19.2 <= clock.now <= 20.8


@pytest.mark.parametrize("allocator", [Gain(), RoundRobin()])
def test_a_budget_that_ends_before_the_first_trial_is_a_failure(clock: Clock, allocator: Allocator) -> None:
    """The spaces take longer."""
    report = Run(clock, [SMALL, LARGE], TaskScheduler(allocator, 8, seconds=0.5)).report()
    assert [t.failure for t in report.tasks] == ["the budget ended before its first trial"] * 2 and not report.ok


@pytest.mark.parametrize(
    ("counts", "notes"),
    [
        ([0, 0], ()),
        ([1, 0], ("1 measurement of fast candidates, disturbed by other load, was taken again",)),
        ([1, 2], ("3 measurements of fast candidates, disturbed by other load, were taken again",)),
    ],
)
def test_notes_about_measurements_that_were_taken_again(counts: list[int], notes: tuple[str, ...]) -> None:
    run = SearchRun.__new__(SearchRun)
    run._tunings = {str(n): SimpleNamespace(progress=SimpleNamespace(retaken=n)) for n in counts}  # type: ignore[misc]
    assert run._notes() == notes
