"""Define operators that order elements: argsort, of which sort, top-k, median and k-th value are parts, and searchsorted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, REDUCTION, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.graph.operators.element_types import NUMBERS, require
from tunesmith.ir.expr import Expr, Not, compare, select
from tunesmith.ir.poly import Index, Poly, minimum, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.formulas import both
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

    def reached(at: Index, i: Sequence[Poly]) -> Expr:
        # The negated comparison is true for NaN, which is the greatest number.
        return Not(compare("gt" if right else "ge", boundaries[(*i[: len(lead)], at)], x[tuple(i)]))

    extent, loops = boundaries.shape[-1], te.default_loops(len(x.shape))
    if extent.const is None:
        r = te.reduce_axis(extent, "r")
        return te.compute(x.shape, lambda *i: te.sum(te.cast("int64", reached(r, i)), axis=r), "Y", axes=loops)
    n = extent.const

    def search(at: Poly, step: int, i: Sequence[Poly]) -> Expr:
        """The position, of which `at` is known to be a lower and at + 2 * step an upper bound."""
        if step == 0:
            return te.cast("int64", at)
        further = both(at + step <= n, reached(minimum(at + step, n) - 1, i))
        return te.lookup(select(further, at + step, at), n + 1, lambda v: search(v, step // 2, i))

    return te.compute(x.shape, lambda *i: search(poly(0), 2 ** (n.bit_length() - 1), i), "Y", axes=loops)


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
        "before equal elements, or after them if `right`. A binary search; if the number of boundaries is symbolic, all are compared."
    ),
)
