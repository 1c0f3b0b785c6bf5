"""Define gather and scatter operators, one_hot and trilu, with elements selected by indices or by position.

Indices are looked up as in `ops.gather`, in compiled code without errors for indices out of range: reads are clamped, writes are skipped.

A scatter copies the tensor and makes one update after the other.  `index_put_rows` with few indices, as in text generation, is a selection
between the old and the new rows, which consumers can inline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.graph.ir.operator import FUSABLE, INJECTIVE, GraphOperator
from tunesmith.graph.operators.axes import axis_of
from tunesmith.ir.expr import Expr, const, equal, maximum, minimum, select
from tunesmith.ir.poly import Index, Poly, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.gather import check_integers, is_at, looked_up, take, updated, wrapped
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError

FEW_ROWS = 8
"""Maximum number of indices for which `index_put_rows` compares each element with all indices, and reads no more than it writes."""


def _take(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    return take(x, indices, axis_of(axis, len(x.shape)), "take")


def _take_reference(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    return np.take(x, indices, axis)


TAKE = GraphOperator("take", INJECTIVE, _take, _take_reference, meaning="numpy.take: slices of `x` along an axis, one for each index.")


def _gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    check_integers(indices)
    a = axis_of(axis, len(x.shape))
    _check_extents(x, indices, a)

    def element(*i: Poly) -> Expr:
        return looked_up(x, [indices[i]], [x.shape[a]], lambda v: (*i[:a], *v, *i[a + 1 :]))

    return te.compute(indices.shape, element, "gather_elements", axes=te.default_loops(len(indices.shape)))


def _check_extents(x: Tensor, indices: Tensor, a: int) -> None:
    """Raise ScriptError for indices with a larger extent than `x` in an axis that is not indexed."""
    numbers = [(e.const, f.const) for d, (e, f) in enumerate(zip(indices.shape, x.shape, strict=False)) if d != a]
    if len(indices.shape) != len(x.shape) or any(m is not None and n is not None and m > n for m, n in numbers):
        raise ScriptError(f"{indices!r} must have the rank of {x!r}, and no larger extents except in axis {a}")


def _element_positions(indices: np.ndarray, a: int) -> tuple[np.ndarray, ...]:
    """The positions of all elements of `indices`, with axis a replaced by the indices."""
    positions: list[np.ndarray] = [*np.indices(indices.shape)]
    return (*positions[:a], indices, *positions[a + 1 :])


def _gather_elements_reference(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
    return x[_element_positions(indices, axis % x.ndim)]


GATHER_ELEMENTS = GraphOperator(
    "gather_elements",
    INJECTIVE,
    _gather_elements,
    _gather_elements_reference,
    meaning="out[i, j] = x[indices[i, j], j] for axis 0; ONNX GatherElements, torch.gather.",
)


def _gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    check_integers(indices)
    depth = indices.shape[-1].const if indices.shape else None
    if depth is None or not 0 <= batch_dims < len(indices.shape) or not 1 <= depth <= len(x.shape) - batch_dims:
        raise ScriptError(
            f"the last axis of {indices!r} must have 1 to {len(x.shape) - batch_dims} indices of {x!r} after {batch_dims} batch axes"
        )
    if x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise ScriptError(f"{x!r} and {indices!r} differ in their first {batch_dims} extents")
    many, end = len(indices.shape) - 1, batch_dims + depth
    extents = x.shape[batch_dims:end]

    def element(*i: Poly) -> Expr:
        loaded = [indices[(*i[:many], poly(c))] for c in range(depth)]
        return looked_up(x, loaded, extents, lambda v: (*i[:batch_dims], *v, *i[many:]))

    shape = (*indices.shape[:-1], *x.shape[end:])
    return te.compute(shape, element, "gather_nd", axes=te.default_loops(len(shape)))


def _gather_nd_reference(x: np.ndarray, indices: np.ndarray, *, batch_dims: int = 0) -> np.ndarray:
    batch = np.indices(indices.shape[:-1])[:batch_dims]
    return x[(*batch, *np.moveaxis(indices, -1, 0))]


GATHER_ND = GraphOperator(
    "gather_nd",
    INJECTIVE,
    _gather_nd,
    _gather_nd_reference,
    meaning="Each vector along the last axis of `indices` selects an element or a slice of `x`; ONNX GatherND.",
)

REDUCTIONS = ("none", "add", "mul", "max", "min")


_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "none": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": maximum,
    "min": minimum,
}


def _scattered(x: Tensor, updates: Tensor, reduction: str, at: Callable[..., Sequence[Expr]]) -> Tensor:
    """`x` with updates written to it in order, or combined with it.

    Args:
        x: the tensor to update.
        updates: the values to write.
        reduction: one of `REDUCTIONS`.
        at: maps a position in the updates to an index for each dimension of `x`, see `ops.gather.updated`.
    """
    if reduction not in REDUCTIONS:
        raise ScriptError(f"unknown reduction {reduction!r}; reductions are {', '.join(REDUCTIONS)}")
    if x.dtype != updates.dtype:
        raise ScriptError(f"{x!r} and {updates!r} have different element types")
    if x.dtype == "bool" and reduction != "none":
        raise ScriptError(f"bool elements cannot be combined by {reduction!r}")
    combine = _COMBINE[reduction]
    return updated(x, updates.shape, at, lambda old, *i: combine(old, updates[i]))


_COMBINE_NUMPY = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(x: np.ndarray, at: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str) -> np.ndarray:
    """Apply updates in order; sums and products are rounded once."""
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x.copy()
    if reduction == "none":
        for where in np.ndindex(at[0].shape):
            wide[tuple([a[where] for a in at])] = updates[where]
    else:
        _COMBINE_NUMPY[reduction].at(wide, at, updates)
    return wide.astype(x.dtype)


def _scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str = "none") -> Tensor:
    check_integers(indices)
    a = axis_of(axis, len(x.shape))
    _check_extents(x, indices, a)
    if indices.shape != updates.shape:
        raise ScriptError(f"{indices!r} and {updates!r} must have the same shape")
    return _scattered(x, updates, reduction, lambda *i: (*i[:a], indices[i], *i[a + 1 :]))


def _scatter_elements_reference(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, axis: int, reduction: str = "none"
) -> np.ndarray:
    return _scatter(x, _element_positions(indices, axis % x.ndim), updates, reduction)


SCATTER_ELEMENTS = GraphOperator(
    "scatter_elements",
    FUSABLE,
    _scatter_elements,
    _scatter_elements_reference,
    meaning=(
        "x with out[indices[i, j], j] = updates[i, j] for axis 0; repeated updates overwrite each other in order, or "
        "are combined by `reduction`."
    ),
)


def _scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    check_integers(indices)
    depth = indices.shape[-1].const if indices.shape else None
    if depth is None or not 1 <= depth <= len(x.shape):
        raise ScriptError(f"the last axis of {indices!r} must have 1 to {len(x.shape)} indices of {x!r}")
    if updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        raise ScriptError(f"{updates!r} must have an element or a slice of {x!r} for each of the vectors of {indices!r}")
    many = len(indices.shape) - 1
    return _scattered(x, updates, reduction, lambda *i: (*[indices[(*i[:many], c)] for c in range(depth)], *i[many:]))


def _scatter_nd_reference(x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, reduction: str = "none") -> np.ndarray:
    return _scatter(x, tuple(np.moveaxis(indices, -1, 0)), updates, reduction)


SCATTER_ND = GraphOperator(
    "scatter_nd",
    FUSABLE,
    _scatter_nd,
    _scatter_nd_reference,
    meaning="x with an element or a slice replaced for each vector along the last axis of `indices`; ONNX ScatterND.",
)


def _index_put_rows(x: Tensor, indices: Tensor, values: Tensor, *, axis: int) -> Tensor:
    check_integers(indices)
    a = axis_of(axis, len(x.shape))
    if len(indices.shape) != 1 or values.shape != (*x.shape[:a], *indices.shape, *x.shape[a + 1 :]) or values.dtype != x.dtype:
        raise ScriptError(f"{indices!r} must be a vector, and {values!r} must have a slice of axis {a} of {x!r} for each index")
    count = indices.shape[0].const
    if count is None or count > FEW_ROWS:
        return _scattered(x, values, "none", lambda *i: (*i[:a], indices[i[a]], *i[a + 1 :]))

    def element(*i: Poly) -> Expr:
        made: Expr = x[i]
        for r in range(count):
            made = select(is_at(indices[r], x.shape[a], i[a]), values[(*i[:a], r, *i[a + 1 :])], made)
        return made

    return te.compute(x.shape, element, "index_put_rows", axes=te.default_loops(len(x.shape)))


def _index_put_rows_reference(x: np.ndarray, indices: np.ndarray, values: np.ndarray, *, axis: int) -> np.ndarray:
    out = x.copy()
    for k, row in enumerate(indices):
        out[(slice(None),) * (axis % x.ndim) + (row,)] = np.take(values, k, axis)
    return out


INDEX_PUT_ROWS = GraphOperator(
    "index_put_rows",
    INJECTIVE,
    _index_put_rows,
    _index_put_rows_reference,
    meaning="x with whole slices along an axis replaced, one for each index; torch.index_copy, the update of a key-value cache.",
)


def _one_hot(indices: Tensor, on: Tensor, off: Tensor, *, depth: Index, axis: int = -1, strict: bool = False) -> Tensor:
    check_integers(indices)
    if on.shape or off.shape or on.dtype != off.dtype:
        raise ScriptError(f"{on!r} and {off!r} must be scalars of one type")
    a, extent = axis_of(axis, len(indices.shape) + 1), poly(depth)

    def element(*i: Poly) -> Expr:
        index = indices[(*i[:a], *i[a + 1 :])]
        return select(is_at(index, extent, i[a]) if strict else equal(wrapped(index, extent), i[a]), on[()], off[()])

    return te.compute((*indices.shape[:a], extent, *indices.shape[a:]), element, "one_hot", axes=te.default_loops(len(indices.shape) + 1))


def _one_hot_reference(
    indices: np.ndarray, on: np.ndarray, off: np.ndarray, *, depth: int, axis: int = -1, strict: bool = False
) -> np.ndarray:
    positions = np.arange(depth).reshape([-1 if d == axis % (indices.ndim + 1) else 1 for d in range(indices.ndim + 1)])
    wide = np.expand_dims(indices.astype(np.int64), axis)
    return np.where(np.where(wide < 0, wide + depth, wide) == positions, on, off)


ONE_HOT = GraphOperator(
    "one_hot",
    INJECTIVE,
    _one_hot,
    _one_hot_reference,
    meaning=(
        "A new axis of `depth` elements: `on` at the index and `off` elsewhere. An index out of range gives only `off`, "
        "as in ONNX; with `strict` it is an error, as in torch."
    ),
)


def _trilu(x: Tensor, *, upper: bool, k: Index = 0) -> Tensor:
    if len(x.shape) < 2:
        raise ScriptError(f"{x!r} must have at least 2 dimensions")

    def element(*i: Poly) -> Expr:
        beyond = i[-1] - i[-2] - k
        return select(beyond >= 0 if upper else beyond <= 0, x[i], const(0, x.dtype))

    return te.compute(x.shape, element, "trilu", axes=te.default_loops(len(x.shape)))


def _trilu_reference(x: np.ndarray, *, upper: bool, k: int = 0) -> np.ndarray:
    return np.triu(x, k) if upper else np.tril(x, k)


TRILU = GraphOperator(
    "trilu",
    INJECTIVE,
    _trilu,
    _trilu_reference,
    meaning="The upper or lower triangles of matrices, from diagonal k; other elements are zero.",
)
