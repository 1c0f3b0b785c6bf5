"""Which task is measured next, and how many candidates of it: budgets and fairness in one place, preferences in another.

Everything follows from the tasks' curves, which follow from the log: a search that was interrupted goes on as it would have, and the
same measurements give the same order.  No task is forgotten, and none holds up the others: an `Allocator` is only asked
about tasks that have had their warm-up, and a task without any valid schedule comes before its wishes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

from tunesmith.support.arguments import as_count, as_positive
from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry

RESCUE = 2
"""A task without a success is served first until it has had so many times the trials that tasks with one have on average."""
HOPELESS = 4
"""Early stopping gives a task without a success so many times the trials that it gives one that no longer improves."""
MIN_GAIN = 0.01
"""Relative gain below which a task does not improve."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """What allocation knows of a task.

    Attributes:
        name: for messages.
        curve: best verified seconds after each trial, earlier runs' included; None before the first success.
        weight: how often the task occurs in what is to be made fast.
        limit: trials that it may have, None if only the common budget bounds them.
        done: nothing more can be measured: its space is exhausted, or it failed.
        flops: floating point operations, 0 if unknown.
        group: tasks of one group are similar and should reach similar rates; empty for none.
    """

    name: str
    curve: Sequence[float | None] = field(repr=False)
    weight: float = 1.0
    limit: int | None = None
    done: bool = False
    flops: int = 0
    group: str = ""

    @property
    def trials(self) -> int:
        """Measured candidates."""
        return len(self.curve)

    @property
    def best(self) -> float | None:
        """Best seconds so far."""
        return self.curve[-1] if self.curve else None


@dataclass(frozen=True, slots=True)
class Turn:
    """What is measured next.

    Attributes:
        task: position of the task.
        trials: at most so many candidates.
        why: `warm-up`, `rescue` (it has no valid schedule yet), or `choice` (of the allocator).
    """

    task: int
    trials: int
    why: str


class Allocator(ABC):
    """Prefers one of several tasks.  A pure function of its arguments: no state, no randomness."""

    @abstractmethod
    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`.

        Args:
            states: of all tasks.
            open_: positions of those that may be measured, ascending, at least one; each has been measured before.
            batch: candidates of a turn.
        """


