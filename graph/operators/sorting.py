"""Define operators that order elements: argsort, of which sort, top-k, median and k-th value are parts, and searchsorted.

All are computed by counting: the place of an element is the number of elements before it.  So the time is quadratic in the extent of
the axis, and equal elements keep their order.  `_places` is the one formula to replace by another algorithm.
"""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, REDUCTION, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.graph.operators.element_types import NUMBERS, require
from tunesmith.ir.expr import Expr, Not, call, compare, minimum, select
from tunesmith.ir.poly import Index, Poly, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.formulas import both
from tunesmith.ops.reduction import number
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def _before(a: Expr, b: Expr, descending: bool) -> Expr:
    """Whether a comes strictly before b; NaN counts as the greatest number, as in torch and numpy."""
    if not dt.is_float(a.dtype):
        return compare("gt" if descending else "lt", a, b)
    if descending:
        return both(Not(compare("le", a, b)), Not(call("isnan", b, dtype="bool")))
    return both(Not(compare("ge", a, b)), Not(call("isnan", a, dtype="bool")))


def _places(x: Tensor, a: int, descending: bool) -> Tensor:
    """The stage R: the position of each element in the stable order along axis a, int64, by comparing all pairs."""
    r = te.reduce_axis(x.shape[a], "r")

    def element(*i: Poly) -> Expr:
        here, there = x[i], x[(*i[:a], r, *i[a + 1 :])]
        # An earlier element comes first unless this one is strictly before it.
        first = select(r < i[a], Not(_before(here, there, descending)), _before(there, here, descending))
        return te.sum(te.cast("int64", first), axis=r)

    return te.compute(x.shape, element, "R", axes=te.default_loops(len(x.shape)))


def _argsort(x: Tensor, *, axis: int, descending: bool = False, count: Index | None = None) -> Tensor:
    require(NUMBERS, x)
    a = axis_of(axis, len(x.shape))
    extent = x.shape[a] if count is None else poly(count)
    few, most = extent.const, x.shape[a].const
    if few is not None and (few < 1 or (most is not None and few > most)):
        raise ScriptError(f"count {extent} must be from 1 to the extent {x.shape[a]} of axis {a} of {x!r}")
    places = _places(x, a, descending)
    last = number(extent, "int64") - 1

    def at(*i: Poly) -> list[Expr]:
        return [*i[:a], minimum(places[i], last), *i[a + 1 :]]

    return te.scatter(
        lambda *i: 0,
        x.shape,
        at,
        lambda _, *i: te.cast("int64", i[a]),
        shape=(*x.shape[:a], extent, *x.shape[a + 1 :]),
        where=lambda *i: places[i] <= last,
        name="Y",
        dtype="int64",
    )


def _argsort_reference(x: np.ndarray, *, axis: int, descending: bool = False, count: int | None = None) -> np.ndarray:
    if descending:  # the stable order of the reversed axis, reversed, puts the later of equal elements first: reverse twice
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.asarray(np.take(order, range(x.shape[axis] if count is None else count), axis)).astype(np.int64)


ARGSORT = GraphOperator(
    "argsort",
    FUSABLE,
    _argsort,
    _argsort_reference,
    meaning=(
        "The indices that sort an axis, or the first `count` of them; equal elements keep their order, NaN counts as the greatest. "
        "All pairs are compared, so the time is quadratic in the extent."
    ),
)


def _searchsorted(boundaries: Tensor, x: Tensor, *, right: bool = False) -> Tensor:
    require(NUMBERS, boundaries, x)
    if not boundaries.shape:
        raise ScriptError(f"{boundaries!r} must have an axis of boundaries")
    lead = boundaries.shape[:-1]
    if lead and (len(x.shape) != len(boundaries.shape) or x.shape[:-1] != lead):
        raise ScriptError(f"{boundaries!r} must be a vector, or have the extents of {x!r} except in the last axis")
    r = te.reduce_axis(boundaries.shape[-1], "r")

    def element(*i: Poly) -> Expr:
        # The negated comparison counts all boundaries for NaN, which is the greatest number.
        beyond = compare("gt" if right else "ge", boundaries[(*i[: len(lead)], r)], x[i])
        return te.sum(te.cast("int64", Not(beyond)), axis=r)

    return te.compute(x.shape, element, "Y", axes=te.default_loops(len(x.shape)))


def _searchsorted_reference(boundaries: np.ndarray, x: np.ndarray, *, right: bool = False) -> np.ndarray:
    rows = boundaries if boundaries.ndim == 1 else boundaries[..., None, :]
    with np.errstate(invalid="ignore"):
        beyond = rows > x[..., None] if right else rows >= x[..., None]
    return np.asarray(np.sum(~beyond, -1, dtype=np.int64))


SEARCHSORTED = GraphOperator(
    "searchsorted",
    REDUCTION,
    _searchsorted,
    _searchsorted_reference,
    meaning=(
        "The position in a sorted vector, or in a sorted row for each row of x, before which x is inserted to keep the order: "
        "before equal elements, or after them if `right`. The time is linear in the number of boundaries."
    ),
)
