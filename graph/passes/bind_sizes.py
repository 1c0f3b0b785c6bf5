"""Replace dynamic sizes of a graph function by numbers, so that it can be tuned and its memory planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Attribute, Binding, Call, CallFunction, If, Loop, Operand, Operation, Region, TensorType, Value
from tunesmith.ir.expr import Const
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Poly, Var, poly, substitute
from tunesmith.ir.script.printer import script
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support.errors import UserError


def bind_sizes(mod: IRModule, sizes: Mapping[str, int], name: str = "main") -> IRModule:
    """Replace sizes of one graph function by numbers.

    Args:
        mod: the module.
        sizes: size name -> number.
        name: name of the function.
    Raises:
        UserError: the function has no such size, or an assumption on its sizes does not hold.
    """
    func = mod[name]
    known = {v.name: v for v in func.sizes} if isinstance(func, GraphFunc) else {}
    unknown = sorted(sizes.keys() - known.keys())
    if unknown:
        raise UserError(f"{name} has no size {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    return mod.update({name: _Binder({known[n]: poly(number) for n, number in sizes.items()}).function(func)})


class _Binder:
    def __init__(self, values: Mapping[Var, Poly]) -> None:
        self._values = values
        self._new: dict[Operand, Operand] = {}

    def function(self, func: GraphFunc) -> GraphFunc:
        params = tuple([self._value(p) for p in func.params])
        simplify = Simplifier({v: (1, 2**31 - 1) for v in func.sizes})
        remaining = []
        for condition in func.assumptions:
            bound = simplify(condition.map_children(self._index))
            if not isinstance(bound, Const):
                remaining.append(bound)
            elif not bound.value:
                numbers = ", ".join(f"{v.name} = {n}" for v, n in self._values.items())
                raise UserError(f"{func.name} assumes {script(condition)}, which does not hold with {numbers}")
        return func.with_(params=params, body=self._region(func.body), assumptions=tuple(remaining))

    def _index(self, p: object) -> object:
        return substitute(p, self._values) if isinstance(p, Poly) else p.map_children(self._index)  # type: ignore[attr-defined]

    def _value(self, v: Value) -> Value:
        shape = tuple([substitute(e, self._values) for e in v.type.shape])
        new = v if shape == v.type.shape else Value(v.name, TensorType(shape, v.type.dtype))
        self._new[v] = new
        return new

    def _operand(self, o: Operand) -> Operand:
        return self._new.get(o, o)

    def _attribute(self, value: Attribute) -> Attribute:
        if isinstance(value, tuple):
            return tuple([self._attribute(v) for v in value])
        if not isinstance(value, Poly):
            return value
        bound = substitute(value, self._values)
        return bound if bound.const is None else bound.const

    def _region(self, region: Region) -> Region:
        bindings = [Binding(tuple([self._value(v) for v in b.results]), self._operation(b.operation)) for b in region.bindings]
        return Region(tuple(bindings), tuple([self._operand(r) for r in region.results]))

    def _operation(self, op: Operation) -> Operation:
        args = tuple([self._operand(a) for a in op.args])
        if isinstance(op, If):
            return If(args[0], self._region(op.then), self._region(op.otherwise))
        if isinstance(op, Loop):
            return replace(op, initial=args, params=tuple([self._value(p) for p in op.params]), body=self._region(op.body))
        if isinstance(op, CallFunction):
            return CallFunction(op.function, args, tuple([substitute(s, self._values) for s in op.sizes]))
        return Call(op.operator, args, tuple([(key, self._attribute(value)) for key, value in op.attrs]))
