"""The nodes of graph functions: tensor types, values, constants, operations, bindings and regions.

A binding computes one or several tensors by an operation: a call of an operator of `graph.operators`, a call of a function of the
module, or an `if` with two regions.  There are no tuples of tensors: an operation has as many results as it needs (as in MLIR; Relax
nests tuples instead).  Shapes hold index expressions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tunesmith.ir.poly import Index, Poly, poly
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type.  Two types are equal when their extents are the same expressions of the same sizes."""

    shape: tuple[Poly, ...]
    dtype: str

    @classmethod
    def of(cls, shape: Iterable[Index], dtype: str = "float32") -> TensorType:
        """The type with these extents, ints or index expressions."""
        if dt.lanes(dtype) != 1:
            raise ScriptError(f"a tensor has elements of a scalar type, not {dtype}")
        extents = tuple([poly(e) for e in shape])
        for e in extents:
            if e.const is not None and e.const < 0:
                raise ScriptError(f"a tensor cannot have the extent {e}")
        return cls(extents, dtype)

    @property
    def is_static(self) -> bool:
        """Whether all extents are numbers."""
        return all(e.const is not None for e in self.shape)

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of a static shape, as ints."""
        return tuple([e.as_int() for e in self.shape])

    @property
    def nbytes(self) -> int:
        """Size in bytes of a static type."""
        return int(np.prod(self.extents, dtype=np.int64)) * dt.nbytes(self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(repr, self.shape))}]"


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor that is computed or passed in: its identity is the object, the name is for people."""

    name: str
    type: TensorType

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor with known elements, weights mostly.

    Args:
        name: for people.
        data: its elements; they must not change any more.
    """

    name: str
    data: np.ndarray

    def __post_init__(self) -> None:
        data = np.asarray(self.data)
        array = np.ascontiguousarray(data).view() if data.ndim else data.view()
        array.flags.writeable = False
        object.__setattr__(self, "data", array)

    @cached_property
    def type(self) -> TensorType:
        """Shape and element type of the data."""
        return TensorType.of(self.data.shape, dt.from_numpy(self.data.dtype))

    @cached_property
    def digest(self) -> str:
        """Of type, shape and bytes: the same in every process."""
        head = f"{self.data.dtype.str}{self.data.shape}".encode()
        return hashlib.sha256(head + self.data.tobytes()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"{self.name}: constant {self.type}"


Operand = Value | Constant

Attribute = bool | int | float | str | Poly | tuple["Attribute", ...] | None
"""What an operator may be told besides its operands."""

Attributes = tuple[tuple[str, Attribute], ...]

PRIMITIVE = "primitive"
"""Attribute of graph functions that become one TIR function each; their calls give them all of their sizes."""


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """An operator applied to tensors.

    Attributes:
        operator: its name in `graph.ir.operator.GRAPH_OPERATORS`.
        args: operands.
        attrs: every attribute of the operator, in its order, defaults included.
    """

    operator: str
    args: tuple[Operand, ...]
    attrs: Attributes = ()

    def attr(self, key: str) -> Any:
        """The value of an attribute."""
        return dict(self.attrs)[key]

    @property
    def keywords(self) -> dict[str, Any]:
        """The attributes as a builder's method takes them."""
        return dict(self.attrs)


@dataclass(frozen=True, eq=False, slots=True)
class CallFunction:
    """A function of the module applied to tensors.

    Attributes:
        function: its name.  A TIR function takes the operands, the results and then `sizes`; a graph function takes the operands.
        args: operands.
        sizes: values of the scalar parameters of a TIR function, in order.
    """

    function: str
    args: tuple[Operand, ...]
    sizes: tuple[Poly, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class If:
    """One of two regions, which may use all that is bound before; they have results of the same types.

    Attributes:
        condition: bool[].
        then: computed where it holds.
        otherwise: computed where it does not.
    """

    condition: Operand
    then: Region
    otherwise: Region

    @property
    def args(self) -> tuple[Operand, ...]:
        """The condition; what the regions use besides is told by `used`."""
        return (self.condition,)


Operation = Call | CallFunction | If


@dataclass(frozen=True, eq=False, slots=True)
class Binding:
    """Values and the operation that computes them."""

    results: tuple[Value, ...]
    operation: Operation


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """Bindings in an order in which they can be computed, and what they are computed for."""

    bindings: tuple[Binding, ...]
    results: tuple[Operand, ...]


def expressions(value: Attribute) -> list[Poly]:
    """The index expressions in an attribute."""
    if isinstance(value, tuple):
        return [p for v in value for p in expressions(v)]
    return [value] if isinstance(value, Poly) else []


def regions(operation: Operation) -> tuple[Region, ...]:
    """The regions of an operation: two for `if`, else none."""
    return (operation.then, operation.otherwise) if isinstance(operation, If) else ()


def all_bindings(region: Region) -> Iterator[Binding]:
    """Every binding, those of inner regions before the one that holds them."""
    for b in region.bindings:
        for inner in regions(b.operation):
            yield from all_bindings(inner)
        yield b


def used(operation: Operation) -> Iterator[Operand]:
    """All operands of an operation, those that its regions take from outside included; some may come several times."""
    yield from operation.args
    for region in regions(operation):
        bound = {v for b in region.bindings for v in b.results}
        inner = [o for b in region.bindings for o in used(b.operation)]
        yield from [o for o in (*inner, *region.results) if o not in bound]


def constants(body: Region) -> tuple[Constant, ...]:
    """The constants of a function's body, each once, in order of first use."""
    operands = [o for b in body.bindings for o in used(b.operation)]
    return tuple(dict.fromkeys(o for o in (*operands, *body.results) if isinstance(o, Constant)))
