"""Define operators on the bits of numbers: and, or, exclusive or, shifts, and the same bits as another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tunesmith.graph.ir.operator import BROADCAST, ELEMENTWISE, GraphOperator
from tunesmith.graph.operators.broadcast import combined
from tunesmith.graph.operators.element_types import ALL, require, scalar_type
from tunesmith.graph.operators.elementwise import mapped
from tunesmith.ir.expr import Binary, Expr, call, cast, const, select
from tunesmith.ops.formulas import both
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def _shifted(op: str) -> Callable[[Expr, Expr], Expr]:
    """A shift that is defined for all amounts: by a negative amount, or the width or more, no bit of x remains."""

    def formula(x: Expr, amount: Expr) -> Expr:
        inside = amount < dt.bits(x.dtype)
        if not dt.is_unsigned(x.dtype):
            inside = both(inside, amount >= 0)
        rest: Expr = const(0, x.dtype)
        if op == "shr" and not dt.is_unsigned(x.dtype):
            rest = select(x < 0, const(-1, x.dtype), rest)
        return select(inside, Binary(op, x, select(inside, amount, const(0, x.dtype))), rest)

    return formula


def _np_shifted(numpy: Callable[..., Any], right: bool) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def reference(x: np.ndarray, amount: np.ndarray) -> np.ndarray:
        inside = (amount >= 0) & (amount < 8 * x.dtype.itemsize)
        rest = np.where(x < 0, -1, 0) if right and x.dtype.kind == "i" else 0
        return np.where(inside, numpy(x, np.where(inside, amount, amount.dtype.type(0))), rest).astype(x.dtype)

    return reference


def _operator(name: str, formula: Callable[[Expr, Expr], Expr], numpy: Callable[..., Any], meaning: str) -> GraphOperator:
    def compute(a: Tensor, b: Tensor) -> Tensor:
        require(ALL, a, b)
        if not dt.is_int(a.dtype):
            raise ScriptError(f"it takes integers, not {a.dtype}; for bool use logical_and, logical_or or logical_xor")
        return combined(formula, a, b)

    return GraphOperator(name, BROADCAST, compute, numpy, meaning=meaning)


def _bits(op: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: Binary(op, a, b)


BITWISE_AND = _operator("bitwise_and", _bits("bitand"), np.bitwise_and, "The bits that are set in both integers.")
BITWISE_OR = _operator("bitwise_or", _bits("bitor"), np.bitwise_or, "The bits that are set in at least one of two integers.")
BITWISE_XOR = _operator("bitwise_xor", _bits("bitxor"), np.bitwise_xor, "The bits that are set in exactly one of two integers.")
SHIFT_LEFT = _operator(
    "shift_left",
    _shifted("shl"),
    _np_shifted(np.left_shift, False),
    "a * 2**b modulo the range of the type; 0 for b < 0 or b >= its width.",
)
SHIFT_RIGHT = _operator(
    "shift_right",
    _shifted("shr"),
    _np_shifted(np.right_shift, True),
    "a / 2**b rounded down; for b < 0 or b >= the width of the type 0, or -1 for a negative a.",
)


def _check_width(x: str, dtype: str) -> None:
    if "bool" in (x, dtype) or dt.nbytes(x) != dt.nbytes(scalar_type(dtype)):
        raise ScriptError(f"the bits of {x} are not those of a {dtype}: the types must be numbers of one width")


def _reinterpret(x: Tensor, *, dtype: str) -> Tensor:
    _check_width(x.dtype, dtype)
    if dt.is_int(x.dtype) and dt.is_int(dtype):
        return mapped(x, lambda e: cast(dtype, e))
    if x.dtype == dtype:
        return mapped(x, lambda e: e)
    return mapped(x, lambda e: call("reinterpret", e, dtype=dtype))


def _np_reinterpret(x: np.ndarray, *, dtype: str) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(x.shape).view(dt.to_numpy(dtype))


REINTERPRET = GraphOperator(
    "reinterpret", ELEMENTWISE, _reinterpret, _np_reinterpret, meaning="The same bits as a number of another type of the same width."
)
