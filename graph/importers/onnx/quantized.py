"""Convert ONNX operators on quantised tensors: quantise, dequantise, and products in floats or int32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.narrow import TYPES, Narrow, NarrowType, decode, encode
from tunesmith.graph.importers.onnx.nn import add_bias, convolve
from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, dtype_of, extents, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.graph.operators.int4 import pack_int4
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


def _quantized_narrow(node: OnnxNode, x: Datum, scale: Datum, zero: Any, kind: NarrowType) -> Any:
    """x / scale + zero, rounded to the nearest number of a narrow type, and clamped to it."""
    b = node.b
    if not kind.is_integer:
        made = b.divide(x, scale)
        if zero is not None:
            made = b.add(made, _spread(node, decode(b, zero, "float32"), x))
        return encode(b, made, kind, bool(node.attr("saturate", 1)))
    half = 1 << (kind.bits - 1)
    low, high = (-half, half - 1) if kind.signed else (0, 2 * half - 1)
    rounded = b.round(b.divide(x, scale))
    if zero is not None:
        rounded = b.add(rounded, _spread(node, decode(b, zero, "float32"), x))
    return Narrow(b.cast(b.clip(rounded, min=float(low), max=float(high)), dtype=kind.storage), kind)


def _quantized(node: OnnxNode, x: Datum, scale: Datum, zero: Datum | None, dtype: str) -> Datum:
    """round(x / scale) + zero, half to even, clamped to the type."""
    if dtype not in _TYPES:
        raise node.refuse(f"quantisation to {dtype}")
    return node.b.quantize(x, scale, node.b.constant(np.zeros((), dtype)) if zero is None else zero)


def _quantize(node: OnnxNode) -> Converted:
    x, b, zero = node.input(0), node.b, node.get(2)
    scale = cast_to(b, node.input(1), "float32")
    x = cast_to(b, x, "float32")
    number = node.attr("output_dtype", 0)
    kind = zero.kind if isinstance(zero, Narrow) else TYPES.get(number)
    if kind is not None:
        return _quantized_narrow(node, x, _spread(node, scale, x), zero, kind)
    dtype = zero.type.dtype if zero is not None else dtype_of(number) if number else "uint8"
    return _quantized(node, x, _spread(node, scale, x), None if zero is None else _spread(node, zero, x), dtype)


def _dequantized(node: OnnxNode, x: Datum, scale: Datum, zero: Datum | None) -> Datum:
    b = node.b
    zero = b.constant(np.zeros((), dt.to_numpy(x.type.dtype))) if zero is None else _spread(node, zero, x)
    return b.dequantize(x, _spread(node, scale, x), zero)


def _dequantize(node: OnnxNode) -> Converted:
    number = node.attr("output_dtype", 0)
    x: Datum | Narrow = node.input(0)
    if isinstance(x, Narrow):
        b, scale, zero = node.b, node.input(1), node.get(2)
        made = decode(b, x, scale.type.dtype)
        if zero is not None:
            made = b.subtract(made, _spread(node, decode(b, zero, scale.type.dtype), x.codes))
        made = b.multiply(made, _spread(node, scale, x.codes))
        return cast_to(b, made, dtype_of(number)) if number else made
    made = _dequantized(node, x, node.input(1), node.get(2))
    return cast_to(node.b, made, dtype_of(number)) if number else made


def _column(node: OnnxNode, v: Datum, n: int, axis: int) -> Datum:
    """A vector of scales or zero points along an axis of n; other shapes as they are."""
    if rank(v) != 1:
        return v
    if v.type.shape[0] == 1:
        return node.b.reshape(v, shape=())
    return node.b.reshape(v, shape=tuple([shape_of(v)[0] if i == axis else 1 for i in range(n)]))


def _real(node: OnnxNode, first: int, axis: int) -> Datum:
    """A dequantised operand: its bytes, scale and zero point are neighbouring inputs."""
    q, scale, zero = (node.input(i) for i in range(first, first + 3))
    n, b = rank(q), node.b
    return b.dequantize(q, _column(node, cast_to(b, scale, "float32"), n, axis), _column(node, zero, n, axis))


def _requantized(node: OnnxNode, real: Datum, scale: Datum, zero: Datum) -> Datum:
    b, n = node.b, rank(real)
    return b.quantize(real, _column(node, cast_to(b, scale, "float32"), n, n - 2), _column(node, zero, n, n - 2))


def _matmul(node: OnnxNode) -> Converted:
    made = node.b.matmul(_real(node, 0, rank(node.input(0)) - 2), _real(node, 3, rank(node.input(3)) - 1))
    return _requantized(node, made, node.input(6), node.input(7))


def _conv(node: OnnxNode) -> Converted:
    b = node.b
    made = convolve(node, _real(node, 0, 1), _real(node, 3, 0))
    bias = node.get(8)
    if bias is not None:  # its scale is the product of those of the image and the filter
        scale = b.multiply(*[cast_to(b, node.input(i), "float32") for i in (1, 4)])
        zero = b.constant(np.zeros((), dt.to_numpy(bias.type.dtype)))
        made = add_bias(node, made, b.dequantize(bias, scale if rank(scale) == 0 else _column(node, scale, 1, 0), zero))
    return _requantized(node, made, node.input(6), node.input(7))


def _matmul_nbits(node: OnnxNode) -> Converted:
    """onnxruntime's product with weights [n, groups, bytes of a group], the lower half of a byte first, and a zero point for each group."""
    b, x = node.b, node.input(0)
    k, n, group = (node.attr(name, 0) for name in ("K", "N", "block_size"))
    bits = node.attr("bits", 4)
    if bits != 4:
        raise node.refuse(f"weights of {bits} bits; 4 bits are supported")
    if node.has(4):
        raise node.refuse("an order of groups (g_idx)")
    packed, scale = node.array(1, "the weights"), node.array(2, "the scales").astype(np.float32)
    groups = -(-k // group)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(n, groups * group)
    zeros = np.full((n, groups), 8, np.float32)
    if node.has(3):
        given = node.array(3, "the zero points")
        halves = given.reshape(n, -1)
        zeros = np.stack([halves & 15, halves >> 4], -1).reshape(n, -1)[:, :groups] if given.dtype == np.uint8 else given.reshape(n, groups)
    unit = scale.reshape(n, groups).T
    offset = -zeros.astype(np.float32).T * unit
    if groups * group > k:
        zeros_before = (0,) * rank(x)
        x = b.pad(x, before=zeros_before, after=(*zeros_before[1:], groups * group - k))
    weights = [b.constant(np.ascontiguousarray(a)) for a in (pack_int4(numbers.T), unit, offset)]
    made = b.matmul_int4(cast_to(b, x, "float32"), *weights)
    made = cast_to(b, made, x.type.dtype)
    return made if node.get(5) is None else b.add(made, node.input(5))


CONVERTERS: Mapping[str, Converter] = {
    "DequantizeLinear": _dequantize,
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    "QuantizeLinear": _quantize,
    "com.microsoft.MatMulNBits": _matmul_nbits,
}