class RoundRobin(Allocator):
    """Equal turns: the task with the fewest trials, of several the first.  Weights do not matter."""

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`."""
        return min(open_, key=lambda i: (states[i].trials, i))


class Gradient(Allocator):
    """The task whose next turn promises to save most of the weighted sum of all times.

    Ansor's gradient (Zheng et al., OSDI 2020, section 6 and appendix A) with time counted in turns of a batch: `alpha` times
    the gain per turn over the last `window` turns, and else the gain to be hoped for, the larger of best / turns (as optimistic as
    before) and what is missing to 1 / `beta` of the best rate that a similar task has reached.  TVM's MetaSchedule
    leaves the similarity out and has the same defaults.  Unlike both, ties go to the task with fewer trials, then to the first, and a
    task without a success has no gradient: it comes last here, as the scheduler sees to it.

    Args:
        alpha: share of the past, 0 to 1.
        beta: trust in similar tasks, above 0: the rate of the best divided by it is expected of all.
        window: turns that the past spans.
    """

    def __init__(self, alpha: float = 0.2, beta: float = 2.0, window: int = 3) -> None:
        if not 0 <= alpha <= 1 or not 0 < beta < math.inf or window < 1:
            raise UserError(
                f"the gradient's alpha is from 0 to 1, beta above 0, window at least 1; got alpha={alpha}, beta={beta}, window={window}"
            )
        self.alpha, self.beta, self.window = alpha, beta, window

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`."""
        rates: dict[str, float] = {}
        for s in states:
            if s.group and s.flops and s.best is not None:
                rates[s.group] = max(s.flops / s.best, rates.get(s.group, 0.0))
        return min(open_, key=lambda i: (-self.gain(states[i], batch, rates.get(states[i].group)), states[i].trials, i))

    def gain(self, state: TaskState, batch: int, rate: float | None = None) -> float:
        """Weighted seconds that a turn is expected to save; -1 before the first success.

        Args:
            state: of the task.
            batch: candidates of a turn.
            rate: operations per second of the fastest similar task, itself included, or None.
        """
        best = state.best
        if best is None:
            return -1.0
        span = self.window * batch
        earlier = state.curve[-1 - span] if state.trials > span else None
        past = 0.0 if earlier is None else (earlier - best) / self.window
        hope = best / max(1.0, state.trials / batch)
        if rate is not None and state.flops:
            hope = max(hope, best - self.beta * state.flops / rate)
        return state.weight * (self.alpha * past + (1 - self.alpha) * hope)


ALLOCATORS: Registry[type[Allocator]] = Registry("allocator")
"""All allocators by name; other packages add theirs through the entry point group `tunesmith.allocator`."""
ALLOCATORS.register("gradient", Gradient)
ALLOCATORS.register("round-robin", RoundRobin)


def make_allocator(spec: str | Allocator) -> Allocator:
    """The allocator of a registered name, with its defaults, or the one that is given.

    Raises:
        UserError: there is no such name, or what is given is no Allocator.
    """
    found = ALLOCATORS.get(spec)() if isinstance(spec, str) else spec
    if not isinstance(found, Allocator):
        raise UserError(f"the allocation {spec!r} is no name and no Allocator: one of {', '.join(ALLOCATORS.names())} is wanted")
    return found


class TaskScheduler:
    """Gives turns until budgets are spent.

    Each task is warmed up with a batch, or with an even share of a small total.  Where tasks share a budget (`total` or `seconds`), one
    that has no valid schedule is then served first, up to `RESCUE` times the mean trials of those that have one, so that
    it gets at least an even share all along.  All else is the allocator's choice.

    Args:
        allocator: prefers tasks.
        batch: candidates of a turn.
        total: trials of all tasks together, those of earlier runs included; None for no common bound.
        seconds: after so many no turn is given; a turn under way is not cut.
        early_stop: a task stops when its best time has not become shorter by `MIN_GAIN` over so many trials; without a success after
            `HOPELESS` times as many.  None stops no task.
    """

    def __init__(
        self,
        allocator: Allocator,
        batch: int = 32,
        *,
        total: int | None = None,
        seconds: float | None = None,
        early_stop: int | None = None,
    ) -> None:
        self.allocator, self.batch = allocator, as_count("batch", batch)
        self.total = None if total is None else as_count("total_trials", total, what="the common budget is an integer and at least 1 trial")
        self.seconds = None if seconds is None else as_positive("seconds", seconds, "the budget of time is a positive number of seconds")
        self.early_stop = (
            None
            if early_stop is None
            else as_count("early_stop", early_stop, what="early stopping looks back over an integer number of trials, at least 1 trial")
        )

    def check(self, states: Sequence[TaskState]) -> None:
        """Refuse tasks that cannot all be served.

        Raises:
            UserError: a weight is no positive number, or the common budget is smaller than the number of tasks.
        """
        for s in states:
            if isinstance(s.weight, bool) or not isinstance(s.weight, Real) or not 0 < s.weight < math.inf:
                raise UserError(f"the weight of {s.name} is {s.weight}; a weight is a positive number")
        if self.total is not None and self.total < len(states):
            raise UserError(f"{self.total} trials for {len(states)} tasks: some would not be measured at all. Give at least {len(states)}")

    def next(self, states: Sequence[TaskState], elapsed: float = 0.0) -> Turn | None:
        """The next turn; None when budgets are spent, or no task wants more.

        Args:
            states: of all tasks, always in the same order.
            elapsed: seconds of this run so far.

        Raises:
            UserError: as `check`, or the allocator picked a task that it may not.
        """
        self.check(states)
        left = math.inf if self.total is None else self.total - sum(s.trials for s in states)
        if left <= 0 or (self.seconds is not None and elapsed >= self.seconds):
            return None
        open_ = [i for i, s in enumerate(states) if not s.done and self._room(s) > 0 and not self.has_settled(s)]
        if not open_:
            return None
        share = self.batch if self.total is None else min(self.batch, self.total // len(states))
        cold = [i for i in open_ if states[i].trials < min(share, states[i].limit or share)]
        if cold:
            return self._turn(cold[0], min(left, share - states[cold[0]].trials), states, "warm-up")
        failing = self._failing(states, open_)
        if failing:
            return self._turn(min(failing, key=lambda i: (states[i].trials, i)), left, states, "rescue")
        picked = self.allocator.pick(states, open_, self.batch)
        if picked not in open_:
            raise UserError(f"the allocator {type(self.allocator).__name__} picked task {picked!r}; it may pick one of {open_}")
        return self._turn(picked, left, states, "choice")

    def has_settled(self, state: TaskState) -> bool:
        """Whether early stopping ends the task."""
        n = self.early_stop
        if n is None or state.trials <= n:
            return False
        if state.best is None:
            return state.trials >= HOPELESS * n
        before = state.curve[-1 - n]
        return before is not None and state.best > (1 - MIN_GAIN) * before

    def _room(self, state: TaskState) -> float:
        return math.inf if state.limit is None else state.limit - state.trials

    def _turn(self, task: int, most: float, states: Sequence[TaskState], why: str) -> Turn:
        return Turn(task, int(min(self.batch, most, self._room(states[task]))), why)

    def _failing(self, states: Sequence[TaskState], open_: Sequence[int]) -> list[int]:
        """Open tasks without a success that come before the allocator's choice."""
        if self.total is None and self.seconds is None:
            return []  # each task has its own trials, whoever is first
        served = [s.trials for s in states if s.best is not None]
        bound = RESCUE * sum(served) / len(served) if served else math.inf
        return [i for i in open_ if states[i].best is None and states[i].trials < bound]
