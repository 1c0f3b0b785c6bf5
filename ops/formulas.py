"""Build scalar expressions of functions that are not intrinsics: remainders, powers, log1p, expm1, sine.

An expression is expanded as a tree at each use, and several passes traverse it.  So each has at most a few hundred nodes, and calls
functions that lowering expands (exp2, log2, tanh) as few times as possible.
"""

from __future__ import annotations

import math

from tunesmith.ir.expr import Binary, Expr, Not, call, cast, compare, const, equal, maximum, minimum, select
from tunesmith.ops.unary import magnitude
from tunesmith.support import dtype as dt

_INV_PI = 1 / math.pi
_LARGE = 1e20
"""For larger x, 1 + x equals x in every float type."""
_PI_PARTS = (math.pi, 1.2246467991473532e-16, -2.9947698097183397e-33)
"""Parts of pi, which is their sum."""
_SIN_TERMS = 11
"""Number of terms of the sine series: the next one is 1e-18 at pi / 2."""
_POWER_BITS = 6
"""Exponents below 2**6 are computed by multiplication; only 0, 1 and -1 have larger integer powers that fit in 64 bits."""


def both(a: Expr, b: Expr) -> Expr:
    """a and b."""
    return Binary("and", a, b)


def either(a: Expr, b: Expr) -> Expr:
    """a or b."""
    return Binary("or", a, b)


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; NaN for NaN."""
    if dt.is_unsigned(x.dtype):
        return minimum(x, 1)
    return select(x > 0, 1, select(x < 0, -1, x))


def log1p(x: Expr) -> Expr:
    """log(1 + x), accurate also if 1 + x is rounded to 1 or close to 1."""
    return select(x > _LARGE, call("log", x), log1p_above(x))


def log1p_above(x: Expr) -> Expr:
    """log(1 + x) for 0 <= x < infinity, by Kahan's quotient (HP-15C handbook)."""
    u = x + 1.0
    return select(equal(u, 1.0), x, call("log", u) * x / (u - 1.0))


def expm1(x: Expr) -> Expr:
    """e**x - 1, accurate near 0."""
    return select(x > 0.5, call("exp", x) - 1.0, expm1_below(x))


def expm1_below(x: Expr) -> Expr:
    """e**x - 1 for small or negative x as 2t / (1 - t), t = tanh(x / 2)."""
    t = call("tanh", x * 0.5)
    return (t + t) / (1.0 - t)


def softplus(x: Expr) -> Expr:
    """log(1 + e**x) without overflow and without premature underflow."""
    return maximum(x, 0.0) + log1p_above(call("exp", -call("abs", x)))


def sine(x: Expr) -> Expr:
    """sin x; lowering has no float64 implementation, so `_sine` is used for float64."""
    return _sine(x, 0.0) if x.dtype == "float64" else call("sin", x)


def cosine(x: Expr) -> Expr:
    """cos x; see `sine`."""
    return _sine(x, 0.5) if x.dtype == "float64" else call("cos", x)


def _sine(x: Expr, turn: float) -> Expr:
    """sin(x + turn * pi) in float64 for |x| < 2**50, NaN beyond.

    Cody and Waite's reduction x = h pi + r with h a multiple of 1/2: the first fma is exact, because no bit of x or of the product is
    below the last bit of r, and the others round numbers of the magnitude of r.
    """
    k = call("round", x * _INV_PI + turn)
    h = k - turn if turn else k
    r = select(call("abs", x) < 2.0**50, x, math.nan)
    for part in _PI_PARTS:
        r = call("fma", h, const(-part, x.dtype), r)
    square, series = r * r, const((-1.0) ** (_SIN_TERMS - 1) / math.factorial(2 * _SIN_TERMS - 1), x.dtype)
    out: Expr = series
    for n in reversed(range(_SIN_TERMS - 1)):
        out = call("fma", out, square, const((-1.0) ** n / math.factorial(2 * n + 1), x.dtype))
    odd = k - call("floor", k * 0.5) * 2.0
    return out * r * (1.0 - odd * 2.0)


# ---- quotients and remainders ------------------------------------------------------------------------------------------


def _divisor(b: Expr) -> Expr:
    """An integer divisor with 0 and -1 replaced by 1: division by 0 traps, and so does the minimum integer divided by -1."""
    bad = equal(b, 0) if dt.is_unsigned(b.dtype) else either(equal(b, 0), equal(b, -1))
    return select(bad, 1, b)


def _corrected(a: Expr, b: Expr, quotient: Expr) -> Expr:
    """Correct a quotient by `_divisor` for the divisors 0, which gives 0 as in numpy, and -1, which gives -a."""
    by_minus_one = quotient if dt.is_unsigned(b.dtype) else select(equal(b, -1), -a, quotient)
    return select(equal(b, 0), 0, by_minus_one)


