"""Choose the task whose next batch saves most time of the whole program for each second of the search.

The best time of a search falls about as a power of its trials: from n to n + b trials it is multiplied by ((n + b) / n) ** -slope.  The
slope of a task is measured from the last quarter of its curve, and shrunk towards the mean slope of all tasks, so that a task with few
trials is expected to gain what similar ones gained.  What is left to gain is bounded by the least time of its arithmetic and data.  A task
without trials has an expected time, its least time by the mean efficiency of the others; tasks too small to matter are never begun.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.search.task_scheduler import Allocator, TaskState

SLOPE = 0.15
"""Slope assumed before any measurement: 64 trials are expected to reach 0.73 of the time of 8."""
WEIGHT = math.log(2.0)
"""Weight of the mean slope beside a task's own, whose weight is the logarithm of the ratio of trials that it is measured over."""
SPAN = 4
"""The slope is measured over the trials since n / `SPAN`."""
EFFICIENCY = 0.5
"""Share of the least time in the time of a task, assumed before any measurement."""
FEWER = 3.0
"""How many times faster than by direct sums a function may become: by algorithms with fewer operations (Winograd's, Strassen's), or
because its data are nearer than assumed."""
LEFT = 0.05
"""Least share of a time that counts as room."""


class Gain(Allocator):
    """The task whose next batch is expected to save most: the weighted reduction of its time by the seconds or trials that it costs.

    A refinement of Ansor's gradient (Zheng et al., OSDI 2020, section 6), which divides a task's time by its turns whatever the curve was,
    counts turns and not their seconds, and gives every task a first turn.  A measured task without a success comes last: the scheduler
    handles it.
    """

    begins = True

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`."""
        mean = self.mean_slope(states)
        pace = _mean([s.trial_seconds for s in states if s.trial_seconds])
        start = _mean([s.start_seconds for s in states if s.start_seconds])
        inefficiency = _mean([s.best / s.least for s in states if s.best and s.least]) or 1.0 / EFFICIENCY

        def value(i: int) -> float:
            s = states[i]
            if s.trials and s.best is None:
                return -1.0
            seconds = s.best or s.least * inefficiency
            if not seconds:
                return math.inf
            cost = batch * (s.trial_seconds or pace or 1.0) + (0.0 if s.trials or s.is_begun else start)
            return self.gain(s, batch, mean, seconds) / cost

        return min(open_, key=lambda i: (-value(i), states[i].trials, i))

    @staticmethod
    def mean_slope(states: Sequence[TaskState]) -> float:
        """The mean slope of tasks, by the ratios of trials that they are measured over."""
        found = [x for x in map(slope, states) if x is not None]
        return (SLOPE * WEIGHT + sum(x.fall for x in found)) / (WEIGHT + sum(x.span for x in found))

    @staticmethod
    def gain(state: TaskState, batch: int, mean: float, seconds: float) -> float:
        """Weighted seconds that a batch is expected to save.

        Args:
            state: state of the task.
            batch: candidates of the batch.
            mean: mean slope of all tasks.
            seconds: its best time, or the expected one.
        """
        own = slope(state)
        found = mean if own is None else (mean * WEIGHT + own.fall) / (WEIGHT + own.span)
        trials = max(state.trials, 1)
        room = max(1.0 - state.least / FEWER / seconds, LEFT)
        return state.weight * seconds * room * (1.0 - (1.0 + batch / trials) ** -found)


@dataclass(frozen=True, slots=True)
class Slope:
    """The logarithm of the ratio of two times, and of the trials that they were reached by."""

    fall: float
    span: float


def slope(state: TaskState) -> Slope | None:
    """The slope of a task over its last trials; None with less than two trials, or without an earlier success."""
    n = state.trials
    earlier = next((i for i in range(max(n // SPAN, 1), n) if state.curve[i - 1] is not None), None)
    if earlier is None or state.best is None:
        return None
    return Slope(math.log((state.curve[earlier - 1] or state.best) / state.best), math.log(n / earlier))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean; 0 of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0
