"""Evaluate an expression tree on whole arrays, each operation exactly as the IR defines it, each object once.

A scalar expression works on arrays of any shape; a vector expression of L lanes on arrays whose last axis has L elements.
Types are checked strictly: the evaluation fails on operands of different types, a literal that is not broadcast, or a value
whose type differs from that of its node.  `fma` is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tunesmith.ir.expr import COMPARISONS, Binary, Broadcast, Call, Cast, Const, Expr, Not, Select
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt

Array = Any

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
}
CALLS: dict[str, Callable[..., Array]] = {
    "sqrt": np.sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "copysign": np.copysign,
    "isnan": np.isnan,
    "fma": lambda a, b, c: fma(a, b, c),
    "ldexp": lambda x, n: np.ldexp(x, np.clip(np.nan_to_num(n), -100000, 100000).astype(np.int32)),
}


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and the rounding error (Knuth)."""
    s = a + b
    rest = s - a
    return s, (a - (s - rest)) + (b - rest)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b in float64 rounded, and the rounding error (Dekker); for factors below 2**990 and a product above 2**-960."""
    p = a * b
    big = 134217729.0
    a_high = a * big - (a * big - a)
    b_high = b * big - (b * big - b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded once: float32 through float64 with rounding to odd, float64 with error-free products and sums."""
    if np.asarray(a).dtype == np.float32:
        s, lost = two_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))
        even = (s.view(np.int64) & 1) == 0
        toward = np.nextafter(s, np.where(lost > 0, np.inf, -np.inf))
        return np.where((lost != 0) & np.isfinite(lost) & even, toward, s).astype(np.float32)
    p, p_lost = two_product(a, b)
    s, s_lost = two_sum(p, c)
    exact = s + (s_lost + p_lost)
    return np.where(np.isfinite(exact), exact, p + c)


def to_bfloat16(x: Array) -> Array:
    """float32 values rounded half to even to 8 bits of mantissa."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


def evaluate(expr: Expr, inputs: Mapping[Expr, Array]) -> Array:
    """The value of `expr` with the array of each leaf in `inputs`."""
    done: dict[Expr, Array] = {}

    def value(n: Expr) -> Array:
        if n not in done:
            out = np.asarray(inputs[n]) if n in inputs else np.asarray(compute(n))
            assert out.dtype == dt.to_numpy(n.dtype), f"{n.dtype} node has a value of {out.dtype}"
            assert dt.lanes(n.dtype) == 1 or out.shape[-1] == dt.lanes(n.dtype), f"{n.dtype} node has a value of shape {out.shape}"
            done[n] = out
        return done[n]

    def compute(n: Expr) -> Array:
        match n:
            case Const():
                return np.array(n.value, dt.to_numpy(n.dtype))
            case Broadcast():
                return np.repeat(value(n.a)[..., None], n.lanes, axis=-1)
            case Binary():
                assert n.a.dtype == n.b.dtype, f"{n.op} of {n.a.dtype} and {n.b.dtype}"
                assert n.op in COMPARISONS or n.op not in ("shl", "shr") or dt.is_unsigned(n.dtype), f"{n.op} of {n.dtype}"
                return BINARY[n.op](value(n.a), value(n.b))
            case Not():
                return np.logical_not(value(n.a))
            case Select():
                assert n.a.dtype == n.b.dtype and dt.lanes(n.cond.dtype) == dt.lanes(n.a.dtype), (n.cond.dtype, n.a.dtype, n.b.dtype)
                return np.where(value(n.cond), value(n.a), value(n.b))
            case Cast():
                out = value(n.a).astype(dt.to_numpy(n.dtype))
                return to_bfloat16(out) if dt.element(n.dtype) == "bfloat16" else out
            case Call(name="reinterpret"):
                assert dt.bits(n.dtype) == dt.bits(n.args[0].dtype), f"reinterpret of {n.args[0].dtype} as {n.dtype}"
                return value(n.args[0]).view(dt.to_numpy(n.dtype))
            case Call():
                assert all(a.dtype == n.args[0].dtype for a in n.args), f"{n.name} of {[a.dtype for a in n.args]}"
                return CALLS[n.name](*map(value, n.args))
        raise AssertionError(f"no value for {type(n).__name__}")

    with np.errstate(all="ignore"):
        return value(expr)


def nodes(expr: Expr) -> list[Expr]:
    """All value expressions in `expr`, each once, `expr` last; without indices of loads."""
    seen: dict[Expr, None] = {}

    def visit(n: Expr) -> None:
        if n not in seen and type(n) is not Poly:
            n.each_child(visit)
            seen[n] = None

    visit(expr)
    return list(seen)


def count_operations(expr: Expr) -> tuple[int, int]:
    """The number of operations on 32-bit and on 64-bit lanes: all objects except leaves, literals and reinterpretations.

    A conversion counts as 64-bit if either side is; a comparison has the type of its operands.
    """
    counts = [0, 0]
    for n in nodes(expr):
        if isinstance(n, (Binary, Not, Select, Cast, Call)) and not (isinstance(n, Call) and n.name == "reinterpret"):
            operands: list[Expr] = [n]
            n.each_child(operands.append)
            counts[max(dt.bits(o.dtype) for o in operands) == 64] += 1
    return counts[0], counts[1]
