"""Define cumulative products, extremes and log-sum-exps along an axis, as scans (`ops.cumulative`)."""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.graph.operators.element_types import FLOATS, NUMBERS, require
from tunesmith.ir.expr import Expr, call, equal, select
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.cumulative import cumulative, cumulative_reference
from tunesmith.ops.formulas import either
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt


def _cumprod(x: Tensor, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    require(NUMBERS, x)
    return cumulative("cumprod", x, axis_of(axis, len(x.shape)), exclusive=exclusive, reverse=reverse)


def _cumprod_reference(x: np.ndarray, *, axis: int, exclusive: bool = False, reverse: bool = False) -> np.ndarray:
    return cumulative_reference("cumprod", x, axis % x.ndim, exclusive=exclusive, reverse=reverse)


CUMPROD = GraphOperator(
    "cumprod",
    FUSABLE,
    _cumprod,
    _cumprod_reference,
    wide=True,
    meaning="Cumulative products along an axis, from its end if `reverse`, without the element itself if `exclusive`.",
)


def _cumulative_extreme(name: str) -> GraphOperator:
    def compute(x: Tensor, *, axis: int) -> list[Tensor]:
        require(NUMBERS, x)
        a = axis_of(axis, len(x.shape))
        values = cumulative(name, x, a)

        def place(previous: Expr, *i: Poly) -> Expr:
            """The index if its element is the extreme so far; every NaN is."""
            same = equal(x[i], values[i])
            if dt.is_float(x.dtype):
                same = either(same, call("isnan", x[i], dtype="bool"))
            return select(same, te.cast("int64", i[a]), previous)

        return [values, te.scan(x.shape, place, -1, axis=a, name="I", dtype="int64")]

    def reference(x: np.ndarray, *, axis: int) -> list[np.ndarray]:
        values = cumulative_reference(name, x, axis % x.ndim)
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


def _logcumsumexp(x: Tensor, *, axis: int) -> Tensor:
    require(FLOATS, x)
    return cumulative("logcumsumexp", x, axis_of(axis, len(x.shape)))


def _logcumsumexp_reference(x: np.ndarray, *, axis: int) -> np.ndarray:
    return cumulative_reference("logcumsumexp", x, axis % x.ndim)


LOGCUMSUMEXP = GraphOperator(
    "logcumsumexp",
    FUSABLE,
    _logcumsumexp,
    _logcumsumexp_reference,
    wide=True,
    meaning="The logarithm of cumulative sums of exp(x) along an axis, without overflow.",
)
