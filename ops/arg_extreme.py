"""Define argmax and argmin: the extreme, and then the least of the indices of elements equal to it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tunesmith.ir.expr import Binary, Expr, call, equal, select
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxisParameter, ShapeParameter
from tunesmith.ops.reduction import REDUCE, reduced, settle_axis
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt

EXTREMES = {"argmax": "max", "argmin": "min"}
"""Each function, and the reduction that finds its value."""


def arg_extreme(function: str, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """The stages M, the extreme along an axis (a position from 0), and Y, the first index of an element equal to it.

    NaN is the extreme, as in numpy.
    """
    extreme, rank = reduced(x, (axis,), REDUCE[EXTREMES[function]], "M"), len(x.shape)
    loops, extent = te.default_loops(rank), x.shape[axis]
    position = te.reduce_axis(extent, loops[axis])

    def element(*index: Poly) -> Expr:
        rest = index[:axis] + index[axis + keepdims :]
        e = x[(*rest[:axis], position, *rest[axis:])]
        found = equal(e, extreme[rest])
        if dt.is_float(x.dtype):
            found = Binary("or", found, call("isnan", e, dtype="bool"))
        return te.min(select(found, position, extent), position)

    remaining = [d for d in range(rank) if keepdims or d != axis]
    names = [f"{loops[d]}_one" if d == axis else loops[d] for d in remaining]
    return te.compute([1 if d == axis else x.shape[d] for d in remaining], element, "Y", axes=names)


def arg_extreme_reference(function: str, x: np.ndarray, axis: int, keepdims: bool = False) -> np.ndarray:
    """The function of numpy, as int64."""
    found: Callable[..., np.ndarray] = getattr(np, function)
    return np.asarray(found(x, axis=axis, keepdims=keepdims)).astype(np.int64)


def _operator(function: str) -> Operator:
    def tensors(*, shape: tuple[int, ...], axis: int, dtype: str) -> list[Tensor]:
        x = te.placeholder(shape, dtype, "X")
        return [x, arg_extreme(function, x, axis % len(shape))]

    def reference(x: np.ndarray, /, *, axis: int, **_: object) -> list[np.ndarray]:
        return [arg_extreme_reference(function, x, axis)]

    def flops(*, shape: tuple[int, ...], **_: object) -> int:
        """Operations per element: extreme, and least index."""
        return 2 * math.prod(shape)

    parameters = (ShapeParameter("shape"), AxisParameter("axis", -1), FLOATS)
    return Operator(function, parameters, tensors, reference, flops, settle=settle_axis)


ARGMAX, ARGMIN = [_operator(f) for f in EXTREMES]
