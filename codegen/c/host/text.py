"""Spell C types, constants and operators; code has a rank, so that parentheses are written only where they are needed."""

from __future__ import annotations

import math

from tunesmith.codegen.c.dialect import HALVES, rounded_to, shortest_float32
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

ATOM, UNARY, PRODUCT, SUM, BITS, COMPARISON, LOGIC, CHOICE = 9, 8, 7, 6, 5, 4, 3, 1
"""Ranks: an operand whose rank is below that of its place is put in parentheses."""

_SCALARS = {"bool": "bool", "float32": "float", "float64": "double"}


class Code(str):
    """C text of an expression, with the rank of its outermost operator."""

    __slots__ = ("rank",)
    rank: int

    def __new__(cls, text: str, rank: int = ATOM) -> Code:
        """The text with a rank."""
        self = super().__new__(cls, text)
        self.rank = rank
        return self

    def at(self, rank: int) -> str:
        """The text, in parentheses if its rank is lower."""
        return str(self) if self.rank >= rank else f"({self})"


def infix(op: str, a: Code, b: Code, rank: int) -> Code:
    """A binary operation; operators of one rank group to the left, those on bits, comparisons and conditions do not mix."""
    left = rank if rank in (PRODUCT, SUM) else SUM if rank == COMPARISON else COMPARISON if rank == LOGIC else UNARY
    return Code(f"{a.at(left)} {op} {b.at(left + 1 if rank in (PRODUCT, SUM) else left)}", rank)


def call(name: str, *arguments: str) -> Code:
    """A call."""
    return Code(f"{name}({', '.join(arguments)})")


def choice(cond: Code, a: Code, b: Code) -> Code:
    """A conditional expression."""
    return Code(f"{cond.at(LOGIC)} ? {a.at(LOGIC)} : {b.at(CHOICE)}", CHOICE)


def computed(dtype: str) -> str:
    """The dtype in which values of a dtype are computed: float32 for the 16-bit floats, which are rounded after each operation."""
    return dt.vector("float32", dt.lanes(dtype)) if dt.element(dtype) in HALVES else dtype


def stored(dtype: str) -> str:
    """The dtype in which values of a dtype are stored: bits for the 16-bit floats, bytes for bool."""
    element = dt.element(dtype)
    return dt.vector("uint16" if element in HALVES else "uint8" if element == "bool" else element, dt.lanes(dtype))


def scalar_type(dtype: str) -> str:
    """The C type of a scalar that is computed with."""
    return _SCALARS.get(dtype) or f"{dtype}_t"


def element_type(dtype: str) -> str:
    """The C type of an element of a buffer."""
    return scalar_type(stored(dtype))


def check_lanes(dtype: str) -> None:
    """Refuse a vector type that C compilers do not have.  Raises BuildError."""
    lanes = dt.lanes(dtype)
    if lanes & (lanes - 1):
        raise BuildError(
            f"a vector of {lanes} lanes: C compilers have vectors of a power of two only. Split the loop before it is vectorized"
        )


def number(value: bool | int | float, dtype: str) -> Code:
    """A constant of a scalar dtype; a number beyond the range of the type is infinite, as in the interpreter."""
    kind = dt.element(dtype)
    if kind == "bool":
        return Code("true" if value else "false")
    if not dt.is_float(kind):
        return _integer(int(value), kind)
    wide = kind == "float64"
    held = float(value) if wide else rounded_to(float(value), kind)
    suffix = "" if wide else "f"
    if math.isnan(held):
        text = f'__builtin_nan{suffix}("")'
    elif math.isinf(held):
        text = f"__builtin_inf{suffix}()"
    else:
        text = (repr(abs(held)) if wide else shortest_float32(abs(held))) + suffix
    return Code(f"-{text}", UNARY) if math.copysign(1.0, held) < 0 else Code(text)


def _integer(value: int, kind: str) -> Code:
    bits = dt.bits(kind)
    if value == -(1 << (bits - 1)) and bits >= 32:
        return Code(f"INT{bits}_MIN")
    suffix = "U" if dt.is_unsigned(kind) and bits >= 32 else ""
    text = f"{abs(value)}{suffix}" if bits < 64 else f"{'U' if suffix else ''}INT64_C({abs(value)})"
    return Code(f"-{text}", UNARY) if value < 0 else Code(text)
