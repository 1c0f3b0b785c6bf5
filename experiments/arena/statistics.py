"""Compute statistics of search curves: bootstrap intervals, trials to a goal, paired tests, and the expectation by chance.

All functions take and return arrays, and draw from named random streams only.  Infinity marks a goal that was not reached and is ordered
above every number.

Written here although scipy has a function of that name, with the reason in a comment: the bootstrap, the signed-rank test with ties, and
the distribution of chance.  Holm's adjustment and the interval of the pseudomedian are not in scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tunesmith.support.array_types import Float64Array, Int64Array
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

RESAMPLES = 2000
_CHUNK = 1 << 22
"""Numbers resampled at once."""
_EXACT = 200
"""Maximum number of pairs for which the distribution of the signed-rank statistic is enumerated."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval; infinite if searches did not reach the goal."""

    value: float
    low: float
    high: float

    def to_json(self) -> list[float | None]:
        """[value, low, high], with None for infinity."""
        return [x if math.isfinite(x) else None for x in (self.value, self.low, self.high)]


def bootstrap_medians(
    values: Float64Array, level: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Medians over the first axis, with percentile intervals (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).
    The other axes are resampled together: for curves, runs are drawn and not points.

    Args:
        values: [runs, ...]; inf if a run did not reach its goal.
        level: confidence level.
        seed: seed of the draws; equal shapes get equal draws.
        resamples: number of resamples.
    Raises:
        UserError: there are no runs.
    """
    runs = len(values)
    if not runs:
        raise UserError("cannot compute a median of no runs: all replays failed")
    # By hand: scipy.stats.bootstrap interpolates quantiles, which is NaN between infinities, and refuses a single run.
    draws = stream(seed, "bootstrap", runs, resamples).integers(runs, size=(resamples, runs))
    flat = values.reshape(runs, -1)
    step = max(_CHUNK // (resamples * runs), 1)
    ends = [_ends(np.median(flat[draws, start : start + step], axis=1), level) for start in range(0, flat.shape[1], step)]
    low, high = np.concatenate(ends, axis=1).reshape(2, *values.shape[1:])
    return np.asarray(np.median(values, axis=0)), low, high


def median_interval(values: Float64Array, level: float = 0.95, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The median of [runs] values with its interval, see `bootstrap_medians`."""
    value, low, high = bootstrap_medians(np.asarray(values, np.float64), level, seed, resamples)
    return Interval(float(value), float(low), float(high))


def mean_interval(groups: Sequence[Float64Array], level: float = 0.95, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The mean of the groups' means with its percentile interval, where runs are drawn within each group (stratified bootstrap, as in
    Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021).

    Args:
        groups: values of the runs of each group (pool).
        level, seed, resamples: as for `bootstrap_medians`.
    """
    total = np.zeros(resamples)
    for number, group in enumerate(groups):
        draws = stream(seed, "stratified bootstrap", number, len(group)).integers(len(group), size=(resamples, len(group)))
        total += group[draws].mean(axis=1)
    low, high = _ends(total / len(groups), level)
    return Interval(float(np.mean([g.mean() for g in groups])), float(low), float(high))


def _ends(found: Float64Array, level: float) -> Float64Array:
    """Lower and upper quantiles over the first axis, [2, ...], without interpolation, which fails for infinity."""
    tail = (1.0 - level) / 2.0
    return np.asarray(np.quantile(found, (tail, 1.0 - tail), axis=0, method="inverted_cdf"))


def trials_to(curves: Float64Array, goal: float) -> Float64Array:
    """The trial, from 1, at which each curve reaches `goal` seconds, [runs]; inf for curves that do not.

    Args:
        curves: best seconds after each trial, [runs, trials], never rising.
        goal: seconds.
    """
    reached = curves <= goal
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)


def chance_trials(size: int, good: int, quantile: float = 0.5) -> int:
    """Trials after which drawing without replacement from a pool has found a good candidate with at least this probability.

    The number of draws to the first success is distributed negative-hypergeometrically (Johnson, Kemp and Kotz, Univariate Discrete
    Distributions, 3rd edition, section 6.2.2): P(T > t) = C(size - good, t) / C(size, t).

    Args:
        size: size of the pool.
        good: number of candidates that reach the goal, at least 1.
        quantile: 0.5 for the median.
    """
    if not 1 <= good <= size:
        raise UserError(f"the number of good candidates in a pool of {size} must be 1 to {size}, got {good}")
    # By hand: scipy.stats.nhypergeom sums rounded terms, so its quantile is one too large where P(T > t) equals 1 - quantile.
    t = np.arange(size - good + 1)
    # P(T > t + 1) = P(T > t) (size - good - t) / (size - t)
    survival = np.concatenate([[1.0], np.cumprod((size - good - t) / (size - t))])
    return int(np.argmax(survival <= 1.0 - quantile + 1e-12))


def signed_rank(differences: Float64Array) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test: are paired differences centred at 0?  (Wilcoxon, Biometrics Bulletin 1945.)

    Zeros are dropped and equal sizes share their mean rank.  Up to 200 pairs the null distribution is enumerated, which is exact with
    ties; beyond, it is approximated by the normal distribution with continuity correction.

    Args:
        differences: [pairs], finite.
    Returns:
        The p-value; 1.0 if all differences are 0.
    """
    from scipy import stats

    d = np.asarray(differences, np.float64)
    d = d[d != 0.0]
    if len(d) == 0:
        return 1.0
    if len(d) > _EXACT:
        return float(stats.wilcoxon(d, correction=True).pvalue)  # the normal approximation beyond 50 pairs
    # By hand: the exact distribution of scipy.stats.wilcoxon assumes no ties, and its permutations are exact only for about 20 pairs.
    doubled = np.rint(2 * stats.rankdata(np.abs(d))).astype(np.int64)  # twice a mean rank is an integer
    smaller = min(doubled[d > 0].sum(), doubled[d < 0].sum())
    return min(1.0, 2.0 * float(_rank_sums(doubled)[: smaller + 1].sum()))


def _rank_sums(ranks: Int64Array) -> Float64Array:
    """Probabilities of 0, 1, 2, ... for the sum of the ranks with positive sign, under random signs."""
    share = np.ones(1)
    for r in ranks.tolist():
        share = (np.pad(share, (0, r)) + np.pad(share, (r, 0))) / 2.0
    return share


def pseudomedian(differences: Float64Array, level: float = 0.95) -> Interval:
    """The estimate of `signed_rank`: the median of the means of any two pairs, with the interval of all shifts that the test does not
    reject (Hodges and Lehmann, Annals of Mathematical Statistics 1963).

    Without ties it is positive exactly if the positive ranks of the test weigh more, so direction, size, interval and significance are
    consistent.  With ties the test may reject a shift and accept those beside it: it drops differences of exactly 0.  If it rejects 0, the
    interval ends there at the latest, and an end of 0 does not belong to it.  The interval is infinite if the number of pairs is too small
    to reject anything at this level.

    Args:
        differences: [pairs], at least one, finite.
        level: confidence level.
    """
    d = np.asarray(differences, np.float64)
    n = len(d)
    walsh = np.sort(((d[:, None] + d[None, :]) / 2.0)[np.triu_indices(n)])
    inside = _rejected(n, 1.0 - level)
    low, high = (walsh[inside - 1], walsh[-inside]) if inside else (-math.inf, math.inf)
    if low < 0.0 < high and signed_rank(d) <= 1.0 - level:
        low, high = (0.0, high) if ahead(d) > 0 else (low, 0.0)
    return Interval(float(np.median(walsh)), float(low), float(high))


def ahead(differences: Float64Array) -> int:
    """The direction of `signed_rank`: 1 if the positive differences have the larger rank sum, -1 if the negative ones, 0 if neither."""
    from scipy import stats

    d = np.asarray(differences, np.float64)
    d = d[d != 0.0]
    return int(np.sign((stats.rankdata(np.abs(d)) * np.sign(d)).sum()))


def _rejected(n: int, risk: float) -> int:
    """Number of values, from 0, of the rank sum of `n` pairs without ties that are rejected on one side at half this risk."""
    if n > _EXACT:
        deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        z = NormalDist().inv_cdf(1.0 - risk / 2)
        return max(math.floor(n * (n + 1) / 4 - 0.5 - z * deviation) + 1, 0)
    return int(np.searchsorted(np.cumsum(_rank_sums(np.arange(1, n + 1))), risk / 2, side="right"))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple testing: rejecting all below a level bounds the chance of any false rejection by it (Holm,
    Scandinavian Journal of Statistics 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out = [0.0] * len(p_values)
    worst = 0.0
    for position, i in enumerate(order):
        worst = max(worst, min(1.0, (len(order) - position) * p_values[i]))
        out[i] = worst
    return out


def mean_ranks(scores: Float64Array) -> Float64Array:
    """Mean rank of each column over the rows, 1 for the lowest; equal scores share a rank (as Demsar, JMLR 2006, compares learners).

    Args:
        scores: [blocks, methods].
    """
    from scipy import stats

    return np.asarray(stats.rankdata(scores, axis=1).mean(axis=0))
