"""Test the allocation of trials by expected gain: the formula, tasks that never begin, costs, and synthetic searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tunesmith.search.gain_allocator import EFFICIENCY, Gain
from tunesmith.search.task_scheduler import Gradient, RoundRobin, TaskScheduler, TaskState, Turn, make_allocator
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

Curve = list[float | None]
LN2 = math.log(2.0)
NEVER: Curve = [None] * 2000


def power(start: float, exponent: float, trials: int = 2000) -> Curve:
    """A curve that falls as a power of its trials."""
    return [start * t**-exponent for t in range(1, trials + 1)]


def run(scheduler: TaskScheduler, tables: Sequence[Curve], states: Sequence[TaskState]) -> tuple[list[Turn], list[TaskState]]:
    """The turns of a search with these curves, and the final states."""
    now, turns = list(states), list[Turn]()
    while (turn := scheduler.next(now)) is not None:
        assert len(turns) < 10_000
        turns.append(turn)
        after = tables[turn.task][: now[turn.task].trials + turn.trials]
        now[turn.task] = replace(now[turn.task], curve=after)
    return turns, now


def tasks(least: Sequence[float]) -> list[TaskState]:
    return [TaskState(f"t{i}", (), least=x) for i, x in enumerate(least)]


# ---- the choice -------------------------------------------------------------------------------------------------------


def test_the_larger_weighted_time_is_chosen() -> None:
    a, b = TaskState("a", [1.0] * 16, least=0.1), TaskState("b", [100.0] * 16, least=10.0)
    assert Gain().pick([a, b], [0, 1], 8) == 1
    assert Gain().pick([replace(a, weight=1000.0), b], [0, 1], 8) == 0
    assert Gain().pick([a, b], [0], 8) == 0  # only open tasks


def test_a_task_that_has_more_left_to_gain_is_chosen() -> None:
    a, b = TaskState("a", [1.0] * 16, least=0.9), TaskState("b", [1.0] * 16, least=0.1)
    assert Gain().pick([a, b], [0, 1], 8) == 1


def test_a_stagnating_task_gets_fewer_turns_than_one_that_falls() -> None:
    tables = [[1.0] * 2000, power(4.0, 0.3)]
    _, end = run(TaskScheduler(Gain(), 32, first=8, total=400), tables, tasks([0.01, 0.01]))
    assert end[1].best is not None and end[1].best < 1.0  # in the end its time is the shorter one
    assert 8 <= end[0].trials < end[1].trials / 2


def test_a_task_that_costs_less_time_for_each_trial_is_chosen() -> None:
    a = TaskState("a", [1.0] * 16, least=0.1, trial_seconds=0.2, is_begun=True)
    assert Gain().pick([a, replace(a, trial_seconds=0.1)], [0, 1], 8) == 1
    assert Gain().pick([replace(a, weight=1.9), replace(a, trial_seconds=0.1)], [0, 1], 8) == 1
    assert Gain().pick([replace(a, weight=2.1), replace(a, trial_seconds=0.1)], [0, 1], 8) == 0


def test_generating_a_space_costs_time_too() -> None:
    """An idle task is expected to begin in the time of the others, if it is not begun."""
    measured = TaskState("m", [1.0] * 16, least=0.1, trial_seconds=0.1, start_seconds=0.0, is_begun=True)
    idle = TaskState("i", (), least=0.1)  # 1 s by the efficiency of the other
    assert Gain().pick([measured, idle], [0, 1], 8) == 1
    slow = replace(measured, start_seconds=100.0)
    assert Gain().pick([slow, idle], [0, 1], 8) == 0
    assert Gain().pick([slow, idle, replace(idle, is_begun=True)], [0, 1, 2], 8) == 2


def test_the_expected_time_of_an_idle_task_has_the_efficiency_of_the_others() -> None:
    """A task of 30 times its least time, and an idle one: 20 by the assumed efficiency, 300 by that of the other."""
    assert EFFICIENCY == 0.5
    measured, idle = TaskState("m", [30.0] * 4, least=1.0, weight=4.0), TaskState("i", (), least=10.0)
    assert Gain().pick([measured, idle], [0, 1], 8) == 1
    assert Gain().pick([replace(measured, least=15.0), idle], [0, 1], 8) == 0


def test_a_task_with_unknown_least_time_begins_first() -> None:
    states = tasks([0.2, 0.0, 0.4])
    assert Gain().pick(states, [0, 1, 2], 8) == 1
    turns, end = run(TaskScheduler(Gain(), 8, total=160), [power(1.0, 0.2)] * 3, states)
    assert turns[0].task == 1 and min(s.trials for s in end) >= 16


def test_ties_are_broken_by_trials_then_by_position() -> None:
    assert Gain().pick(tasks([1.0, 1.0]), [0, 1], 8) == 0
    assert Gain().pick(tasks([0.0, 0.0, 0.0]), [1, 2], 8) == 1
    failed = TaskState("f", [None] * 9)
    assert Gain().pick([failed, replace(failed, curve=[None] * 8)], [0, 1], 8) == 1


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_a_task_without_a_success_has_bounded_priority(least: float) -> None:
    """It gets twice the mean trials of the others, and is then the last choice, whatever its expected time."""
    tables = [power(1.0, 0.2), NEVER, power(0.5, 0.2)]
    turns, end = run(TaskScheduler(Gain(), 8, total=400), tables, tasks([0.1, least, 0.05]))
    assert "rescue" in {t.why for t in turns}
    assert end[1].trials <= end[0].trials + end[2].trials + 8
    assert min(end[0].trials, end[2].trials) > 50


def test_tasks_begin_while_none_has_a_success() -> None:
    """The heaviest tasks fail: without a success of another task, their trials have no bound."""
    tables = [NEVER, NEVER, power(1e-3, 0.2)]
    turns, end = run(TaskScheduler(Gain(), 8, total=120), tables, tasks([2.0, 1.0, 1e-4]))
    assert [t.task for t in turns[:3]] == [0, 1, 2] and end[2].trials >= 24
    _, end = run(TaskScheduler(Gain(), 8, total=120), [NEVER] * 3, tasks([2.0, 1.0, 1e-4]))
    assert [s.trials for s in end] == [40, 40, 40]


# ---- with the scheduler -----------------------------------------------------------------------------------------------


def test_tiny_tasks_are_never_begun() -> None:
    tables = [power(1e-2, 0.2), *[power(1e-7, 0.2)] * 20, power(5e-3, 0.2)]
    turns, end = run(TaskScheduler(Gain(), 32, first=8, total=128), tables, tasks([1e-3, *[1e-8] * 20, 5e-4]))
    assert [i for i, s in enumerate(end) if s.trials] == [0, 21] and sum(s.trials for s in end) == 128
    assert {t.why for t in turns} == {"choice"}


def test_a_total_below_the_number_of_tasks_is_no_mistake() -> None:
    states = tasks([1.0, 2.0, 3.0])
    assert TaskScheduler(Gain(), 8, total=2).next(states) == Turn(2, 2, "choice")
    with pytest.raises(UserError, match="2 trials for 3 tasks"):
        TaskScheduler(Gradient(), 8, total=2).next(states)


def test_there_is_no_warm_up() -> None:
    assert Gain.begins and not Gradient.begins and not RoundRobin.begins
    for total in (None, 400):
        assert TaskScheduler(Gain(), 8, total=total).next(tasks([1.0, 2.0])) == Turn(1, 8, "choice")
        assert TaskScheduler(Gradient(), 8, total=total).next(tasks([1.0, 2.0])) == Turn(0, 8, "warm-up")


def test_turns_double_from_the_first_to_a_batch() -> None:
    turns, end = run(TaskScheduler(Gain(), 32, first=4, total=150), [power(1.0, 0.2)], tasks([0.1]))
    assert [t.trials for t in turns] == [4, 4, 8, 16, 32, 32, 32, 22] and end[0].trials == 150
    turns, _ = run(TaskScheduler(Gain(), 10, first=4, total=40), [power(1.0, 0.2)], tasks([0.1]))
    assert [t.trials for t in turns] == [4, 4, 8, 10, 10, 4]
    assert TaskScheduler(Gain(), 8, first=32).first == 8  # a batch at most
    with pytest.raises(UserError, match="first=0"):
        TaskScheduler(Gain(), 8, first=0)


def test_the_warm_up_of_other_allocators_is_a_first_turn() -> None:
    turns, _ = run(TaskScheduler(RoundRobin(), 16, first=4, total=48), [power(1.0, 0.2)] * 2, tasks([1.0, 1.0]))
    assert [(t.task, t.trials) for t in turns[:6]] == [(0, 4), (1, 4), (0, 4), (1, 4), (0, 8), (1, 8)]


def test_equal_curves_give_equal_turns_also_after_an_interruption() -> None:
    tables = [power(1.0, 0.1), NEVER, power(0.7, 0.4), power(0.6, 0.2)]
    scheduler, states = TaskScheduler(make_allocator("gain"), 32, first=8, total=300), tasks([0.1, 0.2, 0.0, 0.05])
    turns, end = run(scheduler, tables, states)
    assert run(scheduler, tables, states) == (turns, end)
    for n in (0, 3, 9, len(turns)):
        spent = [sum(t.trials for t in turns[:n] if t.task == i) for i in range(4)]
        begun = [replace(s, curve=tables[i][:k]) for i, (s, k) in enumerate(zip(states, spent, strict=True))]
        assert run(scheduler, tables, begun) == (turns[n:], end)


# ---- synthetic searches -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """Random tasks: their times fall from `above` times the least time to a floor, as a power of the trials.

    Attributes:
        slope: draws the exponent.
        spread: decimal orders of magnitude of the least times.
        floor: draws the ratio of the floor to the least time.
        mistake: decimal orders of magnitude by which the least time that the scheduler knows may be wrong.
        scatter: standard deviation of the logarithm of the times of single candidates, of which a curve is the running minimum.
    """

    slope: Callable[[np.random.Generator], float]
    spread: float = 4.0
    floor: Callable[[np.random.Generator], float] = lambda rng: rng.uniform(1.1, 2.5)
    mistake: float = 0.0
    scatter: float = 0.0

    def tasks(self, rng: np.random.Generator, count: int, trials: int) -> tuple[list[Curve], list[TaskState]]:
        tables, states = [], []
        for i in range(count):
            least = 10.0 ** -rng.uniform(2.0, 2.0 + self.spread)
            start, floor = least * rng.uniform(3, 12), least * self.floor(rng)
            fall = np.arange(1, trials + 1) ** -self.slope(rng)
            times = (floor + (start - floor) * fall) * np.exp(self.scatter * rng.standard_normal(trials))
            tables.append(np.minimum.accumulate(np.maximum(times, floor)).tolist())
            known = least * 10.0 ** rng.uniform(-self.mistake, self.mistake)
            weight = float(rng.integers(1, 9))
            states.append(TaskState(f"t{i}", (), weight, flops=int(1e11 * least), group="g", least=known))
        return tables, states


FAMILIES = {
    "slopes from 0.02 to 0.4": Family(lambda rng: rng.uniform(0.02, 0.4)),
    "half of the tasks do not improve": Family(lambda rng: 0.3 * rng.integers(2)),
    "no floors": Family(lambda rng: rng.uniform(0.05, 0.4), floor=lambda rng: 0.0),
    "least times are wrong": Family(lambda rng: rng.uniform(0.05, 0.4), mistake=1.0),
}


def reached(scheduler: TaskScheduler, tables: Sequence[Curve], states: Sequence[TaskState]) -> float:
    """The weighted time at the end of a search; a task without trials has the time of its first one."""
    _, end = run(scheduler, tables, states)
    return sum(s.weight * (s.best or table[0] or 0.0) for s, table in zip(end, tables, strict=True))


def ratios(family: Family, count: int, total: int) -> tuple[float, float]:
    """The weighted times that `Gradient` and `RoundRobin` reach relative to `Gain`, each with its turns: means of ten draws."""
    logs = np.zeros((10, 2))
    turn = max(1, min(32, total // count // 4))
    for seed in range(10):
        tables, states = family.tasks(stream(seed, "curves"), count, total)
        gain = reached(TaskScheduler(Gain(), 32, first=8, total=total), tables, states)
        others = [reached(TaskScheduler(a, turn, total=total), tables, states) for a in (Gradient(), RoundRobin())]
        logs[seed] = np.log(np.array(others) / gain)
    gradient, even = np.exp(logs.mean(axis=0)).tolist()
    return gradient, even


@pytest.mark.parametrize(("count", "total"), [(12, 384), (30, 480)])
@pytest.mark.parametrize("family", FAMILIES)
def test_gain_reaches_shorter_times_than_the_other_allocators(family: str, count: int, total: int) -> None:
    gradient, even = ratios(FAMILIES[family], count, total)
    assert gradient > 1.0 and even > 1.03, (gradient, even)


def test_tasks_of_one_size_and_slope_gain_nothing_from_a_choice() -> None:
    gradient, even = ratios(Family(lambda rng: 0.2, spread=0.3), 12, 384)
    assert gradient == pytest.approx(1.0, abs=0.01) and even > 1.0


def test_scattered_candidates_mislead_gain_more_than_the_gradient() -> None:
    """A running minimum of scattered times has steps: long turns spend trials on tasks at their floors.  Still better than even turns."""
    gradient, even = ratios(Family(lambda rng: rng.uniform(0.05, 0.4), scatter=0.3), 12, 384)
    assert gradient > 0.93 and even > 1.1, (gradient, even)
