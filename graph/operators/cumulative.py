"""Define cumulative products, extremes and log-sum-exps along an axis.

`_scanned` is the one formula of a scan: every element is a reduction of its own, so the time is quadratic in the extent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.graph.operators.element_types import FLOATS, NUMBERS, require
from tunesmith.graph.operators.formulas import either
from tunesmith.ir.expr import Expr, call, const, equal, select
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt

Combine = Callable[..., Expr]


def _scanned(
    x: Tensor,
    a: int,
    combine: Combine,
    identity: float,
    name: str,
    value: Callable[[tuple[Poly, ...], Poly], Expr] | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: str | None = None,
) -> Tensor:
    """One stage: for each position i of axis a the reduction of the elements up to i.

    Args:
        x: the tensor.
        a: position of the axis.
        combine: te.prod, te.sum, te.max or te.min.
        identity: value of elements that are not included.
        name: name of the stage.
        value: the scanned value at (position of the result, index along the axis); by default the element of `x`.
        exclusive: leave out the element itself.
        reverse: reduce from the end of the axis.
        dtype: type of the value; by default that of `x`.
    """
    r = te.reduce_axis(x.shape[a], "r")

    def element(*i: Poly) -> Expr:
        distance = i[a] - r if reverse else r - i[a]
        included = distance < 0 if exclusive else distance <= 0
        scanned = x[(*i[:a], r, *i[a + 1 :])] if value is None else value(i, r)
        return combine(select(included, scanned, const(identity, dtype or x.dtype)), axis=r)

    return te.compute(x.shape, element, name, axes=te.default_loops(len(x.shape)))


# ---- products ----------------------------------------------------------------------------------------------------------


def _cumprod(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    require(NUMBERS, x)
    return _scanned(x, axis_of(axis, len(x.shape)), te.prod, 1, "cumprod", exclusive=exclusive, reverse=reverse)


def _cumprod_reference(x: np.ndarray, *, axis: int, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    wide = np.flip(wide, axis) if reverse else wide
    if exclusive:
        first = np.ones_like(np.take(wide, [0], axis))
        wide = np.concatenate([first, np.take(wide, range(x.shape[axis] - 1), axis)], axis)
    with np.errstate(all="ignore"):
        total = np.cumprod(wide, axis, dtype=wide.dtype)
        return (np.flip(total, axis) if reverse else total).astype(x.dtype)


CUMPROD = GraphOperator(
    "cumprod",
    FUSABLE,
    _cumprod,
    _cumprod_reference,
    wide=True,
    meaning="Cumulative products along an axis, from its end if `reverse`, without the element itself if `exclusive`.",
)


# ---- extremes ----------------------------------------------------------------------------------------------------------


def _outermost(dtype: str, highest: bool) -> float:
    if dt.is_float(dtype):
        return np.inf if highest else -np.inf
    limits = np.iinfo(dt.to_numpy(dtype))
    return int(limits.max if highest else limits.min)


def _cumulative_extreme(name: str) -> GraphOperator:
    combine, identity_is_highest = (te.max, False) if name == "cummax" else (te.min, True)

    def compute(x: Tensor, *, axis: int) -> list[Tensor]:
        require(NUMBERS, x)
        a = axis_of(axis, len(x.shape))
        values = _scanned(x, a, combine, _outermost(x.dtype, identity_is_highest), "V")

        def place(i: tuple[Poly, ...], r: Poly) -> Expr:
            """The index r if its element is the extreme so far; every NaN is."""
            there = x[(*i[:a], r, *i[a + 1 :])]
            same = equal(there, values[i])
            if dt.is_float(x.dtype):
                same = either(same, call("isnan", there, dtype="bool"))
            return select(same, te.cast("int64", r), const(-1, "int64"))

        return [values, _scanned(x, a, te.max, -1, "I", place, dtype="int64")]

    def reference(x: np.ndarray, *, axis: int) -> list[np.ndarray]:
        values = (np.maximum if name == "cummax" else np.minimum).accumulate(x, axis)
        same = (x == values) | np.isnan(x)
        places = np.arange(x.shape[axis]).reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
        return [values, np.maximum.accumulate(np.where(same, places, -1), axis).astype(np.int64)]

    what = "greatest" if name == "cummax" else "least"
    return GraphOperator(
        name,
        FUSABLE,
        compute,
        reference,
        meaning=f"The {what} element so far along an axis, and the last index where it occurs; NaN from the first NaN on.",
    )


CUMMAX, CUMMIN = _cumulative_extreme("cummax"), _cumulative_extreme("cummin")


# ---- log-sum-exp -------------------------------------------------------------------------------------------------------


def _logcumsumexp(x: Tensor, *, axis: int) -> Tensor:
    require(FLOATS, x)
    a = axis_of(axis, len(x.shape))
    top = _scanned(x, a, te.max, -np.inf, "M")

    def offset(i: tuple[Poly, ...]) -> Expr:
        """The maximum, or 0 where it is infinite, so that no infinity is subtracted from itself."""
        return select(equal(call("abs", top[i]), np.inf), const(0.0, x.dtype), top[i])

    def power(i: tuple[Poly, ...], r: Poly) -> Expr:
        return call("exp", x[(*i[:a], r, *i[a + 1 :])] - offset(i))

    total = _scanned(x, a, te.sum, 0.0, "S", power)
    return te.compute(x.shape, lambda *i: call("log", total[i]) + offset(i), "Y", axes=te.default_loops(len(x.shape)))


def _logcumsumexp_reference(x: np.ndarray, *, axis: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(np.logaddexp.accumulate(x.astype(np.float64), axis)).astype(x.dtype)


LOGCUMSUMEXP = GraphOperator(
    "logcumsumexp",
    FUSABLE,
    _logcumsumexp,
    _logcumsumexp_reference,
    wide=True,
    meaning="The logarithm of cumulative sums of exp(x) along an axis, without overflow.",
)
