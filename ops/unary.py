"""Define elementwise operators of one tensor, which are also the activations of contractions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tunesmith.ir.expr import Expr, call, maximum
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, ShapeParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

Formula = Callable[[Expr], Expr]
Numpy = Callable[[np.ndarray], np.ndarray]


def _gelu(x: Expr) -> Expr:
    """The exact GELU (Hendrycks and Gimpel, 2016), with erf."""
    return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)


def _np_gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * 0.5 * (intrinsic("erf").numpy(x * math.sqrt(0.5)) + 1.0))


def negative(x: Expr) -> Expr:
    """-x; floats use `x * -1`, because the expression `-x` is `0 - x`, which has no negative zero."""
    return x * -1.0 if dt.is_float(x.dtype) else -x


def magnitude(x: Expr) -> Expr:
    """|x|; the minimum of an integer type is unchanged, as in numpy."""
    if dt.is_float(x.dtype):
        return call("abs", x)
    return x if dt.is_unsigned(x.dtype) else maximum(x, -x)


def _named(name: str) -> tuple[Formula, Numpy]:
    """An intrinsic and its numpy function, which the interpreter uses too."""
    return lambda x: call(name, x), intrinsic(name).numpy


UNARY: dict[str, tuple[Formula, Numpy]] = {
    "abs": (magnitude, np.abs),
    "erf": _named("erf"),
    "exp": _named("exp"),
    "gelu": (_gelu, _np_gelu),
    "log": _named("log"),
    "neg": (negative, np.negative),
    "relu": (lambda x: maximum(x, 0.0), lambda x: np.maximum(x, 0)),
    "rsqrt": _named("rsqrt"),
    "sigmoid": _named("sigmoid"),
    "sqrt": _named("sqrt"),
    "tanh": _named("tanh"),
}
"""Each function for expressions and for float64 arrays; abs, neg and relu also for integers."""

_POSITIVE = ("log", "rsqrt", "sqrt")


def unary(function: str, x: Tensor, name: str = "Y", axes: tuple[str, ...] | None = None) -> Tensor:
    """One stage: a function of `UNARY` applied to every element of `x`.

    Raises:
        ScriptError: the function is unknown.
    """
    if function not in UNARY:
        raise ScriptError(f"unary {name}: unknown function {function!r}; known are {', '.join(sorted(UNARY))}")
    return te.compute(x.shape, lambda *index: UNARY[function][0](x[index]), name, axes=axes)


def _operator(function: str) -> Operator:
    def tensors(*, shape: tuple[int, ...], dtype: str) -> list[Tensor]:
        x = te.placeholder(shape, dtype, "X")
        return [x, unary(function, x)]

    def reference(x: np.ndarray, /, **_: object) -> list[np.ndarray]:
        return [UNARY[function][1](x.astype(np.float64)).astype(x.dtype)]

    def flops(*, shape: tuple[int, ...], **_: object) -> int:
        return math.prod(shape)

    return Operator(
        function, (ShapeParameter("shape"), FLOATS), tensors, reference, flops, positive=("X",) if function in _POSITIVE else ()
    )


ABS, ERF, EXP, GELU, LOG, NEG = [_operator(f) for f in ("abs", "erf", "exp", "gelu", "log", "neg")]
RELU, RSQRT, SIGMOID, SQRT, TANH = [_operator(f) for f in ("relu", "rsqrt", "sigmoid", "sqrt", "tanh")]
