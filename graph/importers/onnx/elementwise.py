"""Convert elementwise ONNX operators: arithmetic, comparisons, casts, and functions composed of several graph operators.

Reference: the ONNX operator documents, https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.narrow import TYPES, Narrow, NarrowType, decode, encode
from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, dtype_of, is_float, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.graph.ir.node import Constant
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Identity": "identity",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}

_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Div": "divide",
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}

_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(operator: str) -> Converter:
    return lambda node: node.b.call(operator, node.input(0))


def _binary(operator: str) -> Converter:
    return lambda node: node.b.call(operator, node.input(0), node.input(1))


def _variadic(operator: str) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        made = node.input(0)
        for i in range(1, len(node.inputs)):
            made = node.b.call(operator, made, node.input(i))
        return made

    return convert


def _mean(node: OnnxNode) -> Converted:
    total = node.input(0)
    for i in range(1, len(node.inputs)):
        total = node.b.add(total, node.input(i))
    return node.b.divide(total, node.like(len(node.inputs), total))


def _where(node: OnnxNode) -> Converted:
    return node.b.where(node.input(0), node.input(1), node.input(2))


def _mod(node: OnnxNode) -> Converted:
    return node.b.call("fmod" if node.attr("fmod", 0) else "mod", node.input(0), node.input(1))


def _pow(node: OnnxNode) -> Converted:
    x, y, b = node.input(0), node.input(1), node.b
    if isinstance(y, Constant) and y.data.size == 1 and len(y.data.shape) <= len(x.type.shape):
        power = float(y.data.ravel()[0])
        if power == 2:
            return b.multiply(x, x)
        if power == 3:
            return b.multiply(b.multiply(x, x), x)
        if power == 0.5 and is_float(x):
            return b.sqrt(x)
    if is_float(x):
        return b.power(x, cast_to(b, y, x.type.dtype))
    if is_float(y):
        made = b.power(cast_to(b, x, "float64"), cast_to(b, y, "float64"))
    else:  # float64 cannot represent all integer powers
        wide = x.type.dtype if dt.bits(x.type.dtype) > dt.bits(y.type.dtype) else y.type.dtype
        made = b.power(cast_to(b, x, wide), cast_to(b, y, wide))
    return cast_to(b, made, x.type.dtype)


def _clip(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    low = node.get(1) if node.version >= 11 else None
    high = node.get(2) if node.version >= 11 else None
    if node.version < 11:
        bounds = {"min": node.attr("min"), "max": node.attr("max")}
        return b.clip(x, **bounds)
    if all(v is None or (isinstance(v, Constant) and v.data.size == 1) for v in (low, high)):
        numbers = [v.data.item() if isinstance(v, Constant) else None for v in (low, high)]
        if not any(v is not None and math.isnan(v) for v in numbers):
            return b.clip(x, min=numbers[0], max=numbers[1])
    made = x if low is None else b.maximum(x, low)
    return made if high is None else b.minimum(made, high)


def _cast(node: OnnxNode) -> Converted:
    number = node.attr("to")
    return _cast_as(node, TYPES[number] if number in TYPES else dtype_of(number))


def _cast_like(node: OnnxNode) -> Converted:
    like = node.input(1)
    return _cast_as(node, like.kind if isinstance(like, Narrow) else like.type.dtype)


def _cast_as(node: OnnxNode, kind: str | NarrowType) -> Any:
    """The first operand in another type."""
    x: Datum | Narrow = node.input(0)
    if isinstance(kind, str):
        return decode(node.b, x, kind)
    if isinstance(x, Narrow):
        x = decode(node.b, x, "int32" if x.kind.is_integer else "float32")
    mode = "nearest" if kind.signed else node.attr("round_mode", "up")
    return encode(node.b, x, kind, bool(node.attr("saturate", 1)), mode)


def _bit_cast(node: OnnxNode) -> Converted:
    x, dtype = node.input(0), dtype_of(node.attr("to"))
    if x.type.dtype == "bool":  # a byte, 0 or 1
        x = node.b.cast(x, dtype="uint8")
    return x if dtype == x.type.dtype else node.b.reinterpret(x, dtype=dtype)


def _is_inf(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    up, down = node.attr("detect_positive", 1), node.attr("detect_negative", 1)
    if up and down:
        return b.equal(b.abs(x), node.like(math.inf, x))
    if up or down:
        return b.equal(x, node.like(math.inf if up else -math.inf, x))
    return b.not_equal(b.cast(b.isnan(x), dtype="int8"), b.cast(b.isnan(x), dtype="int8"))


def _bit_shift(node: OnnxNode) -> Converted:
    """Shift by amounts of the type of the operand."""
    operator = "shift_left" if node.attr("direction") == "LEFT" else "shift_right"
    return node.b.call(operator, node.input(0), cast_to(node.b, node.input(1), node.input(0).type.dtype))


def _bitwise_not(node: OnnxNode) -> Converted:
    x = node.input(0)
    ones = np.invert(np.zeros((), dtype=dt.to_numpy(x.type.dtype)))
    return node.b.subtract(node.b.constant(ones), x)


def _dropout(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    if node.version >= 12 and node.has(2):
        training = bool(node.array(2, "training_mode").all())
        ratio = float(node.array(1, "ratio").item()) if node.has(1) else 0.5
        if training and ratio:
            raise node.refuse("training mode")
    if not node.wants(1):
        return x
    mask = "bool" if node.version >= 10 else x.type.dtype
    shape = shape_of(x)
    ones = b.constant(np.ones((), dtype=dt.to_numpy(mask)))
    static = not any(isinstance(e, Poly) for e in shape)
    return x, b.broadcast_to(ones, shape=shape) if static or shape else ones


CONVERTERS: Mapping[str, Converter] = {
    **{name: _unary(operator) for name, operator in _UNARY.items()},
    **{name: _binary(operator) for name, operator in _BINARY.items()},
    **{name: _variadic(operator) for name, operator in _VARIADIC.items()},
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "BitwiseNot": _bitwise_not,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "Mean": _mean,
    "Mod": _mod,
    "Pow": _pow,
    "Where": _where,
}
