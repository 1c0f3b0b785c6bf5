"""Propose functions of several calls, each beside the same calls one by one; `graph.tuning.choose_parts` chooses by the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import PARTS_OF, PRIMITIVE, Binding, Operand, Region, used, with_branches
from tunesmith.graph.ir.outline import Outlined
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.flatten_rows import flatten_rows
from tunesmith.graph.passes.fuse_operators import is_literal
from tunesmith.graph.passes.fused_size import FusedSize
from tunesmith.ir.function import IRModule


@dataclass(frozen=True, slots=True)
class Uses:
    """How a region uses its operands.

    Attributes:
        makers: operand -> the binding that computes it.
        counts: operand -> number of uses, those as results of the region included.
        users: operand -> the bindings that use it.
    """

    makers: Mapping[Operand, Binding]
    counts: Mapping[Operand, int]
    users: Mapping[Operand, list[Binding]]


@dataclass(frozen=True, slots=True)
class Chain:
    """Bindings that one function may compute.

    Attributes:
        replaced: bindings of the region, the last one last; only its results are used by others.
        calls: the operator calls that compute the same in the function.
        before: bindings that compute operands of `calls`, such as views.
        after: bindings that compute the results of the last of `replaced` from those of `calls`; empty if they are the same.
    """

    replaced: tuple[Binding, ...]
    calls: tuple[Binding, ...]
    before: tuple[Binding, ...] = ()
    after: tuple[Binding, ...] = ()


Find = Callable[[Region, Uses], Sequence[Chain]]
"""The chains of a region."""


def propose(mod: IRModule, name: str, find: Find) -> IRModule:
    """Move chains of calls into one primitive function each, and add a graph function with the attribute `parts_of` that contains the same
    calls, to be fused and lowered one by one.

    Args:
        mod: a module with graph functions.
        name: the preferred name of the functions.
        find: finds the chains; one that overlaps an earlier one, or is too large for one expression, is not proposed.
    """
    made = Outlined(mod)
    functions = {n: _function(f, name, find, made) for n, f in mod.items() if isinstance(f, GraphFunc) and _is_composite(f)}
    parts = {made.fresh(f"{n}_parts"): f for n, f in made.functions.items()}
    alternatives = IRModule({n: f.with_(name=n, attrs=((PARTS_OF, f.name),)) for n, f in parts.items()})
    return mod.update({**functions, **made.functions, **dict(dead_code(flatten_rows(alternatives)).items())})


def _is_composite(func: GraphFunc) -> bool:
    """Whether operators of the function may be moved: it is not lowered as a whole, and contains no parts of another one."""
    return not func.is_primitive and func.codegen is None and func.attr(PARTS_OF) is None


def _function(func: GraphFunc, name: str, find: Find, made: Outlined) -> GraphFunc:
    body = _region(func.body, name, find, made)
    return func if body is func.body else func.with_(body=body)


def _region(region: Region, name: str, find: Find, made: Outlined) -> Region:
    users: dict[Operand, list[Binding]] = {}
    for b in region.bindings:
        for o in used(b.operation):
            users.setdefault(o, []).append(b)
    counts = Counter([o for b in region.bindings for o in used(b.operation)] + list(region.results))
    size = FusedSize()
    moved: set[Binding] = set()
    ends: dict[Binding, Chain] = {}
    for chain in find(region, Uses({v: b for b in region.bindings for v in b.results}, counts, users)):
        if moved.isdisjoint(chain.replaced) and size.fits(chain.calls):
            moved.update(chain.replaced)
            ends[chain.replaced[-1]] = chain
    out: list[Binding] = []
    for b in region.bindings:
        if b in ends:
            chain = ends[b]
            out += [*chain.before, made.call(chain.calls, name, (PRIMITIVE, "1"), is_literal), *chain.after]
        elif b not in moved:
            out.append(with_branches(b, lambda r: _region(r, name, find, made)))
    return region if tuple(out) == region.bindings else Region(tuple(out), region.results)
