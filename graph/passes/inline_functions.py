"""Replace calls of graph functions by their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunesmith.graph.ir.builder import RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.instantiate import Instance
from tunesmith.graph.ir.node import CallFunction, Operand, Operation, all_bindings
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.graph.ir.verify import sizes_of_call
from tunesmith.ir.function import IRModule
from tunesmith.support.errors import BuildError


def inline_functions(mod: IRModule) -> IRModule:
    """Inline the calls of graph functions, but for those of external code generators and primitive functions, and drop what is not called.

    Raises:
        BuildError: a function calls itself, directly or through others.
    """
    inlined = {n: f for n, f in mod.items() if isinstance(f, GraphFunc) and n != "main" and f.codegen is None and not f.is_primitive}
    main = mod["main"]
    if not inlined or not isinstance(main, GraphFunc):
        return mod
    return IRModule({n: f for n, f in {**mod.functions, "main": InlineCalls(inlined)(main)}.items() if n not in inlined})


class InlineCalls(Rewriter):
    """Replace the calls of the given functions, also those in their bodies."""

    def __init__(self, functions: Mapping[str, GraphFunc]) -> None:
        super().__init__()
        self._functions = functions
        self._done: dict[str, GraphFunc] = {}

    def visit(self, operation: Operation, build: RegionBuilder) -> Sequence[Operand] | None:
        if not isinstance(operation, CallFunction) or operation.function not in self._functions:
            return None
        func = self._whole(operation.function, ())
        sizes = sizes_of_call(func, [a.type for a in operation.args], operation.sizes)
        made = Instance(dict(zip(func.params, operation.args, strict=True)), sizes).region(func.body)
        build.bindings += made.bindings
        return made.results

    def _whole(self, name: str, calls: tuple[str, ...]) -> GraphFunc:
        """A function with the calls in its body inlined.  Raises BuildError for recursive calls."""
        if name in calls:
            raise BuildError(
                f"{' calls '.join((*calls, name))}: graph functions that are inlined must not be recursive. A model for a device inlines "
                "all of its functions: compile it for the host"
            )
        if name not in self._done:
            func = self._functions[name]
            called = {b.operation.function for b in all_bindings(func.body) if isinstance(b.operation, CallFunction)}
            inner = {n: self._whole(n, (*calls, name)) for n in sorted(called & self._functions.keys())}
            self._done[name] = InlineCalls(inner)(func) if inner else func
        return self._done[name]
