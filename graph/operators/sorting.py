"""Define operators that order elements: argsort, of which sort, top-k, median and k-th value are parts, and searchsorted."""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, REDUCTION, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.graph.operators.element_types import NUMBERS, require
from tunesmith.ir.expr import Expr, Not, compare
from tunesmith.ir.poly import Index, Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.ordering import argsort, argsort_reference
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def _argsort(x: Tensor, *, axis: int, descending: bool = False, count: Index | None = None) -> Tensor:
    require(NUMBERS, x)
    return argsort(x, axis_of(axis, len(x.shape)), descending=descending, count=count)


ARGSORT = GraphOperator(
    "argsort",
    FUSABLE,
    _argsort,
    argsort_reference,
    meaning=(
        "The indices that sort an axis, or the first `count` of them; equal elements keep their order, NaN counts as the greatest. "
        "A merge sort; if the extent is symbolic, all pairs are compared."
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
