"""Convert ONNX operators with tensor indices; negative indices count from the end in graph operators too.

The selections (NonZero, Compress, Unique, NonMaxSuppression) count what they select, and read the count as a size: n elements are selected
with sums along the axis and scatters, and are sorted by merging, so that no operator compares all pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, is_float, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum, FoldingBuilder
from tunesmith.graph.ir.node import Constant, TensorType
from tunesmith.ir.poly import Index, Poly, poly, product
from tunesmith.ops.non_max_suppression import non_max_suppression
from tunesmith.ops.sort_rows import sort_rows

MOST_COLUMNS = 64
"""Maximum number of elements of the slices that Unique compares: they are sorted by each element, one after the other."""


def extent_of(node: OnnxNode, e: Index, dtype: str = "int64") -> Datum:
    """An extent as a scalar tensor."""
    return node.b.size_value(value=e, dtype=dtype) if isinstance(e, Poly) else node.b.constant(e, dtype)


def _gather(node: OnnxNode) -> Converted:
    x = node.input(0)
    return node.b.take(x, node.input(1), axis=normalised(node.attr("axis", 0), rank(x)))


def _gather_elements(node: OnnxNode) -> Converted:
    x = node.input(0)
    axis = normalised(node.attr("axis", 0), rank(x))
    return node.b.gather_elements(x, node.input(1), axis=axis)


def _gather_nd(node: OnnxNode) -> Converted:
    x, batch_dims = node.input(0), node.attr("batch_dims", 0)
    return node.b.gather_nd(x, node.input(1), batch_dims=batch_dims)


def _scatter_elements(node: OnnxNode) -> Converted:
    x = node.input(0)
    axis = normalised(node.attr("axis", 0), rank(x))
    return node.b.scatter_elements(x, node.input(1), node.input(2), axis=axis, reduction=node.attr("reduction", "none"))


def _scatter_nd(node: OnnxNode) -> Converted:
    return node.b.scatter_nd(node.input(0), node.input(1), node.input(2), reduction=node.attr("reduction", "none"))


def _one_hot(node: OnnxNode) -> Converted:
    b, depth = node.b, node.input(1)
    count: Poly | int = int(depth.data.ravel()[0]) if isinstance(depth, Constant) else node.extents(1, "depth")[0]
    indices = cast_to(b, node.input(0), "int64")
    off, on = (b.reshape(b.strided_slice(node.input(2), axes=(0,), begin=(i,), end=(i + 1,)), shape=()) for i in (0, 1))
    axis = normalised(node.attr("axis", -1), rank(indices) + 1)
    return b.one_hot(indices, on, off, depth=count, axis=axis)


def positions(b: FoldingBuilder, flags: Datum) -> Datum:
    """The positions of the true elements of a vector of bools, int64[n], where n is read from their number."""
    if ("positions", flags) not in b.computed:
        (extent,) = shape_of(flags)
        ones = b.cast(flags, dtype="int64")
        many = b.read_size(b.sum(ones, axes=(0,), keepdims=False), "count", extent if isinstance(extent, int) else None)
        count = b.size_value(value=many) if isinstance(many, Poly) else b.constant(many, "int64")
        # Elements that are not selected are written behind the selected ones.
        at = b.where(flags, b.cumsum(ones, axis=0, exclusive=True), count)
        room = b.full(shape=(many + 1,), value=0, dtype="int64")
        every = b.arange(start=0, stop=extent, step=1, dtype="int64")
        found = b.scatter_elements(room, at, every, axis=0)
        b.computed["positions", flags] = b.strided_slice(found, axes=(0,), begin=(0,), end=(many,))
    return b.computed["positions", flags]


def _flat(b: FoldingBuilder, x: Datum) -> Datum:
    return x if rank(x) == 1 else b.reshape(x, shape=(product(x.type.shape),))


def _compress(node: OnnxNode) -> Converted:
    x, condition, b = node.input(0), node.input(1), node.b
    axis = node.attr("axis")
    if axis is None:
        x, axis = _flat(b, x), 0
    axis = normalised(axis, rank(x))
    if isinstance(condition, Constant):
        kept = np.flatnonzero(condition.data)
        if not kept.size:
            return _no_elements(node, x, axis)
        return b.take(x, b.constant(kept, "int64"), axis=axis)
    if rank(condition) != 1:
        raise node.refuse(f"the condition must be a vector, got {condition.type}")
    longest, extent = condition.type.shape[0].const, x.type.shape[axis].const
    if longest is not None and extent is not None and longest > extent:
        raise node.refuse(f"a condition of {longest} elements for an axis of {extent}")
    return b.take(x, positions(b, condition), axis=axis)


def _no_elements(node: OnnxNode, x: Datum, axis: int) -> Datum:
    shape = shape_of(x)
    others = [0 if i == axis else e for i, e in enumerate(shape)]
    if any(isinstance(e, Poly) for e in others):
        raise node.refuse("the selection is empty")
    return node.b.constant(np.zeros([e for e in others if isinstance(e, int)]), x.type.dtype)


def _non_zero(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    if isinstance(x, Constant):
        return b.constant(np.array(np.nonzero(np.atleast_1d(x.data)), dtype=np.int64)[: max(x.data.ndim, 1)])
    shape = shape_of(x)
    if not shape:
        raise node.refuse("a number without axes; reshape it to a vector")
    if ("not zero", x) not in b.computed:
        b.computed["not zero", x] = _flat(b, cast_to(b, x, "bool"))
    at = positions(b, b.computed["not zero", x])
    rows = []
    for axis, extent in enumerate(shape):
        inner = product(shape[axis + 1 :])
        row = at if inner == 1 else b.floor_divide(at, extent_of(node, inner if inner.const is None else inner.const))
        rows.append(b.expand_dims(row if axis == 0 else b.mod(row, extent_of(node, extent)), axes=(0,)))
    return rows[0] if len(rows) == 1 else b.concat(*rows, axis=0)


def _order(b: FoldingBuilder, x: Datum) -> Datum:
    """The indices that sort a vector of numbers; equal elements keep their order."""
    if x.type.shape[0].const is not None:
        return b.argsort(x, axis=0)
    return b.squeeze(_order_of_rows(b, b.expand_dims(x, axes=(0,))), axes=(0,))


def _order_of_rows(b: FoldingBuilder, x: Datum, *, descending: bool = False) -> Datum:
    """The indices that sort the rows of a matrix of any extents; equal elements keep their order."""
    func = sort_rows(x.type.dtype, descending=descending)
    (made,) = b.call_function(func, [x], [TensorType(x.type.shape, "int64")], x.type.shape)
    return made


def _unique(node: OnnxNode) -> Converted:
    if isinstance(node.input(0), Constant):
        return _unique_constant(node)
    x, b, axis = node.input(0), node.b, node.attr("axis")
    if axis is None:
        x, axis = _flat(b, x), 0
    axis = normalised(axis, rank(x))
    keys = cast_to(b, x, "uint8") if x.type.dtype == "bool" else x
    order = [axis, *[a for a in range(rank(x)) if a != axis]]
    many = x.type.shape[axis]
    width = product([e for i, e in enumerate(x.type.shape) if i != axis])
    if width.const is None or not 1 <= width.const <= MOST_COLUMNS:
        raise node.refuse(f"slices of {width} elements; there must be 1 to {MOST_COLUMNS} in each, which are compared one after the other")
    matrix = b.reshape(keys if rank(x) == 1 else b.permute_dims(keys, axes=tuple(order)), shape=(many, width))
    columns = [b.reshape(b.strided_slice(matrix, axes=(1,), begin=(i,), end=(i + 1,)), shape=(many,)) for i in range(width.const)]
    sorted_by = _lexicographic(b, columns)
    ordered = b.take(matrix, sorted_by, axis=0)
    every = b.arange(start=0, stop=many, step=1, dtype="int64")
    first = b.equal(every, node.like(0, every))
    before = b.take(ordered, b.maximum(b.subtract(every, node.like(1, every)), node.like(0, every)), axis=0)
    starts = b.logical_or(first, b.any(_differ(b, ordered, before), axes=(1,), keepdims=False))
    ones = b.cast(starts, dtype="int64")
    at = positions(b, starts)
    group = b.subtract(b.cumsum(ones, axis=0), node.like(1, ones))
    return _groups(node, x, axis, sorted_by, b.take(sorted_by, at, axis=0), group)


def _groups(node: OnnxNode, x: Datum, axis: int, order: Datum, first: Datum, group: Datum) -> Converted:
    """The results of Unique.

    Args:
        node: the node.
        x: the tensor.
        axis: the axis of its slices.
        order: the indices that sort the slices.
        first: the index of the first slice of each group of equal ones, in the order of the groups.
        group: the number of the group of each sorted slice.
    """
    b = node.b
    (many,), (count,) = shape_of(order), shape_of(first)
    zeros, none = (b.full(shape=(n,), value=0, dtype="int64") for n in (many, count))
    inverse = b.scatter_elements(zeros, order, group, axis=0)
    counts = b.scatter_elements(none, group, b.full(shape=(many,), value=1, dtype="int64"), axis=0, reduction="add")
    if not node.attr("sorted", 1):
        marks = b.scatter_elements(zeros, first, b.full(shape=(count,), value=1, dtype="int64"), axis=0)
        place = b.take(b.cumsum(marks, axis=0, exclusive=True), first, axis=0)
        first, counts = (b.scatter_elements(none, place, v, axis=0) for v in (first, counts))
        inverse = b.take(place, inverse, axis=0)
    return b.take(x, first, axis=axis), first, inverse, counts


def _lexicographic(b: FoldingBuilder, columns: Sequence[Datum]) -> Datum:
    """The indices that sort rows: by their last column first, since an order keeps that of equal elements."""
    order = _order(b, columns[-1])
    for column in reversed(columns[:-1]):
        order = b.take(order, _order(b, b.take(column, order, axis=0)), axis=0)
    return order


def _differ(b: FoldingBuilder, x: Datum, y: Datum) -> Datum:
    """Whether elements differ; NaN equals NaN."""
    found = b.not_equal(x, y)
    if not is_float(x):
        return found
    return b.logical_and(found, b.logical_not(b.logical_and(b.isnan(x), b.isnan(y))))


def _unique_constant(node: OnnxNode) -> Converted:
    x, axis = node.array(0, "X"), node.attr("axis")
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.ravel()
    if not node.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order, kind="stable")[inverse]
    return node.b.constant(values), *[node.b.constant(v, "int64") for v in (first, inverse, counts)]


def _non_max_suppression(node: OnnxNode) -> Converted:
    boxes, scores, b = node.input(0), node.input(1), node.b
    (batches, n, corners), (_, classes, _) = shape_of(boxes), shape_of(scores)
    if corners != 4 or scores.type.shape[0] != poly(batches) or scores.type.shape[2] != poly(n):
        raise node.refuse(f"boxes {boxes.type} do not match scores {scores.type}")
    dtype = scores.type.dtype
    if dtype not in ("float32", "float64") or boxes.type.dtype != dtype:
        raise node.refuse(f"boxes of {boxes.type.dtype} and scores of {dtype}; both must be float32 or float64")
    rows = poly(batches) * classes
    if any(e.const == 0 for e in (rows, poly(n))):
        return b.constant(np.zeros((0, 3)), "int64")
    matrix = b.reshape(scores, shape=(rows, n))
    limits = [_number(node, i, t) for i, t in ((2, "int64"), (3, dtype), (4, dtype))]
    func = non_max_suppression(dtype, center=bool(node.attr("center_point_box", 0)), filtered=node.has(4))
    types = [TensorType.of((rows, n), "int64"), TensorType.of((rows,), "int64")]
    args = [boxes, matrix, _order_of_rows(b, matrix, descending=True), *limits]
    found, counts = b.call_function(func, args, types, (batches, classes, n))
    most = limits[0].data.item() if isinstance(limits[0], Constant) else None
    if most is not None and isinstance(n, int) and most < n:
        n = max(most, 1)
        found = b.strided_slice(found, axes=(1,), begin=(0,), end=(n,))
    every = b.reshape(b.arange(start=0, stop=n, step=1, dtype="int64"), shape=(1, n))
    at = positions(b, _flat(b, b.less(every, b.expand_dims(counts, axes=(1,)))))
    row, many = b.floor_divide(at, extent_of(node, n)), extent_of(node, classes)
    columns = [b.floor_divide(row, many), b.mod(row, many), b.take(_flat(b, found), at, axis=0)]
    return b.concat(*[b.expand_dims(c, axes=(1,)) for c in columns], axis=1)


def _number(node: OnnxNode, i: int, dtype: str) -> Datum:
    """Input `i` without axes; 0 if it is omitted."""
    x = node.get(i)
    return node.b.constant(0, dtype) if x is None else node.b.reshape(cast_to(node.b, x, dtype), shape=())


def _reverse_sequence(node: OnnxNode) -> Converted:
    x, lengths, b = node.input(0), node.input(1), node.b
    batch, time = node.attr("batch_axis", 1), node.attr("time_axis", 0)
    shape = shape_of(x)
    steps = b.reshape(b.arange(start=0, stop=shape[time], step=1, dtype="int64"), shape=_only(shape, time))
    ends = b.reshape(cast_to(b, lengths, "int64"), shape=_only(shape, batch))
    at = b.where(b.less(steps, ends), b.subtract(b.subtract(ends, node.like(1, ends)), steps), steps)
    return b.gather_elements(x, b.broadcast_to(at, shape=shape), axis=time)


def _only(shape: tuple[Index, ...], axis: int) -> tuple[Index, ...]:
    return tuple([e if i == axis else 1 for i, e in enumerate(shape)])


def _tensor_scatter(node: OnnxNode) -> Converted:
    """Write rows of a cache from a start index per batch; `circular` wraps around."""
    cache, update, b = node.input(0), node.input(1), node.b
    axis = normalised(node.attr("axis", -2), rank(cache))
    shape = shape_of(update)
    at = b.reshape(b.arange(start=0, stop=shape[axis], step=1, dtype="int64"), shape=_only(shape, axis))
    if node.has(2):
        at = b.add(at, b.reshape(cast_to(b, node.input(2), "int64"), shape=_only(shape, 0)))
    if node.attr("mode", "linear") == "circular":
        at = b.mod(at, extent_of(node, shape_of(cache)[axis]))
    return b.scatter_elements(cache, b.broadcast_to(at, shape=shape), update, axis=axis)


def _max_unpool(node: OnnxNode) -> Converted:
    x, indices, b = node.input(0), node.input(1), node.b
    shape = shape_of(x)
    n = len(shape) - 2
    kernel, strides, pads = node.each("kernel_shape", n), node.each("strides", n, [1] * n), node.each("pads", 2 * n, [0] * 2 * n)
    inferred = [(shape[i + 2] - 1) * strides[i] - pads[i] - pads[i + n] + kernel[i] for i in range(n)]
    implied: tuple[Poly | int, ...] = (*shape[:2], *inferred)
    requested = node.ints(2, "output_shape") if node.has(2) else implied
    zeros = b.full(shape=(product(implied),), value=0, dtype=x.type.dtype)
    flat = [b.reshape(v, shape=(product(shape),)) for v in (indices, x)]
    made = b.reshape(b.scatter_elements(zeros, *flat, axis=0), shape=implied)
    if tuple(requested) == implied:
        return made
    after = tuple([a - i for a, i in zip(requested, implied, strict=True)])
    return b.pad(made, before=(0,) * len(after), after=after)


CONVERTERS: Mapping[str, Converter] = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "MaxUnpool": _max_unpool,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
