"""Convert elementwise ONNX operators: arithmetic, comparisons, casts, and functions composed of several graph operators.

Reference: the ONNX operator documents, https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, dtype_of, is_float, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.graph.ir.node import Constant
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt

_UNARY = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Cos": "cos",
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
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}

_BINARY = {
    "Add": "add",
    "And": "logical_and",
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
    return cast_to(node.b, node.input(0), dtype_of(node.attr("to")))


def _cast_like(node: OnnxNode) -> Converted:
    return cast_to(node.b, node.input(0), node.input(1).type.dtype)


def _bit_cast(node: OnnxNode) -> Converted:
    x, dtype = node.input(0), dtype_of(node.attr("to"))
    if isinstance(x, Constant):
        return node.b.constant(x.data.view(dt.to_numpy(dtype)))
    whole = all(dt.is_int(t) or t == "bool" for t in (dtype, x.type.dtype))
    if whole and dtype != "bool" and dt.nbytes(dtype) == dt.nbytes(x.type.dtype):
        return cast_to(node.b, x, dtype)
    raise node.refuse(f"reinterpreting the bits of {x.type.dtype} as {dtype}; the operand must be constant")


def _is_inf(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    up, down = node.attr("detect_positive", 1), node.attr("detect_negative", 1)
    if up and down:
        return b.equal(b.abs(x), node.like(math.inf, x))
    if up or down:
        return b.equal(x, node.like(math.inf if up else -math.inf, x))
    return b.not_equal(b.cast(b.isnan(x), dtype="int8"), b.cast(b.isnan(x), dtype="int8"))


def _bit_shift(node: OnnxNode) -> Converted:
    """Shift with a table of powers of two, since amounts are tensors.  Shifts by the width or more give 0, or the sign to the right."""
    x, b = node.input(0), node.b
    dtype = x.type.dtype
    signed, left = not dt.is_unsigned(dtype), node.attr("direction") == "LEFT"
    amount = cast_to(b, node.input(1), "int64")
    count = dt.bits(dtype) - (signed and not left)  # 2**(width - 1) overflows a signed type; to the left its negative is equivalent
    wide = np.dtype(f"uint{dt.bits(dtype)}")
    table = b.constant(np.array([1 << i for i in range(count)], dtype=wide).view(dt.to_numpy(dtype)))
    factor = b.take(table, b.clip(amount, min=0, max=count - 1), axis=0)
    shifted = b.multiply(x, factor) if left else b.floor_divide(x, factor)
    inside = b.logical_and(b.greater_equal(amount, node.like(0, amount)), b.less(amount, node.like(count, amount)))
    rest = b.minimum(b.sign(x), node.like(0, x)) if signed and not left else node.like(0, x)
    return b.where(inside, shifted, rest)


def _bitwise_not(node: OnnxNode) -> Converted:
    x = node.input(0)
    ones = np.invert(np.zeros((), dtype=dt.to_numpy(x.type.dtype)))
    return node.b.subtract(node.b.constant(ones), x)


def _bitwise(combine: Callable[[OnnxNode, Datum, Datum], Datum]) -> Converter:
    """Bitwise operation as sums of powers of two: the graph IR has no bitwise operators, which models use on masks."""

    def convert(node: OnnxNode) -> Converted:
        x, y, b = node.input(0), node.input(1), node.b
        dtype = x.type.dtype
        wide = "uint" + dtype.removeprefix("u").removeprefix("int")
        left, right = cast_to(b, x, wide), cast_to(b, y, wide)
        total: Datum | None = None
        for i in range(dt.bits(dtype)):
            power = b.constant(1 << i, wide)
            bits = [b.mod(b.floor_divide(v, power), b.constant(2, wide)) for v in (left, right)]
            part = b.multiply(combine(node, bits[0], bits[1]), power)
            total = part if total is None else b.add(total, part)
        assert total is not None
        return cast_to(b, total, dtype)

    return convert


# ---- composed trigonometry ----


def _tan(node: OnnxNode) -> Converted:
    return node.b.divide(node.b.sin(node.input(0)), node.b.cos(node.input(0)))


_LARGE = {"float16": 1e2, "float64": 1e8}
"""Bound from which (1e4 for other types) x**2 + 1 equals x**2 up to the last digits; x**2 does not overflow below it."""
_POWER_IS_ALL = {"float16": 9.0, "float64": 40.0}
"""Bound from which (20 for other types) exp(x) - exp(-x) equals exp(x)."""


def _sinh(node: OnnxNode) -> Converted:
    """(m + m / (m + 1)) / 2 for m = expm1(|x|), which is accurate near 0; exp(|x|) / 2 where m / (m + 1) is 1."""
    x, b = node.input(0), node.b
    size, half = b.abs(x), node.like(0.5, x)
    limit = node.like(_POWER_IS_ALL.get(x.type.dtype, 20.0), x)
    m = b.expm1(b.minimum(size, limit))
    near = b.multiply(half, b.add(m, b.divide(m, b.add(m, node.like(1, x)))))
    return b.multiply(b.sign(x), b.where(b.greater(size, limit), _half_power(node, size), near))


def _cosh(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    size = b.abs(x)
    return b.add(_half_power(node, size), b.multiply(b.exp(b.neg(size)), node.like(0.5, x)))


def _half_power(node: OnnxNode, x: Datum) -> Datum:
    """exp(x) / 2 without overflow where exp(x) / 2 is finite but exp(x) is not."""
    root = node.b.exp(node.b.multiply(x, node.like(0.5, x)))
    return node.b.multiply(node.b.multiply(root, node.like(0.5, x)), root)


def _asinh(node: OnnxNode) -> Converted:
    """log(1 + (|x| + x**2 / (1 + sqrt(x**2 + 1)))), or log |x| + log 2 for large |x|."""
    x, b = node.input(0), node.b
    one, size, limit = node.like(1, x), b.abs(x), node.like(_LARGE.get(x.type.dtype, 1e4), x)
    small = b.minimum(size, limit)
    square = b.multiply(small, small)
    near = b.log1p(b.add(small, b.divide(square, b.add(one, b.sqrt(b.add(square, one))))))
    return b.multiply(b.sign(x), b.where(b.greater(size, limit), _log_of_twice(node, size), near))


def _acosh(node: OnnxNode) -> Converted:
    """log(1 + (y + sqrt(y (y + 2)))) for y = x - 1, or log x + log 2 for large x."""
    x, b = node.input(0), node.b
    limit = node.like(_LARGE.get(x.type.dtype, 1e4), x)
    y = b.subtract(b.minimum(x, limit), node.like(1, x))
    near = b.log1p(b.add(y, b.sqrt(b.multiply(y, b.add(y, node.like(2, x))))))
    return b.where(b.greater(x, limit), _log_of_twice(node, x), near)


def _log_of_twice(node: OnnxNode, x: Datum) -> Datum:
    return node.b.add(node.b.log(x), node.like(math.log(2), x))


def _atanh(node: OnnxNode) -> Converted:
    """log(1 + 2x / (1 - x)) / 2 for |x|, with the sign of x."""
    x, b = node.input(0), node.b
    size = b.abs(x)
    made = b.log1p(b.divide(b.multiply(size, node.like(2, x)), b.subtract(node.like(1, x), size)))
    return b.multiply(b.sign(x), b.multiply(made, node.like(0.5, x)))


_ATAN_TERMS = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)


def arc_tangent(node: OnnxNode, x: Datum) -> Datum:
    """Single-precision atan: Cephes' atanf with two range reductions and a polynomial of four terms."""
    b = node.b

    def number(v: float) -> Datum:
        return node.like(v, x)

    size = b.abs(x)
    large = b.greater(size, number(math.tan(3 * math.pi / 8)))
    middle = b.logical_and(b.greater(size, number(math.tan(math.pi / 8))), b.logical_not(large))
    reduced = b.where(middle, b.divide(b.subtract(size, number(1)), b.add(size, number(1))), size)
    reduced = b.where(large, b.neg(b.reciprocal(b.maximum(size, number(1)))), reduced)
    start = b.where(large, number(math.pi / 2), b.where(middle, number(math.pi / 4), number(0)))
    square = b.multiply(reduced, reduced)
    series: Datum = number(_ATAN_TERMS[0])
    for term in _ATAN_TERMS[1:]:
        series = b.add(b.multiply(series, square), number(term))
    made = b.add(b.multiply(b.multiply(series, square), reduced), reduced)
    return b.multiply(b.sign(x), b.add(start, made))


