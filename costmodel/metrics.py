"""Compute the ranking metrics of TenSet and TLP for cost models, over programs grouped by task.

All take measured `seconds` [N], predicted `scores` [N] (higher is better) and `groups` [N] (the task of each program), so they apply to
learned models, the analytic cost and random scores alike.

Sources: Zheng et al., "TenSet" (NeurIPS 2021, datasets track); Zhai et al., "TLP"
(ASPLOS 2023); Best-k: Qiao et al., "Pruner" (ASPLOS 2025); NDCG: Järvelin and Kekäläinen (TOIS 2002), with the gains of LambdaRank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tunesmith.support.array_types import Float64Array, FloatArray, IntArray
from tunesmith.support.errors import UserError


def top_k_score(seconds: FloatArray, scores: FloatArray, groups: IntArray, k: int, weights: Mapping[int, float] | None = None) -> float:
    """Time of the best programs divided by the best time among each task's k highest scores, summed over tasks; 1 is perfect.

    Args:
        seconds, scores, groups: see the module docstring.  Among equal scores the slower program is ranked higher, so that a constant
            model gains nothing from the order of programs.
        k: number of programs that would be measured.
        weights: occurrences of each task in a network; 1 by default.
    """
    best, found = 0.0, 0.0
    for g, time, score in _tasks(seconds, scores, groups):
        w = _weight(weights, g)
        order = np.lexsort((-time, -score))[: _positive(k)]
        best += w * float(time.min())
        found += w * float(time[order].min())
    return best / found


def recall_at_k(seconds: FloatArray, scores: FloatArray, groups: IntArray, k: int) -> float:
    """Share of the k fastest programs of a task that are among its k highest scores; mean over tasks."""
    shares = []
    for _, time, score in _tasks(seconds, scores, groups):
        n = min(_positive(k), len(time))
        limit = np.sort(time)[n - 1]
        chosen = np.lexsort((-time, -score))[:n]
        shares.append(float((time[chosen] <= limit).mean()))
    return float(np.mean(shares))


def best_k(
    seconds: FloatArray, scores: FloatArray, groups: IntArray, draft: int, k: int, weights: Mapping[int, float] | None = None
) -> float:
    """Time of the best programs divided by the k-th best time among each task's `draft` highest scores, summed over tasks; 1 is perfect.

    It evaluates a draft from which another model, or a measurement, selects: good drafts contain k fast programs, not one.  With k = 1 it
    is the top-k score of the draft.  For a task with fewer programs, the slowest one counts.

    Args:
        seconds, scores, groups, weights: see `top_k_score`.
        draft: size of the draft.
        k: rank in the draft, by time.
    """
    best, found = 0.0, 0.0
    for g, time, score in _tasks(seconds, scores, groups):
        w = _weight(weights, g)
        drafted = np.sort(time[np.lexsort((-time, -score))[: _positive(draft)]])
        best += w * float(time.min())
        found += w * float(drafted[min(_positive(k), len(drafted)) - 1])
    return best / found


def ndcg(seconds: FloatArray, scores: FloatArray, groups: IntArray, k: int | None = None) -> float:
    """Normalised discounted cumulative gain of the ranking, mean over tasks; 1 is perfect.

    The gain of a program is 2^y - 1, where y is its throughput relative to the best of the task, with weight 1 / log2(1 + r) at rank r.

    Args:
        seconds, scores, groups: see `top_k_score`, also for equal scores.
        k: number of ranks; all by default.
    """
    found = []
    for _, time, score in _tasks(seconds, scores, groups):
        n = len(time) if k is None else min(_positive(k), len(time))
        gain = np.exp2(time.min() / time) - 1.0
        discount = 1.0 / np.log2(np.arange(2, n + 2))
        order = np.lexsort((-time, -score))[:n]
        found.append(float((gain[order] * discount).sum() / (np.sort(gain)[::-1][:n] * discount).sum()))
    return float(np.mean(found))


def pairwise_accuracy(seconds: FloatArray, scores: FloatArray, groups: IntArray) -> float:
    """Share of the pairs of programs of one task that the scores order correctly, over all pairs of all tasks.

    Pairs with equal times are ignored; pairs with equal scores count one half.

    Raises:
        UserError: no task has two programs of different times.
    """
    right, pairs = 0.0, 0
    for _, time, score in _tasks(seconds, scores, groups):
        for i in range(len(time) - 1):
            slower = np.sign(time[i + 1 :] - time[i])
            lower = np.sign(score[i] - score[i + 1 :])
            distinct = slower != 0
            pairs += int(distinct.sum())
            right += float((1.0 + slower[distinct] * lower[distinct]).sum() / 2)
    if not pairs:
        raise UserError("pairwise accuracy needs two programs of different times in some task")
    return right / pairs


def spearman(seconds: FloatArray, scores: FloatArray, groups: IntArray) -> float:
    """Spearman's rank correlation of scores with speed, mean over tasks with at least two different times.

    Equal values share their mean rank.  The correlation of constant scores is 0.

    Raises:
        UserError: no task has two programs of different times.
    """
    found = []
    for _, time, score in _tasks(seconds, scores, groups):
        a, b = ranks(-time), ranks(score)
        a, b = a - a.mean(), b - b.mean()
        if a.any():
            norm = np.sqrt((a * a).sum() * (b * b).sum())
            found.append(float((a * b).sum() / norm) if norm else 0.0)
    if not found:
        raise UserError("a rank correlation needs two programs of different times in some task")
    return float(np.mean(found))


def ranks(values: FloatArray) -> Float64Array:
    """Rank of each value, 1 for the lowest; equal values share their mean rank."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[index])


