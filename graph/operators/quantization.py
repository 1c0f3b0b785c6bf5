"""Define quantisation to bytes and back (ONNX QuantizeLinear and DequantizeLinear): x = (q - zero) * scale.

Scales and zero points are tensors that are broadcast to x: of one element, or with the extents of one axis and 1 elsewhere.
"""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import BROADCAST, GraphOperator
from tunesmith.graph.operators.broadcast import combined
from tunesmith.graph.operators.element_types import FLOATS, float_range, require
from tunesmith.ir.expr import Expr, call, cast, maximum, minimum
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def _quantize(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    require(FLOATS, x, scale)
    if not dt.is_int(zero.dtype):
        raise ScriptError(f"the zero point has the type of the result, an integer type, not {zero.dtype}")
    wide = _wide(x.dtype)
    low, high = float_range(zero.dtype, wide)

    def formula(value: Expr, unit: Expr, shift: Expr) -> Expr:
        made = call("round", cast(wide, value) / cast(wide, unit)) + cast(wide, shift)
        return cast(zero.dtype, maximum(minimum(made, high), low))

    return combined(formula, x, scale, zero)


def _quantize_reference(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    wide = np.dtype(_wide(dt.from_numpy(x.dtype)))
    low, high = float_range(dt.from_numpy(zero.dtype), wide.name)
    with np.errstate(all="ignore"):
        made = np.rint(x.astype(wide) / scale.astype(wide)) + zero.astype(wide)
        return np.clip(made, wide.type(low), wide.type(high)).astype(zero.dtype)


def _wide(dtype: str) -> str:
    """The type in which quotients are computed: float16 has no number near the ends of 16-bit integers."""
    return "float32" if dt.bits(dtype) == 16 else dtype


def _dequantize(q: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    require(FLOATS, scale)
    if not dt.is_int(q.dtype) or zero.dtype != q.dtype:
        raise ScriptError(f"the operand and the zero point have one integer type, not {q.dtype} and {zero.dtype}")
    return combined(lambda value, unit, shift: (cast(scale.dtype, value) - cast(scale.dtype, shift)) * unit, q, scale, zero)


def _dequantize_reference(q: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return np.asarray((q.astype(scale.dtype) - zero.astype(scale.dtype)) * scale)


QUANTIZE = GraphOperator(
    "quantize",
    BROADCAST,
    _quantize,
    _quantize_reference,
    meaning="round(x / scale) + zero, half to even, clamped to the type of the zero point; 16-bit floats are divided in float32. "
    "NaN is not defined.",
)
DEQUANTIZE = GraphOperator(
    "dequantize", BROADCAST, _dequantize, _dequantize_reference, meaning="(q - zero) * scale in the type of the scale."
)