def _arc_sine(node: OnnxNode) -> Datum:
    x, b = node.input(0), node.b
    one = node.like(1, x)
    cosine = b.sqrt(b.multiply(b.subtract(one, x), b.add(one, x)))
    return arc_tangent(node, b.divide(x, cosine))


def _acos(node: OnnxNode) -> Converted:
    return node.b.subtract(node.like(math.pi / 2, node.input(0)), _arc_sine(node))


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
    "Acos": _acos,
    "Acosh": _acosh,
    "Asin": _arc_sine,
    "Asinh": _asinh,
    "Atan": lambda node: arc_tangent(node, node.input(0)),
    "Atanh": _atanh,
    "BitCast": _bit_cast,
    "BitShift": _bit_shift,
    "BitwiseAnd": _bitwise(lambda node, x, y: node.b.multiply(x, y)),
    "BitwiseNot": _bitwise_not,
    "BitwiseOr": _bitwise(lambda node, x, y: node.b.maximum(x, y)),
    "BitwiseXor": _bitwise(lambda node, x, y: node.b.mod(node.b.add(x, y), node.like(2, x))),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Cosh": _cosh,
    "Dropout": _dropout,
    "IsInf": _is_inf,
    "Mean": _mean,
    "Mod": _mod,
    "Pow": _pow,
    "Sinh": _sinh,
    "Tan": _tan,
    "Where": _where,
}
