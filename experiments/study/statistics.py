"""Compute confidence intervals and tests for small numbers of seeds, on logarithms of times.

Times are positive and compared by ratio, so means are geometric and Student's t is applied to logarithms.  For three to ten seeds it
still estimates the spread, which the bootstrap of `experiments.arena.statistics` (for hundreds of replays) would underestimate.  Arms
of one seed run next to each other and are compared within seeds.  A single seed gives no interval.  A few values can be close together
by chance and make any test significant, so below `MIN_SEEDS` the statistics of differences are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tunesmith.experiments.arena.statistics import holm

CONFIDENCE = 0.95
"""Level of all intervals; a difference is significant if its probability under equality is below 1 - CONFIDENCE."""
MIN_SEEDS = 5
"""Minimum number of seeds for the interval, probability and verdict of a ratio."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of positive numbers with its `CONFIDENCE` interval; the bounds are None for a single number."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def scaled(self, factor: float) -> Interval:
        """The interval in another unit."""
        low, high = (None if x is None else x * factor for x in (self.low, self.high))
        return Interval(self.mean * factor, low, high, self.n)

    def inverse(self, factor: float = 1.0) -> Interval:
        """The interval of `factor` over the numbers, for example of rates from times."""
        low, high = (None if x is None else factor / x for x in (self.high, self.low))
        return Interval(factor / self.mean, low, high, self.n)

    def to_json(self) -> dict[str, float | int | None]:
        """The interval as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two geometric means of positive numbers.

    Attributes:
        ratio: first over second.
        low, high: interval of the ratio; None with fewer than `MIN_SEEDS` numbers on a side.
        p: two-sided p-value of equality; None as above.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """The ratio as plain data."""
        return asdict(self)


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least one positive number, with its interval."""
    logs = [math.log(v) for v in values]
    mean, variance = _moments(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), None, None, len(logs))
    half = student_quantile(len(logs) - 1) * math.sqrt(variance / len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of the means of `a` and `b`, at least one positive number each; variances may differ (Welch, Biometrika 1947)."""
    (mean_a, var_a), (mean_b, var_b) = _moments([math.log(x) for x in a]), _moments([math.log(x) for x in b])
    difference = mean_a - mean_b
    if min(len(a), len(b)) < MIN_SEEDS:
        return Ratio(math.exp(difference))
    share_a, share_b = var_a / len(a), var_b / len(b)
    error = math.sqrt(share_a + share_b)
    spread = share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)
    return _ratio_of(difference, error, (share_a + share_b) ** 2 / spread if spread else 1.0)


def paired_ratio(a: Mapping[int, float], b: Mapping[int, float]) -> Ratio | None:
    """The ratio of the means of `a` and `b`, positive numbers by seed, over common seeds: Student's t of the differences of logarithms.

    None without a common seed.
    """
    apart = [math.log(a[seed]) - math.log(b[seed]) for seed in a if seed in b]
    if not apart:
        return None
    difference, variance = _moments(apart)
    if len(apart) < MIN_SEEDS:
        return Ratio(math.exp(difference))
    return _ratio_of(difference, math.sqrt(variance / len(apart)), len(apart) - 1)


def _ratio_of(difference: float, error: float, df: float) -> Ratio:
    """The ratio for a difference of logarithms with the given standard error."""
    if error == 0:
        return Ratio(math.exp(difference), math.exp(difference), math.exp(difference), 1.0 if difference == 0 else 0.0)
    half = student_quantile(df) * error
    return Ratio(math.exp(difference), math.exp(difference - half), math.exp(difference + half), student_p(difference / error, df))


def adjusted(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of the known p-values, which bounds the probability of any false rejection."""
    known = iter(holm([p for p in ps if p is not None]))
    return [None if p is None else next(known) for p in ps]


def verdict(time_ratio: float, p: float | None) -> str:
    """The verdict on a ratio of times."""
    if p is None:
        return "too few seeds to tell"
    if p > 1 - CONFIDENCE:
        return "no difference shown"
    return "faster" if time_ratio < 1 else "slower"


def student_p(t: float, df: float) -> float:
    """Probability that Student's t with `df` degrees of freedom is at least as far from 0 as `t`."""
    return _incomplete_beta(df / (df + t * t), df / 2, 0.5)


def student_quantile(df: float, confidence: float = CONFIDENCE) -> float:
    """Distance from 0 that Student's t exceeds with probability 1 - confidence: 12.71 for 1 degree of freedom, 1.96 for many."""
    low, high = 0.0, 1.0
    while student_p(high, df) > 1 - confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, df) > 1 - confidence else (low, middle)
    return high


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and unbiased variance; 0 for one number."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction by Lentz's method, which never divides by 0."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