def rmse(truth: FloatArray, predicted: FloatArray) -> float:
    """Root mean squared error of any quantity (in TenSet: throughput, best of the task = 1)."""
    _same(truth, predicted)
    return float(np.sqrt(np.mean((truth - predicted) ** 2)))


def r_squared(truth: FloatArray, predicted: FloatArray) -> float:
    """Coefficient of determination: 0 for a constant at the mean, negative for worse predictions.

    Raises:
        UserError: the truth does not vary.
    """
    _same(truth, predicted)
    spread = float(((truth - truth.mean()) ** 2).sum())
    if spread == 0:
        raise UserError("R^2 is not defined: all true values are equal")
    return 1.0 - float(((truth - predicted) ** 2).sum()) / spread


def fitted_throughput(seconds: FloatArray, scores: FloatArray, groups: IntArray) -> Float64Array:
    """The throughput predicted by scores, [N], for `rmse` and `r_squared` of models whose scores have no unit.

    Each task's scores are mapped by the least-squares line to its throughput, with a slope of at least 0: a model that ranks in reverse
    predicts a constant.
    """
    truth, out = normalized_throughput(seconds, groups), np.zeros(len(seconds))
    for g, _, score in _tasks(seconds, scores, groups):
        mine = groups == g
        x, y = score - score.mean(), truth[mine] - truth[mine].mean()
        spread = float((x * x).sum())
        out[mine] = truth[mine].mean() + x * max(float((x * y).sum()) / spread if spread > 0 else 0.0, 0.0)
    return out


def normalized_throughput(seconds: FloatArray, groups: IntArray) -> Float64Array:
    """Best time of the task divided by time: 1 for the fastest program of each task, 0 for failed ones (inf)."""
    out = np.zeros(len(seconds))
    for g in np.unique(groups):
        mine = groups == g
        out[mine] = seconds[mine].min() / seconds[mine] if np.isfinite(seconds[mine].min()) else 0.0
    return out


def _tasks(seconds: FloatArray, scores: FloatArray, groups: IntArray) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """(task, times, scores) of each task."""
    n = len(seconds)
    if not n or seconds.shape != (n,) or scores.shape != (n,) or groups.shape != (n,):
        raise UserError(
            "metrics need seconds, scores and groups of one length >= 1; "
            f"got shapes {list(seconds.shape)}, {list(scores.shape)}, {list(groups.shape)}"
        )
    if not np.isfinite(seconds).all() or not (seconds > 0).all():
        raise UserError("metrics need finite positive seconds: leave out failed programs")
    if np.isnan(scores).any():
        raise UserError(f"metrics need comparable scores; {int(np.isnan(scores).sum())} of {n} are NaN")
    for g in np.unique(groups):
        mine = groups == g
        yield int(g), seconds[mine], scores[mine]


def _weight(weights: Mapping[int, float] | None, group: int) -> float:
    if weights is None:
        return 1.0
    w = weights.get(group)
    if w is None or not 0 < w < np.inf:
        raise UserError(f"each task needs a positive weight; task {group} has {w}")
    return w


def _positive(k: int) -> int:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
        raise UserError(f"k must be an integer of at least 1, got {k!r}")
    return int(k)


def _same(truth: FloatArray, predicted: FloatArray) -> None:
    if truth.shape != predicted.shape or not truth.size:
        raise UserError(
            f"truth and prediction must have equal shapes and not be empty; got {list(truth.shape)} and {list(predicted.shape)}"
        )
