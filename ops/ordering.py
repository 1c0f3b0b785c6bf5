"""Define argsort and top-k along an axis: a merge sort from below, whose steps are blocks.

An axis is cut into runs of 64 elements.  The place of an element in its run is the number of elements before it, which is counted with
vectors.  Then neighbouring runs are merged, two by two, until one is left: a scan over the merged run counts how many of its elements
come from the left one, and the elements are gathered by these counts.  So n elements take n * (64 + log2(n / 64)) steps instead of n * n;
for top-k, each run keeps its first k elements only.  Equal elements keep their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tunesmith.ir import poly as index
from tunesmith.ir.expr import Expr, Not, call, cast, compare, const, maximum, minimum, select
from tunesmith.ir.poly import Index, Poly, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.formulas import both
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, AxisParameter, IntParameter, ShapeParameter, Value, flag
from tunesmith.ops.reduction import number, settle_axis
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError

_RUN = 64
"""Elements ordered by counting: on AVX-512, counting 64 takes as long as one or two merges."""
_COUNTED = 128
"""Axes that are not longer are one run."""


def before(a: Expr, b: Expr, descending: bool) -> Expr:
    """Whether a comes strictly before b; NaN counts as the greatest number, as in torch and numpy."""
    if not dt.is_float(a.dtype):
        return compare("gt" if descending else "lt", a, b)
    if descending:
        return both(Not(compare("le", a, b)), Not(call("isnan", b, dtype="bool")))
    return both(Not(compare("ge", a, b)), Not(call("isnan", a, dtype="bool")))


def argsort(x: Tensor, axis: int, *, descending: bool = False, count: Index | None = None) -> Tensor:
    """The indices, int64, that sort x along an axis, or the first `count` of them; equal elements keep their order.

    NaN counts as the greatest number.  If the extent of the axis or `count` is symbolic, all pairs are compared.

    Args:
        x: numbers, any shape with the axis.
        axis: position of the axis, from 0.
        descending: the greatest first.
        count: 1 to the extent of the axis, which is the default.
    Raises:
        ScriptError: `count` is out of range, or the elements are of type bool.
    """
    if x.dtype == "bool":
        raise ScriptError("an order of bool elements is not defined; cast them to an integer type")
    extent = x.shape[axis] if count is None else poly(count)
    few, most = extent.const, x.shape[axis].const
    if few is not None and (few < 1 or (most is not None and few > most)):
        raise ScriptError(f"count {extent} must be from 1 to the extent {x.shape[axis]} of axis {axis} of {x!r}")
    if few is None or most is None or most <= _COUNTED:
        return _counted(x, axis, descending, extent)
    keys, order = _ordered_runs(x, axis, descending, few)
    step = 0
    while keys.shape[-2].const != 1:
        step += 1
        keys, order = _merged(keys, order, descending, few, step)
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])

    def element(*i: Poly) -> Expr:
        return cast("int64", order[(*i[:axis], *i[axis + 1 :], 0, i[axis])])

    return te.compute(shape, element, "Y", axes=te.default_loops(len(shape)))


def _counted(x: Tensor, axis: int, descending: bool, count: Poly) -> Tensor:
    """The same by comparing all pairs: the place R of each element is the number of elements before it."""
    r = te.reduce_axis(x.shape[axis], "r")

    def place(*i: Poly) -> Expr:
        return _precedes(x[(*i[:axis], r, *i[axis + 1 :])], x[i], r < i[axis], descending, "int64")

    places = te.compute(x.shape, lambda *i: te.sum(place(*i), axis=r), "R", axes=te.default_loops(len(x.shape)))
    last = number(count, "int64") - 1
    return te.scatter(
        lambda *i: 0,
        x.shape,
        lambda *i: [*i[:axis], minimum(places[i], last), *i[axis + 1 :]],
        lambda _, *i: cast("int64", i[axis]),
        shape=(*x.shape[:axis], count, *x.shape[axis + 1 :]),
        where=lambda *i: places[i] <= last,
        name="Y",
        dtype="int64",
    )


def _precedes(there: Expr, here: Expr, earlier: Expr, descending: bool, dtype: str) -> Expr:
    """1 if the element `there` comes before `here` in the stable order, otherwise 0."""
    return cast(dtype, select(earlier, Not(before(here, there, descending)), before(there, here, descending)))


def _ordered_runs(x: Tensor, axis: int, descending: bool, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` elements of each run, and their indices in the axis: tensors of shape (other axes of x, runs, elements)."""
    n = _extent(x, axis)
    shape: tuple[Index, ...] = (*x.shape[:axis], *x.shape[axis + 1 :], -(-n // _RUN), _RUN)
    loops = te.default_loops(len(shape))
    last = const(_last(x.dtype, descending), x.dtype)
    kept = min(_RUN, count)

    def padded(*i: Poly) -> Expr:
        at = i[-2] * _RUN + i[-1]
        return select(at < n, x[(*i[:axis], index.minimum(at, n - 1), *i[axis:-2])], last)

    runs = te.compute(shape, padded, "runs", axes=loops)
    r = te.reduce_axis(_RUN, "r")
    places = te.compute(
        shape,
        lambda *i: te.sum(_precedes(runs[(*i[:-1], r)], runs[i], r < i[-1], descending, "int32"), axis=r),
        "places",
        axes=loops,
    )

    def placed(value: Callable[..., Expr], name: str, dtype: str) -> Tensor:
        return te.scatter(
            lambda *i: 0,
            shape,
            lambda *i: [*i[:-1], cast("int64", minimum(places[i], kept - 1))],
            lambda _, *i: value(*i),
            shape=(*shape[:-1], kept),
            where=lambda *i: places[i] < kept,
            name=name,
            dtype=dtype,
        )

    return placed(lambda *i: runs[i], "keys", x.dtype), placed(lambda *i: cast("int32", i[-2] * _RUN + i[-1]), "order", "int32")


def _last(dtype: str, descending: bool) -> float:
    """A value that comes before no other in the order, which fills the last run."""
    if dt.is_float(dtype):
        return -math.inf if descending else math.nan
    if descending:
        return 0 if dt.is_unsigned(dtype) else -(2 ** (dt.bits(dtype) - 1))
    return 2 ** (dt.bits(dtype) - (not dt.is_unsigned(dtype))) - 1


def _merged(keys: Tensor, order: Tensor, descending: bool, count: int, step: int) -> tuple[Tensor, Tensor]:
    """The runs merged two by two, of which each keeps `count` elements; a run without neighbour is filled up with last elements."""
    runs, length = _extent(keys, -2), _extent(keys, -1)
    shape: tuple[Index, ...] = (*keys.shape[:-2], -(-runs // 2), min(2 * length, count))

    def inside(e: Expr) -> Expr:
        """A position in a run: elements that no case reads may have another."""
        return cast("int64", minimum(maximum(e, 0), length - 1))

    def right(pair: Poly) -> Poly:
        return index.minimum(2 * pair + 1, runs - 1)

    def taken(left: Expr, *i: Poly) -> Expr:
        """The number of elements of the left run among the first ones, up to this; `left`: up to the one before."""
        *rest, pair, at = i
        rest_of_right = cast("int32", at) - left

        def compared(u: Poly, v: Poly) -> Expr:
            first = before(keys[(*rest, right(pair), v)], keys[(*rest, 2 * pair, u)], descending)
            has_right = both(rest_of_right < length, 2 * pair + 1 < runs) if runs % 2 else rest_of_right < length
            return left + cast("int32", both(left < length, Not(both(has_right, first))))

        return te.lookup(inside(left), length, lambda u: te.lookup(inside(rest_of_right), length, lambda v: compared(u, v), "v"), "u")

    lefts = te.scan(shape, taken, 0, name=f"left_{step}", dtype="int32")

    def pick(source: Tensor, fill: Expr, *i: Poly) -> Expr:
        *rest, pair, at = i
        now = lefts[i]
        earlier = select(0 < at, lefts[(*rest, pair, index.maximum(at - 1, 0))], const(0, "int32"))
        from_left = te.lookup(inside(now - 1), length, lambda u: source[(*rest, 2 * pair, u)], "u")
        from_right = te.lookup(inside(cast("int32", at) - now), length, lambda v: source[(*rest, right(pair), v)], "v")
        if runs % 2:
            from_right = select(2 * pair + 1 < runs, from_right, fill)
        return select(earlier < now, from_left, from_right)

    loops = te.default_loops(len(shape))
    last = const(_last(keys.dtype, descending), keys.dtype)
    return (
        te.compute(shape, lambda *i: pick(keys, last, *i), f"keys_{step}", axes=loops),
        te.compute(shape, lambda *i: pick(order, const(0, "int32"), *i), f"order_{step}", axes=loops),
    )


def _extent(x: Tensor, axis: int) -> int:
    extent = x.shape[axis].const
    assert extent is not None, "symbolic extents are counted"
    return extent


def argsort_reference(x: np.ndarray, axis: int, *, descending: bool = False, count: int | None = None) -> np.ndarray:
    """The same for arrays."""
    if descending:  # the stable order of the reversed axis, reversed, puts the later of equal elements first: reverse twice
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.asarray(np.take(order, range(x.shape[axis] if count is None else count), axis)).astype(np.int64)


def _argsort_tensors(*, shape: tuple[int, ...], axis: int, descending: int, dtype: str) -> list[Tensor]:
    x = te.placeholder(shape, dtype, "X")
    return [x, argsort(x, axis % len(shape), descending=bool(descending))]


def _argsort_in_numpy(x: np.ndarray, /, *, axis: int, descending: int, **_: object) -> list[np.ndarray]:
    return [argsort_reference(x, axis, descending=bool(descending))]


def _comparisons(*, shape: tuple[int, ...], axis: int, **_: object) -> int:
    """Comparisons of a merge sort, rounded up: log2 of the extent for each element."""
    return math.prod(shape) * math.ceil(math.log2(max(shape[axis], 2)))


ARGSORT = Operator(
    "argsort",
    (ShapeParameter("shape"), AxisParameter("axis", -1), flag("descending"), FLOATS),
    _argsort_tensors,
    _argsort_in_numpy,
    _comparisons,
    settle=settle_axis,
)


def _topk_tensors(*, shape: tuple[int, ...], k: int, axis: int, dtype: str) -> list[Tensor]:
    """The indices of the k greatest elements, the greatest first."""
    x = te.placeholder(shape, dtype, "X")
    return [x, argsort(x, axis % len(shape), descending=True, count=k)]


def _topk_in_numpy(x: np.ndarray, /, *, k: int, axis: int, **_: object) -> list[np.ndarray]:
    return [argsort_reference(x, axis, descending=True, count=k)]


def _settle_topk(params: dict[str, Value]) -> dict[str, Value]:
    settled = settle_axis(params)
    shape, axis, k = settled["shape"], settled["axis"], settled["k"]
    assert isinstance(shape, tuple) and isinstance(axis, int) and isinstance(k, int)
    if k > shape[axis]:
        raise UserError(f"parameter k: {k} is more than the extent {shape[axis]} of axis {axis}")
    return settled


TOPK = Operator(
    "topk",
    (ShapeParameter("shape"), IntParameter("k"), AxisParameter("axis", -1), FLOATS),
    _topk_tensors,
    _topk_in_numpy,
    lambda *, shape, k, **_: math.prod(shape) * math.ceil(math.log2(max(k, 2))),
    settle=_settle_topk,
)
