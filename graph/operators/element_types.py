"""Check operand types of operators and create literals; types are never promoted, other types are rejected."""

from __future__ import annotations

import math

import numpy as np

from tunesmith.ir.expr import Expr, cast, const
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

FLOATS, NUMBERS, BOOLS, ALL = "floats", "floats and integers", "bool", "all types"
"""Sets of element types that operators accept."""


def require(takes: str, *operands: Tensor) -> None:
    """Check that all operands have the same type, and that it is in `takes`, one of the sets above.

    Raises:
        ScriptError: the types differ or are not accepted; the message contains the type.
    """
    first = operands[0].dtype
    other = [o.dtype for o in operands if o.dtype != first]
    if other:
        raise ScriptError(f"the operands are {first} and {other[0]}, but types are never promoted; insert a cast")
    fits = {FLOATS: dt.is_float(first), NUMBERS: first != "bool", BOOLS: first == "bool", ALL: True}
    if not fits[takes]:
        raise ScriptError(f"it takes {takes}, not {first}; insert a cast")


def scalar_type(dtype: str) -> str:
    """`dtype`, if it is a valid element type of tensors; ScriptError otherwise."""
    if not isinstance(dtype, str) or dt.lanes(dtype) != 1:
        raise ScriptError(f"the dtype {dtype!r} is not an element type of tensors. Types: {', '.join(dt.SCALARS)}")
    return dtype


def literal(value: float | Poly | Var, dtype: str, what: str) -> Expr:
    """A number or a size as a value of `dtype`.

    Args:
        value: value of an attribute.
        dtype: type of the result.
        what: name of the attribute, for messages.
    Raises:
        ScriptError: the value is not a number, or is not representable in the type.
    """
    if isinstance(value, (Poly, Var)):
        return cast(dtype, poly(value))
    if not isinstance(value, (bool, int, float)):
        raise ScriptError(f"{what} is {value!r}; it must be a number or a size")
    if dt.is_int(dtype):
        low, high = int_range(dtype)
        if not math.isfinite(value) or value != int(value) or not low <= value <= high:
            raise ScriptError(f"{what} is {value}, which is not representable in {dtype}")
    return const(value, dtype)


def int_range(dtype: str) -> tuple[int, int]:
    """The minimum and the maximum of an integer type."""
    if dt.is_unsigned(dtype):
        return 0, 2 ** dt.bits(dtype) - 1
    return -(2 ** (dt.bits(dtype) - 1)), 2 ** (dt.bits(dtype) - 1) - 1


def float_range(dtype: str, within: str) -> tuple[float, float]:
    """The least and the greatest number of the type `within`, float32 or float64, that are in the range of an integer type."""
    low, high = int_range(dtype)
    greatest = dt.to_numpy(within).type(high)
    return float(low), float(greatest if int(greatest) <= high else np.nextafter(greatest, greatest.dtype.type(0)))
