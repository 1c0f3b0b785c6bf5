"""Define the intrinsics of `Call`: arity, numpy semantics, and whether lowering expands them into arithmetic.

The interpreter computes the numpy semantics, which are the definition; code generators are tested against them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.ir.tile_products import flushed_fma, tile_product_bfloat16, tile_product_bytes
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One intrinsic.

    Attributes:
        name: as spelled in scripts, `T.<name>`.
        arity: number of arguments.
        numpy: semantics on numpy scalars or arrays, elementwise; reductions fold the last axis.
        meaning: one sentence for readers, with the names of the arguments in `operand_names`.
        flops: floating point operations counted per evaluation, for features and rates.
        expanded: lowering replaces it by arithmetic (vector_math), so code generators do not implement it.
        reduces: maps a vector to a scalar.
        effect: evaluated for its effect, without a value.
        shuffle: for a warp shuffle, the lane mask: the value is the argument of thread `thread ^ shuffle`; 0 for all other intrinsics.
        concatenates: its value has the lanes of all arguments.
        operands: (element type, elements for each lane of the result) of each argument, if their types differ; empty if all have one type.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    meaning: str
    flops: int = 1
    expanded: bool = False
    reduces: bool = False
    effect: bool = False
    shuffle: int = 0
    concatenates: bool = False
    operands: tuple[tuple[str, int], ...] = ()

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The parameters in signatures and messages: x, y, z, or `*vectors` if there are more than three."""
        return tuple("xyz"[: self.arity]) if self.arity <= 3 else ("*vectors",)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.asarray(x).dtype])(x) if np.ndim(x) else np.asarray(x).dtype.type(math.erf(x))


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b and its rounding error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Any, b: Any) -> tuple[Any, Any]:
    """a * b and its rounding error (Dekker, Veltkamp), for float64 without overflow."""
    p = a * b
    x, y = a * 134217729.0, b * 134217729.0
    ah, bh = x - (x - a), y - (y - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c rounded once: float32 through float64 rounded to odd, float64 by error-free transformations."""
    kind = np.result_type(a, b, c)
    x, y, z = (np.asarray(v, np.float64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        if kind != np.float64:
            s, lost = _two_sum(x * y, z)
            odd = (np.asarray(s).view(np.int64) & 1) != 0
            toward = np.nextafter(s, np.where(lost > 0, np.inf, -np.inf))
            return np.where((lost != 0) & np.isfinite(lost) & ~odd, toward, s).astype(kind)[()]
        p, p_lost = _two_product(x, y)
        s, s_lost = _two_sum(p, z)
        exact = s + (s_lost + p_lost)
        return np.where(np.isfinite(exact), exact, x * y + z)[()]


def _ldexp(x: Any, n: Any) -> Any:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.ldexp(x, np.clip(np.nan_to_num(n), -100000, 100000).astype(np.int32))


def _vpdpbusd(c: Any, a: Any, b: Any) -> Any:
    products = np.asarray(a).astype(np.int32) * np.asarray(b).astype(np.int32)
    with np.errstate(over="ignore"):
        return c + products.reshape(-1, 4).sum(axis=1, dtype=np.int32)


def _vdpbf16ps(c: Any, a: Any, b: Any) -> Any:
    """Two fused multiply-adds for each lane, that of the odd elements first; denormals are zero (Intel's manual)."""
    x, y = np.asarray(a, np.float32).reshape(-1, 2), np.asarray(b, np.float32).reshape(-1, 2)
    return flushed_fma(x[:, 0], y[:, 0], flushed_fma(x[:, 1], y[:, 1], c))


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return (1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))).astype(np.asarray(x).dtype)[()]


BYTE_PRODUCTS = (
    ("tdpbssd", "int8", "int8"),
    ("tdpbsud", "int8", "uint8"),
    ("tdpbusd", "uint8", "int8"),
    ("tdpbuud", "uint8", "uint8"),
)
"""The products of bytes of AMX: name, and the element types of both operands."""

