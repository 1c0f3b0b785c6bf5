"""Register ONNX converters, and give them access to a node's operands and attributes (`OnnxNode`).

A converter takes an `OnnxNode` and returns its results in the order of the node's outputs: one tensor, or a tuple with None for each
unsupported output.  It calls graph operators through `node.b` and raises `UnsupportedNode` for unsupported cases:

    @ONNX_OPERATORS.registers("com.example.Scale2")
    def scale2(node: OnnxNode) -> Datum:
        return node.b.multiply(node.input(0), node.like(2, node.input(0)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.values import Datum, FoldingBuilder, Sizes, UnsupportedNode, known_ints
from tunesmith.graph.ir.node import Constant, TensorType
from tunesmith.ir.poly import Index, Poly
from tunesmith.support import dtype as dt
from tunesmith.support.registry import FUNCTION, Registry

DTYPES: Mapping[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
"""TensorProto.DataType -> dtype of the supported element types."""

_OTHER_TYPES = {8: "string", 14: "complex64", 15: "complex128"}


def dtype_of(number: int) -> str:
    """The dtype of a TensorProto.DataType; UnsupportedNode for strings, complex numbers and floats of 8 bits or less."""
    if number not in DTYPES:
        raise UnsupportedNode(f"element type {_OTHER_TYPES.get(number, f'number {number}')}")
    return DTYPES[number]


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node and its operands.

    Attributes:
        operator: operator type.
        version: version of the operator's domain that the model imports.
        inputs: operands; None for omitted ones.
        outputs: result names; "" for unused results.
        attributes: attributes by name, without defaults; strings as str, tensors as arrays.
        b: builder of graph operator calls.
    """

    operator: str
    version: int
    inputs: tuple[Datum | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    b: FoldingBuilder

    def has(self, i: int) -> bool:
        """Whether input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def wants(self, i: int) -> bool:
        """Whether output `i` is used."""
        return i < len(self.outputs) and bool(self.outputs[i])

    def input(self, i: int) -> Datum:
        """Operand `i`; UnsupportedNode if it is omitted."""
        found = self.inputs[i] if i < len(self.inputs) else None
        if found is None:
            raise UnsupportedNode(f"input {i} is missing")
        return found

    def get(self, i: int) -> Datum | None:
        """Operand `i`, or None if it is omitted."""
        return self.inputs[i] if i < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default."""
        return self.attributes.get(name, default)

    def each(self, name: str, n: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """A list attribute of `n` ints."""
        given = self.attr(name, default)
        found = () if given is None else tuple(given)
        if len(found) != n:
            raise UnsupportedNode(f"the attribute {name} has {len(found)} elements, {list(found)}; expected {n}")
        return found

    def ints(self, i: int, what: str) -> tuple[Poly | int, ...]:
        """The flat elements of input `i`, which must be known at import: ints and index expressions."""
        found = known_ints(self.input(i))
        if found is None:
            raise self._unknown(i, what)
        return found

    def scalars(self, i: int, what: str) -> tuple[Poly | int | Datum, ...]:
        """The flat elements of input `i`, an integer tensor: those that are not known at import are tensors without axes."""
        found = self.b.elements(self.input(i))
        if found is None:
            raise self._unknown(i, what)
        return found

    def extents(self, i: int, what: str) -> tuple[Poly | int, ...]:
        """The flat elements of input `i`, which are extents: those that are not known at import are read when the model runs."""
        return tuple([e if isinstance(e, (int, Poly)) else self.b.read_size(e, "n") for e in self.scalars(i, what)])

    def knows(self, i: int) -> bool:
        """Whether the elements of input `i` are known at import, or the input is omitted."""
        return not self.has(i) or known_ints(self.input(i)) is not None

    def numbers(self, i: int, what: str) -> tuple[int, ...]:
        """The flat elements of input `i`, which must be constant ints."""
        found = self.ints(i, what)
        if any(isinstance(v, Poly) for v in found):
            raise UnsupportedNode(f"input {i} ({what}) depends on symbolic sizes; fix them with shapes=")
        return tuple([v for v in found if isinstance(v, int)])

    def array(self, i: int, what: str) -> np.ndarray:
        """The elements of input `i`, which must be constant."""
        found = self.input(i)
        if isinstance(found, Constant):
            return found.data
        if isinstance(found, Sizes):
            raise UnsupportedNode(f"input {i} ({what}) depends on symbolic sizes; fix them with shapes=")
        raise self._unknown(i, what)

    def axes(self, i: int, since: int) -> tuple[int, ...] | None:
        """Axes: an attribute before version `since`, input `i` from then on; None if omitted."""
        if self.version >= since:
            return self.numbers(i, "axes") if self.has(i) else None
        given = self.attr("axes")
        return None if given is None else tuple(given)

    def like(self, number: float | bool, x: Datum) -> Constant:
        """A scalar constant with the element type of `x`."""
        return self.b.constant(number, x.type.dtype)

    def refuse(self, reason: str) -> UnsupportedNode:
        """An UnsupportedNode error for the caller to raise."""
        return UnsupportedNode(reason)

    def _unknown(self, i: int, what: str) -> UnsupportedNode:
        return UnsupportedNode(f"input {i} ({what}) is not known at import", self.b.wanted(self.input(i)))


@dataclass(frozen=True, eq=False)
class EmptyTensor:
    """A tensor without elements that is no constant, because other extents than the 0 are sizes.  Only Concat, Shape and Size take it.

    Attributes:
        type: its type.
    """

    type: TensorType


def empty(shape: Sequence[Index], dtype: str) -> Any:
    """A tensor without elements: a constant if its shape is."""
    made = TensorType.of(shape, dtype)
    return Constant("empty", np.zeros(made.extents, dt.to_numpy(dtype))) if made.is_static else EmptyTensor(made)


Converted = Datum | Sequence[Datum | None]
Converter = Callable[[OnnxNode], Converted]

ONNX_OPERATORS: Registry[Converter] = Registry("onnx operator", contract=FUNCTION)
"""Converters by operator name; outside the default domain the name is `domain.Operator`."""


def rank(x: Datum) -> int:
    """The number of dimensions."""
    return len(x.type.shape)


def extents(x: Datum, what: str = "the operand") -> tuple[int, ...]:
    """A static shape as ints; UnsupportedNode if it is symbolic."""
    if not x.type.is_static:
        raise UnsupportedNode(f"{what} has the symbolic shape {x.type}; fix its sizes with shapes=")
    return x.type.extents


def shape_of(x: Datum) -> tuple[Poly | int, ...]:
    """The shape with constant extents as ints."""
    return tuple([e if e.const is None else e.const for e in x.type.shape])


def normalised(axis: int, n: int) -> int:
    """A non-negative axis index; UnsupportedNode if out of range."""
    if not -n <= axis < n:
        raise UnsupportedNode(f"axis {axis} is out of range for a tensor with {n} dimensions")
    return axis % n


def cast_to(b: FoldingBuilder, x: Datum, dtype: str) -> Datum:
    """`x` cast to an element type; `x` itself if it has this type."""
    if x.type.dtype == dtype:
        return x
    if dtype == "bool":
        return b.not_equal(x, b.constant(0, x.type.dtype))
    return b.cast(x, dtype=dtype)


def is_float(x: Datum) -> bool:
    """Whether the elements are floats."""
    return dt.is_float(x.type.dtype)
