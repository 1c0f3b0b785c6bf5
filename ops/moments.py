"""Compute mean and reciprocal standard deviation of sets of elements, for normalisations by rows, groups and channels.

Statistics are separate stages, so that each set needs one division and one square root; variances are computed in two passes, which avoids
cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.expr import Expr, call, const
from tunesmith.ir.poly import Poly, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.reduction import divide_by_count, number
from tunesmith.ops.tensor_expression import Tensor


@dataclass(frozen=True, slots=True)
class Sets:
    """The sets of elements of a tensor that have one mean each.

    Attributes:
        shape: shape of the statistics.
        loops: loop names of the statistics.
        axes: reduction axes of a set.
        at: maps the index of a set, with the current values of `axes`, to the index of an element in the tensor.
    """

    shape: Sequence[Poly]
    loops: Sequence[str]
    axes: Sequence[Poly]
    at: Callable[[Sequence[Poly]], tuple[Poly, ...]]

    @property
    def count(self) -> Poly:
        """The number of elements in a set."""
        return product([a.as_var().extent for a in self.axes])  # type: ignore[union-attr]

    def sum(self, element: Callable[[tuple[Poly, ...], Sequence[Poly]], Expr], name: str) -> Tensor:
        """The stage that sums element(index of the element, index of the set) over each set."""
        return te.compute(self.shape, lambda *i: te.sum(element(self.at(i), i), axis=self.axes), name, axes=self.loops)


def sets_along(x: Tensor, axes: Sequence[int]) -> Sets:
    """The sets of elements that differ in the index along `axes` only (positions from 0)."""
    rank, names = len(x.shape), te.default_loops(len(x.shape))
    kept = [d for d in range(rank) if d not in axes]
    reduced = {d: te.reduce_axis(x.shape[d], names[d]) for d in sorted(axes)}

    def at(i: Sequence[Poly]) -> tuple[Poly, ...]:
        where = {**reduced, **dict(zip(kept, i, strict=True))}
        return tuple([where[d] for d in range(rank)])

    return Sets([x.shape[d] for d in kept], [names[d] for d in kept], list(reduced.values()), at)


def deviations(x: Tensor, sets: Sets, eps: float) -> tuple[Tensor, Tensor]:
    """The mean M and the reciprocal standard deviation R of each set.

    Stages: S, the sum of a set; M, its mean; V, the sum of squared differences; R, 1 / sqrt(V / count + eps).
    """
    mean = divide_by_count(sets.sum(lambda e, _: x[e], "S"), sets.count, "M")
    spread = sets.sum(lambda e, i: (x[e] - mean[tuple(i)]) * (x[e] - mean[tuple(i)]), "V")
    return mean, reciprocal_root(spread, sets.count, eps)


def reciprocal_root(total: Tensor, count: Poly, eps: float) -> Tensor:
    """The stage R, 1 / sqrt(total / count + eps)."""
    loops = [v.name for v in total.axes]
    return te.compute(
        total.shape, lambda *i: call("rsqrt", total[i] / number(count, total.dtype) + const(eps, total.dtype)), "R", axes=loops
    )


def standardised(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + eps) of float64 arrays, over `axes`."""
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps))
