"""Define functions related to the gamma function, and the inverse of erf, computed in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from tunesmith.graph.ir.operator import ELEMENTWISE, GraphOperator
from tunesmith.graph.operators.element_types import FLOATS, require
from tunesmith.graph.operators.elementwise import Formula, mapped, rounded
from tunesmith.ir.expr import Expr, call, cast, const, equal, select
from tunesmith.ops.formulas import both, cosine, sine
from tunesmith.ops.tensor_expression import Tensor

_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
"""Lanczos' coefficients for g = 7 (Godfrey, 2001)."""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""B(2n) / 2n, the coefficients of the asymptotic series of digamma."""
_SHIFT = 8
"""The series is used from here on; the next term is below 2e-15."""

_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457)
    + (13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867)
    + (5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)
_MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.241780725177450611770, 1.27045825245236838258)
    + (3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 0.0151986665636164571966, 0.148103976427480074590)
    + (0.689767334985100004550, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)
_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.00124266094738807843860, 0.0265321895265761230930)
    + (0.296560571828504891230, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4)
    + (0.0148753612908506148525, 0.136929880922735805310, 0.599832206555887937690, 1.0),
)
"""Numerators and denominators of the quantile of the normal distribution, highest power first (Wichura, 1988: AS 241)."""


def _ratio(x: Expr, coefficients: tuple[Sequence[float], Sequence[float]]) -> Expr:
    """A quotient of polynomials."""
    parts: list[Expr] = []
    for highest_first in coefficients:
        out: Expr = const(highest_first[0], x.dtype)
        for c in highest_first[1:]:
            out = out * x + const(c, x.dtype)
        parts.append(out)
    return parts[0] / parts[1]


def _erfinv(y: Expr) -> Expr:
    """The quantile of the normal distribution at (1 + y) / 2, over sqrt(2); infinite at -1 and 1, NaN beyond."""
    most = call("abs", y)
    centre = y * 0.5 * _ratio(0.180625 - y * y * 0.25, _CENTRE)
    r = call("sqrt", -call("log", (1.0 - most) * 0.5))
    outside = call("copysign", select(r <= 5.0, _ratio(r - 1.6, _MIDDLE), _ratio(r - 5.0, _TAIL)), y)
    made = select(most <= 0.85, centre, outside) * math.sqrt(0.5)
    return select(equal(most, 1.0), y * math.inf, made)


def _fraction(x: Expr) -> Expr:
    """The fraction of x, at which sin(pi x) has an exact zero."""
    return x - call("floor", x)


def _lgamma(x: Expr) -> Expr:
    """Lanczos' approximation for y >= 1/2, and Euler's reflection."""
    low = x < 0.5
    y = select(low, -x, x - 1.0)
    series: Expr = const(_LANCZOS[0], x.dtype)
    for i, c in enumerate(_LANCZOS[1:], 1):
        series = series + c / (y + float(i))
    t = y + 7.5
    above = call("log", series) + (y + 0.5) * call("log", t) + (0.5 * math.log(2 * math.pi) - t)
    below = call("log", math.pi / call("abs", sine(_fraction(x) * math.pi))) - above
    return select(equal(call("abs", x), math.inf), math.inf, select(low, below, above))


def _digamma(x: Expr) -> Expr:
    """The recurrence up to the asymptotic series for y > 0, and the reflection; NaN at negative integers, as in torch."""
    low = x < 0.0
    y = select(low, 1.0 - x, x)
    z = y + float(_SHIFT)
    power = 1.0 / (z * z)
    series: Expr = const(_BERNOULLI[-1], x.dtype)
    for c in reversed(_BERNOULLI[:-1]):
        series = series * power + c
    made = call("log", z) - 0.5 / z - series * power
    for k in range(_SHIFT):
        made = made - 1.0 / (y + float(k))
    angle = _fraction(x) * math.pi
    whole = both(low, equal(angle, 0.0))
    reflected = select(whole, math.nan, made - math.pi * cosine(angle) / sine(angle))
    at_zero = call("copysign", const(math.inf, x.dtype), x * -1.0)
    return select(equal(x, 0.0), at_zero, select(low, reflected, made))


def _one(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.vectorize(function, otypes=[np.float64])(x) if x.size else x


def _number_lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except ValueError:  # a pole
        return math.inf


def _number_digamma(x: float) -> float:
    """A sum of 30 terms, then the series, which is exact to the last digit there."""
    if math.isnan(x) or x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        part = x - math.floor(x)
        return _number_digamma(1 - x) - math.pi / math.tan(math.pi * part) if part else math.nan
    z = x + 30
    series = sum(c / z ** (2 * n) for n, c in enumerate(_BERNOULLI, 1))
    return math.log(z) - 0.5 / z - series - math.fsum(1 / (x + k) for k in range(30))


def _number_erfinv(y: float) -> float:
    """Newton's method from the quantile of the standard library, with erfc near 1."""
    if not abs(y) < 1.0 or y == 0.0:
        return y * math.inf if abs(y) == 1.0 else y if y == 0.0 else math.nan
    rest = 1.0 - abs(y)
    x = -NormalDist().inv_cdf(rest / 2) * math.sqrt(0.5) if rest < 1.0 else 0.0
    for _ in range(3):
        wrong = math.erf(x) - abs(y) if abs(y) < 0.5 else rest - math.erfc(x)
        x -= wrong * math.exp(x * x) * math.sqrt(math.pi) / 2
    return math.copysign(x, y)


def _operator(name: str, formula: Formula, number: Callable[[float], float], meaning: str) -> GraphOperator:
    def compute(x: Tensor) -> Tensor:
        require(FLOATS, x)
        return mapped(x, lambda e: cast(e.dtype, formula(cast("float64", e))))

    return GraphOperator(name, ELEMENTWISE, compute, lambda x: rounded(_one(number), x), meaning=meaning)


LGAMMA = _operator("lgamma", _lgamma, _number_lgamma, "The logarithm of the magnitude of the gamma function; infinity at its poles.")
DIGAMMA = _operator("digamma", _digamma, _number_digamma, "The derivative of lgamma; NaN at negative integers.")
ERFINV = _operator("erfinv", _erfinv, _number_erfinv, "The inverse of erf: infinite at -1 and 1, NaN beyond.")
