"""Predict how much more trials save: the best time of a search falls about as a power of its trials.

From n to n + b trials the best time is multiplied by ((n + b) / n) ** -slope.  The slope of a search is measured over the last three
quarters of its trials, and shrunk towards the mean slope of all searches, so that one with few trials is expected to gain what others
gained.  What is left to gain is bounded by the least time of the arithmetic and the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SLOPE = 0.15
"""Slope assumed before any measurement: 64 trials are expected to reach 0.73 of the time of 8."""
WEIGHT = math.log(2.0)
"""Weight of the mean slope beside a search's own, whose weight is the logarithm of the ratio of trials that it is measured over."""
SPAN = 4
"""The slope is measured over the trials since n / `SPAN`."""
FEWER = 3.0
"""How many times faster than by direct sums a function may become: by algorithms with fewer operations (Winograd's, Strassen's), or
because its data are nearer than assumed."""
LEFT = 0.05
"""Least share of a time that counts as room."""

Curve = Sequence[float | None]
"""Best seconds after each trial; None before the first success."""


@dataclass(frozen=True, slots=True)
class Slope:
    """The logarithm of the ratio of two times, and of the trials that they were reached by."""

    fall: float
    span: float


def slope(curve: Curve) -> Slope | None:
    """The slope of a search over its last trials; None with less than two trials, or without an earlier success."""
    n = len(curve)
    earlier = next((i for i in range(max(n // SPAN, 1), n) if curve[i - 1] is not None), None)
    best = curve[-1] if curve else None
    if earlier is None or best is None:
        return None
    return Slope(math.log((curve[earlier - 1] or best) / best), math.log(n / earlier))


def mean_slope(curves: Iterable[Curve]) -> float:
    """The mean slope of searches, by the ratios of trials that they are measured over."""
    found = [x for x in map(slope, curves) if x is not None]
    return (SLOPE * WEIGHT + sum(x.fall for x in found)) / (WEIGHT + sum(x.span for x in found))


def expected_gain(curve: Curve, trials: int, mean: float, seconds: float, least: float = 0.0, weight: float = WEIGHT) -> float:
    """The share of the time that more trials are expected to save.

    Args:
        curve: the curve of the search.
        trials: the number of further trials.
        mean: mean slope of all searches.
        seconds: its best time, or the expected one.
        least: least seconds of its arithmetic and data (`ir.analysis.least_time`); 0 if unknown.
        weight: weight of the mean slope beside its own.
    """
    own = slope(curve)
    found = mean if own is None else (mean * weight + own.fall) / (weight + own.span)
    room = max(1.0 - least / FEWER / seconds, LEFT)
    return float(room * (1.0 - (1.0 + trials / max(len(curve), 1)) ** -found))
