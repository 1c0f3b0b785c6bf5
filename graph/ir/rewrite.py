"""Provide the base class of passes that replace operations of a graph function one by one, in order.

    class Fold(Rewriter):
        def visit(self, operation, build):
            if isinstance(operation, Call) and operation.operator == "identity":
                return [operation.args[0]]
            return None

    func = Fold()(func)

The operands of an operation are replaced and its regions rewritten before it is visited, so one traversal suffices.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, If, Loop, Operand, Operation, Region, TensorType, Value, While, rebuilt, regions
from tunesmith.graph.ir.verify import infer
from tunesmith.support.errors import ScriptError


class Rewriter:
    """Rewrite functions; subclasses define the replacements in `visit`."""

    def __init__(self) -> None:
        self._new: dict[Operand, Operand] = {}
        self._old: dict[Operand, Operand] = {}
        self._made: dict[Operand, Call] = {}
        self._branches = 0

    @property
    def in_branch(self) -> bool:
        """Whether the visited operation is in a region of an `if` or a loop, whose values cannot be used outside."""
        return self._branches > 0

    def made_by(self, o: Operand) -> Call | None:
        """The call of the new function that computes `o`; None if it is no result of a call."""
        return self._made.get(o)

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        """The replacements of the results of an operation.

        Args:
            operation: operation with replaced operands and rewritten regions.
            build: appends new bindings before those that follow.
        Returns:
            One operand for each result, of any type; None to keep the operation.
        """
        return None

    def __call__(self, func: GraphFunc) -> GraphFunc:
        """The rewritten function; `func` itself if nothing changed or if an external code generator compiles it.

        Result types are inferred again if operand types changed; calls of functions keep their result types.

        Raises:
            ScriptError: an operation does not accept the new operands, or the result types of the regions of an `if` now differ.
        """
        if func.codegen is not None:
            return func
        self._new, self._old, self._made, self._branches = {}, {}, {}, 0
        body = self._region(func.body)
        return func if body is func.body else func.with_(body=body)

    def operand(self, o: Operand) -> Operand:
        """The replacement of `o`, or `o` itself."""
        return self._new.get(o, o)

    def original(self, o: Operand) -> Operand:
        """The first operand of the old function that `o` replaces, or `o` itself."""
        return self._old.get(o, o)

    def _operands(self, old: tuple[Operand, ...]) -> tuple[Operand, ...]:
        new = tuple([self.operand(o) for o in old])
        return new if _differ(new, old) else old

    def _region(self, region: Region) -> Region:
        build = RegionBuilder()
        for b in region.bindings:
            before = len(build.bindings)
            self._binding(b, build)
            self._made.update((v, new.operation) for new in build.bindings[before:] if isinstance(new.operation, Call) for v in new.results)
        results = self._operands(region.results)
        if results is region.results and not _differ(build.bindings, region.bindings):
            return region
        return Region(tuple(build.bindings), results)

    def _binding(self, b: Binding, build: RegionBuilder) -> None:
        operation = self._operation(b.operation)
        made = self.visit(operation, build)
        if made is None:
            kept = b if operation is b.operation else _with_types(b, operation)
            build.bindings.append(kept)
            made = kept.results
        if len(made) != len(b.results):
            names = ", ".join([v.name for v in b.results])
            raise ScriptError(f"{type(self).__name__}: cannot replace {len(b.results)} results ({names}) by {len(made)} operands")
        for old, new in zip(b.results, made, strict=True):
            if old is not new:
                self._new[old] = new
                self._old.setdefault(new, old)

    def _operation(self, old: Operation) -> Operation:
        """The operation with replaced operands; `old` itself if none changed."""
        args, inner = self._operands(old.args), regions(old)
        self._branches += bool(inner)
        made = [self._region(region) for region in inner]
        self._branches -= bool(inner)
        return rebuilt(old, args, made) if _differ(args, old.args) or _differ(made, inner) else old


def _with_types(b: Binding, new: Operation) -> Binding:
    """`b` with the operation `new`; a value is replaced only if its type changes."""
    old = b.operation
    types: Sequence[TensorType] = [v.type for v in b.results]
    if isinstance(new, Call) and [a.type for a in new.args] != [a.type for a in old.args]:
        types = infer(new.operator, [a.type for a in new.args], new.attrs)
    elif isinstance(new, If):
        types, others = [[r.type for r in region.results] for region in (new.then, new.otherwise)]
        if types != others:
            raise ScriptError(f"the result types of the regions of the `if` for {b.results[0].name} differ: {types} and {others}")
    elif isinstance(new, (Loop, While)):
        types, carried = new.types, [p.type for p in new.params]
        following = [r.type for r in new.body.results[: len(carried)]]
        if following != carried or [o.type for o in new.initial] != carried:
            raise ScriptError(f"the types of the values that the loop for {b.results[0].name} carries change from {carried} to {following}")
    results = tuple([v if v.type == t else Value(v.name, t) for v, t in zip(b.results, types, strict=True)])
    return Binding(results, new)


def _differ(new: Sequence[object], old: Sequence[object]) -> bool:
    return len(new) != len(old) or any(a is not b for a, b in zip(new, old, strict=True))
