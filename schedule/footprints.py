"""Analyse the footprint of a block in one iteration of a loop: its guards, its overhang, and whether it has gaps."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.analysis.access_regions import loop_ranges
from tunesmith.ir.analysis.dependence import is_nonpositive
from tunesmith.ir.analysis.guards import bounded_part, collapsed
from tunesmith.ir.arith.interval import interval, nested_interval
from tunesmith.ir.poly import ONE, ZERO, Poly, Var, is_param_only, minimum
from tunesmith.ir.stmt import Block
from tunesmith.schedule.state import ScheduleState


def own_guards(block: Block) -> set[Poly]:
    """The guards that only exclude values outside the domains of the iteration variables; every move of a block makes its own."""
    return {p for it, e in zip(block.iters, block.bindings, strict=True) for p in (e - it.extent, -e - 1)}


def footprint_guards(s: ScheduleState, block: Block, ranges: Mapping[Var, Poly]) -> list[Poly]:
    """The guards, as expressions of the loops outside `ranges`, under which `block` computes its footprint.

    Each guard takes its smallest value over `ranges`.  Guards that the footprint implies are included, because which ones it implies
    depends on numbers.  Refuses (guard) if a guard cuts the footprint itself, unless it holds in all iterations, as a guard of an
    earlier move may.
    """
    spatial = {v for it, e in zip(block.iters, block.bindings, strict=True) if it.kind == "S" for v in e.vars if v in ranges}
    own = own_guards(block)
    everywhere = loop_ranges([(f.var, f.extent) for f in s.loops_of(block.name)])
    outer: list[Poly] = []
    for p in block.predicate:
        if not p.vars.isdisjoint(spatial) and p not in own:
            if is_nonpositive(nested_interval(p, everywhere)[1] + 1):
                continue
            raise s.refuse("guard", f"block {block.name} computes only the part of its footprint where {p!r} < 0", block)
        outer.append(interval(p, ranges)[0])
    return outer


def without_overhang(block: Block, ranges: Mapping[Var, Poly]) -> tuple[Block, dict[Var, Poly]]:
    """The block and the largest values of its loops, with one loop for each sum of loops that a guard bounds by a number.

    A split of a split has such a guard: 16 iterations may cover 4 elements.  Without it, the footprint of the block would be 16 wide.
    Guards of the block's domain are not used: for some tile sizes, but not for all, they are bounds of this form.
    """
    bindings, guards, out = list(block.bindings), list(block.predicate), dict(ranges)
    for p in [p for it, e in zip(block.iters, block.bindings, strict=True) for p in (e - it.extent, -e - 1)]:
        if p in guards:
            guards.remove(p)
    while guards:  # the innermost split added the last guard
        bounded = bounded_part(guards.pop(), out)
        if bounded is None or not is_param_only(bounded[1]):
            continue
        inner, limit = bounded
        whole = Var("whole")
        new = collapsed(inner, whole, [*bindings, *guards], out)
        if new is None:
            continue
        highest = minimum(interval(inner, out)[1], limit - 1)
        bindings, guards = new[: len(bindings)], new[len(bindings) :]
        out = {**{v: n for v, n in out.items() if v not in inner.vars}, whole: highest}
    return block.with_(bindings=tuple(bindings)), out


def is_tiling(e: Poly, ranges: Mapping[Var, Poly]) -> bool:
    """Whether the loops of `ranges`, each over [0, ranges[v]], give `e` every value of an interval exactly once.

    They do if their steps are 1, n1, n1 * n2, ... where n1, n2, ... are their extents in this order, as in a split.  Only normal forms
    are compared: an expression that is a tiling only for some numbers is not accepted.
    """
    steps: dict[Var, Poly] = {}
    for m, c in e.terms:
        inner = [a for a in m if not a.vars.isdisjoint(ranges)]
        if not inner:
            continue
        v = inner[0]
        if len(inner) > 1 or not isinstance(v, Var):
            return False
        rest = list(m)
        rest.remove(v)
        steps[v] = steps.get(v, ZERO) + Poly(((tuple(rest), c),))
    step = ONE
    while steps:
        fitting = [v for v, each in steps.items() if each == step]
        if not fitting:
            return False
        # If two loops fit, take one with a single iteration first: it does not change the step.
        v = next((v for v in fitting if ranges[v] == ZERO), fitting[0])
        del steps[v]
        step = step * (ranges[v] + 1)
    return True
