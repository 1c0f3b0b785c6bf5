"""Define unary elementwise operators, most of them by tables of formulas and numpy references.

Formulas and references of `ops.unary` are used where there are any.  The operators differ from those of `ops/` in their types: some accept
integers, and formulas of several operations are computed in float32 for 16-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import ELEMENTWISE, GraphOperator
from tunesmith.graph.operators.element_types import ALL, BOOLS, FLOATS, NUMBERS, int_range, literal, require, scalar_type
from tunesmith.ir.expr import Expr, Not, call, cast, maximum, minimum, select
from tunesmith.ir.interpreter.memory import round_bfloat16
from tunesmith.ops import formulas
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.ops.unary import UNARY
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

Formula = Callable[[Expr], Expr]
Numpy = Callable[[np.ndarray], Any]


def mapped(x: Tensor, formula: Formula) -> Tensor:
    """The stage that applies a formula to every element."""
    return te.compute(x.shape, lambda *index: formula(x[index]), "Y")


def in_single(formula: Formula) -> Formula:
    """A formula of several operations that is computed in float32 and rounded once for 16-bit floats."""
    return lambda x: cast(x.dtype, formula(cast("float32", x))) if dt.bits(x.dtype) == 16 else formula(x)


def rounded(numpy: Numpy, x: np.ndarray) -> np.ndarray:
    """A function of floats, computed in float64 and rounded once."""
    with np.errstate(all="ignore"):
        return np.asarray(numpy(x.astype(np.float64))).astype(x.dtype)


def _whole(name: str) -> Formula:
    """A rounding function; integers are unchanged."""
    return lambda x: call(name, x) if dt.is_float(x.dtype) else x


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, x))


def _tanh_gelu(x: Expr) -> Expr:
    """The approximation with tanh (Hendrycks and Gimpel, 2016)."""
    return x * 0.5 * (call("tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)


def _np_tanh_gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * 0.5 * (np.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0))


_ROUNDED: dict[str, tuple[Formula, Numpy]] = {
    **{name: UNARY[name] for name in ("erf", "exp", "log", "rsqrt", "sigmoid", "sqrt", "tanh")},
    "cos": (formulas.cosine, np.cos),
    "exp2": (lambda x: call("exp2", x), np.exp2),
    "expm1": (in_single(formulas.expm1), np.expm1),
    "log1p": (in_single(formulas.log1p), np.log1p),
    "log2": (lambda x: call("log2", x), np.log2),
    "reciprocal": (lambda x: 1.0 / x, np.reciprocal),
    "silu": (in_single(lambda x: x * call("sigmoid", x)), lambda x: x * UNARY["sigmoid"][1](x)),
    "sin": (formulas.sine, np.sin),
    "softplus": (in_single(formulas.softplus), _softplus),
}
"""Functions of floats: formula, and numpy reference in float64."""

_EXACT: dict[str, tuple[str, Formula, Numpy]] = {
    "abs": (NUMBERS, *UNARY["abs"]),
    "ceil": (NUMBERS, _whole("ceil"), np.ceil),
    "floor": (NUMBERS, _whole("floor"), np.floor),
    "identity": (ALL, lambda x: x, np.array),
    "isnan": (FLOATS, lambda x: call("isnan", x, dtype="bool"), np.isnan),
    "logical_not": (BOOLS, Not, np.logical_not),
    "neg": (NUMBERS, *UNARY["neg"]),
    "relu": (NUMBERS, *UNARY["relu"]),
    "round": (NUMBERS, _whole("round"), np.rint),
    "sign": (NUMBERS, formulas.sign, np.sign),
    "square": (NUMBERS, lambda x: x * x, np.square),
    "trunc": (NUMBERS, _whole("trunc"), np.trunc),
}
"""Functions with at most one rounding: accepted types, formula, and numpy reference."""


def _operator(name: str, meaning: str, view: bool = False) -> GraphOperator:
    """The operator for an entry of the tables."""
    if name in _ROUNDED:
        takes, (formula, numpy) = FLOATS, _ROUNDED[name]
    else:
        takes, formula, numpy = _EXACT[name]

    def compute(x: Tensor) -> Tensor:
        require(takes, x)
        return mapped(x, formula)

    def reference(x: np.ndarray) -> np.ndarray:
        if name in _ROUNDED:
            return rounded(numpy, x)
        if name in ("ceil", "floor", "round", "trunc") and x.dtype.kind != "f":
            return x  # numpy would convert integers to floats
        with np.errstate(all="ignore"):
            return np.asarray(numpy(x))

    return GraphOperator(name, ELEMENTWISE, compute, reference, view, meaning=meaning)


ABS = _operator("abs", "The absolute value.")
CEIL = _operator("ceil", "The least integer that is at least x; integers are unchanged.")
COS = _operator("cos", "The cosine of an angle in radians.")
ERF = _operator("erf", "The error function.")
EXP = _operator("exp", "e to the power of x.")
EXP2 = _operator("exp2", "2 to the power of x.")
EXPM1 = _operator("expm1", "exp(x) - 1, accurate for small x.")
FLOOR = _operator("floor", "The greatest integer that is at most x; integers are unchanged.")
ISNAN = _operator("isnan", "Whether x is NaN, as a bool.")
LOG = _operator("log", "The natural logarithm.")
LOG1P = _operator("log1p", "log(1 + x), accurate for small x.")
LOG2 = _operator("log2", "The logarithm to base 2.")
LOGICAL_NOT = _operator("logical_not", "Whether a bool is false.")
NEG = _operator("neg", "-x.")
RECIPROCAL = _operator("reciprocal", "1 / x.")
RELU = _operator("relu", "max(x, 0).")
ROUND = _operator("round", "The nearest integer, a half to the even one; integers are unchanged.")
RSQRT = _operator("rsqrt", "1 / sqrt(x).")
SIGMOID = _operator("sigmoid", "1 / (1 + exp(-x)).")
SIGN = _operator("sign", "-1, 0 or 1, with the sign of x.")
SILU = _operator("silu", "x * sigmoid(x).")
SIN = _operator("sin", "The sine of an angle in radians.")
SOFTPLUS = _operator("softplus", "log(1 + exp(x)).")
SQRT = _operator("sqrt", "The square root.")
SQUARE = _operator("square", "x * x.")
TANH = _operator("tanh", "The hyperbolic tangent.")
TRUNC = _operator("trunc", "x without its fraction; integers are unchanged.")
IDENTITY = _operator("identity", "x itself.", view=True)


# ---- with attributes ---------------------------------------------------------------------------------------------------


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    require(FLOATS, x)
    if approximate not in ("none", "tanh"):
        raise ScriptError(f'approximate must be "none" or "tanh", got {approximate!r}')
    return mapped(x, in_single(_tanh_gelu if approximate == "tanh" else UNARY["gelu"][0]))


def _np_gelu(x: np.ndarray, *, approximate: str = "none") -> np.ndarray:
    return rounded(_np_tanh_gelu if approximate == "tanh" else UNARY["gelu"][1], x)


def _limit(value: Any, dtype: str, what: str) -> Any:
    """A bound of `clip` as a value of the type, clamped to the range of an integer type; None if there is no bound."""
    if value is None or not isinstance(value, (int, float)):
        return value
    if not dt.is_int(dtype):
        with np.errstate(over="ignore"):
            return float(dt.to_numpy(dtype).type(value))
    if math.isnan(value):
        raise ScriptError(f"{what} is {value}, which is not representable in {dtype}")
    low, high = int_range(dtype)
    return min(max(value, low), high)


def _clip(x: Tensor, *, min: Any = None, max: Any = None) -> Tensor:
    require(NUMBERS, x)
    low, high = [_limit(v, x.dtype, what) for v, what in ((min, "min"), (max, "max"))]

    def formula(e: Expr) -> Expr:
        e = e if low is None else maximum(e, literal(low, x.dtype, "min"))
        return e if high is None else minimum(e, literal(high, x.dtype, "max"))

    return mapped(x, formula)


def _np_clip(x: np.ndarray, *, min: Any = None, max: Any = None) -> np.ndarray:
    dtype = dt.from_numpy(x.dtype)
    low, high = [_limit(v, dtype, what) for v, what in ((min, "min"), (max, "max"))]
    x = x if low is None else np.asarray(np.maximum(x, x.dtype.type(low)))
    return x if high is None else np.asarray(np.minimum(x, x.dtype.type(high)))


def _leaky_relu(x: Tensor, *, slope: float) -> Tensor:
    require(FLOATS, x)
    return mapped(x, in_single(lambda e: select(e < 0.0, e * literal(slope, e.dtype, "slope"), e)))


def _np_leaky_relu(x: np.ndarray, *, slope: float) -> np.ndarray:
    return rounded(lambda e: np.where(e < 0, e * slope, e), x)


def _elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _selu(x, alpha=alpha, gamma=1.0)


def _np_elu(x: np.ndarray, *, alpha: float = 1.0) -> np.ndarray:
    return _np_selu(x, alpha=alpha, gamma=1.0)


_SELU_ALPHA, _SELU_GAMMA = 1.6732632423543772, 1.0507009873554805
"""Constants for which mean 0 and variance 1 are a fixed point (Klambauer et al., Self-Normalizing Neural Networks, 2017)."""


def _selu(x: Tensor, *, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> Tensor:
    require(FLOATS, x)

    def formula(e: Expr) -> Expr:
        low, high = literal(alpha, e.dtype, "alpha"), literal(gamma, e.dtype, "gamma")
        made = select(e < 0.0, formulas.expm1_below(e) * low, e)
        return made if gamma == 1 else made * high

    return mapped(x, in_single(formula))


def _np_selu(x: np.ndarray, *, alpha: float = _SELU_ALPHA, gamma: float = _SELU_GAMMA) -> np.ndarray:
    return rounded(lambda e: np.where(e < 0, np.expm1(e) * alpha, e) * gamma, x)


def _hard(x: Expr, alpha: float, beta: float) -> Expr:
    scaled = x * literal(alpha, x.dtype, "alpha") + literal(beta, x.dtype, "beta")
    return minimum(maximum(scaled, 0.0), 1.0)


def _hard_sigmoid(x: Tensor, *, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
    require(FLOATS, x)
    return mapped(x, in_single(lambda e: _hard(e, alpha, beta)))


def _np_hard_sigmoid(x: np.ndarray, *, alpha: float = 1 / 6, beta: float = 0.5) -> np.ndarray:
    return rounded(lambda e: np.clip(e * alpha + beta, 0.0, 1.0), x)


def _hard_swish(x: Tensor) -> Tensor:
    require(FLOATS, x)
    return mapped(x, in_single(lambda e: e * _hard(e, 1 / 6, 0.5)))


def _np_hard_swish(x: np.ndarray) -> np.ndarray:
    return rounded(lambda e: e * np.clip(e / 6 + 0.5, 0.0, 1.0), x)


def _cast(x: Tensor, *, dtype: str) -> Tensor:
    kind = scalar_type(dtype)
    return mapped(x, lambda e: cast(kind, e))


def _np_cast(x: np.ndarray, *, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        made = x.astype(dt.to_numpy(dtype))
    return np.asarray(round_bfloat16(made)) if dtype == "bfloat16" else made


GELU = GraphOperator(
    "gelu",
    ELEMENTWISE,
    _gelu,
    _np_gelu,
    meaning='x * P(X <= x) for a standard normal X (Hendrycks and Gimpel, 2016), or its approximation by tanh if `approximate` is "tanh".',
)
CLIP = GraphOperator("clip", ELEMENTWISE, _clip, _np_clip, meaning="min(max(x, min), max); a bound that is None does not apply.")
LEAKY_RELU = GraphOperator("leaky_relu", ELEMENTWISE, _leaky_relu, _np_leaky_relu, meaning="x if it is not negative, otherwise x * slope.")
ELU = GraphOperator(
    "elu", ELEMENTWISE, _elu, _np_elu, meaning="x if it is not negative, otherwise alpha * (exp(x) - 1) (Clevert et al., 2016)."
)
SELU = GraphOperator(
    "selu", ELEMENTWISE, _selu, _np_selu, meaning="gamma * elu(x) with the constants of self-normalising networks (Klambauer et al., 2017)."
)
HARD_SIGMOID = GraphOperator("hard_sigmoid", ELEMENTWISE, _hard_sigmoid, _np_hard_sigmoid, meaning="alpha * x + beta, between 0 and 1.")
HARD_SWISH = GraphOperator(
    "hard_swish", ELEMENTWISE, _hard_swish, _np_hard_swish, meaning="x * hard_sigmoid(x) (Howard et al., MobileNetV3, 2019)."
)
CAST = GraphOperator("cast", ELEMENTWISE, _cast, _np_cast, meaning="x as another element type.")
