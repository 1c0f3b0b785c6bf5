"""Compute mean, variance and reciprocal standard deviation of sets of elements, for normalisations by rows, groups and channels.

Statistics are separate stages, so that each set needs one division and one square root; variances are computed in two passes, which avoids
cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.expr import Expr, call, const
from tunesmith.ir.poly import Poly, product
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxesParameter, ShapeParameter, Value, flag
from tunesmith.ops.reduction import divide_by_count, number, settle_axes
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import UserError


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
    mean, total = spread_of(x, sets)
    return mean, reciprocal_root(total, sets.count, eps)


def spread_of(x: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
    """The stages M and V of each set, after S; see `deviations`."""
    mean = divide_by_count(sets.sum(lambda e, _: x[e], "S"), sets.count, "M")
    return mean, sets.sum(lambda e, i: (x[e] - mean[tuple(i)]) * (x[e] - mean[tuple(i)]), "V")


def reciprocal_root(total: Tensor, count: Poly, eps: float) -> Tensor:
    """The stage R, 1 / sqrt(total / count + eps)."""
    loops = [v.name for v in total.axes]
    return te.compute(
        total.shape, lambda *i: call("rsqrt", total[i] / number(count, total.dtype) + const(eps, total.dtype)), "R", axes=loops
    )


def standardised(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + eps) of float64 arrays, over `axes`."""
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps))


def scaled(value: Expr, at: Sequence[Poly], gamma: Tensor | None, beta: Tensor | None) -> Expr:
    """value * gamma + beta with the elements of the scales at an index; a scale that is None is left out."""
    if gamma is not None:
        value = value * gamma[tuple(at)]
    return value if beta is None else value + beta[tuple(at)]


def spread(scale: np.ndarray, rank: int, axes: Sequence[int]) -> np.ndarray:
    """A scale along some axes, in order, with extent 1 in the others."""
    return np.expand_dims(scale, [d for d in range(rank) if d not in {a % rank for a in axes}])


def affine(normal: np.ndarray, gamma: np.ndarray | None, beta: np.ndarray | None, axes: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """normal * gamma + beta in numpy, with scales along `axes`, rounded to the type."""
    if gamma is not None:
        normal = normal * spread(gamma, normal.ndim, axes)
    return (normal if beta is None else normal + spread(beta, normal.ndim, axes)).astype(dtype)


def variance(x: Tensor, axes: Sequence[int], correction: int = 0) -> Tensor:
    """The stages S, M and V of `deviations`, and Y, the sum of squared differences divided by the number of elements - `correction`."""
    sets = sets_along(x, axes)
    return divide_by_count(spread_of(x, sets)[1], sets.count - correction, "Y")


def _tensors(*, shape: tuple[int, ...], axis: tuple[int, ...], correction: int, dtype: str) -> list[Tensor]:
    x = te.placeholder(shape, dtype, "X")
    return [x, variance(x, axis or range(len(shape)), correction)]


def _reference(x: np.ndarray, /, *, axis: tuple[int, ...], correction: int, **_: object) -> list[np.ndarray]:
    return [np.asarray(x.astype(np.float64).var(axis or None, ddof=correction)).astype(x.dtype)]


def _flops(*, shape: tuple[int, ...], **_: object) -> int:
    """Operations per element: sum; difference, square, sum."""
    return 4 * math.prod(shape)


def _settle(p: dict[str, Value]) -> dict[str, Value]:
    p = settle_axes(p)
    shape, axis, correction = p["shape"], p["axis"], p["correction"]
    assert isinstance(shape, tuple) and isinstance(axis, tuple) and isinstance(correction, int)
    count = math.prod([shape[d] for d in axis or range(len(shape))])
    if correction >= count:
        raise UserError(f"correction={correction} must be less than the {count} elements of a set")
    return p


VARIANCE = Operator(
    "variance",
    (ShapeParameter("shape"), AxesParameter("axis", ()), flag("correction"), FLOATS),
    _tensors,
    _reference,
    _flops,
    settle=_settle,
)
