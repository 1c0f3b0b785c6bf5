"""Convert ONNX operators on quantised tensors: quantise, dequantise, and products in floats or int32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunesmith.graph.importers.onnx.nn import add_bias, convolve
from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, dtype_of, extents, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.support import dtype as dt

_TYPES = ("int8", "uint8", "int16", "uint16", "int32")


def _spread(node: OnnxNode, v: Datum, x: Datum) -> Datum:
    """A scale or zero point broadcast to `x`: per tensor, per slice along `axis`, or per block along `axis`."""
    b, block = node.b, node.attr("block_size", 0)
    if rank(v) == 0 or (rank(v) == 1 and v.type.shape[0] == 1 and not block):
        return v if rank(v) == 0 else b.reshape(v, shape=())
    axis = normalised(node.attr("axis", 1), rank(x))
    if not block and rank(v) == 1:
        return b.reshape(v, shape=tuple([shape_of(v)[0] if i == axis else 1 for i in range(rank(x))]))
    if not block:
        raise node.refuse(f"a scale of {rank(v)} dimensions without block_size")
    index = np.arange(extents(x)[axis], dtype=np.int64) // block
    return b.take(v, b.constant(index), axis=axis)


def _quantized(node: OnnxNode, x: Datum, scale: Datum, zero: Datum | None, dtype: str) -> Datum:
    """round(x / scale) + zero, half to even, clamped to the type."""
    b = node.b
    if dtype not in _TYPES:
        raise node.refuse(f"quantisation to {dtype}")
    made = b.round(b.divide(x, scale))
    if zero is not None:
        made = b.add(made, cast_to(b, zero, made.type.dtype))
    limits = np.iinfo(dt.to_numpy(dtype))
    return cast_to(b, b.clip(made, min=float(limits.min), max=float(limits.max)), dtype)


def _quantize(node: OnnxNode) -> Converted:
    x, b, zero = node.input(0), node.b, node.get(2)
    scale = cast_to(b, node.input(1), "float32")
    x = cast_to(b, x, "float32")
    number = node.attr("output_dtype", 0)
    dtype = zero.type.dtype if zero is not None else dtype_of(number) if number else "uint8"
    return _quantized(node, x, _spread(node, scale, x), None if zero is None else _spread(node, zero, x), dtype)


def _dequantized(node: OnnxNode, x: Datum, scale: Datum, zero: Datum | None) -> Datum:
    b = node.b
    real = cast_to(b, x, scale.type.dtype)
    if zero is not None:
        real = b.subtract(real, cast_to(b, _spread(node, zero, x), scale.type.dtype))
    return b.multiply(real, _spread(node, scale, x))


def _dequantize(node: OnnxNode) -> Converted:
    number = node.attr("output_dtype", 0)
    made = _dequantized(node, node.input(0), node.input(1), node.get(2))
    return cast_to(node.b, made, dtype_of(number)) if number else made


def _shifted(node: OnnxNode, x: Datum, zero: Datum, axis: int) -> Datum:
    b = node.b
    zero = cast_to(b, zero, "int32")
    if rank(zero) == 1:
        zero = b.reshape(zero, shape=tuple([shape_of(zero)[0] if i == axis else 1 for i in range(rank(x))]))
    return b.subtract(cast_to(b, x, "int32"), zero)


def _column(node: OnnxNode, v: Datum, n: int, axis: int) -> Datum:
    if rank(v) != 1:
        return v
    return node.b.reshape(v, shape=tuple([shape_of(v)[0] if i == axis else 1 for i in range(n)]))


def _rescaled(node: OnnxNode, total: Datum, scales: tuple[Datum, Datum], out: tuple[Datum, Datum]) -> Datum:
    """int32 sums requantised to another scale and zero point."""
    b = node.b
    scale, zero = cast_to(b, out[0], "float32"), out[1]
    factor = b.multiply(*[cast_to(b, s, "float32") for s in scales])
    return _quantized(node, b.multiply(cast_to(b, total, "float32"), factor), scale, zero, zero.type.dtype)


def _matmul(node: OnnxNode) -> Converted:
    x, y, n = node.input(0), node.input(3), rank(node.input(0))
    left, right = _shifted(node, x, node.input(2), n - 2), _shifted(node, y, node.input(5), rank(y) - 1)
    scales = _column(node, node.input(1), n, n - 2), _column(node, node.input(4), n, n - 1)
    return _rescaled(node, node.b.matmul(left, right), scales, (node.input(6), node.input(7)))


def _conv(node: OnnxNode) -> Converted:
    x, w = node.input(0), node.input(3)
    total = convolve(node, _shifted(node, x, node.input(2), 1), _shifted(node, w, node.input(5), 0))
    total = add_bias(node, total, node.get(8))
    scales = node.input(1), _column(node, node.input(4), rank(x), 1)
    return _rescaled(node, total, scales, (node.input(6), node.input(7)))


CONVERTERS: Mapping[str, Converter] = {
    "DequantizeLinear": _dequantize,
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    "QuantizeLinear": _quantize,
}
