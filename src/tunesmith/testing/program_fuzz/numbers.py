"""Define the arithmetic of the direct evaluator: wrapping integers, and floats with a bound on the error of compiled code.

A float is a pair (value, error).  The error covers other summation orders, fused multiply-add and approximated functions.  If a
decision depends on digits within the error, the program has no unique result: `Undecided`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np

Float = tuple[float, float]
"""Value and absolute error bound."""

PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
_TINY = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
EXPONENTS = {"float16": (-14, 16), "bfloat16": (-126, 128), "float32": (-126, 128), "float64": (-1022, 1024)}
"""Exponents of the least normal number and of the first power of two that overflows."""
_MARGIN = 4.0
_APPROXIMATE = 32.0
"""Allowed error of an approximated function, in units in the last place."""
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Undecided(Exception):
    """The program has no unique result; the message is the reason under which the discarded program is counted."""


def limits(dtype: str) -> tuple[int, int]:
    """Minimum and maximum of an integer type."""
    bits = int(dtype.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def wrap(value: int, dtype: str) -> int:
    """The integer modulo 2**bits in the range of the type."""
    low, high = limits(dtype)
    return (value - low) % (high - low + 1) + low


def integer_operation(op: str, a: int, b: int, dtype: str) -> int:
    """`a op b` for integers of one type: wraps around; x // 0 == 0 and x % 0 == 0."""
    if op in ("//", "%"):
        return 0 if b == 0 else wrap(a // b if op == "//" else a % b, dtype)
    return wrap(_INTEGER[op](a, b), dtype)


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "min": min,
    "max": max,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}


def rounded(value: float, dtype: str) -> float:
    """The nearest value of a float type."""
    if dtype == "float64" or not math.isfinite(value):
        return value
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return float(np.float16(value) if dtype == "float16" else np.float32(value))
        single = float(np.float32(value))
    if not math.isfinite(single):
        return single
    bits = int(struct.unpack("<I", struct.pack("<f", single))[0])
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _finished(value: float, error: float, scale: float, dtype: str, finite: bool) -> Float:
    """A rounded result with the rounding error of numbers of size `scale` added."""
    result = rounded(value, dtype)
    if not math.isfinite(result):
        if finite:
            raise Undecided("float overflow")
        return result, 0.0
    if abs(result) + error > _LARGEST[dtype] * 0.99 and finite and error:
        raise Undecided("float overflow")
    if error == 0.0 and result == value and result.is_integer() and scale <= 2.0 ** (PRECISION[dtype] - 4):
        return result, 0.0
    unit = 2.0 ** (1 - PRECISION[dtype])
    return result, error + _MARGIN * unit * max(scale, _TINY[dtype])


def float_operation(op: str, a: Float, b: Float, dtype: str) -> Float:
    """`a op b` for floats of one type."""
    (x, ex), (y, ey) = a, b
    finite = math.isfinite(x) and math.isfinite(y)
    if op in ("min", "max"):
        if math.isnan(x) or math.isnan(y):
            return math.nan, 0.0
        return (min if op == "min" else max)(x, y), max(ex, ey)
    if op == "+" or op == "-":
        value = x + y if op == "+" else x - y
        return _finished(value, ex + ey, max(abs(x), abs(y), abs(value)), dtype, finite)
    if op == "*":
        return _finished(x * y, abs(x) * ey + abs(y) * ex + ex * ey if finite else 0.0, abs(x * y), dtype, finite)
    assert op == "/"
    if abs(y) <= ey or y == 0.0:
        raise Undecided("float division by zero")
    error = (ex + abs(x / y) * ey) / (abs(y) - ey) if finite else 0.0
    value, bound = _finished(x / y, error, abs(x / y), dtype, finite)
    return value, max(bound, 2.0 ** (1 - PRECISION[dtype]) * 2 * abs(value)) if finite else 0.0


def compare(op: str, a: float, b: float) -> bool:
    """The comparison `a op b`."""
    return _COMPARE[op](a, b)


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def compare_floats(op: str, a: Float, b: Float) -> bool:
    """The comparison `a op b`; Undecided if the result depends on the errors."""
    if a[1] + b[1] > 0.0 and abs(a[0] - b[0]) <= a[1] + b[1]:
        raise Undecided("comparison of close floats")
    return compare(op, a[0], b[0])


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log2": math.log2,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)) if x > -700 else math.exp(x),
    "sin": math.sin,
    "cos": math.cos,
    "rsqrt": lambda x: 1.0 / math.sqrt(x),
    "sqrt": math.sqrt,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "copysign": math.copysign,
    "fma": lambda a, b, c: a * b + c,
}
STEPS = ("floor", "ceil", "trunc", "round")
SMOOTH = ("exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid", "sin", "cos", "rsqrt", "sqrt")


def float_function(name: str, args: list[Float], dtype: str) -> Float:
    """A float intrinsic."""
    if name == "fma":
        return float_operation("+", float_operation("*", args[0], args[1], dtype), args[2], dtype)
    if name == "copysign":
        if args[1][0] == 0.0 or args[1][1] >= abs(args[1][0]) or math.isnan(args[1][0]):
            raise Undecided("sign of zero")
        return math.copysign(args[0][0], args[1][0]), args[0][1]
    ((x, error),) = args
    if name == "abs":
        return abs(x), error
    if not math.isfinite(x) or abs(x) > 1e4:
        raise Undecided("function of a large number")
    try:
        f = _FUNCTIONS[name]
        value, low, high = float(f(x)), float(f(x - error)), float(f(x + error))
    except (ValueError, OverflowError, ZeroDivisionError):
        raise Undecided("function outside its domain") from None
    if name in STEPS:
        if low != high:
            raise Undecided("rounding of a float near a step")
        return value, 0.0
    spread = 2.0 * max(abs(high - value), abs(low - value))
    scale = max(abs(value), _TINY[dtype], abs(x) if name in ("sin", "cos") else 0.0)
    return _finished(value, spread + _APPROXIMATE * 2.0 ** (1 - PRECISION[dtype]) * scale, scale, dtype, True)


def cast(value: int | bool | Float, source: str, dtype: str) -> int | bool | Float:
    """A number converted to another type."""
    if isinstance(value, tuple):
        x, error = value
        if dtype in PRECISION:
            return (x, error) if not math.isfinite(x) else _narrowed(x, error, dtype)
        if dtype == "bool":
            if error and abs(x) <= error:
                raise Undecided("comparison of close floats")
            return x != 0.0
        low, high = limits(dtype)
        if not math.isfinite(x) or not low <= math.trunc(x) <= high:
            raise Undecided("cast of a float beyond the integers")
        if math.trunc(x - error) != math.trunc(x + error):
            raise Undecided("rounding of a float near a step")
        return math.trunc(x)
    if dtype in PRECISION:
        return _narrowed(int(value), 0.0, dtype)
    return value != 0 if dtype == "bool" else wrap(int(value), dtype)


def _narrowed(value: int | float, error: float, dtype: str) -> Float:
    result = rounded(float(value), dtype)
    if not math.isfinite(result):
        raise Undecided("float overflow")
    if result != value:
        error += 2.0 ** (1 - PRECISION[dtype]) * max(abs(result), _TINY[dtype])
    return result, error
