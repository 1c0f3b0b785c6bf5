"""Choose between one function and its parts, which compute the same, by their tuning records.

A pass that proposes to compute several calls in one function (`graph.passes.propose_attention`) adds a graph function of the calls, with
the attribute `parts_of`.  Both are tuned.  The one with the smaller measured time is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import PARTS_OF, CallFunction, all_bindings
from tunesmith.graph.passes.inline_functions import InlineCalls
from tunesmith.graph.tuning.apply_records import ApplyRecords
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target


def parts_of(mod: IRModule, whole: str) -> Iterator[GraphFunc]:
    """The functions that compute the same as the function `whole` by parts."""
    return (f for f in mod.values() if isinstance(f, GraphFunc) and f.attr(PARTS_OF) == whole)


def choose_parts(mod: IRModule, passes: ApplyRecords, target: Target) -> IRModule:
    """Keep each function that has parts if its record is faster than those of its parts together, and else its parts.

    A function without a usable record is not kept.  It is kept if a part has none, because parts without records are slower than measured
    ones.

    Args:
        mod: a legalised module.
        passes: finds the usable records.
        target: target of the compilation.
    """
    found = {str(f.attr(PARTS_OF)): f for f in mod.values() if isinstance(f, GraphFunc) and f.attr(PARTS_OF) is not None}
    if not found:
        return mod
    inlined = {whole: parts for whole, parts in found.items() if _are_faster(mod, whole, parts, passes, target)}
    kept = {name: f for name, f in mod.items() if not (isinstance(f, GraphFunc) and f.attr(PARTS_OF) is not None)}
    inline = InlineCalls(inlined)
    functions = {name: inline(f) if isinstance(f, GraphFunc) else f for name, f in kept.items()}
    optional = {*found, *[call for parts in found.values() for call in _called([parts])]}
    called = _called([f for f in functions.values() if isinstance(f, GraphFunc)])
    return IRModule({name: f for name, f in functions.items() if name not in optional or name in called})


def _called(functions: Sequence[GraphFunc]) -> list[str]:
    """The functions that graph functions call, once for each call."""
    return [b.operation.function for f in functions for b in all_bindings(f.body) if isinstance(b.operation, CallFunction)]


def _are_faster(mod: IRModule, whole: str, parts: GraphFunc, passes: ApplyRecords, target: Target) -> bool:
    one = _seconds(mod, whole, passes, target)
    each = [_seconds(mod, name, passes, target) for name in _called([parts])]
    return one is None or (None not in each and sum(s for s in each if s is not None) <= one)


def _seconds(mod: IRModule, name: str, passes: ApplyRecords, target: Target) -> float | None:
    """The measured time of the usable record of a function; None if it has none."""
    func = mod[name]
    if not isinstance(func, PrimFunc):
        return None
    _, coverage = passes.find(name, func, target)
    return coverage[0].seconds if coverage[0].status == "used" else None
