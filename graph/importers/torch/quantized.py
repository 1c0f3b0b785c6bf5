"""Convert torch operators of quantised models, which PT2E quantisation (torchao) inserts: `quantized_decomposed`.

Torch multiplies by the reciprocal of a scale where graphs divide, so that a value half way between two integers may be rounded to either.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tunesmith.graph.importers.torch.call import TorchCall, converts
from tunesmith.graph.ir.node import Constant, Operand
from tunesmith.ir.poly import poly
from tunesmith.support import dtype as dt

INTEGERS = ("int8", "uint8", "int16", "int32")
PER_TENSOR = ("default", "tensor")
"""Overloads: scale and zero point are numbers, or tensors of one element."""


@converts(*[f"quantized_decomposed.quantize_per_tensor.{overload}" for overload in PER_TENSOR])
def quantize_per_tensor(call: TorchCall, x: Operand, scale: Any, zero: Any, low: int, high: int, dtype: object) -> Operand:
    """round(x / scale) + zero, clamped to [low, high]."""
    return _quantized(call, x, _number(call, scale, "float32"), _number(call, zero, call.dtype), low, high)


@converts("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    call: TorchCall, x: Operand, scales: Operand, zeros: Operand | None, axis: int, low: int, high: int, dtype: object
) -> Operand:
    """As `quantize_per_tensor`, with a scale and zero point for each index of an axis."""
    return _quantized(call, x, *_columns(call, scales, zeros, axis, len(x.type.shape), call.dtype), low, high)


@converts(*[f"quantized_decomposed.dequantize_per_tensor.{overload}" for overload in PER_TENSOR])
def dequantize_per_tensor(
    call: TorchCall, x: Operand, scale: Any, zero: Any, low: int, high: int, dtype: object, out_dtype: object = None
) -> Operand:
    """(x - zero) * scale."""
    return _dequantized(call, x, _number(call, scale, "float32"), _number(call, zero, x.type.dtype))


@converts("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    call: TorchCall,
    x: Operand,
    scales: Operand,
    zeros: Operand | None,
    axis: int,
    low: int,
    high: int,
    dtype: object,
    out_dtype: object = None,
) -> Operand:
    """As `dequantize_per_tensor`, with a scale and zero point for each index of an axis."""
    return _dequantized(call, x, *_columns(call, scales, zeros, axis, len(x.type.shape), x.type.dtype))


def _quantized(call: TorchCall, x: Operand, scale: Operand, zero: Operand, low: int, high: int) -> Operand:
    if call.dtype not in INTEGERS:
        call.refuse(f"it quantises to {call.dtype}; supported are {', '.join(INTEGERS)}")
    x = call.cast(x, "float32")
    bits = dt.bits(call.dtype)
    least = 0 if dt.is_unsigned(call.dtype) else -(2 ** (bits - 1))
    if (low, high) != (least, least + 2**bits - 1):
        # Limits inside of the type are limits of the real values: clamping bytes would separate the conversion from the next product.
        ends = [
            call.emit("multiply", call.emit("subtract", call.number(float(end), "float32"), call.cast(zero, "float32")), scale)
            for end in (low, high)
        ]
        x = call.emit("minimum", call.emit("maximum", x, ends[0]), ends[1])
    return call.emit("quantize", x, scale, zero)


def _dequantized(call: TorchCall, x: Operand, scale: Operand, zero: Operand) -> Operand:
    if x.type.dtype not in INTEGERS:
        call.refuse(f"it dequantises {x.type.dtype}; supported are {', '.join(INTEGERS)}")
    return call.cast(call.emit("dequantize", x, scale, zero), call.dtype)


def _number(call: TorchCall, value: Any, dtype: str) -> Operand:
    """A scale or zero point of a tensor, as a scalar."""
    if isinstance(value, (int, float)):
        return call.number(value, dtype)
    return call.reshaped(call.cast(value, dtype), ())


def _columns(call: TorchCall, scales: Operand, zeros: Operand | None, axis: int, rank: int, dtype: str) -> tuple[Operand, Operand]:
    """Scales and zero points along an axis; without zero points they are 0."""
    shape = tuple([scales.type.shape[0] if d == call.axis(axis, rank) else poly(1) for d in range(rank)])
    shift = Constant("zero", np.zeros((), dt.to_numpy(dtype))) if zeros is None else call.reshaped(call.cast(zeros, dtype), shape)
    return call.reshaped(call.cast(scales, "float32"), shape), shift
