"""Define elementwise operators of several tensors with numpy broadcasting.

Formulas and references of `ops.binary` are used, except for the quotient, which is also defined for integers.  Operators of `ops/`
broadcast the second operand to the first only, because the first one gives the shape of the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import BROADCAST, GraphOperator
from tunesmith.graph.operators.element_types import ALL, BOOLS, FLOATS, NUMBERS, require
from tunesmith.ir.expr import Expr, call, cast, compare, select
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.poly import ONE, Poly
from tunesmith.ops import formulas
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.binary import BINARY, element_of
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def broadcast_shapes(*shapes: Sequence[Poly]) -> tuple[Poly, ...]:
    """The broadcast shape: shapes are aligned at the last axis, and extents must be equal or 1.

    Raises:
        ScriptError: two extents differ and neither is 1; a variable size is assumed not to be 1.
    """
    rank = max([len(s) for s in shapes])
    aligned = [(*[ONE] * (rank - len(s)), *s) for s in shapes]
    out = []
    for axis, extents in enumerate(zip(*aligned, strict=True)):
        other = list(dict.fromkeys(e for e in extents if e != 1))
        if len(other) > 1:
            texts = " and ".join([f"[{', '.join(map(repr, s))}]" for s in dict.fromkeys(tuple(s) for s in shapes)])
            raise ScriptError(
                f"the shapes {texts} cannot be broadcast: axis {axis - rank} is {other[0]} in one and {other[1]} in another"
                " (sizes are equal if they are the same expression of the same variables)"
            )
        out.append(other[0] if other else ONE)
    return tuple(out)


def combined(formula: Callable[..., Expr], *operands: Tensor) -> Tensor:
    """The stage that applies a formula to the elements of all operands, with broadcasting."""
    shape = broadcast_shapes(*[x.shape for x in operands])
    return te.compute(shape, lambda *index: formula(*[element_of(x, shape, index) for x in operands]), "Y")


def _comparison(op: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: compare(op, a, b)


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    quotient = np.floor_divide(a, b)
    inexact = (np.mod(a, b) != 0) & ((a < 0) != (b < 0))
    return np.asarray(quotient + inexact.astype(a.dtype))


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return np.asarray(np.power(x.astype(np.float64), y.astype(np.float64))).astype(x.dtype)
    if x.dtype.kind == "u":
        return np.asarray(np.power(x, y))
    # numpy rejects negative powers: they are 0, except for 1 and -1, whose powers depend only on the parity of the exponent.
    unit = np.abs(x) == 1
    return np.where((y < 0) & ~unit, 0, np.power(x, np.where(y < 0, y & 1, y))).astype(x.dtype)


_TABLE: dict[str, tuple[str, Callable[[Expr, Expr], Expr], Callable[[np.ndarray, np.ndarray], Any]]] = {
    "add": (NUMBERS, *BINARY["add"]),
    "subtract": (NUMBERS, *BINARY["sub"]),
    "multiply": (NUMBERS, *BINARY["mul"]),
    "maximum": (NUMBERS, *BINARY["maximum"]),
    "minimum": (NUMBERS, *BINARY["minimum"]),
    "divide": (NUMBERS, formulas.divide, _divide),
    "floor_divide": (NUMBERS, formulas.floor_divide, np.floor_divide),
    "mod": (NUMBERS, formulas.mod, np.mod),
    "fmod": (NUMBERS, formulas.fmod, np.fmod),
    "power": (NUMBERS, formulas.power, _power),
    "equal": (ALL, _comparison("eq"), np.equal),
    "not_equal": (ALL, _comparison("ne"), np.not_equal),
    "less": (NUMBERS, _comparison("lt"), np.less),
    "less_equal": (NUMBERS, _comparison("le"), np.less_equal),
    "greater": (NUMBERS, _comparison("gt"), np.greater),
    "greater_equal": (NUMBERS, _comparison("ge"), np.greater_equal),
    "logical_and": (BOOLS, formulas.both, np.logical_and),
    "logical_or": (BOOLS, formulas.either, np.logical_or),
    "logical_xor": (BOOLS, _comparison("ne"), np.logical_xor),
    "prelu": (NUMBERS, lambda x, slope: select(x < 0, x * slope, x), lambda x, slope: np.where(x < 0, x * slope, x)),
}
"""Operator -> accepted types, formula, and numpy reference."""


def _operator(name: str, meaning: str) -> GraphOperator:
    takes, formula, numpy = _TABLE[name]

    def compute(a: Tensor, b: Tensor) -> Tensor:
        require(takes, a, b)
        return combined(formula, a, b)

    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(numpy(a, b))

    return GraphOperator(name, BROADCAST, compute, reference, meaning=meaning)


ADD = _operator("add", "a + b.")
SUBTRACT = _operator("subtract", "a - b.")
MULTIPLY = _operator("multiply", "a * b.")
DIVIDE = _operator("divide", "a / b; quotients of integers are rounded towards zero.")
FLOOR_DIVIDE = _operator("floor_divide", "a / b, rounded down to an integer.")
MOD = _operator("mod", "The remainder of floor_divide, with the sign of b.")
FMOD = _operator("fmod", "The remainder of the quotient without its fraction, with the sign of a.")
POWER = _operator("power", "a to the power of b; negative powers of integers are 0, except those of 1 and -1.")
MAXIMUM = _operator("maximum", "The greater of a and b; NaN if one of them is.")
MINIMUM = _operator("minimum", "The lesser of a and b; NaN if one of them is.")
EQUAL = _operator("equal", "a == b, as a bool.")
NOT_EQUAL = _operator("not_equal", "a != b, as a bool.")
LESS = _operator("less", "a < b, as a bool.")
LESS_EQUAL = _operator("less_equal", "a <= b, as a bool.")
GREATER = _operator("greater", "a > b, as a bool.")
GREATER_EQUAL = _operator("greater_equal", "a >= b, as a bool.")
LOGICAL_AND = _operator("logical_and", "Whether both bools are true.")
LOGICAL_OR = _operator("logical_or", "Whether one of two bools is true, or both.")
LOGICAL_XOR = _operator("logical_xor", "Whether exactly one of two bools is true.")
PRELU = _operator("prelu", "a if it is not negative, otherwise a * b; b is a slope for each channel, for example.")


def _where(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    if condition.dtype != "bool":
        raise ScriptError(f"the condition must be bool, got {condition.dtype}; use a comparison or insert a cast")
    require(ALL, a, b)
    return combined(select, condition, a, b)


def _np_where(condition: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(condition, a, b)


WHERE = GraphOperator("where", BROADCAST, _where, _np_where, meaning="a where the condition is true, b elsewhere.")


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    require(FLOATS, a, b, c)
    wide = "float32" if dt.bits(a.dtype) == 16 else a.dtype
    return combined(lambda *operands: cast(a.dtype, call("fma", *[cast(wide, x) for x in operands])), a, b, c)


def _np_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    wide = np.dtype(np.float32) if a.dtype.itemsize == 2 else a.dtype
    return np.asarray(intrinsic("fma").numpy(*[x.astype(wide) for x in (a, b, c)])).astype(a.dtype)


FMA = GraphOperator("fma", BROADCAST, _fma, _np_fma, meaning="a * b + c, rounded once; 16-bit floats are computed in float32.")