def _differ(a: Expr, b: Expr) -> Expr:
    """Whether exactly one of a and b is negative."""
    return compare("ne", a < 0, b < 0)


def divide(a: Expr, b: Expr) -> Expr:
    """a / b; integers are rounded towards zero, division by zero gives 0."""
    if dt.is_float(a.dtype):
        return a / b
    d = _divisor(b)
    if dt.is_unsigned(a.dtype):
        return _corrected(a, b, a // d)
    inexact = both(compare("ne", a % d, 0), _differ(a, b))
    return _corrected(a, b, a // d + cast(a.dtype, inexact))


def floor_divide(a: Expr, b: Expr) -> Expr:
    """The quotient that corresponds to `mod`; integer division by zero gives 0."""
    return a // b if dt.is_float(a.dtype) else _corrected(a, b, a // _divisor(b))


def mod(a: Expr, b: Expr) -> Expr:
    """The remainder with the sign of b, as in Python; NaN for quotients of at least 2**52, 0 for an integer divisor of zero."""
    return a % b if dt.is_float(a.dtype) else a % _divisor(b)


def fmod(a: Expr, b: Expr) -> Expr:
    """The remainder with the sign of a, as in C; NaN for quotients of at least 2**52, 0 for an integer divisor of zero."""
    if dt.is_unsigned(a.dtype):
        return mod(a, b)
    if not dt.is_float(a.dtype):
        d = _divisor(b)
        return select(both(compare("ne", a % d, 0), _differ(a, b)), a % d - d, a % d)
    x, y = cast("float64", a), cast("float64", b)
    q = call("trunc", x / y)
    # Exact for |q| < 2**52, where rounding makes q at most one too large.  The select avoids 0 times an infinite divisor, which is NaN.
    r = select(equal(q, 0.0), x, call("fma", q, -y, x))
    moved = select(both(compare("ne", r, 0.0), _differ(r, x)), r + call("copysign", y, x), r)
    signed = call("copysign", moved, x)  # also for a zero remainder
    return cast(a.dtype, select(call("abs", q) < 2.0**52, signed, math.nan))


# ---- powers ------------------------------------------------------------------------------------------------------------


def power(x: Expr, y: Expr) -> Expr:
    """x**y: C99 for floats; integers wrap, and a negative power is 1 / x**-y rounded towards zero, and 0 for x = 0."""
    if x.dtype == "float64":
        return _float64_power(x, y)
    return Binary("pow", x, y) if dt.is_float(x.dtype) else _integer_power(x, y)


def _multiplied(x: Expr, n: Expr) -> Expr:
    """x**n for an integer 0 <= n < 2**_POWER_BITS, by repeated squaring."""
    one = const(1, x.dtype)
    out: Expr | None = None
    for k in range(_POWER_BITS):
        factor = select(compare("ne", Binary("bitand", n, const(1 << k, n.dtype)), 0), x, one)
        out = factor if out is None else out * factor
        x = x * x
    assert out is not None
    return out


def _integer_power(x: Expr, y: Expr) -> Expr:
    end = 1 << _POWER_BITS
    parity = Binary("bitand", y, const(1, y.dtype))
    if dt.is_unsigned(x.dtype):
        return _multiplied(x, select(y < end, y, parity + (end - 2)))
    # For bases with a representable power beyond `end`, or a non-zero negative power, only the parity of the exponent matters.
    known = _multiplied(x, select(both(y < end, y >= 0), y, parity + (end - 2)))
    return select(both(y < 0, compare("ne", magnitude(x), 1)), 0, known)


def _float64_power(x: Expr, y: Expr) -> Expr:
    """x**y in float64.

    Integer exponents below 64 are computed by multiplication: exact if the result is an integer below 2**53, else with an error of at most
    one ulp for each factor.  Others are computed as 2**(y log2 |x|), with a relative error of |y log2 x| * 2**-52, at most 3e-13.
    """
    whole = equal(call("trunc", y), y)
    few = both(call("abs", y) < float(1 << _POWER_BITS), whole)
    product = _multiplied(x, cast("int64", select(few, call("abs", y), 0.0)))
    # With 2**80 instead of infinity, 1**y is defined; any other base still over- or underflows.
    exponent = minimum(maximum(y, -(2.0**80)), 2.0**80)
    size = call("exp2", call("log2", call("abs", x)) * exponent)
    half = y * 0.5
    odd = both(whole, compare("ne", call("trunc", half), half))
    invalid = both(Not(whole), both(x < 0.0, x > -math.inf))
    other = select(equal(x, 1.0), 1.0, select(invalid, math.nan, select(odd, call("copysign", size, x), size)))
    return select(few, select(y < 0.0, 1.0 / product, product), other)
