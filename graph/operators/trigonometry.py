"""Define trigonometric and hyperbolic functions, their inverses, erfc, and the length and angle of vectors (hypot, atan2).

Each is one formula in the type of the operand, accurate to a few units in the last place; 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GraphOperator
from tunesmith.graph.operators.broadcast import combined
from tunesmith.graph.operators.element_types import FLOATS, require
from tunesmith.graph.operators.elementwise import Formula, Numpy, in_single, mapped, rounded
from tunesmith.ir.expr import Expr, call, cast, const, equal, maximum, minimum, select
from tunesmith.ops.formulas import both, cosine, expm1_below, log1p, sine
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt

_P = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
_Q = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)
"""Coefficients of the rational approximation of atan in Cephes (Moshier, atan.c), from the highest power."""
_PI_LOW = 6.123233995736765886130e-17
"""pi / 2 minus its float64 value."""

_ERFC = (
    -0.67179408405669028,
    0.67264322397782839,
    0.047343306841373889,
    -0.046895610246077538,
    -0.009872689341717495,
    0.0088249389412721167,
    0.0017589330988477068,
    -0.0023458170878874829,
    -0.00014624239660269842,
    0.00067370926371055836,
    -9.3760919579091636e-05,
    -0.00017442654732945209,
    7.1496954069935015e-05,
    3.2066576542699529e-05,
    -3.0424308363430065e-05,
    -4.0742275575366087e-07,
    8.9567993300723792e-06,
    -2.3522768451735245e-06,
    -1.716162498720206e-06,
    8.5471391534036772e-07,
    1.6123857072632266e-07,
    -1.1815005742577669e-07,
    5.1093820839270327e-10,
)
"""Coefficients of log(erfc(z) exp(z**2) / t) as a polynomial of 2t - 1, with t = 2 / (2 + z), from the lowest power: the Chebyshev
interpolation of scipy's erfcx, with a relative error of erfc of 7e-14 (the form is that of Numerical Recipes, section 6.2.2)."""


def _polynomial(x: Expr, highest_first: Sequence[float]) -> Expr:
    """Horner's scheme."""
    out: Expr = const(highest_first[0], x.dtype)
    for c in highest_first[1:]:
        out = out * x + const(c, x.dtype)
    return out


def _with_sign(formula: Formula) -> Formula:
    """An odd function from its formula for non-negative numbers."""
    return lambda x: call("copysign", formula(call("abs", x)), x)


def _atan_above(x: Expr) -> Expr:
    """atan x for x >= 0, infinity included, by Cephes' two range reductions."""
    large, middle = x > math.tan(3 * math.pi / 8), x > 0.66
    reduced = select(large, -1.0 / maximum(x, 1.0), select(middle, (x - 1.0) / (x + 1.0), x))
    square = reduced * reduced
    series = reduced * (square * _polynomial(square, _P) / _polynomial(square, _Q)) + reduced
    start = select(large, math.pi / 2, select(middle, math.pi / 4, const(0.0, x.dtype)))
    low = select(large, _PI_LOW, select(middle, _PI_LOW / 2, const(0.0, x.dtype)))
    return start + (series + low)


def asin(x: Expr) -> Expr:
    """The inverse of sin."""
    return call("copysign", _atan_above(call("abs", x) / call("sqrt", (1.0 - x) * (x + 1.0))), x)


def acos(x: Expr) -> Expr:
    """2 atan sqrt((1 - x) / (1 + x)); the root is infinite for -1."""
    return _atan_above(call("sqrt", (1.0 - x) / (x + 1.0))) * 2.0


