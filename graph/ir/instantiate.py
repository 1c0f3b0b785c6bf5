"""Copy regions with other operands and sizes: for inlining, and for binding sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunesmith.graph.ir.node import (
    Attribute,
    Binding,
    Call,
    CallFunction,
    If,
    Loop,
    Operand,
    Operation,
    ReadSize,
    Region,
    TensorType,
    Value,
    While,
)
from tunesmith.ir.poly import Poly, Var, poly, substitute


class Instance:
    """Copies of regions, with new values, which may be used beside the original and other copies.

    Args:
        operands: replaced operands: parameters of a function, and values of enclosing regions.
        sizes: replaced sizes.
    """

    def __init__(self, operands: Mapping[Operand, Operand], sizes: Mapping[Var, Poly] | None = None) -> None:
        self._new = dict(operands)
        self._sizes = dict(sizes or {})

    def operand(self, o: Operand) -> Operand:
        """The replacement of an operand, or itself."""
        return self._new.get(o, o)

    def value(self, v: Value) -> Value:
        """A new value for the one that a binding or a loop defines."""
        made = Value(v.name, TensorType(tuple([substitute(e, self._sizes) for e in v.type.shape]), v.type.dtype))
        self._new[v] = made
        return made

    def region(self, region: Region) -> Region:
        """A copy of the region."""
        bindings = tuple([self._binding(b) for b in region.bindings])
        return Region(bindings, tuple([self.operand(r) for r in region.results]))

    def _binding(self, b: Binding) -> Binding:
        operation = self._operation(b.operation)
        return Binding(tuple([self.value(v) for v in b.results]), operation)

    def _operation(self, op: Operation) -> Operation:
        args = tuple([self.operand(a) for a in op.args])
        if isinstance(op, If):
            return If(args[0], self.region(op.then), self.region(op.otherwise))
        if isinstance(op, Loop):
            index = self._size(op.index)
            return replace(op, index=index, initial=args, params=tuple([self.value(p) for p in op.params]), body=self.region(op.body))
        if isinstance(op, While):
            return While(args, tuple([self.value(p) for p in op.params]), self.region(op.condition), self.region(op.body))
        if isinstance(op, ReadSize):
            return ReadSize(args[0], self._size(op.size), None if op.at_most is None else substitute(op.at_most, self._sizes))
        if isinstance(op, CallFunction):
            return CallFunction(op.function, args, tuple([substitute(s, self._sizes) for s in op.sizes]))
        return Call(op.operator, args, tuple([(key, self._attribute(value)) for key, value in op.attrs]))

    def _size(self, v: Var) -> Var:
        """A new size for one that an operation defines."""
        made = Var(v.name)
        self._sizes[v] = poly(made)
        return made

    def _attribute(self, value: Attribute) -> Attribute:
        if isinstance(value, tuple):
            return tuple([self._attribute(v) for v in value])
        if not isinstance(value, Poly):
            return value
        bound = substitute(value, self._sizes)
        return bound if bound.const is None else bound.const
