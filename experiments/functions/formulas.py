"""Write formulas that several functions share, in tensor expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tunesmith import te
from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops.tensor_expression import Tensor

Element = Callable[[tuple[Poly, ...]], Expr]
"""Maps the indices of an element, all axes in order, to its formula."""


def without(indices: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """The indices of a tensor that has no `axes`."""
    return tuple([x for d, x in enumerate(indices) if d not in axes])


def over(op: Callable[..., Expr], shape: Sequence[Any], axes: Sequence[int], element: Element, name: str) -> Tensor:
    """The elements of `shape` combined by `op` over `axes`."""
    reduced = {d: te.reduce_axis(shape[d], f"r{d}") for d in axes}
    kept = without(range(len(shape)), axes)

    def formula(*i: Poly) -> Expr:
        at = dict(zip(kept, i, strict=True)) | reduced
        return op(element(tuple([at[d] for d in range(len(shape))])), axis=list(reduced.values()))

    return te.compute(without(shape, axes), formula, name)


def mean(shape: Sequence[Poly], axes: Sequence[int], element: Element, name: str) -> Tensor:
    """The mean of the elements over `axes`."""
    total = over(te.sum, shape, axes, element, f"{name}_sum")
    count = float(math.prod([shape[d].as_int() for d in axes]))
    return te.compute(total.shape, lambda *i: total[i] / count, name)


def mean_and_variance(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The mean over `axes`, and the mean of the squared distances from it."""
    m = mean(x.shape, axes, lambda i: x[i], "M")
    return m, mean(x.shape, axes, lambda i: square(x[i] - m[without(i, axes)]), "V")


def softmax(x: Tensor, axis: int, name: str = "P") -> Tensor:
    """The softmax along one axis, in four stages."""
    most = over(te.max, x.shape, [axis], lambda i: x[i], f"{name}_max")
    power = te.compute(x.shape, lambda *i: te.exp(x[i] - most[without(i, [axis])]), f"{name}_exp")
    total = over(te.sum, x.shape, [axis], lambda i: power[i], f"{name}_sum")
    return te.compute(x.shape, lambda *i: power[i] / total[without(i, [axis])], name)


def logsumexp(x: Tensor, axis: int, name: str = "L") -> Tensor:
    """The logarithm of the sum of exponentials along one axis, in three stages."""
    most = over(te.max, x.shape, [axis], lambda i: x[i], f"{name}_max")
    total = over(te.sum, x.shape, [axis], lambda i: te.exp(x[i] - most[without(i, [axis])]), f"{name}_sum")
    return te.compute(most.shape, lambda *i: te.log(total[i]) + most[i], name)


def matmul(a: Tensor, b: Tensor, name: str, transposed: bool = False) -> Tensor:
    """The product of two matrices, or of `a` and the transpose of `b`."""
    k = te.reduce_axis(a.shape[1], "k")
    columns = b.shape[0 if transposed else 1]
    return te.compute((a.shape[0], columns), lambda i, j: te.sum(a[i, k] * (b[j, k] if transposed else b[k, j]), axis=k), name)


def square(x: Expr) -> Expr:
    """x * x."""
    return x * x


def gelu(x: Expr) -> Expr:
    """The exact GELU."""
    return x * 0.5 * (te.erf(x * math.sqrt(0.5)) + 1.0)


def clamped(x: Any, extent: int) -> Any:
    """An index, or the nearest one in [0, extent)."""
    return te.minimum(te.maximum(x, 0), extent - 1)
