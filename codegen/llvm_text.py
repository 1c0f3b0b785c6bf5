"""Spelling of LLVM types and constants."""

from __future__ import annotations

import struct

from tunesmith.support import dtype as dt

_SCALAR = {"bool": "i1", "float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double"}


def llvm_type(dtype: str) -> str:
    """`float32x16` is `<16 x float>`; bool is i1 in registers (a byte in memory)."""
    scalar, lanes = dt.split(dtype)
    name = _SCALAR.get(scalar) or f"i{dt.bits(scalar)}"
    return name if lanes == 1 else f"<{lanes} x {name}>"


def suffix(dtype: str) -> str:
    """The mangled suffix of an overloaded intrinsic: `v16f32`, `f32`, `v16i1`."""
    scalar, lanes = dt.split(dtype)
    base = {"bool": "i1", "bfloat16": "bf16"}.get(scalar) or (f"f{dt.bits(scalar)}" if dt.is_float(scalar) else f"i{dt.bits(scalar)}")
    return base if lanes == 1 else f"v{lanes}{base}"


def literal(value: bool | int | float, dtype: str) -> str:
    """A constant of a scalar type.  Floats are spelled by their bits, as LLVM wants them: exact."""
    scalar = dt.element(dtype)
    if scalar == "bool":
        return "true" if value else "false"
    if scalar == "float32":
        single = struct.unpack("<f", struct.pack("<f", value))[0] if abs(value) <= 3.4028235677973366e38 or value != value else value
        return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"
    if scalar == "float64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if scalar == "float16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if scalar == "bfloat16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return f"0xR{(bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF:04X}"
    return str(int(value))


def vector_literal(values: list[str], element: str) -> str:
    """A vector constant of spelled elements."""
    return "<" + ", ".join(f"{element} {v}" for v in values) + ">"
