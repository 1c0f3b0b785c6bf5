"""Choose the task to measure next and its number of candidates; an `Allocator` ranks the tasks.

Every decision follows from the tasks' curves, which follow from the log: equal measurements give equal orders, and a search that was
interrupted between two turns resumes as it would have continued; only a budget of time also depends on the pace of the search.  An
`Allocator` chooses among tasks that have had their warm-up, unless it also decides which tasks begin, and tasks without a valid schedule
precede its choice.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import ClassVar

from tunesmith.search.power_law import WEIGHT, expected_gain, mean_slope
from tunesmith.support.arguments import as_count, as_positive
from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry, derived_from
from tunesmith.support.user_code import check_complete, construct, running

RESCUE = 2
"""A task without a success has priority until its trials reach this multiple of the mean trials of tasks with one."""
NO_SUCCESS_PATIENCE = 4
"""Early stopping gives a task without a success this multiple of the trials it gives a task that no longer improves."""
IMPROVED = 0.01
"""Relative gain below which a task counts as not improving."""
LEAST = 32
"""Trials of a task before its curve may stop it: it has learned from several batches."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a task that allocation depends on.

    Attributes:
        name: display name, for messages.
        curve: best verified seconds after each trial, including trials of earlier runs; None before the first success.
        weight: occurrences of the task in the tuned program.
        limit: maximum number of trials; None if only the common budget limits them.
        done: nothing more can be measured: its space is exhausted, or it failed.
        flops: floating point operations, 0 if unknown.
        group: name of a group of similar tasks, which should reach similar rates; empty for none.
        least: least seconds of its arithmetic and data on the target (`ir.analysis.least_time`); 0 if unknown.
        is_begun: its space is generated.
        start_seconds: seconds that generating its space took; 0 if unknown.
        trial_seconds: seconds of the search for each trial of this run, if time is limited; 0 if unknown.
    """

    name: str
    curve: Sequence[float | None] = field(repr=False)
    weight: float = 1.0
    limit: int | None = None
    done: bool = False
    flops: int = 0
    group: str = ""
    least: float = 0.0
    is_begun: bool = False
    start_seconds: float = 0.0
    trial_seconds: float = 0.0

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
    """The task measured next.

    Attributes:
        task: position of the task.
        trials: maximum number of candidates.
        why: `warm-up`, `rescue` (it has no valid schedule yet), or `choice` (of the allocator).
    """

    task: int
    trials: int
    why: str


class Allocator(ABC):
    """Choose one of several tasks.  A pure function of its arguments: no state, no randomness.

    Attributes:
        begins: it also chooses among tasks without trials, some of which may never be measured; otherwise each has a warm-up before.
    """

    begins: ClassVar[bool] = False

    @abstractmethod
    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`.

        Args:
            states: states of all tasks.
            open_: positions of the tasks that may be measured, ascending, at least one; unless the allocator `begins` tasks, each has been
                measured before.
            batch: candidates per turn.
        """


