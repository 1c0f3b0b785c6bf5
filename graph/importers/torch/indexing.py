"""Convert torch operators that gather or scatter at tensor indices, and functional writes into slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, converts
from tunesmith.graph.importers.torch.data_dependent.shapes import put_masked, with_mask
from tunesmith.graph.importers.torch.shapes import slice_start
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import Poly, poly, product
from tunesmith.support import dtype as dt

_MASKS = "it is indexed with several bool masks, or writes through a mask in a way that is not supported; use torch.where"


@converts("aten.embedding.default")
def embedding(call: TorchCall, weight: Operand, indices: Operand, *_: Any) -> Operand:
    """Embedding lookup: gather rows of the weight."""
    return call.emit("take", weight, indices, axis=0)


@converts("aten.index_select.default")
def index_select(call: TorchCall, x: Operand, dim: int, index: Operand) -> Operand:
    """Gather slices along an axis."""
    return call.reshaped(call.emit("take", x, index, axis=call.axis(dim, len(x.type.shape))), call.shape)


@converts("aten.gather.default")
def gather(call: TorchCall, x: Operand, dim: int, index: Operand, *_: Any) -> Operand:
    """Gather elements; for dim 1, result[i, j] = x[i, index[i, j]]."""
    return call.emit("gather_elements", x, index, axis=call.axis(dim, len(x.type.shape)))


@converts("aten.take_along_dim.default")
def take_along_dim(call: TorchCall, x: Operand, index: Operand, dim: int | None = None) -> Operand:
    """`gather` with the other axes broadcast; without dim, both operands are flattened."""
    if dim is None:
        return call.emit("gather_elements", *[call.reshaped(v, (product(v.type.shape),)) for v in (x, index)], axis=0)
    axis = call.axis(dim, len(call.shape))
    shape = tuple([e if d == axis else n for d, (e, n) in enumerate(zip(x.type.shape, call.shape, strict=True))])
    x = x if x.type.shape == shape else call.emit("broadcast_to", x, shape=shape)
    index = index if index.type.shape == call.shape else call.emit("broadcast_to", index, shape=call.shape)
    return call.emit("gather_elements", x, index, axis=axis)


def _index_vectors(call: TorchCall, given: Sequence[Operand]) -> Operand:
    """Index tensors, broadcast and stacked to one tensor of index vectors."""
    shape = _broadcast([i.type.shape for i in given])
    parts = []
    for index in given:
        wide = call.cast(index, "int64")
        wide = wide if wide.type.shape == shape else call.emit("broadcast_to", wide, shape=shape)
        parts.append(call.emit("expand_dims", wide, axes=(len(shape),)))
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=len(shape))


def _indexed_first(x: Operand, indices: Sequence[Operand | None]) -> tuple[list[int], int]:
    """The order of axes with the indexed ones first, and the position of the axes of the indices in torch's result: that of the first
    indexed axis, or 0 if another axis lies between the indexed ones."""
    indexed = [a for a, i in enumerate(indices) if i is not None]
    together = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    return [*indexed, *[a for a in range(len(x.type.shape)) if a not in indexed]], indexed[0] if together else 0


def _moved(call: TorchCall, x: Operand, count: int, old: int, new: int) -> Operand:
    """`x` with `count` axes at position `old` moved to `new`."""
    axes = list(range(len(x.type.shape)))
    block, rest = axes[old : old + count], axes[:old] + axes[old + count :]
    order = (*rest[:new], *block, *rest[new:])
    return x if order == tuple(axes) else call.emit("permute_dims", x, axes=order)


def _broadcast(shapes: Sequence[tuple[Poly, ...]]) -> tuple[Poly, ...]:
    rank = max(len(s) for s in shapes)
    columns = zip(*[(*(poly(1),) * (rank - len(s)), *s) for s in shapes], strict=True)
    return tuple([next((e for e in column if e != 1), poly(1)) for column in columns])


def _checked(call: TorchCall, indices: Sequence[Operand | None]) -> list[Operand]:
    given = [i for i in indices if i is not None]
    if any(i.type.dtype in ("bool", "uint8") for i in given):
        call.refuse(_MASKS)
    return given


@converts("aten.index.Tensor")
def index(call: TorchCall, x: Operand, indices: Sequence[Operand | None]) -> Operand:
    """Advanced indexing: x[:, i], x[i, j], x[:, i, :, j] with the indexed axes moved to the front, and x[mask]."""
    masks = [i for i in indices if i is not None and i.type.dtype in ("bool", "uint8")]
    if len(masks) == 1:
        x, indices, masked = with_mask(call, x, list(indices))
        if masked is not None:
            return masked
    given = _checked(call, indices)
    if len(given) == 1:
        axis = next(a for a, i in enumerate(indices) if i is not None)
        return call.emit("take", x, given[0], axis=axis)
    order, place = _indexed_first(x, indices)
    vectors = _index_vectors(call, given)
    first = x if order == sorted(order) else call.emit("permute_dims", x, axes=tuple(order))
    return _moved(call, call.emit("gather_nd", first, vectors), len(vectors.type.shape) - 1, 0, place)


TORCH_OPERATORS.register("aten._unsafe_index.Tensor", index)


@converts("aten.index_put.default")
def index_put(call: TorchCall, x: Operand, indices: Sequence[Operand | None], values: Operand, accumulate: bool, *_: Any) -> Operand:
    """Functional indexed write: x[indices] = values, or += values if `accumulate`."""
    masked = _put_where(call, x, indices, values, accumulate)
    if masked is not None:
        return masked
    tensors = _checked(call, indices)
    values = call.operand(values)
    axis = next(a for a, i in enumerate(indices) if i is not None)
    if len(tensors) == 1 and len(tensors[0].type.shape) == 1 and not accumulate:
        rows = (*x.type.shape[:axis], *tensors[0].type.shape, *x.type.shape[axis + 1 :])
        values = values if values.type.shape == rows else call.emit("broadcast_to", values, shape=rows)
        return call.emit("index_put_rows", x, tensors[0], values, axis=axis)
    order, place = _indexed_first(x, indices)
    positions = _index_vectors(call, tensors)
    count = len(positions.type.shape) - 1
    rest = [x.type.shape[a] for a in order[len(tensors) :]]
    expected = (*rest[:place], *positions.type.shape[:-1], *rest[place:])
    values = values if values.type.shape == expected else call.emit("broadcast_to", values, shape=expected)
    values = _moved(call, values, count, place, 0)
    first = x if order == sorted(order) else call.emit("permute_dims", x, axes=tuple(order))
    made = call.emit("scatter_nd", first, positions, values, reduction="add" if accumulate else "none")
    return made if order == sorted(order) else call.emit("permute_dims", made, axes=tuple([order.index(a) for a in range(len(order))]))


TORCH_OPERATORS.register("aten._unsafe_index_put.default", index_put)


def _put_where(call: TorchCall, x: Operand, indices: Sequence[Operand | None], values: Operand, accumulate: bool) -> Operand | None:
    """An indexed write of one value through a bool mask of the leading axes, as a `where`; None if the first index is not a mask."""
    (first, *rest) = indices
    if first is None or rest or first.type.dtype != "bool":
        return None
    rank = len(first.type.shape)
    if len(values.type.shape) == len(x.type.shape) - rank + 1 and values.type.shape[0] != 1:
        if accumulate or not rank:
            call.refuse(_MASKS)
        return put_masked(call, x, first, call.operand(values))
    if len(values.type.shape) > len(x.type.shape) - rank:
        values = call.emit("squeeze", values, axes=(0,))
    mask = call.reshaped(first, (*first.type.shape, *[poly(1)] * (len(x.type.shape) - len(first.type.shape))))
    value = call.operand(values)
    return call.emit("where", mask, call.emit("add", x, value) if accumulate else value, x)


@converts("aten.index_copy.default")
def index_copy(call: TorchCall, x: Operand, dim: int, index: Operand, source: Operand) -> Operand:
    """Replace slices along an axis."""
    return call.emit("index_put_rows", x, call.reshaped(index, _vector(index)), call.operand(source), axis=call.axis(dim, len(call.shape)))


def _vector(index: Operand) -> tuple[Poly, ...]:
    return index.type.shape or (poly(1),)


@converts("aten.slice_scatter.default")
def slice_scatter(call: TorchCall, x: Operand, source: Operand, dim: int, start: Any, end: Any, step: int) -> Operand:
    """Functional x[start:end:step] = source along an axis."""
    if source.type.shape == x.type.shape:
        return call.operand(source)
    axis = call.axis(dim, len(call.shape))
    begin, count = slice_start(call, start, x.type.shape[axis]), source.type.shape[axis]
    rows = call.emit("arange", start=begin, stop=begin + (count - 1) * step + 1, step=step, dtype="int64")
    return call.emit("index_put_rows", x, rows, call.operand(source), axis=axis)


@converts("aten.select_scatter.default")
def select_scatter(call: TorchCall, x: Operand, source: Operand, dim: int, index: Any) -> Operand:
    """Replace one slice along an axis."""
    axis = call.axis(dim, len(call.shape))
    begin = slice_start(call, index, x.type.shape[axis])
    row = call.emit("expand_dims", call.operand(source), axes=(axis,))
    return call.emit("index_put_rows", x, call.emit("arange", start=begin, stop=begin + 1, step=1, dtype="int64"), row, axis=axis)


@converts("aten.copy.default")
def copy(call: TorchCall, x: Operand, source: Operand, *_: Any) -> Operand:
    """Broadcast the source to the shape and type of x."""
    made = call.operand(source)
    return made if made.type.shape == call.shape else call.emit("broadcast_to", made, shape=call.shape)


def _scattered(call: TorchCall, x: Operand, dim: int, index: Operand, source: Any, reduction: str) -> Operand:
    values = call.operand(source)
    if not values.type.shape:
        values = call.emit("broadcast_to", values, shape=index.type.shape)
    elif values.type.shape != index.type.shape:
        call.refuse(f"its source {values.type} and its index {index.type} differ in shape; slice the source to the shape of the index")
    return call.emit("scatter_elements", x, index, values, axis=call.axis(dim, len(call.shape)), reduction=reduction)


@converts("aten.scatter.src")
def scatter(call: TorchCall, x: Operand, dim: int, index: Operand, source: Any) -> Operand:
    """Scatter elements; for dim 1, x[i, index[i, j]] = source[i, j]."""
    return _scattered(call, x, dim, index, source, "none")


TORCH_OPERATORS.register("aten.scatter.value", scatter)
TORCH_OPERATORS.register("aten.scatter_add.default", lambda call, x, dim, index, source: _scattered(call, x, dim, index, source, "add"))


def _scattered_mean(call: TorchCall, x: Operand, dim: int, index: Operand, source: Operand, include_self: bool) -> Operand:
    """The mean of all values with the index of an element, and of the element itself if it counts: a scattered sum divided by a
    scattered count."""
    if not dt.is_float(call.dtype):
        call.refuse("the mean of integers is not supported; cast them to floats")
    ones = call.emit("full", shape=x.type.shape, value=1.0, dtype=call.dtype)
    if not include_self:
        x, ones = _cleared(call, x, dim, index, 0.0), _cleared(call, ones, dim, index, 0.0)
    total = _scattered(call, x, dim, index, source, "add")
    return call.emit("divide", total, _scattered(call, ones, dim, index, 1.0, "add"))


def _cleared(call: TorchCall, x: Operand, dim: int, index: Operand, value: float | int) -> Operand:
    """`x` with a value at all indices that are scattered to."""
    return _scattered(call, x, dim, index, call.number(value, call.dtype), "none")


def _identity(reduction: str, dtype: str) -> float | int:
    """The number that does not change the others in a reduction."""
    if reduction in ("add", "mul"):
        return int(reduction == "mul")
    sign = -1 if reduction == "max" else 1
    if dt.is_float(dtype):
        return sign * math.inf
    limits = np.iinfo(dt.to_numpy(dtype))
    return int(limits.min if reduction == "max" else limits.max)


@converts("aten.scatter_reduce.two")
def scatter_reduce(call: TorchCall, x: Operand, dim: int, index: Operand, source: Operand, reduce: str, include_self: bool) -> Operand:
    """Scatter with a reduction of values that have the same index, with the former element or without it."""
    if reduce == "mean":
        return _scattered_mean(call, x, dim, index, source, include_self)
    reduction = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce]
    if call.dtype == "bool":
        call.refuse("bool elements cannot be combined; cast them to integers")
    if not include_self:
        x = _cleared(call, x, dim, index, _identity(reduction, call.dtype))
    return _scattered(call, x, dim, index, source, reduction)


@converts("aten.index_reduce.default")
def index_reduce(call: TorchCall, x: Operand, dim: int, index: Operand, source: Operand, reduce: str, include_self: bool = True) -> Operand:
    """Combine slices along an axis with the slices of the source: a scatter with one index for each slice."""
    axis = call.axis(dim, len(call.shape))
    column = call.reshaped(index, tuple([_vector(index)[0] if a == axis else 1 for a in range(len(call.shape))]))
    wide = call.emit("broadcast_to", column, shape=source.type.shape)
    return scatter_reduce(call, x, dim, wide, source, reduce, include_self)


def _scatter_combined(call: TorchCall, x: Operand, dim: int, index: Operand, source: Any, reduce: str) -> Operand:
    """The older scatter with a reduction."""
    return _scattered(call, x, dim, index, source, {"add": "add", "multiply": "mul"}[reduce])


TORCH_OPERATORS.register("aten.scatter.reduce", _scatter_combined)
TORCH_OPERATORS.register("aten.scatter.value_reduce", _scatter_combined)


@converts("aten.one_hot.default")
def one_hot(call: TorchCall, indices: Operand, depth: int) -> Operand:
    """One-hot encoding: 1 at the index, 0 elsewhere."""
    return call.emit("one_hot", indices, call.number(1, "int64"), call.number(0, "int64"), depth=call.shape[-1], axis=-1, strict=True)


@converts("aten.put.default")
def put(call: TorchCall, x: Operand, index: Operand, source: Operand, accumulate: bool = False) -> Operand:
    """Write elements at flat positions."""
    count = product(x.type.shape)
    flat, at, values = [call.reshaped(v, (product(v.type.shape),)) for v in (x, index, call.operand(source))]
    made = call.emit("scatter_elements", call.reshaped(flat, (count,)), at, values, axis=0, reduction="add" if accumulate else "none")
    return call.reshaped(made, call.shape)


@converts("aten.masked_scatter.default")
def masked_scatter(call: TorchCall, x: Operand, mask: Operand, source: Operand) -> Operand:
    """Replace elements where a mask is true by the elements of the source in order: the place of each is a cumulative count."""
    wide = mask if mask.type.shape == call.shape else call.emit("broadcast_to", mask, shape=call.shape)
    values = call.operand(x)
    values = values if values.type.shape == call.shape else call.emit("broadcast_to", values, shape=call.shape)
    count, given = (product(call.shape),), call.reshaped(source, (product(source.type.shape),))
    flags = call.cast(call.reshaped(wide, count), "int64")
    places = call.emit("clip", call.emit("cumsum", flags, axis=0, exclusive=True), min=0, max=None)
    last = call.operand(given.type.shape[0] - 1, "int64")
    taken = call.emit("take", given, call.emit("minimum", places, last), axis=0)
    return call.emit("where", wide, call.reshaped(taken, call.shape), values)


@converts("aten._embedding_bag.default")
def embedding_bag(
    call: TorchCall,
    weight: Operand,
    indices: Operand,
    offsets: Operand,
    _: bool,
    mode: int,
    __: bool,
    per_sample: Operand | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> Sequence[Operand | None]:
    """The sum, mean or maximum of the rows of each bag; bag b is from offsets[b] to the next offset."""
    bags = call.shape[0]
    starts = call.cast(offsets, "int64")
    if include_last:
        starts = call.emit("strided_slice", starts, axes=(0,), begin=(0,), end=(bags,), strides=(1,))
    count = indices.type.shape[0]
    positions = call.emit("arange", start=0, stop=count, step=1, dtype="int64")
    # Position p is in the last bag that starts at or before it.
    bag = call.emit("subtract", call.emit("searchsorted", starts, positions, right=True), call.number(1, "int64"))
    rows = call.emit("take", weight, indices, axis=0)
    if per_sample is not None:
        rows = call.emit("multiply", rows, call.emit("expand_dims", per_sample, axes=(1,)))
    at = call.emit("expand_dims", bag, axes=(1,))
    ones = call.emit("full", shape=(count,), value=1.0, dtype=call.dtype)
    if padding >= 0:  # such indices are left out of the bag
        kept = call.emit("not_equal", indices, call.number(padding, indices.type.dtype))
        rows = call.emit("where", call.emit("expand_dims", kept, axes=(1,)), rows, call.operand(-math.inf if mode == 2 else 0.0))
        ones = call.cast(kept, call.dtype)
    if mode == 2:
        empty = call.emit("full", shape=call.shape, value=-math.inf, dtype=call.dtype)
        made = call.emit("scatter_nd", empty, at, rows, reduction="max")
        return [call.emit("where", call.emit("equal", made, call.operand(-math.inf)), call.operand(0.0), made), None, None, None]
    total = call.emit("scatter_nd", call.emit("full", shape=call.shape, value=0.0, dtype=call.dtype), at, rows, reduction="add")
    if mode == 0:
        return [total, None, None, None]
    sizes = call.emit("scatter_nd", call.emit("full", shape=(bags,), value=0.0, dtype=call.dtype), at, ones, reduction="add")
    divisor = call.emit("expand_dims", call.emit("maximum", sizes, call.operand(1.0)), axes=(1,))
    return [call.emit("divide", total, divisor), None, None, None]


TORCH_OPERATORS.register("aten._embedding_bag_forward_only.default", embedding_bag)
