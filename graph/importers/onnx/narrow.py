"""Import tensors of floats of 8 bits or less, and of integers of 4 bits or less.

In the graph their elements are bytes, one for each element: the code of a float, the value of an integer.  The importer knows the type
(`Narrow`), converts codes to numbers by a table, and numbers to codes by a search among the midpoints between neighbouring numbers, so that
both are exact: to the nearest number, ties to even codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tunesmith.graph.importers.onnx.node import cast_to
from tunesmith.graph.importers.onnx.values import Datum, FoldingBuilder
from tunesmith.graph.ir.node import Constant, TensorType


@dataclass(frozen=True, slots=True)
class NarrowType:
    """A type of elements.

    Attributes:
        name: numpy's name, of the package ml_dtypes.
        bits: size of an element.
        signed: whether the highest bit is the sign.
        exponent: bits of the exponent of a float; 0 for integers.
        bias: bias of the exponent.
        infinite: code of infinity; None if there is none.
        nan: code of NaN without a sign; None if there is none.
        negative_zero: whether the code of zero with a sign is minus zero; else it is NaN.
    """

    name: str
    bits: int
    signed: bool = True
    exponent: int = 0
    bias: int = 0
    infinite: int | None = None
    nan: int | None = None
    negative_zero: bool = True

    @property
    def storage(self) -> str:
        """The element type in the graph."""
        return "int8" if self.is_integer and self.signed else "uint8"

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers."""
        return not self.exponent

    @property
    def numbers(self) -> np.ndarray:
        """The finite numbers without a sign, in the order of their codes, float32."""
        mantissa = self.bits - self.exponent - self.signed
        codes = range(1 << (self.bits - self.signed))
        special = {self.infinite, self.nan}
        found = []
        for code in codes:
            if code in special or (self.infinite is not None and code > self.infinite):
                break
            e, f = code >> mantissa, (code & ((1 << mantissa) - 1)) / (1 << mantissa)
            subnormal = e == 0 and self.signed
            found.append(math.ldexp(f, 1 - self.bias) if subnormal else math.ldexp(1 + f, e - self.bias))
        return np.array(found, np.float32)


TYPES: Mapping[int, NarrowType] = {
    17: NarrowType("float8_e4m3fn", 8, exponent=4, bias=7, nan=0x7F),
    18: NarrowType("float8_e4m3fnuz", 8, exponent=4, bias=8, nan=0x80, negative_zero=False),
    19: NarrowType("float8_e5m2", 8, exponent=5, bias=15, infinite=0x7C, nan=0x7E),
    20: NarrowType("float8_e5m2fnuz", 8, exponent=5, bias=16, nan=0x80, negative_zero=False),
    21: NarrowType("uint4", 4, signed=False),
    22: NarrowType("int4", 4),
    23: NarrowType("float4_e2m1fn", 4, exponent=2, bias=1),
    24: NarrowType("float8_e8m0fnu", 8, signed=False, exponent=8, bias=127, nan=0xFF),
    25: NarrowType("uint2", 2, signed=False),
    26: NarrowType("int2", 2),
    27: NarrowType("float6_e2m3fn", 6, exponent=2, bias=1),
    28: NarrowType("float6_e3m2fn", 6, exponent=3, bias=3),
}
"""TensorProto.DataType -> the type."""

_BY_NAME = {t.name: t for t in TYPES.values()}

AWARE = frozenset({"Cast", "CastLike", "DequantizeLinear", "QuantizeLinear"})
"""Operators whose converters take tensors of narrow types."""
MOVING = frozenset({"Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand"})
"""Operators that only move elements of their first operand."""


@dataclass(frozen=True, eq=False)
class Narrow:
    """A tensor of a narrow type during import.

    Attributes:
        codes: its elements as bytes.
        kind: its type.
    """

    codes: Datum
    kind: NarrowType

    @property
    def type(self) -> TensorType:
        """Shape and element type in the graph."""
        return self.codes.type


def narrow_type(array: np.ndarray) -> NarrowType | None:
    """The type of an array of the package ml_dtypes; None for numpy's own types."""
    return _BY_NAME.get(array.dtype.name)


def stored(array: np.ndarray) -> np.ndarray:
    """The bytes of an array of a narrow type."""
    kind = _BY_NAME[array.dtype.name]
    return array.astype(kind.storage) if kind.is_integer else np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


