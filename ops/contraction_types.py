"""Choose the element types of a contraction: its operands, its sums, and its result.

Products of float16 and of bfloat16 are summed in float32, products of bytes in int32, and the result is rounded once.  That is what
tensor instructions compute, and what libraries mean by these types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.interpreter.memory import round_bfloat16
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.parameter import Value, WordParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError, UserError

_BYTES = ("int8", "uint8")
_HALVES = ("float16", "bfloat16")
_SAME, _AUTO = "same", "auto"

CONTRACTION_TYPES = (
    WordParameter("dtype", "float32", ("float16", "bfloat16", "float32", "float64", *_BYTES)),
    WordParameter("rhs_dtype", _SAME, (_SAME, *_BYTES)),
    WordParameter("out_dtype", _AUTO, (_AUTO, *_HALVES, "float32", "float64", "int32")),
)
"""Parameters of operators that contract two operands: the type of the first (and of biases and residuals, for floats that are summed in
their own type), of the second if it is different, and of the result."""


@dataclass(frozen=True, slots=True)
class ContractionTypes:
    """The element types of a contraction.

    Attributes:
        lhs, rhs: of the operands.
        sums: of the products and their sums, and of epilogues.
        out: of the result.
    """

    lhs: str
    rhs: str
    sums: str
    out: str


def sums_of(dtype: str) -> str:
    """The type in which products of `dtype` are summed."""
    return "float32" if dtype in _HALVES else "int32" if dtype in _BYTES else dtype


def types_of(dtype: str, rhs_dtype: str, out_dtype: str) -> ContractionTypes:
    """The types that settled parameters name."""
    sums = sums_of(dtype)
    out = out_dtype if out_dtype != _AUTO else sums if dtype in _BYTES else dtype
    return ContractionTypes(dtype, dtype if rhs_dtype == _SAME else rhs_dtype, sums, out)


def settle_types(params: Mapping[str, Value]) -> dict[str, Value]:
    """The parameters with the defaults for types that they imply.

    Raises:
        UserError: the result cannot have the type.
    """
    dtype, rhs, out = (str(params[p.name]) for p in CONTRACTION_TYPES)
    natural = types_of(dtype, _SAME, _AUTO)
    if out not in (_AUTO, natural.out, natural.sums):
        known = " or ".join(dict.fromkeys((natural.out, natural.sums)))
        raise UserError(f"out_dtype={out}: a contraction of {dtype} operands has a result of {known}")
    return {**params, "rhs_dtype": _SAME if rhs == dtype else rhs, "out_dtype": _AUTO if out == natural.out else out}


def multiply_together(x: str, y: str) -> bool:
    """Whether operands of these types can be multiplied: they are equal, both bytes, or a float and bytes (weights of less precision)."""
    return x == y or (y in _BYTES and (x in _BYTES or dt.is_float(x)))


def product(x: Expr, y: Expr) -> Expr:
    """x * y in the type of their sums.

    Raises:
        ScriptError: operands of these types cannot be multiplied (see `multiply_together`).
    """
    if not multiply_together(x.dtype, y.dtype):
        raise ScriptError(f"operands of {x.dtype} and {y.dtype} cannot be multiplied; insert a cast")
    sums = sums_of(x.dtype)
    return (x if x.dtype == sums else te.cast(sums, x)) * (y if y.dtype == sums else te.cast(sums, y))


def rounded(x: Tensor, out: str, name: str = "cast") -> Tensor:
    """The stage that converts `x` to the type of the result; `x` itself if it has that type."""
    if x.dtype == out:
        return x
    return te.compute(x.shape, lambda *i: te.cast(out, x[i]), name, axes=tuple([v.name for v in x.axes]) or None)


def result_type(dtype: str, out_dtype: str) -> str:
    """The type of the result of a contraction of `dtype` operands, for an optional type.

    Raises:
        ScriptError: it is neither the type of the operands nor that of the sums.
    """
    if out_dtype not in ("", dtype, sums_of(dtype)):
        raise ScriptError(f"out_dtype={out_dtype!r}: a contraction of {dtype} operands has a result of {dtype} or {sums_of(dtype)}")
    return out_dtype or dtype


def in_type(x: np.ndarray, dtype: str) -> np.ndarray:
    """A float64 result of numpy in the type of a program's result: integers wrap around, and bfloat16 is stored as float32."""
    if dtype == "bfloat16":
        return np.asarray(round_bfloat16(x.astype(np.float32)))
    if dt.is_float(dtype):
        return x.astype(dtype)
    # Exact: a sum of fewer than 2**38 products of bytes is less than 2**53.
    return x.astype(np.int64).astype(dtype)


def contracted(compute: Callable[[np.ndarray, np.ndarray], np.ndarray], a: np.ndarray, b: np.ndarray, out_dtype: str = "") -> np.ndarray:
    """A contraction by numpy in the type of the result: computed in float64 and rounded once, or in int32 and int64.

    Args:
        compute: the contraction of two arrays.
        a, b: the operands.
        out_dtype: type of the result; default: the type of `a`.
    """
    name = dt.from_numpy(a.dtype)
    wide = np.dtype(np.float64) if dt.is_float(name) or sums_of(name) != name else a.dtype
    made = np.asarray(compute(a.astype(wide), b.astype(wide)))
    return in_type(made, out_dtype or name) if wide.kind == "f" else made.astype(out_dtype or a.dtype)
