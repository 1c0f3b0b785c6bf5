"""Which element types an operator takes, and literals of them; there is no promotion: what does not fit is refused."""

from __future__ import annotations

import math

from tunesmith.ir.expr import Expr, cast, const
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

FLOATS, NUMBERS, TRUTHS, ALL = "floats", "floats and integers", "bool", "all types"
"""What an operator takes."""


def require(takes: str, *operands: Tensor) -> None:
    """Refuse operands of types that are not among `takes`, one of the words above, or that are not of one type.

    Raises:
        ScriptError: says which type it is.
    """
    first = operands[0].dtype
    other = [o.dtype for o in operands if o.dtype != first]
    if other:
        raise ScriptError(f"the operands are {first} and {other[0]}, and types are never promoted; insert a cast")
    fits = {FLOATS: dt.is_float(first), NUMBERS: first != "bool", TRUTHS: first == "bool", ALL: True}
    if not fits[takes]:
        raise ScriptError(f"it takes {takes}, not {first}; insert a cast")


def scalar_type(dtype: str) -> str:
    """`dtype`, if it is one that tensors can have; ScriptError otherwise."""
    if not isinstance(dtype, str) or dt.lanes(dtype) != 1:
        raise ScriptError(f"the dtype {dtype!r} is not the type of a tensor. Types: {', '.join(dt.SCALARS)}")
    return dtype


def literal(value: float | Poly | Var, dtype: str, what: str) -> Expr:
    """A number, or a size, as a value of `dtype`.

    Args:
        value: given as an attribute.
        dtype: of the result.
        what: the name of the attribute, for the message.
    Raises:
        ScriptError: it is no number, or the type cannot hold it.
    """
    if isinstance(value, (Poly, Var)):
        return cast(dtype, poly(value))
    if not isinstance(value, (bool, int, float)):
        raise ScriptError(f"{what} is {value!r}; it must be a number or a size")
    if dt.is_int(dtype):
        low, high = int_range(dtype)
        if not math.isfinite(value) or value != int(value) or not low <= value <= high:
            raise ScriptError(f"{what} is {value}, which no {dtype} can be")
    return const(value, dtype)


def int_range(dtype: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    if dt.is_unsigned(dtype):
        return 0, 2 ** dt.bits(dtype) - 1
    return -(2 ** (dt.bits(dtype) - 1)), 2 ** (dt.bits(dtype) - 1) - 1