def constant(name: str, array: np.ndarray) -> Constant | Narrow:
    """A constant of any type."""
    kind = narrow_type(array)
    return Constant(name, array) if kind is None else Narrow(Constant(name, stored(array)), kind)


def decode(b: FoldingBuilder, x: Datum | Narrow, dtype: str) -> Datum:
    """The numbers of a tensor in another type."""
    if not isinstance(x, Narrow):
        return cast_to(b, x, dtype)
    kind = x.kind
    if kind.is_integer:
        return cast_to(b, x.codes, dtype)
    table = np.full(1 << kind.bits, np.nan, np.float32)
    numbers = kind.numbers
    half = 1 << (kind.bits - kind.signed)
    table[: len(numbers)] = numbers
    if kind.infinite is not None:
        table[kind.infinite] = np.inf
    if kind.signed:
        table[half:] = -table[:half]
        if not kind.negative_zero:
            table[half] = np.nan
    return cast_to(b, b.take(b.constant(table), cast_to(b, x.codes, "int32"), axis=0), dtype)


def encode(b: FoldingBuilder, x: Datum, kind: NarrowType, saturate: bool = True, mode: str = "nearest") -> Narrow:
    """The numbers of a tensor in a narrow type.

    Args:
        b: builder.
        x: the numbers.
        kind: the type.
        saturate: whether finite and infinite numbers beyond the largest one become it, and not infinity or NaN.  Types without these
            always saturate.
        mode: of floats without a sign: round to the "nearest" number, "up" or "down".
    """
    if kind.is_integer:
        wide, size = cast_to(b, x, "int32"), 1 << kind.bits
        low = b.bitwise_and(b.add(wide, b.constant(np.int32(size // 2 if kind.signed else 0))), b.constant(np.int32(size - 1)))
        return Narrow(b.cast(b.subtract(low, b.constant(np.int32(size // 2 if kind.signed else 0))), dtype=kind.storage), kind)
    x = cast_to(b, x, "float32")
    codes = np.arange(len(kind.numbers), dtype=np.int32)
    steps = _steps(kind, mode)
    beyond = kind.infinite if kind.infinite is not None else kind.nan
    if not saturate and beyond is not None:
        codes = np.append(codes, np.int32(beyond))
    else:
        steps = steps[: len(codes) - 1]
    at = b.searchsorted(b.constant(steps), b.abs(x) if kind.signed else x, right=True)
    made = b.take(b.constant(codes), at, axis=0)
    if kind.signed:
        half = np.int32(1 << (kind.bits - 1))
        negative = b.cast(b.shift_right(b.reinterpret(x, dtype="uint32"), b.constant(np.uint32(31))), dtype="int32")
        coded = b.bitwise_or(made, b.multiply(negative, b.constant(half)))
        # Where zero has no sign, its code with a sign is NaN, which a number beyond the largest becomes.
        zero = b.equal(b.bitwise_and(made, b.constant(half - np.int32(1))), b.constant(np.int32(0)))
        made = coded if kind.negative_zero else b.where(zero, made, coded)
    nan = kind.nan if kind.nan is not None else 1 << (kind.bits - 1)
    made = b.where(b.isnan(x), b.constant(np.int32(nan)), made)
    return Narrow(b.cast(made, dtype="uint8"), kind)


def _steps(kind: NarrowType, mode: str) -> np.ndarray:
    """The least numbers that are rounded to each number but the first, and to what is beyond the largest, float32."""
    mantissa = kind.bits - kind.exponent - kind.signed
    numbers = kind.numbers.astype(np.float64)
    last = numbers[-1] + (numbers[-1] - numbers[-2] if mantissa else numbers[-1])
    lower, upper = numbers, np.append(numbers[1:], last)
    middle = {"nearest": (lower + upper) / 2, "up": lower, "down": upper}[mode]
    with np.errstate(over="ignore"):  # twice the largest number of eight bits of exponent is infinite
        steps = middle.astype(np.float32)
    if mode == "down":
        return steps
    odd = np.arange(len(numbers)) % 2 == 1
    up = odd if mode == "nearest" else np.zeros(len(numbers), bool)
    return np.where(up, steps, np.nextafter(steps, np.float32(np.inf)))
