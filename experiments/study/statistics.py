"""Compute confidence intervals and tests for small numbers of seeds, on logarithms of times.

Times are positive and compared by ratio, so means are geometric and Student's t is applied to logarithms.  For three to ten seeds it
still estimates the spread, which the bootstrap of `experiments.arena.statistics` (for hundreds of replays) would underestimate.  Arms
of one seed run next to each other and are compared within seeds.  Below `MIN_INTERVAL` seeds a mean has no interval: with one degree of
freedom the quantile of t is 12.7, and the interval spans orders of magnitude.  A few values can be close together by chance and make any
test significant, so below `MIN_SEEDS` the statistics of differences are None.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tunesmith.experiments.arena.statistics import holm
from tunesmith.support.array_types import Float64Array

CONFIDENCE = 0.95
"""Level of all intervals; a difference is significant if its probability under equality is below 1 - CONFIDENCE."""
MIN_INTERVAL = 3
"""Minimum number of seeds for the interval of a mean."""
MIN_SEEDS = 5
"""Minimum number of seeds for the interval, probability and verdict of a ratio."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of positive numbers with its `CONFIDENCE` interval; the bounds are None for fewer than `MIN_INTERVAL` numbers."""

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

    def at_most(self, bound: float) -> Interval:
        """The interval of numbers that cannot exceed a bound, such as shares of the best."""
        low, high = (None if x is None else min(x, bound) for x in (self.low, self.high))
        return Interval(min(self.mean, bound), low, high, self.n)

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
        freedom: degrees of freedom of Student's t in the test; None as above.
        low_adjusted, high_adjusted, p_adjusted: interval and p-value among the ratios of a table, see `adjusted`.
    """

    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    freedom: float | None = None
    low_adjusted: float | None = None
    high_adjusted: float | None = None
    p_adjusted: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """The ratio as plain data."""
        return asdict(self)


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least one positive number, with its interval by Student's t."""
    from scipy import special

    logs = np.log(values)
    mean, n = float(logs.mean()), len(logs)
    if n < MIN_INTERVAL:
        return Interval(math.exp(mean), None, None, n)
    half = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2) * logs.std(ddof=1)) / math.sqrt(n)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of the means of `a` and `b`, at least one positive number each; variances may differ (Welch, Biometrika 1947)."""
    from scipy import stats

    x, y = np.log(a), np.log(b)
    return _tested(x.mean() - y.mean(), (x, y), lambda: stats.ttest_ind(x, y, equal_var=False))


def paired_ratio(a: Mapping[int, float], b: Mapping[int, float]) -> Ratio | None:
    """The ratio of the means of `a` and `b`, positive numbers by seed, over common seeds: Student's t of the differences of logarithms.

    None without a common seed.
    """
    from scipy import stats

    differences = np.array([math.log(a[seed]) - math.log(b[seed]) for seed in a if seed in b])
    return _tested(differences.mean(), (differences,), lambda: stats.ttest_1samp(differences, 0.0)) if len(differences) else None


def _tested(difference: float, samples: Sequence[Float64Array], test: Callable[[], Any]) -> Ratio:
    """The ratio for a difference of logarithms, with the interval and p-value of a test of scipy."""
    found = math.exp(difference)
    if min(map(len, samples)) < MIN_SEEDS:
        return Ratio(found)
    if not any(map(np.ptp, samples)):  # scipy returns NaN for a standard error of 0
        return Ratio(found, found, found, float(found == 1.0), sum(map(len, samples)) - len(samples))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nearly equal numbers, which deterministic measurements are
        result = test()
    low, high = result.confidence_interval(CONFIDENCE)
    return Ratio(found, math.exp(low), math.exp(high), float(result.pvalue), float(result.df))


def adjusted(found: Sequence[Ratio]) -> list[Ratio]:
    """The ratios of a table with p-values and intervals that are adjusted for the number of its tests.

    The p-values are Holm's, which bound the probability of any false rejection by 1 - `CONFIDENCE`.  The intervals are Bonferroni's: each
    of m has the level 1 - (1 - `CONFIDENCE`) / m, so all of them contain their ratios with a probability of at least `CONFIDENCE`.  An
    adjusted interval excludes 1 exactly if m p is below 1 - `CONFIDENCE`, and p_adjusted is then below it too.  The converse need not hold:
    Holm's method rejects more than Bonferroni's, and has no bounded intervals of its own (Strassburger and Bretz, Statistics in Medicine
    2008).  Ratios without a p-value have neither.
    """
    tested = [r for r in found if r.p is not None]
    ps = iter(holm([r.p for r in tested if r.p is not None]))
    return [r if r.p is None else replace(_widened(r, len(tested)), p_adjusted=next(ps)) for r in found]


def _widened(r: Ratio, tests: int) -> Ratio:
    """The ratio with its adjusted interval among this number of tests."""
    from scipy import special

    if r.low is None or r.high is None or r.freedom is None:
        return r
    quantile, wider = special.stdtrit(r.freedom, [1 - (1 - CONFIDENCE) / 2, 1 - (1 - CONFIDENCE) / (2 * tests)])
    factor = math.exp(math.log(r.high / r.ratio) * float(wider / quantile))
    return replace(r, low_adjusted=r.ratio / factor, high_adjusted=r.ratio * factor)


def verdict(time_ratio: float, p: float | None) -> str:
    """The verdict on a ratio of times."""
    if p is None:
        return "too few seeds to tell"
    if p > 1 - CONFIDENCE:
        return "no difference shown"
    return "faster" if time_ratio < 1 else "slower"
