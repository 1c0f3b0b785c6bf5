"""Eliminate common subexpressions: replace a call by an earlier equal one (operators have no side effects)."""

from __future__ import annotations

from collections.abc import Hashable

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, Operand, Region, Value, rebuilt, regions
from tunesmith.ir.function import IRModule


def common_subexpressions(mod: IRModule) -> IRModule:
    """Replace a call by an earlier one with equal operator, operands and attributes, in the same or an enclosing region.

    Constants with equal elements are merged into one operand.
    """
    return mod.update({name: _function(f) for name, f in mod.items() if isinstance(f, GraphFunc) and f.codegen is None})


def _function(func: GraphFunc) -> GraphFunc:
    seen = _AvailableValues()
    body = _region(func.body, seen)
    return func.with_(body=body) if seen.found else func


class _AvailableValues:
    """The calls and constants available at a point of the program."""

    def __init__(self) -> None:
        self.calls: dict[Hashable, tuple[Value, ...]] = {}
        self.same: dict[Operand, Operand] = {}
        self.constants: dict[str, Constant] = {}
        self.found = False

    def operand(self, o: Operand) -> Operand:
        """The first operand with the same value as `o`."""
        if isinstance(o, Constant):
            first = self.constants.setdefault(o.digest, o)
            self.found |= first is not o
            return first
        return self.same.get(o, o)


def _region(region: Region, seen: _AvailableValues) -> Region:
    kept: list[Binding] = []
    keys: list[Hashable] = []
    for b in region.bindings:
        op = b.operation
        args = tuple([seen.operand(a) for a in op.args])
        if not isinstance(op, (Call, CallFunction)):
            kept.append(Binding(b.results, rebuilt(op, args, [_region(inner, seen) for inner in regions(op)])))
            continue
        key: Hashable = ("call", op.operator, args, _exactly(op.attrs)) if isinstance(op, Call) else (op.function, args, op.sizes)
        first = seen.calls.get(key)
        if first is not None:
            seen.same.update(zip(b.results, first, strict=True))
            seen.found = True
            continue
        seen.calls[key] = b.results
        keys.append(key)
        kept.append(Binding(b.results, rebuilt(op, args)))
    for key in keys:  # values of a region are not visible outside
        del seen.calls[key]
    return Region(tuple(kept), tuple([seen.operand(r) for r in region.results]))


def _exactly(value: object) -> Hashable:
    """A key that distinguishes 1, True and 1.0, and 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple([_exactly(v) for v in value])
    return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)
