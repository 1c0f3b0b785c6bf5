"""Define gathers of rows by loaded indices, and the embedding of tokens.

Negative indices count from the end.  Compiled code does not report indices out of range, unlike numpy, and must not access memory outside
the buffer: reads are clamped to the nearest end, as in jax.  Within `reported_indices`, expressions look up every index unchanged, for
code that checks indirect indices (`lower.passes.check_bounds`) and reports the first one out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from tunesmith.ir.expr import Expr, equal, maximum, minimum, select
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter
from tunesmith.ops.reduction import number
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

_REPORTED: ContextVar[bool] = ContextVar("reported_indices", default=False)


@contextmanager
def reported_indices() -> Iterator[None]:
    """Context in which expressions look up every index without clamping or skipping; only for code that checks indirect indices."""
    token = _REPORTED.set(True)
    try:
        yield
    finally:
        _REPORTED.reset(token)


def check_integers(indices: Tensor) -> None:
    """Raise ScriptError for indices of another type."""
    if not dt.is_int(indices.dtype):
        raise ScriptError(f"indices must be integers, got {indices!r}")


def wrapped(index: Expr, extent: Poly) -> Expr:
    """An index as int64; a negative index is converted to one counted from the start."""
    if dt.is_unsigned(index.dtype):
        return te.cast(dt.INDEX, index)
    wide = te.cast(dt.INDEX, index)
    return select(wide < 0, wide + number(extent, dt.INDEX), wide)


def is_at(index: Expr, extent: Poly, position: Poly) -> Expr:
    """Whether an index equals a position; false for an index out of range."""
    if _REPORTED.get():
        return te.lookup(wrapped(index, extent), extent, lambda v: equal(v, position), "index")
    return equal(wrapped(index, extent), position)


def _clamped(index: Expr, extent: Poly) -> Expr:
    """The non-negative index, clamped to the range because code must not access memory outside the buffer; unchanged if reported."""
    found = wrapped(index, extent)
    return found if _REPORTED.get() else maximum(minimum(found, number(extent, dt.INDEX) - 1), 0)


def _at(index: Expr, extent: Poly, body: Callable[[Poly], Expr]) -> Expr:
    return te.lookup(_clamped(index, extent), extent, body, "index" if _REPORTED.get() else "at")


def looked_up(x: Tensor, loaded: Sequence[Expr], extents: Sequence[Poly], at: Callable[[list[Poly]], tuple[Poly, ...]]) -> Expr:
    """The element of `x` at a position that depends on loaded indices.

    Args:
        x: the tensor to read.
        loaded: loaded indices.
        extents: extents of the indexed dimensions.
        at: maps variables with the values of the indices to the position in `x`.
    """

    def inner(found: list[Poly]) -> Expr:
        if len(found) == len(loaded):
            return x[at(found)]
        return _at(loaded[len(found)], extents[len(found)], lambda v: inner([*found, v]))

    return inner([])


def updated(x: Tensor, extents: Sequence[Poly], at: Callable[..., Sequence[Expr]], update: Callable[..., Expr], name: str = "Y") -> Tensor:
    """`x` with updates of elements at loaded indices, one after the other; updates out of range are skipped.

    Args:
        x: the tensor before the updates.
        extents: extents of the updates.
        at: maps the variables of an update to an index for each dimension of `x`: an index expression, or a loaded index.
        update: maps the old element and the variables to the new element.
        name: name of the tensor.
    """

    def places(*i: Poly) -> list[Expr]:
        return [e if isinstance(e, Poly) else _clamped(e, n) for e, n in zip(at(*i), x.shape, strict=True)]

    def inside(*i: Poly) -> Expr:
        found = [(wrapped(e, n), number(n, dt.INDEX)) for e, n in zip(at(*i), x.shape, strict=True) if not isinstance(e, Poly)]
        return te.all(*[c for e, n in found for c in (e >= 0, e < n)])

    return te.scatter(x, extents, places, update, where=None if _REPORTED.get() else inside, name=name)


def take(x: Tensor, indices: Tensor, axis: int, name: str = "Y") -> Tensor:
    """One stage: slices of `x` along an axis (a position from 0), one for each index, in the place of the axis.

    Raises:
        ScriptError: the indices are not integers.
    """
    check_integers(indices)
    many = len(indices.shape)

    def element(*i: Poly) -> Expr:
        return looked_up(x, [indices[i[axis : axis + many]]], [x.shape[axis]], lambda v: (*i[:axis], *v, *i[axis + many :]))

    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return te.compute(shape, element, name, axes=te.default_loops(len(shape)))


def _gather(*, m: int, n: int, rows: int, dtype: str) -> list[Tensor]:
    x, indices = te.placeholder((m, n), dtype, "X"), te.placeholder(rows, dt.INDEX, "index")
    return [x, indices, take(x, indices, 0)]


def _embedding(*, tokens: int, vocabulary: int, width: int, dtype: str) -> list[Tensor]:
    indices, table = te.placeholder(tokens, dt.INDEX, "index"), te.placeholder((vocabulary, width), dtype, "W")
    return [indices, table, take(table, indices, 0)]


GATHER = Operator(
    "gather",
    (IntParameter("m"), IntParameter("n"), IntParameter("rows"), FLOATS),
    _gather,
    lambda x, indices, /, **_: [np.take(x, indices, 0)],
    lambda **_: 0,
    indices=(("index", "m"),),
)
EMBEDDING = Operator(
    "embedding",
    (IntParameter("tokens"), IntParameter("vocabulary"), IntParameter("width"), FLOATS),
    _embedding,
    lambda indices, table, /, **_: [np.take(table, indices, 0)],
    lambda **_: 0,
    constants=("W",),
    indices=(("index", "vocabulary"),),
)
