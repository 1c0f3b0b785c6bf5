"""Convert torch operators that gather or scatter at tensor indices, and functional writes into slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, TorchCall, converts
from tunesmith.graph.importers.torch.shapes import slice_start
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.poly import Poly, poly, product

_MASKS = "it is indexed with a bool mask, so its shape depends on data; use torch.where"


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


def _leading(call: TorchCall, x: Operand, indices: Sequence[Operand | None]) -> Operand:
    """Stack index tensors of the leading axes to one tensor of index vectors; refused if the indexed axes are not the leading ones."""
    given = [i for i in indices if i is not None]
    if None in indices[: len(given)]:
        call.refuse("only indices of one axis, or of consecutive leading axes, are supported; permute the axes first")
    shape = _broadcast([i.type.shape for i in given])
    parts = []
    for index in given:
        wide = call.cast(index, "int64")
        wide = wide if wide.type.shape == shape else call.emit("broadcast_to", wide, shape=shape)
        parts.append(call.emit("expand_dims", wide, axes=(len(shape),)))
    return call.emit("concat", *parts, axis=len(shape))


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
    """Advanced indexing: x[:, indices] or x[i, j]."""
    given = _checked(call, indices)
    if len(given) == 1:
        axis = next(a for a, i in enumerate(indices) if i is not None)
        return call.emit("take", x, given[0], axis=axis)
    return call.emit("gather_nd", x, _leading(call, x, indices))


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
    positions = _leading(call, x, indices)
    expected = (*positions.type.shape[:-1], *x.type.shape[len(tensors) :])
    values = values if values.type.shape == expected else call.emit("broadcast_to", values, shape=expected)
    return call.emit("scatter_nd", x, positions, values, reduction="add" if accumulate else "none")


TORCH_OPERATORS.register("aten._unsafe_index_put.default", index_put)


def _put_where(call: TorchCall, x: Operand, indices: Sequence[Operand | None], values: Operand, accumulate: bool) -> Operand | None:
    """An indexed write of one value through a bool mask of the leading axes, as a `where`; None if the first index is not a mask."""
    (first, *rest) = indices
    if first is None or rest or first.type.dtype != "bool":
        return None
    if values.type.shape and any(e != 1 for e in values.type.shape):
        call.refuse(_MASKS)
    mask = call.reshaped(first, (*first.type.shape, *[poly(1)] * (len(x.type.shape) - len(first.type.shape))))
    value = call.reshaped(call.operand(values), ())
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


@converts("aten.scatter_reduce.two")
def scatter_reduce(call: TorchCall, x: Operand, dim: int, index: Operand, source: Operand, reduce: str, include_self: bool) -> Operand:
    """Scatter with a reduction of values that have the same index."""
    reduction = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}.get(reduce)
    if reduction is None or not include_self:
        call.refuse(f"only sum, prod, amax and amin with include_self=True are supported, not {reduce} with include_self={include_self}")
    return _scattered(call, x, dim, index, source, reduction)


@converts("aten.one_hot.default")
def one_hot(call: TorchCall, indices: Operand, depth: int) -> Operand:
    """One-hot encoding: 1 at the index, 0 elsewhere."""
    return call.emit("one_hot", indices, call.number(1, "int64"), call.number(0, "int64"), depth=call.shape[-1], axis=-1, strict=True)