_ALL = (
    Intrinsic("exp", 1, np.exp, "e to the power of x.", 12, expanded=True),
    Intrinsic("exp2", 1, np.exp2, "2 to the power of x.", 10, expanded=True),
    Intrinsic("log", 1, np.log, "The natural logarithm.", 14, expanded=True),
    Intrinsic("log2", 1, np.log2, "The logarithm to base 2.", 14, expanded=True),
    Intrinsic("tanh", 1, np.tanh, "The hyperbolic tangent.", 18, expanded=True),
    Intrinsic("erf", 1, _erf, "The error function.", 20, expanded=True),
    Intrinsic("sigmoid", 1, _sigmoid, "1 / (1 + exp(-x)).", 14, expanded=True),
    Intrinsic("sin", 1, np.sin, "The sine of x in radians.", 14, expanded=True),
    Intrinsic("cos", 1, np.cos, "The cosine of x in radians.", 14, expanded=True),
    Intrinsic("rsqrt", 1, lambda x: (1.0 / np.sqrt(x)).astype(np.asarray(x).dtype)[()], "1 / sqrt(x).", 2, expanded=True),
    Intrinsic("sqrt", 1, np.sqrt, "The square root."),
    Intrinsic("abs", 1, np.abs, "The absolute value."),
    Intrinsic("floor", 1, np.floor, "The largest integer <= x."),
    Intrinsic("ceil", 1, np.ceil, "The smallest integer >= x."),
    Intrinsic("trunc", 1, np.trunc, "x rounded towards 0."),
    Intrinsic("round", 1, np.rint, "x rounded to the nearest integer, half to even."),
    Intrinsic("copysign", 2, np.copysign, "The magnitude of x with the sign of y."),
    Intrinsic("isnan", 1, np.isnan, "Whether x is NaN."),
    Intrinsic("fma", 3, _fma, "x * y + z, rounded once.", 2),
    Intrinsic("ldexp", 2, _ldexp, "x * 2**y, for a float y with an integer value."),
    Intrinsic("reinterpret", 1, lambda x: x, "The bits of x as another dtype, which is passed as dtype=.", 0),
    Intrinsic("reduce_add", 1, lambda v: np.add.reduce(v, axis=-1), "The sum of the lanes of a vector.", 4, reduces=True),
    Intrinsic("reduce_max", 1, lambda v: np.maximum.reduce(v, axis=-1), "The maximum of the lanes of a vector.", 4, reduces=True),
    Intrinsic("reduce_min", 1, lambda v: np.minimum.reduce(v, axis=-1), "The minimum of the lanes of a vector.", 4, reduces=True),
    Intrinsic("prefetch", 1, lambda x: None, "Fetch the address of the load x into the caches.", 0, effect=True),
    Intrinsic("prefetch_l2", 1, lambda x: None, "Fetch the address of the load x into the second-level cache only.", 0, effect=True),
    Intrinsic(
        "barrier",
        0,
        lambda: None,
        "Synchronize all threads of a thread block, and make their writes visible to each other.",
        0,
        effect=True,
    ),
    Intrinsic(
        "vpdpbusd",
        3,
        _vpdpbusd,
        "x plus the sum of four products of y (uint8) and z (int8), in each lane of 32 bits; overflow wraps around.",
        8,
        operands=(("int32", 1), ("uint8", 4), ("int8", 4)),
    ),
    Intrinsic(
        "vdpbf16ps",
        3,
        _vdpbf16ps,
        "x plus two products of y and z (bfloat16) in each lane, that of the odd elements first, each rounded once; denormals are zero.",
        4,
        operands=(("float32", 1), ("bfloat16", 2), ("bfloat16", 2)),
    ),
    Intrinsic("concat16", 16, lambda *rows: np.concatenate(rows), "The lanes of 16 vectors, one after another.", 0, concatenates=True),
    Intrinsic(
        "tdpbf16ps",
        3,
        tile_product_bfloat16,
        "x plus the product of the tiles y (16 x 16 pairs) and z (16 pairs x 16) of bfloat16: the sum of two chains of fused "
        "multiply-adds, over even and odd elements, is added to x; denormals are zero.",
        4 * 16,
        operands=(("float32", 1), ("bfloat16", 2), ("bfloat16", 2)),
    ),
    *[
        Intrinsic(
            name,
            3,
            tile_product_bytes,
            f"x plus the product of the tiles y ({left}, 16 x 16 groups of four) and z ({right}, 16 groups x 16); overflow wraps around.",
            8 * 16,
            operands=(("int32", 1), (left, 4), (right, 4)),
        )
        for name, left, right in BYTE_PRODUCTS
    ],
    *[
        Intrinsic(f"shuffle_xor_{n}", 1, lambda x: x, f"The value of x in the thread with this thread's number ^ {n}.", shuffle=n)
        for n in (1, 2, 4, 8, 16)
    ],
)
TILE_PRODUCTS = ("tdpbf16ps", *[name for name, _, _ in BYTE_PRODUCTS])
"""The products of tiles of AMX."""
PREFETCHES = ("prefetch", "prefetch_l2")
_OF_FLOATS = frozenset(
    [i.name for i in _ALL if i.expanded] + ["sqrt", "floor", "ceil", "trunc", "round", "copysign", "isnan", "fma", "ldexp"]
)
_OF_NUMBERS = frozenset({"abs", *[i.name for i in _ALL if i.reduces]})
INTRINSICS: dict[str, Intrinsic] = {i.name: i for i in _ALL}
"""All intrinsics by name.  A shuffle must be executed by all threads of a warp together."""


def refused_operand(name: str, dtype: str) -> str:
    """Why an intrinsic does not take operands of this type, or an empty text."""
    element = dt.element(dtype)
    if name in _OF_FLOATS and not dt.is_float(element):
        return f"takes floats, got {dtype}; cast the operand, for example to float32"
    if name in _OF_NUMBERS and element == "bool":
        return f"takes numbers, got {dtype}; cast the operand to an integer type"
    return ""


def intrinsic(name: str) -> Intrinsic:
    """The intrinsic `name`; ScriptError with the known names if there is none."""
    if name not in INTRINSICS:
        raise ScriptError(f"unknown intrinsic {name!r}; known are {', '.join(sorted(INTRINSICS))}")
    return INTRINSICS[name]
