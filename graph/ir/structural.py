"""Compare graph functions up to names, locate the first difference, and hash them consistently with equality.

A function is serialised into parts (a type, an operator, an operand, ...).  Values and sizes are numbered in program order; constants
are represented by their digests.  Two functions are equal if all parts are equal; the digest is the hash of the parts.  The order of
bindings and the names of called functions are significant; names of values, results, sizes and the function itself are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import (
    RESULT_NAMES,
    Call,
    CallFunction,
    Constant,
    If,
    Loop,
    Operand,
    Operation,
    ReadSize,
    Region,
    TensorType,
    While,
)
from tunesmith.ir.script.printer import script
from tunesmith.ir.structural_digest import Structure, Writer

_FORMAT = "tunesmith.graph.structural.1"
"""Version of the serialisation, included in every digest: change it with any change of the parts below."""


def digest(func: GraphFunc) -> str:
    """A hash of 32 hexadecimal digits of exactly what `equal` compares; equal in every process."""
    text = "\n".join([_FORMAT, *[f"{p.kind} {p.key}" for p in _Walk().function(func)]])
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def equal(a: GraphFunc, b: GraphFunc) -> bool:
    """Whether `a` and `b` are the same function up to the names of values, sizes and the function."""
    return difference(a, b) is None


def difference(a: GraphFunc, b: GraphFunc) -> str | None:
    """The first difference of `a` and `b`, such as `/binding 3 (y).operator: relu != neg`; None if they are equal.

    Names in the path are those of `a`.
    """
    # Every list of parts is preceded by its length, so both walks have the same parts up to the first difference.
    for x, y in zip(_Walk().function(a), _Walk().function(b), strict=False):
        if x.kind != y.kind or x.key != y.key:
            left, right = x.shown, y.shown
            return f"{x.path or '/'}.{x.kind}: {left} != {right}" if left != right else f"{x.path}.{x.kind}: {x.key} != {y.key}"
    return None


STRUCTURE = Structure(digest, difference)
"""Digest and difference of graph functions, for modules that also hold TIR functions."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a serialised function.

    Attributes:
        path: path of the part, for messages.
        kind: kind of the part.
        key: the text that is compared.
        shown: the text in messages.
    """

    path: str
    kind: str
    key: str
    shown: str


class _Walk:
    """Yield the parts of one function."""

    def __init__(self) -> None:
        self.index = Writer()
        self.numbers: dict[Operand, str] = {}
        self.path = ""

    def function(self, f: GraphFunc) -> Iterator[_Part]:
        for v in f.bound_sizes:
            self.index.bind(v)
        yield self.part("attributes", repr(tuple([a for a in f.attrs if a[0] != RESULT_NAMES])))
        yield self.part("parameters", str(len(f.params)))
        for i, p in enumerate(f.params):
            yield self.type(p.type, f"/parameter {i} ({p.name})")
            self.number(p)
        yield self.part("assumptions", str(len(f.assumptions)))
        for condition in f.assumptions:
            yield self.part("assumption", self.index.value(condition), script(condition))
        yield from self.region(f.body)

    def part(self, kind: str, key: str, shown: str = "") -> _Part:
        return _Part(self.path, kind, key, shown or key)

    def type(self, t: TensorType, inside: str = "") -> _Part:
        return _Part(self.path + inside, "type", f"{t.dtype}{self.index.value(t.shape)}", repr(t))

    def number(self, o: Operand) -> None:
        self.numbers[o] = f"value {len(self.numbers)}"

    def operand(self, o: Operand, kind: str) -> _Part:
        if isinstance(o, Constant):
            return self.part(kind, f"constant {o.digest}")
        key = self.numbers.get(o, f"free {o.name!r}")
        return self.part(kind, key, f"{o.name} ({key})")

    def region(self, region: Region) -> Iterator[_Part]:
        outside = self.path
        yield self.part("bindings", str(len(region.bindings)))
        for i, b in enumerate(region.bindings):
            self.path = f"{outside}/binding {i} ({', '.join([v.name for v in b.results])})"
            yield from self.operation(b.operation)
            yield self.part("results", str(len(b.results)))
            for v in b.results:
                yield self.type(v.type)
                self.number(v)
            self.path = outside
        yield self.part("results", str(len(region.results)))
        for i, o in enumerate(region.results):
            yield self.operand(o, f"result {i}")

    def operation(self, op: Operation) -> Iterator[_Part]:
        yield self.part("operation", type(op).__name__)
        if isinstance(op, (Call, CallFunction)):
            yield self.part("operator", repr(op.operator)) if isinstance(op, Call) else self.part("function", repr(op.function))
        yield self.part("operands", str(len(op.args)))
        for i, o in enumerate(op.args):
            yield self.operand(o, f"operand {i}")
        if isinstance(op, Call):
            yield self.part("attributes", repr([key for key, _ in op.attrs]))
            for key, value in op.attrs:
                yield self.part(f"attribute {key}", self.index.value(value), repr(value))
        elif isinstance(op, If):
            outside = self.path
            for word, region in (("then", op.then), ("else", op.otherwise)):
                self.path = f"{outside}/{word}"
                yield from self.region(region)
            self.path = outside
        elif isinstance(op, Loop):
            outside = self.path
            yield self.part("iterations", str(op.trips))
            self.index.bind(op.index)
            for p in op.params:
                yield self.type(p.type)
                self.number(p)
            self.path = f"{outside}/loop"
            yield from self.region(op.body)
            self.path = outside
            yield self.part("stores", repr(op.stores))
        elif isinstance(op, While):
            outside = self.path
            for p in op.params:
                yield self.type(p.type)
                self.number(p)
            for word, region in (("condition", op.condition), ("loop", op.body)):
                self.path = f"{outside}/{word}"
                yield from self.region(region)
            self.path = outside
        elif isinstance(op, ReadSize):
            if op.at_most is not None:
                yield self.part("at_most", self.index.value(op.at_most), repr(op.at_most))
            self.index.bind(op.size)
        else:
            yield self.part("sizes", self.index.value(op.sizes), repr(op.sizes))
