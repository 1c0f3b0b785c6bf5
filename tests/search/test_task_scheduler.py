"""Test the allocation of trials on tasks with given curves: order of turns, budgets, fairness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunesmith.search.task_scheduler import (
    ALLOCATORS,
    Allocator,
    Gradient,
    RoundRobin,
    TaskScheduler,
    TaskState,
    Turn,
    make_allocator,
)
from tunesmith.support.errors import UserError

Curve = list[float | None]


def falling(start: float, end: float, trials: int = 400, pace: float = 30.0) -> Curve:
    """A curve that decays from one time to another."""
    return [end + (start - end) * math.exp(-t / pace) for t in range(trials)]


NEVER: Curve = [None] * 1000


def run(
    scheduler: TaskScheduler, tables: Sequence[Curve], states: Sequence[TaskState] | None = None, seconds: float = 0.0
) -> tuple[list[Turn], list[TaskState]]:
    """The turns of a search with these curves, and the final states."""
    now = list(states) if states is not None else [TaskState(f"t{i}", ()) for i in range(len(tables))]
    turns: list[Turn] = []
    while (turn := scheduler.next(now, len(turns) * seconds)) is not None:
        assert len(turns) < 10_000
        turns.append(turn)
        table, done = tables[turn.task], now[turn.task].trials
        after = table[: done + turn.trials]
        now[turn.task] = replace(now[turn.task], curve=after, done=len(after) < done + turn.trials)
    return turns, now


def test_round_robin_gives_equal_turns_until_each_limit() -> None:
    states = [TaskState(f"t{i}", (), limit=limit) for i, limit in enumerate((5, 2, 4))]
    turns, end = run(TaskScheduler(RoundRobin(), 2), [falling(1, 0.5)] * 3, states)
    assert [t.task for t in turns] == [0, 1, 2, 0, 2, 0]
    assert [t.trials for t in turns] == [2, 2, 2, 2, 2, 1]
    assert [s.trials for s in end] == [5, 2, 4]
    assert TaskState("t", ()).best is None and end[0].best == end[0].curve[4]


def test_a_common_budget_is_spent_exactly_after_warming_up_all_tasks() -> None:
    turns, end = run(TaskScheduler(RoundRobin(), 8, total=50), [falling(1, 0.5)] * 4)
    assert [t.why for t in turns[:5]] == ["warm-up"] * 4 + ["choice"]
    assert sum(s.trials for s in end) == 50 and [s.trials for s in end] == [16, 16, 10, 8]
    turns, end = run(TaskScheduler(Gradient(), 8, total=9), [falling(1, 0.5)] * 4)
    assert [t.trials for t in turns] == [2, 2, 2, 2, 1]  # less than a batch each: even shares


def test_the_gradient_prefers_the_largest_weighted_saving() -> None:
    big, small = falling(100.0, 50.0), falling(1.0, 0.5)
    _, end = run(TaskScheduler(Gradient(), 8, total=200), [big, small])
    assert end[1].trials == 8 and end[0].trials == 192
    weighted = [TaskState("big", ()), TaskState("small", (), weight=1000.0)]
    _, end = run(TaskScheduler(Gradient(), 8, total=200), [big, small], weighted)
    assert end[0].trials < end[1].trials
    _, end = run(TaskScheduler(RoundRobin(), 8, total=200), [big, small], weighted)
    assert [s.trials for s in end] == [104, 96]  # round-robin ignores weights


def test_a_converged_task_gets_fewer_turns() -> None:
    """Its expected gain decreases with its turns: the other task gets most of them, but not all."""
    flat: Curve = [10.0] * 2000
    _, end = run(TaskScheduler(Gradient(), 10, total=1000), [flat, falling(14.0, 10.0, 2000, 300.0)])
    assert 300 < end[0].trials < 500 < end[1].trials


def test_gain_follows_the_formula() -> None:
    curve = [8.0] * 4 + [6.0] * 4 + [5.0] * 4 + [4.0] * 4
    g = Gradient(alpha=0.2, beta=2.0, window=3)
    state = TaskState("t", curve, weight=3.0)
    assert g.gain(state, 4) == pytest.approx(3.0 * (0.2 * (8 - 4) / 3 + 0.8 * 4 / 4))
    assert g.gain(replace(state, curve=curve[:12]), 4) == pytest.approx(3.0 * 0.8 * 5 / 3)  # no trials before the window
    assert g.gain(replace(state, curve=curve[:1]), 4) == pytest.approx(3.0 * 0.8 * 8)  # at most the best time itself
    assert g.gain(replace(state, curve=[None] * 4 + curve[4:]), 4) == pytest.approx(3.0 * 0.8 * 4 / 4)
    assert g.gain(TaskState("t", NEVER), 4) < 0
    similar = replace(state, flops=100)
    assert g.gain(similar, 4, rate=100.0) == pytest.approx(
        3.0 * (0.2 * 4 / 3 + 0.8 * (4 - 2 * 1.0))
    )  # 1 s at that rate, multiplied by beta
    assert g.gain(similar, 4, rate=25.0) == g.gain(state, 4)  # its own rate adds no expected gain


def test_similar_tasks_raise_the_expected_gain() -> None:
    slow, fast = TaskState("slow", [4.0] * 40, flops=100, group="m"), TaskState("fast", [0.5] * 40, flops=100, group="m")
    other = TaskState("other", [5.0] * 40, flops=100, group="o")
    assert Gradient().pick([slow, fast, other], [0, 1, 2], 4) == 0
    assert Gradient().pick([replace(slow, group=""), fast, other], [0, 1, 2], 4) == 2
    assert Gradient(beta=100.0).pick([slow, fast, other], [0, 1, 2], 4) == 2
    assert Gradient().pick([slow, fast, other], [1, 2], 4) == 2  # only open tasks


def test_ties_are_broken_by_trials_then_by_position() -> None:
    a, b = TaskState("a", [1.0] * 20), TaskState("b", [1.0] * 10, weight=0.5)
    assert Gradient(alpha=0.0).pick([a, b, b], [0, 1, 2], 10) == 1
    assert Gradient().pick([a, a, a], [0, 1, 2], 10) == 0
    assert RoundRobin().pick([a, b, b], [0, 1, 2], 10) == 1


@pytest.mark.parametrize("allocator", [RoundRobin(), Gradient()])
def test_a_task_without_a_success_has_bounded_priority(allocator: Allocator) -> None:
    tables = [falling(100.0, 10.0), NEVER, falling(50.0, 10.0)]
    turns, end = run(TaskScheduler(allocator, 8, total=400), tables)
    assert "rescue" in {t.why for t in turns}
    others = (end[0].trials + end[2].trials) / 2
    assert 400 / 3 <= end[1].trials <= 2 * others + 8 and others >= 90
    for n in range(20, len(turns)):  # at every point of the search
        spent = [sum(t.trials for t in turns[:n] if t.task == i) for i in range(3)]
        assert spent[1] >= sum(spent) / 3


def test_a_late_success_ends_the_priority() -> None:
    late: Curve = [None] * 60 + [1e-3] * 400
    turns, end = run(TaskScheduler(Gradient(), 8, total=400), [falling(100.0, 10.0), late])
    assert end[1].best == 1e-3 and 60 < end[1].trials < 80
    assert all(t.task == 0 for t in turns[-10:])


def test_tasks_without_success_share_evenly() -> None:
    _, end = run(TaskScheduler(Gradient(), 8, total=96), [NEVER] * 3)
    assert [s.trials for s in end] == [32, 32, 32]


def test_without_a_common_budget_there_is_no_rescue() -> None:
    states = [TaskState("a", (), limit=16), TaskState("b", (), limit=16)]
    turns, end = run(TaskScheduler(RoundRobin(), 8), [NEVER, falling(1, 0.5)], states)
    assert [t.task for t in turns] == [0, 1, 0, 1] and [s.trials for s in end] == [16, 16]


def test_unused_trials_go_to_other_tasks() -> None:
    states = [TaskState("a", ()), TaskState("b", (), limit=20), TaskState("c", ())]
    _, end = run(TaskScheduler(Gradient(), 8, total=100), [falling(9, 1, 12), falling(9, 1), falling(9, 1)], states)
    assert [s.trials for s in end] == [12, 20, 68]
    _, end = run(TaskScheduler(Gradient(), 8, total=100), [falling(9, 1, 12), []])
    assert sum(s.trials for s in end) == 12 and end[1].done
    assert TaskScheduler(RoundRobin()).next([]) is None


def test_the_time_budget_ends_the_search_between_turns() -> None:
    turns, _ = run(TaskScheduler(RoundRobin(), 8, seconds=10.0), [falling(1, 0.5)] * 2, seconds=3.0)
    assert len(turns) == 4  # started at 0, 3, 6 and 9 s
    assert [t.task for t in turns] == [0, 1, 0, 1]


def test_early_stopping() -> None:
    stuck: Curve = [2.0] * 10 + [1.0] * 500
    slow: Curve = [1.0 - 0.0005 * t for t in range(500)]  # 1 % in 20 trials at first, more later
    scheduler = TaskScheduler(RoundRobin(), 10, early_stop=30)
    states = [TaskState(n, (), limit=200) for n in "abc"]
    _, end = run(scheduler, [stuck, slow, NEVER], states)
    assert [s.trials for s in end] == [50, 200, 120]
    assert scheduler.has_settled(end[0], 0.0) and not scheduler.has_settled(replace(end[0], curve=end[0].curve[:30]), 0.0)
    assert not scheduler.has_settled(TaskState("d", [None] * 10 + [1.0] * 25), 0.0)  # no success that long ago
    _, end = run(TaskScheduler(RoundRobin(), 10), [stuck, slow, NEVER], states)
    assert [s.trials for s in end] == [200] * 3


def test_a_task_stops_when_twice_its_trials_would_save_little() -> None:
    power: Curve = [t**-0.3 for t in range(1, 600)]  # doubling saves 19 % for ever
    flat: Curve = [1.0] * 600
    late: Curve = [1.0] * 100 + [0.5] * 500  # a gain after 100 trials
    states = [TaskState(n, (), limit=300) for n in "abc"]
    _, end = run(TaskScheduler(RoundRobin(), 8, min_gain=0.05), [power, flat, NEVER], states)
    assert [s.trials for s in end] == [300, 32, 128]  # not before 32 trials, and 128 without a success
    _, end = run(TaskScheduler(RoundRobin(), 8, min_gain=0.15), [power, flat, late], states)
    assert end[0].trials == 300 and end[1].trials == 32 and end[2].trials == 32
    _, end = run(TaskScheduler(RoundRobin(), 8, min_gain=0.01), [late], [TaskState("c", (), limit=600)])
    assert end[0].trials == 48  # flat from its 12th trial on: this task alone is expected to stay so
    others = [TaskState(n, (), limit=200) for n in "ab"]
    _, end = run(TaskScheduler(RoundRobin(), 8, min_gain=0.02), [power, power, late], [*others, TaskState("c", (), limit=600)])
    assert 100 < end[2].trials < 600  # the others still gained
    near = [TaskState("a", (), limit=300, least=power[31] * 3.0 * 0.9)]  # type: ignore[operator]
    _, end = run(TaskScheduler(RoundRobin(), 8, min_gain=0.05), [power], near)
    assert end[0].trials == 32  # a tenth of its time is left to save


@pytest.mark.parametrize("share", [0, 1, -0.5, math.nan, True, "0.1"])
def test_a_share_that_is_none_is_refused(share: object) -> None:
    with pytest.raises(UserError, match="min_gain=.*a number above 0 and below 1"):
        TaskScheduler(RoundRobin(), min_gain=share)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gradient", "round-robin"])
def test_an_interrupted_search_resumes_with_the_same_turns(name: str) -> None:
    tables = [falling(100.0, 20.0), NEVER, falling(50.0, 10.0), falling(60.0, 1.0)]
    scheduler = TaskScheduler(make_allocator(name), 8, total=300)
    turns, end = run(scheduler, tables)
    for n in (0, 3, 17, len(turns)):
        spent = [sum(t.trials for t in turns[:n] if t.task == i) for i in range(4)]
        again, same = run(scheduler, tables, [TaskState(f"t{i}", tables[i][:k]) for i, k in enumerate(spent)])
        assert again == turns[n:] and same == end


class Stubborn(Allocator):
    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        return 7


def test_names_and_instances() -> None:
    assert ALLOCATORS.names() == ["gain", "gradient", "round-robin"]
    assert isinstance(make_allocator("gradient"), Gradient)
    given = Gradient(alpha=0.5)
    assert make_allocator(given) is given
    with pytest.raises(UserError, match="Did you mean 'gradient'"):
        make_allocator("gradiant")
    with pytest.raises(UserError, match="neither a name nor an Allocator"):
        make_allocator(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch=0"),
        ({"total": 0}, "at least 1 trial, not 0"),
        ({"seconds": 0.0}, "positive number of seconds, not 0.0"),
        ({"seconds": math.nan}, "positive number of seconds, not nan"),
        ({"early_stop": 0}, "at least 1 trial, not 0"),
    ],
)
def test_invalid_budgets_are_rejected(settings: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TaskScheduler(RoundRobin(), **settings)  # type: ignore[arg-type]


def test_invalid_tasks_picks_and_settings_are_rejected() -> None:
    scheduler = TaskScheduler(RoundRobin(), total=2)
    with pytest.raises(UserError, match="2 trials for 3 tasks: some would not be measured at all. Give at least 3"):
        scheduler.next([TaskState("t", ())] * 3)
    for weight in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match="the weight of t is .*; a weight is a positive number"):
            scheduler.check([TaskState("t", (), weight=weight)])
    with pytest.raises(UserError, match=r"Stubborn picked task 7; it may pick one of \[0\]"):
        TaskScheduler(Stubborn()).next([TaskState("t", [1.0] * 40)])
    for bad in ({"alpha": 1.5}, {"beta": 0.0}, {"window": 0}):
        with pytest.raises(UserError, match="the gradient's alpha"):
            Gradient(**bad)  # type: ignore[arg-type]


def test_mistakes_of_an_allocator_are_refused_as_its_own() -> None:
    class Mine(RoundRobin):
        def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> Any:
            return states[0].speed  # type: ignore[attr-defined]

    class NoBatch(RoundRobin):
        def pick(self, states: Sequence[TaskState], open_: Sequence[int]) -> int:  # type: ignore[override]
            return 0

    class Listed(RoundRobin):
        def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> Any:
            return np.array(open_)

    states = [TaskState("t0", [1.0] * 8), TaskState("t1", [1.0] * 8)]
    with pytest.raises(UserError, match="the allocator Mine raised AttributeError: .*speed.* at .*test_task_scheduler.py:.* in pick"):
        TaskScheduler(Mine(), 8).next(states)
    with pytest.raises(UserError, match=r"the allocator Listed picked task array\(\[0, 1\]\); it may pick one of \[0, 1\]"):
        TaskScheduler(Listed(), 8).next(states)
    with pytest.raises(
        UserError, match=r"the allocator NoBatch defines pick\(self, states, open_\), and is called as pick\(self, states, op"
    ):
        make_allocator(NoBatch())
