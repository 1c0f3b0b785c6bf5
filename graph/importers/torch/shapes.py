"""Convert torch operators that move elements: views, permutations, slices, concatenation, padding, pixel shuffles.

Result extents are taken from torch, so -1 and symbolic sizes in arguments need no handling.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.call import TORCH_OPERATORS, SizeNumber, TorchCall, converts
from tunesmith.graph.importers.torch.data_dependent.sizes import slice_bound
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.poly import Poly, poly, product


def _view(call: TorchCall, x: Operand, *_: Any) -> Operand:
    return call.reshaped(x, call.shape)


for _name in (
    "view.default view_copy.default _unsafe_view.default reshape.default flatten.using_ints unflatten.int view_as.default"
    " reshape_as.default _reshape_alias.default squeeze.default squeeze.dim squeeze.dims"
).split():
    TORCH_OPERATORS.register(f"aten.{_name}", _view)


@converts("aten.unsqueeze.default")
def unsqueeze(call: TorchCall, x: Operand, dim: int) -> Operand:
    """Insert an axis of extent 1."""
    return call.emit("expand_dims", x, axes=(call.axis(dim, len(call.shape)),))


def _expand(call: TorchCall, x: Operand, *_: Any) -> Operand:
    return x if x.type.shape == call.shape else call.emit("broadcast_to", x, shape=call.shape)


TORCH_OPERATORS.register("aten.expand.default", _expand)
TORCH_OPERATORS.register("aten.expand_as.default", _expand)


@converts("aten.permute.default")
def permute(call: TorchCall, x: Operand, dims: Sequence[int]) -> Operand:
    """Permute axes: axis i of the result is axis dims[i] of the operand."""
    axes = tuple([call.axis(d, len(call.shape)) for d in dims])
    return x if axes == tuple(range(len(axes))) else call.emit("permute_dims", x, axes=axes)


@converts("aten.transpose.int")
def transpose(call: TorchCall, x: Operand, dim0: int, dim1: int) -> Operand:
    """Swap two axes."""
    axes = list(range(len(call.shape)))
    if axes:
        a, b = call.axis(dim0, len(axes)), call.axis(dim1, len(axes))
        axes[a], axes[b] = axes[b], axes[a]
    return permute(call, x, axes)


TORCH_OPERATORS.register("aten.t.default", lambda call, x: permute(call, x, list(range(len(call.shape)))[::-1]))


@converts("aten.cat.default")
def cat(call: TorchCall, tensors: Sequence[Operand], dim: int) -> Operand:
    """Concatenate tensors; empty ones are dropped."""
    axis = call.axis(dim, len(call.shape))
    parts = [call.operand(t) for t in tensors if all(e.const != 0 for e in t.type.shape)]
    return parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=axis)


TORCH_OPERATORS.register("aten.concat.default", cat)
TORCH_OPERATORS.register("aten.concatenate.default", cat)


@converts("aten.stack.default")
def stack(call: TorchCall, tensors: Sequence[Operand], dim: int) -> Operand:
    """Concatenate tensors along a new axis."""
    axis = call.axis(dim, len(call.shape))
    return cat(call, [call.emit("expand_dims", call.operand(t), axes=(axis,)) for t in tensors], axis)


@converts("aten.split_with_sizes.default")
def split(call: TorchCall, x: Operand, _: Any, dim: int = 0) -> Sequence[Operand]:
    """Split into the extents that torch computed."""
    axis = call.axis(dim, len(x.type.shape))
    if len(call.types) == 1:
        return [x]
    if call.sizes.reads_data(*[t.shape[axis] for t in call.types]):  # torch asserts that they add up to the extent
        ends = list(itertools.accumulate([t.shape[axis] for t in call.types], initial=poly(0)))
        return [call.emit("strided_slice", x, axes=(axis,), begin=(a,), end=(b,), strides=(1,)) for a, b in itertools.pairwise(ends)]
    return call.emit("split", x, sizes=tuple([t.shape[axis] for t in call.types]), axis=axis)


for _name in "split.Tensor split.sizes unsafe_split.Tensor unsafe_split_with_sizes.default chunk.default unsafe_chunk.default".split():
    TORCH_OPERATORS.register(f"aten.{_name}", split)


@converts("aten.unbind.int")
def unbind(call: TorchCall, x: Operand, dim: int) -> Sequence[Operand]:
    """Split into slices along an axis and remove this axis."""
    axis = call.axis(dim, len(x.type.shape))
    pieces = call.emit("split", x, sizes=(1,) * len(call.types), axis=axis) if len(call.types) > 1 else [x]
    return [call.emit("squeeze", piece, axes=(axis,)) for piece in pieces]


def slice_start(call: TorchCall, start: Any, extent: Poly) -> Poly:
    """Start of a slice, non-negative and clamped to the axis as in Python."""
    begin = poly(0 if start is None else start)
    if call.sizes.reads_data(begin, extent):
        return slice_bound(begin, extent)
    if call.sizes.is_negative(begin):
        begin = begin + extent
    if begin.const is not None and extent.const is not None:
        return poly(min(max(begin.const, 0), extent.const))
    return begin


@converts("aten.slice.Tensor")
def slice_(call: TorchCall, x: Operand, dim: int, start: Any, end: Any, step: int) -> Operand:
    """Slice x[start:end:step] along an axis."""
    if call.shape == x.type.shape:
        return x
    axis = call.axis(dim, len(x.type.shape))
    begin = slice_start(call, start, x.type.shape[axis])
    stop = begin + (call.shape[axis] - 1) * step + 1
    return call.emit("strided_slice", x, axes=(axis,), begin=(begin,), end=(stop,), strides=(step,))


@converts("aten.select.int")
def select(call: TorchCall, x: Operand, dim: int, index: Any) -> Operand:
    """Select one slice along an axis and remove this axis."""
    axis = call.axis(dim, len(x.type.shape))
    if isinstance(index, SizeNumber) or call.sizes.reads_data(poly(index)):
        return call.emit("take", x, call.operand(index, "int64"), axis=axis)
    begin = slice_start(call, index, x.type.shape[axis])
    row = x if x.type.shape[axis] == 1 else call.emit("strided_slice", x, axes=(axis,), begin=(begin,), end=(begin + 1,), strides=(1,))
    return call.emit("squeeze", row, axes=(axis,))


@converts("aten.flip.default")
def flip(call: TorchCall, x: Operand, dims: Sequence[int]) -> Operand:
    """Reverse axes."""
    return call.emit("flip", x, axes=tuple([call.axis(d, len(call.shape)) for d in dims])) if dims else x


@converts("aten.repeat.default")
def repeat(call: TorchCall, x: Operand, repeats: Sequence[Any]) -> Operand:
    """Tile along axes; new axes are added in front."""
    return call.emit("tile", x, repeats=tuple(repeats))


def _triangle(upper: bool) -> Any:
    return lambda call, x, k: call.emit("trilu", x, upper=upper, k=k)


TORCH_OPERATORS.register("aten.tril.default", _triangle(False))
TORCH_OPERATORS.register("aten.triu.default", _triangle(True))

_PADDING = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@converts("aten.pad.default")
def pad(call: TorchCall, x: Operand, padding: Sequence[Any], mode: str = "constant", value: Any = None) -> Operand:
    """Pad; torch lists pairs from the last axis, and negative amounts crop."""
    rank = len(x.type.shape)
    amounts = [poly(p) for p in padding]
    before, after = [0] * rank, [0] * rank
    for i in range(len(amounts) // 2):
        axis, low, high = rank - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        if low.const is None or high.const is None:
            call.refuse("the padding depends on a dynamic size; concatenate with zeros of this size instead")
        extent = x.type.shape[axis]
        if low.const < 0 or high.const < 0:
            begin, end = poly(max(-low.const, 0)), extent - max(-high.const, 0)
            x = call.emit("strided_slice", x, axes=(axis,), begin=(begin,), end=(end,), strides=(1,))
        before[axis], after[axis] = max(low.const, 0), max(high.const, 0)
        if mode == "circular" and extent.const is None:  # torch allows at most one wrap, but has no guard for it
            if not isinstance(call.builder, GraphBuilder):
                call.refuse("it pads a dynamic extent circularly inside a branch; pad before the branch")
            call.builder.assume(IsNegative(max(before[axis], after[axis]) - extent - 1))
    if not any(before) and not any(after):
        return x
    number = float(value or 0) if mode == "constant" else 0.0
    return call.emit("pad", x, before=tuple(before), after=tuple(after), mode=_PADDING[mode], value=number)


TORCH_OPERATORS.register("aten.constant_pad_nd.default", lambda call, x, padding, value: pad(call, x, padding, "constant", value))
for _rank in (1, 2):
    TORCH_OPERATORS.register(f"aten.reflection_pad{_rank}d.default", lambda call, x, padding: pad(call, x, padding, "reflect"))
    TORCH_OPERATORS.register(f"aten.replication_pad{_rank}d.default", lambda call, x, padding: pad(call, x, padding, "replicate"))


def _pixels(operator: str) -> Any:
    def convert(call: TorchCall, x: Operand, factor: int) -> Operand:
        images = call.reshaped(x, (product(x.type.shape[:-3]), *x.type.shape[-3:]))
        return call.reshaped(call.emit(operator, images, block=factor, mode="CRD"), call.shape)

    return convert


TORCH_OPERATORS.register("aten.pixel_shuffle.default", _pixels("depth_to_space"))


@converts("aten.pixel_unshuffle.default")
def pixel_unshuffle(call: TorchCall, x: Operand, factor: int) -> Operand:
    """Inverse pixel shuffle: result channel c * factor**2 + i * factor + j holds the pixels at offset i, j of channel c."""
    *lead, c, _, _ = x.type.shape
    rank = len(lead)
    parted = call.reshaped(x, (*lead, c, call.shape[-2], factor, call.shape[-1], factor))
    axes = (*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3)
    return call.reshaped(call.emit("permute_dims", parted, axes=axes), call.shape)


@converts("aten.diagonal.default")
def diagonal(call: TorchCall, x: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Operand:
    """The diagonals of matrices along two axes, as the last axis: elements with a flat stride of one row and one element."""
    rank = len(x.type.shape)
    a, b = call.axis(dim1, rank), call.axis(dim2, rank)
    order = (*[d for d in range(rank) if d not in (a, b)], a, b)
    made = x if order == tuple(range(rank)) else call.emit("permute_dims", x, axes=order)
    count = call.shape[-1]
    row, column = max(-offset, 0), max(offset, 0)
    starts, ends = (row, column), (row + count, column + count)
    made = call.emit("strided_slice", made, axes=(rank - 2, rank - 1), begin=starts, end=ends, strides=(1, 1))
    if count.const is None:
        call.refuse("the diagonal of a matrix of dynamic size is not supported; multiply by an identity matrix and sum")
    flat = call.reshaped(made, (*made.type.shape[:-2], count * count))
    step = count.as_int() + 1
    return call.emit("strided_slice", flat, axes=(rank - 2,), begin=(0,), end=(count * count,), strides=(step,))


@converts("aten.diagonal_scatter.default")
def diagonal_scatter(call: TorchCall, x: Operand, source: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Operand:
    """Matrices along two axes with a diagonal replaced: each row takes the element of its number."""
    rank = len(x.type.shape)
    a, b = call.axis(dim1, rank), call.axis(dim2, rank)
    rows, columns, count = x.type.shape[a], x.type.shape[b], source.type.shape[-1]
    if rows.const is None or columns.const is None or count.const is None:
        call.refuse("writing the diagonal of a matrix of dynamic size is not supported; use torch.where with torch.eye")
    at = np.clip(np.arange(rows.as_int()) - max(-offset, 0), 0, count.as_int() - 1)
    wide = call.emit("expand_dims", call.emit("take", call.operand(source), call.constant(at, "int64"), axis=rank - 2), axes=(rank - 1,))
    mask = call.constant(np.eye(rows.as_int(), columns.as_int(), offset), "bool")
    order = (*[d for d in range(rank) if d not in (a, b)], a, b)
    made = x if order == tuple(range(rank)) else call.emit("permute_dims", x, axes=order)
    made = call.emit("where", mask, wide, made)
    back = tuple([order.index(d) for d in range(rank)])
    return made if back == tuple(range(rank)) else call.emit("permute_dims", made, axes=back)


def _triangle_indices(upper: bool) -> Any:
    """The rows and columns of a triangle, which are constants."""

    def convert(call: TorchCall, rows: int, columns: int, offset: int = 0, *_: Any) -> Operand:
        found = np.triu_indices(rows, offset, columns) if upper else np.tril_indices(rows, offset, columns)
        return call.constant(np.stack(found), call.dtype)

    return convert


TORCH_OPERATORS.register("aten.tril_indices.default", _triangle_indices(False))
TORCH_OPERATORS.register("aten.triu_indices.default", _triangle_indices(True))
