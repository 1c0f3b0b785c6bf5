"""Divide vectors by a number that all lanes share: one scalar division, then products.

`x / b` becomes `(x * s) * (1 / (b * s))`, which costs a tenth of a vector division.  s is a power of two that keeps `1 / (b * s)` finite
and normal for every b: without it the reciprocal of a denormal number is infinite, and that of a huge one has lost digits.
"""

from __future__ import annotations

from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, Select, call, cast, const
from tunesmith.support import dtype as dt

ORDINARY = {"float32": 126, "float64": 1022}
"""Divisors of magnitude 2**-n to 2**n have a normal reciprocal."""
SCALE = {"float32": 64, "float64": 512}
"""Exponent of the factor for other divisors: any number of the type times it, or over it, is ordinary."""
_EXACT_ROOTS = ("sqrt", "rsqrt")


class UniformDivision:
    """Quotients of vectors, at most 1.5 ulp off, with zeros, infinities and NaN as IEEE 754 has them; one reciprocal for each divisor.

    float16 and bfloat16 are divided in float32, and rounded once.
    """

    def __init__(self) -> None:
        self._factors: dict[Expr, tuple[Expr | None, Expr]] = {}

    def __call__(self, x: Expr, b: Expr) -> Expr:
        """`x / b`, x a vector and b a scalar of its element type."""
        lanes = dt.lanes(x.dtype)
        if b not in self._factors:
            self._factors[b] = _factors(b)
        scale, reciprocal = self._factors[b]
        wide = cast(dt.vector(reciprocal.dtype, lanes), x)
        if scale is not None:
            wide = Binary("mul", wide, Broadcast(scale, lanes))
        return cast(x.dtype, Binary("mul", wide, Broadcast(reciprocal, lanes)))


def _factors(b: Expr) -> tuple[Expr | None, Expr]:
    """(s, 1 / (b * s)) in the type that is computed in; s is None where it is known to be 1."""
    t = "float64" if b.dtype == "float64" else "float32"
    one, wide = const(1, t), cast(t, b)
    if is_ordinary(b):
        return None, Binary("div", one, wide)
    size, n, k = call("abs", wide), ORDINARY[t], SCALE[t]
    # |b * s| < 1 where s is large, so that x * s overflows only where the quotient does; and > 1 where s is small, so that what x * s
    # loses as a denormal number only gets smaller.
    scale = Select(size < 2.0**-n, const(2.0**k, t), Select(size > 2.0**n, const(2.0**-k, t), one))
    return scale, Binary("div", one, Binary("mul", wide, scale))


def is_ordinary(b: Expr) -> bool:
    """Whether the reciprocal of `b` is known to be normal, zero, infinite or NaN, as that of the exact number is."""
    kind = type(b)
    if b.dtype == "float16":
        return True  # in float32
    n = ORDINARY["float64" if b.dtype == "float64" else "float32"]
    if kind is Const:
        v = abs(float(b.value))  # type: ignore[attr-defined]
        return not 0 < v < float("inf") or 2.0**-n <= v <= 2.0**n
    if kind is Cast:
        a: Expr = b.a  # type: ignore[attr-defined]
        return not dt.is_float(a.dtype) or a.dtype == "float16" or (b.dtype == "float64" and a.dtype != "float64")
    return kind is Call and b.name in _EXACT_ROOTS  # type: ignore[attr-defined]