def _sinh_above(x: Expr) -> Expr:
    """(m + m / (m + 1)) / 2 with m = expm1 x for small x, else (e**x - e**-x) / 2, without the overflow of e**x."""
    m = expm1_below(minimum(x, 1.0))
    root = call("exp", x * 0.5)
    return select(x < 1.0, (m + m / (m + 1.0)) * 0.5, root * 0.5 * root - 0.5 / root / root)


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine."""
    root = call("exp", call("abs", x) * 0.5)
    return root * 0.5 * root + 0.5 / root / root


_LARGE = 1e8
"""From here x**2 + 1 equals x**2 in float64; below it x**2 is finite in float32."""


def _asinh_above(x: Expr) -> Expr:
    small = minimum(x, _LARGE)
    square = small * small
    near = log1p(small + square / (call("sqrt", square + 1.0) + 1.0))
    return select(x > _LARGE, call("log", x) + math.log(2), near)


def acosh(x: Expr) -> Expr:
    """The non-negative inverse of cosh."""
    y = minimum(x, _LARGE) - 1.0
    return select(x > _LARGE, call("log", x) + math.log(2), log1p(y + call("sqrt", y * (y + 2.0))))


def _atanh_above(x: Expr) -> Expr:
    return log1p((x + x) / (1.0 - x)) * 0.5


def _erfc(x: Expr) -> Expr:
    z = call("abs", x)
    t = 2.0 / (z + 2.0)
    above = t * call("exp", _polynomial(t * 2.0 - 1.0, _ERFC[::-1]) - z * z)
    return select(x < 0.0, 2.0 - above, above)


def tan(x: Expr) -> Expr:
    """The tangent of an angle in radians."""
    return sine(x) / cosine(x)


asinh, atan, atanh, sinh = [_with_sign(formula) for formula in (_asinh_above, _atan_above, _atanh_above, _sinh_above)]


def _np_erfc(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erfc, otypes=[np.float64])(x) if x.size else x


_TABLE: dict[str, tuple[Formula, Numpy, str]] = {
    "acos": (acos, np.arccos, "The inverse of cos, from 0 to pi; NaN beyond -1 and 1."),
    "acosh": (acosh, np.arccosh, "The non-negative inverse of cosh; NaN below 1."),
    "asin": (asin, np.arcsin, "The inverse of sin, from -pi / 2 to pi / 2; NaN beyond -1 and 1."),
    "asinh": (asinh, np.arcsinh, "The inverse of sinh."),
    "atan": (atan, np.arctan, "The inverse of tan, from -pi / 2 to pi / 2."),
    "atanh": (atanh, np.arctanh, "The inverse of tanh; NaN beyond -1 and 1."),
    "cosh": (cosh, np.cosh, "The hyperbolic cosine."),
    "erfc": (_erfc, _np_erfc, "1 - erf(x), accurate also where erf(x) is close to 1."),
    "sinh": (sinh, np.sinh, "The hyperbolic sine."),
    "tan": (tan, np.tan, "The tangent of an angle in radians."),
}


def _operator(name: str) -> GraphOperator:
    formula, numpy, meaning = _TABLE[name]

    def compute(x: Tensor) -> Tensor:
        require(FLOATS, x)
        return mapped(x, in_single(formula))

    return GraphOperator(name, ELEMENTWISE, compute, lambda x: rounded(numpy, x), meaning=meaning)


ACOS, ACOSH, ASIN, ASINH, ATAN, ATANH = [_operator(n) for n in ("acos", "acosh", "asin", "asinh", "atan", "atanh")]
COSH, ERFC, SINH, TAN = [_operator(n) for n in ("cosh", "erfc", "sinh", "tan")]


# ---- two operands ------------------------------------------------------------------------------------------------------


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle from the quotient of magnitudes, where 0 / 0 counts as 0 and infinity / infinity as 1."""
    up, right = call("abs", y), call("abs", x)
    same = both(equal(up, right), equal(right, math.inf))
    steep = select(equal(up, 0.0), select(equal(right, 0.0), 0.0, up / right), select(same, 1.0, up / right))
    angle = _atan_above(steep)
    left = call("copysign", const(1.0, x.dtype), x) < 0.0
    return call("copysign", select(left, math.pi - angle, angle), y)


def hypot(x: Expr, y: Expr) -> Expr:
    """Scaled by the larger magnitude, so that no square overflows."""
    a, b = call("abs", x), call("abs", y)
    most, least = maximum(a, b), minimum(a, b)
    ratio = least / select(equal(most, 0.0), 1.0, most)
    return select(equal(a, math.inf), a, select(equal(b, math.inf), b, most * call("sqrt", ratio * ratio + 1.0)))


def _of_two(name: str, formula: Callable[[Expr, Expr], Expr], numpy: Callable[..., Any], meaning: str) -> GraphOperator:
    def single(a: Expr, b: Expr) -> Expr:
        if dt.bits(a.dtype) != 16:
            return formula(a, b)
        return cast(a.dtype, formula(cast("float32", a), cast("float32", b)))

    def compute(a: Tensor, b: Tensor) -> Tensor:
        require(FLOATS, a, b)
        return combined(single, a, b)

    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(numpy(a.astype(np.float64), b.astype(np.float64))).astype(a.dtype)

    return GraphOperator(name, BROADCAST, compute, reference, meaning=meaning)


ATAN2 = _of_two("atan2", atan2, np.arctan2, "The angle of the vector (b, a) to the positive b axis, from -pi to pi; C99 atan2(a, b).")
COPYSIGN = _of_two("copysign", lambda a, b: call("copysign", a, b), np.copysign, "The magnitude of a with the sign of b.")
HYPOT = _of_two("hypot", hypot, np.hypot, "sqrt(a * a + b * b) without overflow of the squares; C99 hypot.")
