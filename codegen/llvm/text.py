"""Spell LLVM types and constants for dtypes."""

from __future__ import annotations

from functools import cache

import numpy as np

from tunesmith.support import dtype as dt

_SCALAR = {"bool": "i1", "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"}


@cache
def llvm_type(dtype: str) -> str:
    """`float32x16` is `<16 x float>`; bool is i1 in registers (a byte in memory); bfloat16 is its bits (see kernel/cast.py)."""
    scalar, lanes = dt.split(dtype)
    name = _SCALAR.get(scalar) or f"i{dt.bits(scalar)}"
    return name if lanes == 1 else f"<{lanes} x {name}>"


@cache
def suffix(dtype: str) -> str:
    """The mangled suffix of an overloaded intrinsic: `v16f32`, `f32`, `v16i1`."""
    scalar, lanes = dt.split(dtype)
    base = {"bool": "i1", "bfloat16": "i16"}.get(scalar) or (f"f{dt.bits(scalar)}" if dt.is_float(scalar) else f"i{dt.bits(scalar)}")
    return base if lanes == 1 else f"v{lanes}{base}"


def literal(value: bool | int | float, dtype: str) -> str:
    """A constant of a scalar type.  Floats are spelled by their bits, which is exact.

    A number beyond the range of the type is infinite, as in the interpreter.
    """
    scalar = dt.element(dtype)
    if scalar == "bool":
        return "true" if value else "false"
    if not dt.is_float(scalar):
        return str(int(value))
    with np.errstate(over="ignore"):
        held = dt.to_numpy(scalar).type(value)
    if scalar == "float16":
        return f"0xH{held.view(np.uint16):04X}"
    if scalar == "bfloat16":
        bits = int(held.view(np.uint32))
        return str(0x7FC0 if np.isnan(held) else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    return f"0x{np.float64(held).view(np.uint64):016X}"


def vector_literal(values: list[str], element: str) -> str:
    """A vector constant from spelled elements."""
    return "<" + ", ".join(f"{element} {v}" for v in values) + ">"
