"""Define the nodes of graph functions: tensor types, values, constants, operations, bindings and regions.

A binding computes one or several tensors by an operation: a call of an operator of `graph.operators`, a call of a function of the
module, an `if` with two regions, or a loop over a region.  There are no tuples of tensors: an operation has several results instead (as in
MLIR; Relax nests tuples).  Extents are index expressions of sizes, which are extents of parameters or are read from tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tunesmith.ir.poly import Index, Poly, Var, poly
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and element type.  Two types are equal if their extents are the same expressions of the same sizes."""

    shape: tuple[Poly, ...]
    dtype: str

    @classmethod
    def of(cls, shape: Iterable[Index], dtype: str = "float32") -> TensorType:
        """The type with these extents: ints or index expressions."""
        if dt.lanes(dtype) != 1:
            raise ScriptError(f"a tensor has elements of a scalar type, not {dtype}")
        extents = tuple([poly(e) for e in shape])
        for e in extents:
            if e.const is not None and e.const < 0:
                raise ScriptError(f"a tensor cannot have the extent {e}")
        return cls(extents, dtype)

    @property
    def is_static(self) -> bool:
        """Whether all extents are constant."""
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
    """A computed tensor or a parameter, identified by the object; the name is for display."""

    name: str
    type: TensorType

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor with elements known at compile time, usually weights.

    Args:
        name: name for display.
        data: the elements; the array must not be modified afterwards.
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
        """Hash of dtype, shape and bytes; equal in every process."""
        head = f"{self.data.dtype.str}{self.data.shape}".encode()
        return hashlib.sha256(head + self.data.tobytes()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"{self.name}: constant {self.type}"


Operand = Value | Constant

Attribute = bool | int | float | str | Poly | tuple["Attribute", ...] | None
"""Values of operator attributes."""

Attributes = tuple[tuple[str, Attribute], ...]

PRIMITIVE = "primitive"
"""Attribute of graph functions that are lowered to one TIR function each; calls pass all of their sizes."""
PARTS_OF = "parts_of"
"""Attribute of a graph function that computes the same as the primitive function of this name by calls of several functions."""


RESULT_NAMES = "result_names"
"""Attribute of a graph function: the names of its results, as a JSON list.  Executors and C headers use them."""


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """An operator applied to tensors.

    Attributes:
        operator: name in `graph.ir.operator.GRAPH_OPERATORS`.
        args: operands.
        attrs: all attributes, including defaults, in the order of the operator's signature.
    """

    operator: str
    args: tuple[Operand, ...]
    attrs: Attributes = ()

    def attr(self, key: str) -> Any:
        """The value of an attribute."""
        return dict(self.attrs)[key]

    @property
    def keywords(self) -> dict[str, Any]:
        """The attributes as keyword arguments of a builder method."""
        return dict(self.attrs)


@dataclass(frozen=True, eq=False, slots=True)
class CallFunction:
    """A function of the module applied to tensors.

    Attributes:
        function: name of the function.  A TIR function takes operands, results and `sizes`, in this order; a graph function takes operands.
        args: operands.
        sizes: values of the scalar parameters of a TIR function, in order.
    """

    function: str
    args: tuple[Operand, ...]
    sizes: tuple[Poly, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class If:
    """Evaluate one of two regions, which may use all values bound before and have equal result types.

    Attributes:
        condition: bool[].
        then: computed if the condition is true.
        otherwise: computed if it is false.
    """

    condition: Operand
    then: Region
    otherwise: Region

    @property
    def args(self) -> tuple[Operand, ...]:
        """The condition; `used` also yields the operands of the regions."""
        return (self.condition,)


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """Evaluate a region several times, with values that are carried from one iteration to the next (as `scan` of JAX and ONNX).

    The results are the carried values after the last iteration, and then for each other result of the region the results of all
    iterations, as rows of one tensor.

    Attributes:
        index: the number of the iteration, from 0 on: a size in the region, for attributes such as that of `row`.
        trips: number of iterations, at least 1.
        initial: the carried values before the first iteration.
        params: the carried values in the region.
        body: its results are the next carried values, and the rows.
        stores: once the functions of the region are lowered, the function that stores each row: store(row, all rows, index).
    """

    index: Var
    trips: int
    initial: tuple[Operand, ...]
    params: tuple[Value, ...]
    body: Region
    stores: tuple[str, ...] = ()

    @property
    def args(self) -> tuple[Operand, ...]:
        """The initial values; `used` also yields the operands of the region."""
        return self.initial

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the results."""
        made = [r.type for r in self.body.results]
        rows = [TensorType((poly(self.trips), *t.shape), t.dtype) for t in made[len(self.params) :]]
        return (*made[: len(self.params)], *rows)


@dataclass(frozen=True, eq=False, slots=True)
class While:
    """Evaluate a region as long as a condition holds, with values that are carried from one iteration to the next (`scf.while` of MLIR).

    Both regions compute with the carried values; the results are those for which the condition does not hold, perhaps the initial ones.

    Attributes:
        initial: the carried values before the first iteration.
        params: the carried values in the regions.
        condition: its result, a bool[], says whether there is another iteration.
        body: its results are the next carried values.
    """

    initial: tuple[Operand, ...]
    params: tuple[Value, ...]
    condition: Region
    body: Region

    @property
    def args(self) -> tuple[Operand, ...]:
        """The initial values; `used` also yields the operands of the regions."""
        return self.initial

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the results."""
        return tuple([p.type for p in self.params])


@dataclass(frozen=True, eq=False, slots=True)
class ReadSize:
    """Read a size from a tensor, so that shapes depend on data (an unbacked integer of torch.export).  The binding has no results.

    Attributes:
        value: int64[], at least 0.
        size: the size, which the bindings after this one may use.
        at_most: the largest admissible size, which executors check; None for no limit.
    """

    value: Operand
    size: Var
    at_most: Poly | None = None

    @property
    def args(self) -> tuple[Operand, ...]:
        """The tensor."""
        return (self.value,)


Operation = Call | CallFunction | If | Loop | While | ReadSize


@dataclass(frozen=True, eq=False, slots=True)
class Binding:
    """Values and the operation that computes them."""

    results: tuple[Value, ...]
    operation: Operation


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """Bindings in topological order, and the results of the region."""

    bindings: tuple[Binding, ...]
    results: tuple[Operand, ...]


def expressions(value: Attribute) -> list[Poly]:
    """The index expressions in an attribute."""
    if isinstance(value, tuple):
        return [p for v in value for p in expressions(v)]
    return [value] if isinstance(value, Poly) else []


def regions(operation: Operation) -> tuple[Region, ...]:
    """The regions of an operation: two of an `If` or a `While`, one of a `Loop`, else none."""
    if isinstance(operation, If):
        return operation.then, operation.otherwise
    if isinstance(operation, While):
        return operation.condition, operation.body
    return (operation.body,) if isinstance(operation, Loop) else ()


def params_of(operation: Operation) -> tuple[Value, ...]:
    """The values that an operation binds in its regions: those that a loop carries."""
    return operation.params if isinstance(operation, (Loop, While)) else ()


def size_of(operation: Operation) -> Var | None:
    """The size that an operation defines: the number of an iteration of a `Loop`, or the size that a `ReadSize` reads."""
    return operation.index if isinstance(operation, Loop) else operation.size if isinstance(operation, ReadSize) else None


def rebuilt(operation: Operation, args: Sequence[Operand], inner: Sequence[Region] = ()) -> Operation:
    """The operation with other operands and regions, in the order of `args` and `regions`."""
    operands = tuple(args)
    if isinstance(operation, If):
        return If(operands[0], *inner)
    if isinstance(operation, Loop):
        return replace(operation, initial=operands, body=inner[0])
    if isinstance(operation, While):
        return replace(operation, initial=operands, condition=inner[0], body=inner[1])
    if isinstance(operation, ReadSize):
        return replace(operation, value=operands[0])
    return replace(operation, args=operands)


def with_branches(b: Binding, rewrite: Callable[[Region], Region]) -> Binding:
    """The binding with the regions of its operation rewritten; `b` itself if they are unchanged, or if it has none."""
    old = regions(b.operation)
    new = [rewrite(region) for region in old]
    same = all(n is o for n, o in zip(new, old, strict=True))
    return b if same else Binding(b.results, rebuilt(b.operation, b.operation.args, new))


def all_bindings(region: Region) -> Iterator[Binding]:
    """All bindings; bindings of inner regions precede the one that contains them."""
    for b in region.bindings:
        for inner in regions(b.operation):
            yield from all_bindings(inner)
        yield b


def used(operation: Operation) -> Iterator[Operand]:
    """All operands of an operation, including those that its regions use from outside; an operand may be repeated."""
    yield from operation.args
    for region in regions(operation):
        bound = {v for b in region.bindings for v in b.results}
        bound.update(params_of(operation))
        inner = [o for b in region.bindings for o in used(b.operation)]
        yield from [o for o in (*inner, *region.results) if o not in bound]


def defined_sizes(body: Region) -> frozenset[Var]:
    """The sizes that operations of a region define, its inner regions included."""
    return frozenset([v for b in all_bindings(body) if (v := size_of(b.operation)) is not None])


def sizes_in(b: Binding) -> set[Var]:
    """The sizes that a binding uses: in attributes, in calls and in types of results, its regions included."""
    op = b.operation
    found = [e for v in b.results for e in v.type.shape]
    if isinstance(op, Call):
        found += expressions(tuple([value for _, value in op.attrs]))
    elif isinstance(op, CallFunction):
        found += op.sizes
    elif isinstance(op, ReadSize) and op.at_most is not None:
        found.append(op.at_most)
    sizes = {v for e in found for v in e.vars}
    return sizes.union(*[sizes_in(inner) for region in regions(op) for inner in region.bindings])


def constants(body: Region) -> tuple[Constant, ...]:
    """The constants of a function body, without repetitions, in order of first use."""
    operands = [o for b in body.bindings for o in used(b.operation)]
    return tuple(dict.fromkeys(o for o in (*operands, *body.results) if isinstance(o, Constant)))
