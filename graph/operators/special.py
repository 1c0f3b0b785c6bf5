"""Define functions related to the gamma function, computed in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable

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


def _operator(name: str, formula: Formula, number: Callable[[float], float], meaning: str) -> GraphOperator:
    def compute(x: Tensor) -> Tensor:
        require(FLOATS, x)
        return mapped(x, lambda e: cast(e.dtype, formula(cast("float64", e))))

    return GraphOperator(name, ELEMENTWISE, compute, lambda x: rounded(_one(number), x), meaning=meaning)


LGAMMA = _operator("lgamma", _lgamma, _number_lgamma, "The logarithm of the magnitude of the gamma function; infinity at its poles.")
DIGAMMA = _operator("digamma", _digamma, _number_digamma, "The derivative of lgamma; NaN at negative integers.")
