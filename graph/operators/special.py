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
    (
        2509.0809287301227,
        33430.57558358813,
        67265.7709270087,
        45921.95393154987,
        13731.69376550946,
        1971.5909503065513,
        133.14166789178438,
        3.3871328727963665,
    ),
    (
        5226.495278852854,
        28729.085735721943,
        39307.89580009271,
        21213.794301586597,
        5394.196021424751,
        687.1870074920579,
        42.31333070160091,
        1.0,
    ),
)
_MIDDLE = (
    (
        0.0007745450142783414,
        0.022723844989269184,
        0.2417807251774506,
        1.2704582524523684,
        3.6478483247632045,
        5.769497221460691,
        4.630337846156546,
        1.4234371107496835,
    ),
    (
        1.0507500716444169e-09,
        0.0005475938084995345,
        0.015198666563616457,
        0.14810397642748008,
        0.6897673349851,
        1.6763848301838038,
        2.053191626637759,
        1.0,
    ),
)
_TAIL = (
    (
        2.0103343992922881e-07,
        2.7115555687434876e-05,
        0.0012426609473880784,
        0.026532189526576124,
        0.29656057182850487,
        1.7848265399172913,
        5.463784911164114,
        6.657904643501103,
    ),
    (
        2.0442631033899397e-15,
        1.421511758316446e-07,
        1.8463183175100548e-05,
        0.0007868691311456133,
        0.014875361290850615,
        0.1369298809227358,
        0.599832206555888,
        1.0,
    ),
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
