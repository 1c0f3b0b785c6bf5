"""Convert ONNX reductions and operators composed of them: vector norms, cumulative sums, top-k, determinants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tunesmith.graph.importers.onnx.bounds import is_natural
from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.runtime_shapes import within
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode, sizes
from tunesmith.graph.operators.element_types import int_range
from tunesmith.ir.poly import Poly, poly
from tunesmith.support import dtype as dt

_Reduce = Callable[[OnnxNode, Datum, tuple[int, ...], bool], Datum]

_SINCE = {"ReduceSum": 13}
"""First operator set in which axes are an input; 18 for all other operators."""


def _plain(operator: str) -> _Reduce:
    return lambda node, x, axes, keep: node.b.call(operator, x, axes=axes, keepdims=keep)


def _extreme(operator: str, logical: str) -> _Reduce:
    def make(node: OnnxNode, x: Datum, axes: tuple[int, ...], keep: bool) -> Datum:
        if x.type.dtype == "bool":
            return node.b.call(logical, x, axes=axes, keepdims=keep)
        if any(x.type.shape[a].const == 0 for a in axes):
            return _without_elements(node, x, axes, keep, operator == "min")
        return node.b.call(operator, x, axes=axes, keepdims=keep)

    return make


def _without_elements(node: OnnxNode, x: Datum, axes: tuple[int, ...], keep: bool, highest: bool) -> Datum:
    """The extreme of no elements: an infinity, or the outermost number of an integer type."""
    shape = [1 if a in axes else e for a, e in enumerate(shape_of(x)) if keep or a not in axes]
    if dt.is_float(x.type.dtype):
        value: float = math.inf if highest else -math.inf
    else:
        value = int_range(x.type.dtype)[highest]
    return node.b.full(shape=tuple(shape), value=value, dtype=x.type.dtype)


def _sum_of(inner: str) -> _Reduce:
    return lambda node, x, axes, keep: node.b.sum(node.b.call(inner, x), axes=axes, keepdims=keep)


def _sum_square(node: OnnxNode, x: Datum, axes: tuple[int, ...], keep: bool) -> Datum:
    return node.b.sum(node.b.multiply(x, x), axes=axes, keepdims=keep)


def _l2(node: OnnxNode, x: Datum, axes: tuple[int, ...], keep: bool) -> Datum:
    return node.b.sqrt(_sum_square(node, x, axes, keep))


def _log_sum(node: OnnxNode, x: Datum, axes: tuple[int, ...], keep: bool) -> Datum:
    return node.b.log(node.b.sum(x, axes=axes, keepdims=keep))


def _log_sum_exp(node: OnnxNode, x: Datum, axes: tuple[int, ...], keep: bool) -> Datum:
    """log(sum(exp(x))) with the maximum subtracted to avoid overflow, unless it is infinite."""
    b = node.b
    top = _extreme("max", "any")(node, x, axes, True)
    top = b.where(b.equal(b.abs(top), node.like(math.inf, x)), node.like(0, x), top)
    inner = b.log(b.sum(b.exp(b.subtract(x, top)), axes=axes, keepdims=True))
    made = b.add(inner, top)
    return made if keep else b.squeeze(made, axes=axes)


_REDUCTIONS: dict[str, _Reduce] = {
    "ReduceL1": _sum_of("abs"),
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme("max", "any"),
    "ReduceMean": _plain("mean"),
    "ReduceMin": _extreme("min", "all"),
    "ReduceProd": _plain("prod"),
    "ReduceSum": _plain("sum"),
    "ReduceSumSquare": _sum_square,
}


_ELEMENTWISE: dict[str, Callable[[OnnxNode, Datum], Datum]] = {
    "ReduceL1": lambda node, x: node.b.abs(x),
    "ReduceL2": lambda node, x: node.b.abs(x),
    "ReduceLogSum": lambda node, x: node.b.log(x),
    "ReduceSumSquare": lambda node, x: node.b.multiply(x, x),
}
"""Elementwise equivalents of reductions over no axes."""


def _over_no_axes(name: str, node: OnnxNode, x: Datum) -> Datum:
    return _ELEMENTWISE[name](node, x) if name in _ELEMENTWISE else x


def _reduce(name: str, make: _Reduce) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        x = node.input(0)
        axes = node.axes(1, _SINCE.get(name, 18))
        if rank(x) == 0 or (not axes and node.attr("noop_with_empty_axes", 0)):
            return _over_no_axes(name, node, x)
        over = tuple(sorted([normalised(a, rank(x)) for a in axes])) if axes else tuple(range(rank(x)))
        return make(node, x, over, bool(node.attr("keepdims", 1)))

    return convert


def _arg(operator: str) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        x, b, keep = node.input(0), node.b, bool(node.attr("keepdims", 1))
        axis = normalised(node.attr("axis", 0), rank(x))
        if not node.attr("select_last_index", 0):
            return b.call(operator, x, axis=axis, keepdims=keep)
        found = b.call(operator, b.flip(x, axes=(axis,)), axis=axis, keepdims=keep)
        last = x.type.shape[axis] - 1
        position = b.size_value(value=last) if last.const is None else node.like(last.const, found)
        return b.subtract(position, found)

    return convert


def _cumsum(node: OnnxNode) -> Converted:
    x = node.input(0)
    axis = normalised(node.numbers(1, "axis")[0], rank(x))
    return node.b.cumsum(x, axis=axis, exclusive=bool(node.attr("exclusive", 0)), reverse=bool(node.attr("reverse", 0)))


def _cumprod(node: OnnxNode) -> Converted:
    x = node.input(0)
    axis = normalised(node.numbers(1, "axis")[0], rank(x))
    return node.b.cumprod(x, axis=axis, exclusive=bool(node.attr("exclusive", 0)), reverse=bool(node.attr("reverse", 0)))


def _top_k(node: OnnxNode) -> Converted:
    """The k greatest or least elements in order, and their indices; of equal elements the first ones."""
    x, b = node.input(0), node.b
    axis = normalised(node.attr("axis", -1), rank(x))
    if node.version >= 10 and not (node.knows(1) and all(isinstance(k, int) for k in node.ints(1, "k"))):
        return _top_read(node, x, axis)
    ks = [node.attr("k")] if node.version < 10 else node.numbers(1, "k")
    if len(ks) != 1:
        raise UnsupportedNode(f"k has {len(ks)} elements, expected 1")
    indices = b.argsort(x, axis=axis, descending=bool(node.attr("largest", 1)), count=ks[0])
    return b.gather_elements(x, indices, axis=axis), indices


def _top_read(node: OnnxNode, x: Datum, axis: int) -> Converted:
    """The same for a k that is known when the model runs: the axis is sorted, and cut."""
    b = node.b
    extent = shape_of(x)[axis]
    (k,) = node.scalars(1, "k")
    if isinstance(k, (int, Poly)):
        allowed = is_natural(k) and is_natural(poly(extent) - k)
        size = k if allowed else b.read_size(within(b, sizes(k), extent), "k")
    else:
        size = b.read_size(within(b, cast_to(b, k, "int64"), extent), "k")
    if poly(extent).const is None:
        raise UnsupportedNode(f"an axis of the extent {extent} with a k that is not known at import", b.wanted(node.input(1)))
    order = b.argsort(x, axis=axis, descending=bool(node.attr("largest", 1)))
    indices = b.strided_slice(order, axes=(axis,), begin=(0,), end=(size,))
    return b.gather_elements(x, indices, axis=axis), indices


def _lp_normalization(node: OnnxNode) -> Converted:
    """x / norm, and 0 where the norm is 0."""
    x, b = node.input(0), node.b
    axes = (normalised(node.attr("axis", -1), rank(x)),)
    norm = (_l2 if node.attr("p", 2) == 2 else _sum_of("abs"))(node, x, axes, True)
    empty = b.equal(norm, node.like(0, x))
    return b.where(empty, node.like(0, x), b.divide(x, b.where(empty, node.like(1, x), norm)))


def _determinant(node: OnnxNode) -> Converted:
    """Determinant by Laplace expansion, for matrices of up to 4 rows."""
    x, b = node.input(0), node.b
    n = x.type.shape[-1].const
    if n is None or n > 4:
        raise node.refuse("a determinant of a matrix with more than 4 rows")

    def element(i: int, j: int) -> Datum:
        part = b.strided_slice(x, axes=(-2, -1), begin=(i, j), end=(i + 1, j + 1))
        return b.squeeze(part, axes=(-2, -1))

    def minor(rows: tuple[int, ...], columns: tuple[int, ...]) -> Datum:
        total: Datum | None = None
        for k, j in enumerate(columns):
            rest = columns[:k] + columns[k + 1 :]
            term = b.multiply(element(rows[0], j), minor(rows[1:], rest)) if rest else element(rows[0], j)
            total = term if total is None else b.call("subtract" if k % 2 else "add", total, term)
        assert total is not None
        return total

    return minor(tuple(range(n)), tuple(range(n)))


CONVERTERS: Mapping[str, Converter] = {
    **{name: _reduce(name, make) for name, make in _REDUCTIONS.items()},
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "CumProd": _cumprod,
    "CumSum": _cumsum,
    "Det": _determinant,
    "LpNormalization": _lp_normalization,
    "TopK": _top_k,
}
