"""Remove bindings without users, and functions that are no longer called."""

from __future__ import annotations

from tunesmith.graph.ir.calls import called_functions
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import PARTS_OF, Binding, CallFunction, Operand, Region, all_bindings, size_of, sizes_in, used, with_branches
from tunesmith.ir.function import IRModule


def dead_code(mod: IRModule) -> IRModule:
    """Remove bindings without users, also in inner regions, and functions that graph functions called before but no longer call.

    Functions that no graph function called before the pass are entry points and are kept.
    """
    before = _called(mod)
    functions = {name: _alive(f) if isinstance(f, GraphFunc) else f for name, f in mod.items()}
    kept = IRModule(functions)
    while removed := (before & set(kept)) - _called(kept):
        kept = IRModule({name: f for name, f in kept.items() if name not in removed})
    return mod if len(kept) == len(mod) and all(kept[n] is mod[n] for n in kept) else kept


def without_unused_functions(mod: IRModule, entry: str = "main") -> IRModule:
    """Remove the graph functions that the entry does not call, directly or through others, and the functions that only those call."""
    if not isinstance(mod.get(entry), GraphFunc):
        return mod
    parts = [name for name, f in mod.items() if isinstance(f, GraphFunc) and f.attr(PARTS_OF) is not None]
    used_functions = {name for root in (entry, *parts) for name in (root, *called_functions(mod, root))}
    kept = IRModule({name: f for name, f in mod.items() if name in used_functions or not isinstance(f, GraphFunc)})
    unused = _called(mod) - _called(kept)
    return mod if len(kept) == len(mod) else IRModule({name: f for name, f in kept.items() if name in used_functions or name not in unused})


def _called(mod: IRModule) -> set[str]:
    graphs = [f for f in mod.values() if isinstance(f, GraphFunc)]
    return {b.operation.function for f in graphs for b in all_bindings(f.body) if isinstance(b.operation, CallFunction)}


def _alive(func: GraphFunc) -> GraphFunc:
    body = _region(func.body)
    return func if body is func.body else func.with_(body=body)


def _region(region: Region) -> Region:
    needed: set[Operand] = set(region.results)
    sizes = {v for r in region.results for e in r.type.shape for v in e.vars}
    kept: list[Binding] = []
    for b in reversed(region.bindings):
        if needed.isdisjoint(b.results) and size_of(b.operation) not in sizes:
            continue
        b = with_branches(b, _region)
        needed.update(used(b.operation))
        sizes |= sizes_in(b)
        kept.append(b)
    kept.reverse()
    return (
        region
        if len(kept) == len(region.bindings) and all(a is b for a, b in zip(kept, region.bindings, strict=True))
        else Region(tuple(kept), region.results)
    )