class RoundRobin(Allocator):
    """Equal turns: the task with the fewest trials, the first one on ties.  Weights are ignored."""

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`."""
        return min(open_, key=lambda i: (states[i].trials, i))


class Gradient(Allocator):
    """The task whose next turn has the largest expected reduction of the weighted sum of all times.

    Ansor's gradient (Zheng et al., OSDI 2020, section 6 and appendix A) with time counted in turns of a batch: `alpha` times the gain per
    turn over the last `window` turns, plus 1 - `alpha` times the expected gain, the larger of best / turns and the distance to the best
    rate of a similar task divided by `beta`.  TVM's MetaSchedule omits the similarity and has the same defaults.  Unlike both, ties are
    broken by the number of trials, then by position, and a task without a success has no gradient: it comes last here, because the
    scheduler handles it.

    Args:
        alpha: weight of the past gain, 0 to 1.
        beta: weight of similar tasks, above 0: the best rate of the group divided by it is expected of all.
        window: number of turns over which the past gain is computed.
    """

    def __init__(self, alpha: float = 0.2, beta: float = 2.0, window: int = 3) -> None:
        if not 0 <= alpha <= 1 or not 0 < beta < math.inf or window < 1:
            raise UserError(
                f"the gradient's alpha must be in [0, 1], beta above 0, window at least 1; got alpha={alpha}, beta={beta}, window={window}"
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
            state: state of the task.
            batch: candidates per turn.
            rate: operations per second of the fastest similar task, itself included, or None.
        """
        best = state.best
        if best is None:
            return -1.0
        span = self.window * batch
        earlier = state.curve[-1 - span] if state.trials > span else None
        past = 0.0 if earlier is None else (earlier - best) / self.window
        expected = best / max(1.0, state.trials / batch)
        if rate is not None and state.flops:
            expected = max(expected, best - self.beta * state.flops / rate)
        return state.weight * (self.alpha * past + (1 - self.alpha) * expected)


ALLOCATORS: Registry[type[Allocator]] = Registry(
    "allocator", {"gain": "tunesmith.search.gain_allocator:Gain"}, contract=derived_from(Allocator)
)
"""All allocators by name; other packages add theirs through the entry point group `tunesmith.allocator`."""
ALLOCATORS.register("gradient", Gradient)
ALLOCATORS.register("round-robin", RoundRobin)


def make_allocator(spec: str | Allocator) -> Allocator:
    """The allocator registered under a name, with its defaults, or the instance given.

    Raises:
        UserError: the name is not registered, its class requires arguments, or the argument is not an Allocator.
    """
    found = construct(ALLOCATORS.get(spec), "allocator", {}) if isinstance(spec, str) else spec
    if isinstance(found, Allocator):
        check_complete(type(found), "the allocator")
    else:
        raise UserError(f"the allocation {spec!r} is neither a name nor an Allocator; pass one of {', '.join(ALLOCATORS.names())}")
    return found


def as_total(total: object) -> int:
    """The number of trials of all tasks together.  UserError if it is not a positive integer."""
    return as_count("total_trials", total, what="the common budget is an integer and at least 1 trial")


def as_share(min_gain: object) -> float:
    """The least expected gain of a task that goes on.  UserError if it is not a number in (0, 1)."""
    if isinstance(min_gain, bool) or not isinstance(min_gain, Real) or not 0 < float(min_gain) < 1:
        raise UserError(f"min_gain={min_gain!r}: it is a share of a task's time, a number above 0 and below 1, such as 0.01")
    return float(min_gain)


def check_weight(name: str, weight: float) -> None:
    """Raise UserError if the weight of a task is not a positive number."""
    if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < weight <= sys.float_info.max:
        raise UserError(f"the weight of {name} is {weight!s:.40}; a weight is a positive number")


class TaskScheduler:
    """Assigns turns to tasks until the budgets are spent.

    Each task starts with a warm-up of one batch, or of an even share of a small total, unless the allocator begins tasks.  If tasks share a
    budget (`total` or `seconds`), a measured task without a valid schedule has priority, up to `RESCUE` times the mean trials of those that
    have one.  All other turns are chosen by the allocator.

    Args:
        allocator: chooses among tasks.
        batch: candidates per turn.
        first: candidates of the first turn of a task; each turn at most doubles its trials until turns have a whole batch.
        total: trials of all tasks together, including those of earlier runs; None for no common limit.
        seconds: time after which no new turn starts; a turn in progress is completed.
        early_stop: a task stops when its best time has not improved by `IMPROVED` over this number of trials; without a success after
            `NO_SUCCESS_PATIENCE` times as many.  None stops no task.
        min_gain: a task stops when doubling its trials is expected to save less than this share of its time (`search.power_law`); not
            before it has `LEAST` trials, and `NO_SUCCESS_PATIENCE` times as many without a success.  None stops no task.
    """

    def __init__(
        self,
        allocator: Allocator,
        batch: int = 32,
        *,
        first: int | None = None,
        total: int | None = None,
        seconds: float | None = None,
        early_stop: int | None = None,
        min_gain: float | None = None,
    ) -> None:
        self.allocator, self.batch = allocator, as_count("batch", batch)
        self.first = self.batch if first is None else min(as_count("first", first), self.batch)
        self.total = None if total is None else as_total(total)
        self.seconds = None if seconds is None else as_positive("seconds", seconds, "the budget of time is a positive number of seconds")
        self.early_stop = (
            None
            if early_stop is None
            else as_count("early_stop", early_stop, what="early stopping looks back over an integer number of trials, at least 1 trial")
        )
        self.min_gain = None if min_gain is None else as_share(min_gain)

    def check(self, states: Sequence[TaskState]) -> None:
        """Reject tasks that cannot all be measured.

        Raises:
            UserError: a weight is not a positive number, or the common budget is smaller than the number of tasks.
        """
        for s in states:
            check_weight(s.name, s.weight)
        if self.total is not None and self.total < len(states) and not self.allocator.begins:
            raise UserError(f"{self.total} trials for {len(states)} tasks: some would not be measured at all. Give at least {len(states)}")

    def next(self, states: Sequence[TaskState], elapsed: float = 0.0) -> Turn | None:
        """The next turn; None when the budgets are spent, or no task can be measured further.

        Args:
            states: states of all tasks, always in the same order.
            elapsed: seconds since the start of this run.

        Raises:
            UserError: see `check`; or the allocator picked a task that is not open.
        """
        self.check(states)
        left = math.inf if self.total is None else self.total - sum(s.trials for s in states)
        if left <= 0 or (self.seconds is not None and elapsed >= self.seconds):
            return None
        mean = mean_slope([s.curve for s in states]) if self.min_gain is not None else 0.0
        open_ = [i for i, s in enumerate(states) if not s.done and self._trials_left(s) > 0 and not self.has_settled(s, mean)]
        if not open_:
            return None
        share = self.first if self.total is None else min(self.first, max(self.total // len(states), 1))
        cold = [] if self.allocator.begins else [i for i in open_ if states[i].trials < min(share, states[i].limit or share)]
        if cold:
            return self._turn(cold[0], min(left, share - states[cold[0]].trials), states, "warm-up")
        failing = self._failing(states, open_)
        if failing:
            return self._turn(min(failing, key=lambda i: (states[i].trials, i)), left, states, "rescue")
        what = f"the allocator {type(self.allocator).__name__}"
        with running(what):
            picked = self.allocator.pick(states, open_, self.first if self.allocator.begins else self.batch)
        if not isinstance(picked, Integral) or picked not in open_:
            raise UserError(f"{what} picked task {picked!r}; it may pick one of {open_}")
        return self._turn(int(picked), left, states, "choice")

    def has_settled(self, state: TaskState, mean: float) -> bool:
        """Whether early stopping ends the task; `mean` is the mean slope of all tasks, for `min_gain`."""
        trials, best = state.trials, state.best
        if self.min_gain is not None and best is None and trials >= NO_SUCCESS_PATIENCE * LEAST:
            return True
        if self.min_gain is not None and best is not None and trials >= LEAST:
            # A long flat curve must outweigh the others: with a constant weight it would be expected to gain 1 % for ever.
            weight = WEIGHT * math.sqrt(LEAST / trials)
            if expected_gain(state.curve, trials, mean, best, state.least, weight) < self.min_gain:
                return True
        n = self.early_stop
        if n is None or trials <= n:
            return False
        if best is None:
            return trials >= NO_SUCCESS_PATIENCE * n
        before = state.curve[-1 - n]
        return before is not None and best > (1 - IMPROVED) * before

    def _trials_left(self, state: TaskState) -> float:
        return math.inf if state.limit is None else state.limit - state.trials

    def _turn(self, task: int, most: float, states: Sequence[TaskState], why: str) -> Turn:
        return Turn(task, int(min(self._size(states[task]), most, self._trials_left(states[task]))), why)

    def _size(self, state: TaskState) -> int:
        """Candidates of a turn: as many as the task has had, between the first turn and a batch."""
        return min(max(state.trials, self.first), self.batch)

    def _failing(self, states: Sequence[TaskState], open_: Sequence[int]) -> list[int]:
        """Open tasks without a success that precede the allocator's choice."""
        if self.total is None and self.seconds is None:
            return []  # each task has its own trials, in any order
        served = [s.trials for s in states if s.best is not None]
        if not served and self.allocator.begins and not all(states[i].trials for i in open_):
            return []  # another task begins: without a success there is no bound
        bound = RESCUE * sum(served) / len(served) if served else math.inf
        least = 1 if self.allocator.begins else 0
        return [i for i in open_ if states[i].best is None and least <= states[i].trials < bound]
