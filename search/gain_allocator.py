"""Choose the task whose next batch saves most time of the whole program for each second of the search.

What a batch saves is predicted by `search.power_law`.  A task without trials has an expected time, its least time by the mean efficiency of
the others; tasks too small to matter are never begun.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunesmith.search.power_law import expected_gain, mean_slope
from tunesmith.search.task_scheduler import Allocator, TaskState

EFFICIENCY = 0.5
"""Share of the least time in the time of a task, assumed before any measurement."""


class Gain(Allocator):
    """The task whose next batch is expected to save most: the weighted reduction of its time by the seconds or trials that it costs.

    A refinement of Ansor's gradient (Zheng et al., OSDI 2020, section 6), which divides a task's time by its turns whatever the curve was,
    counts turns and not their seconds, and gives every task a first turn.  A measured task without a success comes last: the scheduler
    handles it.
    """

    begins = True

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        """One of `open_`."""
        mean = mean_slope([s.curve for s in states])
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
            return s.weight * seconds * expected_gain(s.curve, batch, mean, seconds, s.least) / cost

        return min(open_, key=lambda i: (-value(i), states[i].trials, i))


def _mean(values: Sequence[float]) -> float:
    """The geometric mean; 0 of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else 0.0
