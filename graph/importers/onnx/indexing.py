"""Convert ONNX operators with tensor indices; negative indices count from the end in graph operators too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.ir.poly import Index, Poly, product


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
    b, depth = node.b, node.array(1, "depth")
    count = int(depth.ravel()[0])
    indices = cast_to(b, node.input(0), "int64")
    off, on = (b.reshape(b.strided_slice(node.input(2), axes=(0,), begin=(i,), end=(i + 1,)), shape=()) for i in (0, 1))
    axis = normalised(node.attr("axis", -1), rank(indices) + 1)
    return b.one_hot(indices, on, off, depth=count, axis=axis)


def _compress(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    kept = np.flatnonzero(node.array(1, "condition"))
    axis = node.attr("axis")
    if axis is None:
        x, axis = b.reshape(x, shape=(product(x.type.shape),)), 0
    if not kept.size:
        raise node.refuse("the selection is empty")
    return b.take(x, b.constant(kept, "int64"), axis=normalised(axis, rank(x)))


def _non_zero(node: OnnxNode) -> Converted:
    return node.b.constant(np.array(np.nonzero(node.array(0, "X")), dtype=np.int64))


def _unique(node: OnnxNode) -> Converted:
    x, axis = node.array(0, "X"), node.attr("axis")
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.ravel()
    if not node.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order, kind="stable")[inverse]
    return node.b.constant(values), *[node.b.constant(v, "int64") for v in (first, inverse, counts)]


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
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
