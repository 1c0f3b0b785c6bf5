"""Parse and convert data types, which are strings as in numpy and TVM: `float32`, `int8`, `bool`, vectors `float32x16`."""

from __future__ import annotations

from functools import cache

import numpy as np

from tunesmith.support.errors import ScriptError

SCALARS = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
INDEX = "int64"
"""The type of every loop variable, extent and buffer index."""

_BITS = {"bool": 8, "bfloat16": 16}


@cache
def split(dtype: str) -> tuple[str, int]:
    """Element type and lane count: `split("float32x16") == ("float32", 16)`."""
    scalar, _, count = dtype.partition("x")
    if scalar not in SCALARS or (count and not count.isdigit()):
        raise ScriptError(f"unknown dtype {dtype!r}. Known scalar types: {', '.join(SCALARS)}; a vector is spelled float32x16")
    return scalar, int(count) if count else 1


def element(dtype: str) -> str:
    """The scalar type of one lane."""
    return split(dtype)[0]


def lanes(dtype: str) -> int:
    """Number of lanes; 1 for a scalar."""
    return split(dtype)[1]


@cache
def vector(dtype: str, count: int) -> str:
    """The type of `count` lanes of `dtype`; the scalar itself when `count` is 1."""
    scalar = element(dtype)
    return scalar if count == 1 else f"{scalar}x{count}"


@cache
def bits(dtype: str) -> int:
    """Storage bits of one lane; `bool` is stored in a byte."""
    scalar = element(dtype)
    return _BITS.get(scalar) or int("".join(c for c in scalar if c.isdigit()))


def nbytes(dtype: str) -> int:
    """Storage bytes of one lane."""
    return bits(dtype) // 8


def is_float(dtype: str) -> bool:
    """True for float16, bfloat16, float32, float64 and vectors of them."""
    return "float" in dtype


def widened(dtype: str) -> str:
    """float32 for float16 and bfloat16, in which sums and products of several factors lose digits; other types as they are."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def is_int(dtype: str) -> bool:
    """True for signed and unsigned integers and vectors of them; not for bool."""
    return "int" in dtype


def is_unsigned(dtype: str) -> bool:
    """True for uint8 .. uint64."""
    return dtype.startswith("uint")


@cache
def to_numpy(dtype: str) -> np.dtype:
    """The numpy type of one lane.  numpy has no bfloat16: the interpreter stores it as float32."""
    scalar = element(dtype)
    return np.dtype("float32" if scalar == "bfloat16" else scalar)


def from_numpy(dtype: np.dtype) -> str:
    """The data type of a numpy array's elements; ScriptError for unsupported ones (complex numbers, strings, records)."""
    if dtype.name not in SCALARS:
        raise ScriptError(f"arrays of numpy type {dtype} have no dtype here. Known scalar types: {', '.join(SCALARS)}")
    return dtype.name
