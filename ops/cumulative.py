"""Define cumulative sums, products, extremes and logsumexp along an axis, as scans: one step for each element."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.expr import Expr, call, const, equal, maximum, minimum, select
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.formulas import log1p_above
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxisParameter, ShapeParameter
from tunesmith.ops.reduction import accumulator, settle_axis
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True, slots=True)
class Cumulative:
    """One function of all elements up to each.

    Attributes:
        step: the result at an element, from the result at the element before and the element.
        identity: the result before the first element, for an element type.
        accumulate: the same along an axis of an array.
        operations: operations for each element.
    """

    step: Callable[[Expr, Expr], Expr]
    identity: Callable[[str], float]
    accumulate: Callable[[np.ndarray, int], np.ndarray]
    operations: int = 1


def _least(dtype: str) -> float:
    if dt.is_float(dtype):
        return -math.inf
    return 0 if dt.is_unsigned(dtype) else -(2 ** (dt.bits(dtype) - 1))


def _greatest(dtype: str) -> float:
    return math.inf if dt.is_float(dtype) else 2 ** (dt.bits(dtype) - (not dt.is_unsigned(dtype))) - 1


def _log_add(a: Expr, b: Expr) -> Expr:
    """log(exp(a) + exp(b)); where both are the same infinity, that."""
    high, low = maximum(a, b), minimum(a, b)
    infinite = equal(call("abs", high), const(math.inf, high.dtype))
    return select(infinite, high, high + log1p_above(call("exp", low - high)))


CUMULATIVE = {
    "cumsum": Cumulative(lambda a, b: a + b, lambda _: 0, lambda x, axis: np.cumsum(x, axis, dtype=accumulator(x))),
    "cumprod": Cumulative(lambda a, b: a * b, lambda _: 1, lambda x, axis: np.cumprod(x, axis, dtype=accumulator(x))),
    "cummax": Cumulative(maximum, _least, np.maximum.accumulate),
    "cummin": Cumulative(minimum, _greatest, np.minimum.accumulate),
    "logcumsumexp": Cumulative(_log_add, _least, lambda x, axis: np.logaddexp.accumulate(x.astype(np.float64), axis), 6),
}
"""All functions by name.  NaN is the extreme of any elements with NaN, as in numpy."""


def cumulative(function: str, x: Tensor, axis: int, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """The function of all elements up to each along an axis, a position from 0.

    Args:
        function: a name of `CUMULATIVE`.
        x: any shape with the axis; the elements are numbers, floats for logcumsumexp.
        axis: the position of the axis.
        exclusive: without the element itself; the first is the identity of the function.
        reverse: from the end of the axis.
    Raises:
        ScriptError: the element type is bool, or no float for logcumsumexp.
    """
    if x.dtype == "bool" or (function == "logcumsumexp" and not dt.is_float(x.dtype)):
        raise ScriptError(
            f"{function} of {x.dtype} elements is not defined; cast them to {'a float' if x.dtype != 'bool' else 'an integer'} type"
        )
    f, last = CUMULATIVE[function], x.shape[axis] - 1
    identity = const(f.identity(x.dtype), x.dtype)

    def update(previous: Expr, *i: Poly) -> Expr:
        if not exclusive:
            return f.step(previous, x[i])
        before = x[(*i[:axis], i[axis] + 1 if reverse else i[axis] - 1, *i[axis + 1 :])]
        return f.step(previous, select(i[axis] < last if reverse else 0 < i[axis], before, identity))

    return te.scan(x.shape, update, identity, axis=axis, reverse=reverse, name=function, dtype=x.dtype)


def cumulative_reference(function: str, x: np.ndarray, axis: int, *, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    """The same for arrays; sums, products and logcumsumexp are accumulated in float64 and rounded once."""
    x = np.flip(x, axis) if reverse else x
    with np.errstate(all="ignore"):
        found = CUMULATIVE[function].accumulate(x, axis)
        if exclusive:
            shape = [1 if d == axis else e for d, e in enumerate(x.shape)]
            first = np.full(shape, CUMULATIVE[function].identity(x.dtype.name), found.dtype)
            found = np.take(np.concatenate([first, found], axis), range(x.shape[axis]), axis)
    return (np.flip(found, axis) if reverse else found).astype(x.dtype)


def _operator(function: str) -> Operator:
    def tensors(*, shape: tuple[int, ...], axis: int, dtype: str) -> list[Tensor]:
        x = te.placeholder(shape, dtype, "X")
        return [x, cumulative(function, x, axis % len(shape))]

    def reference(x: np.ndarray, /, *, axis: int, **_: object) -> list[np.ndarray]:
        return [cumulative_reference(function, x, axis)]

    def flops(*, shape: tuple[int, ...], **_: object) -> int:
        return CUMULATIVE[function].operations * math.prod(shape)

    parameters = (ShapeParameter("shape"), AxisParameter("axis", -1), FLOATS)
    return Operator(function, parameters, tensors, reference, flops, settle=settle_axis)


CUMSUM, CUMPROD, CUMMAX, CUMMIN, LOGCUMSUMEXP = [_operator(f) for f in CUMULATIVE]
