"""What a block computes in one iteration of a loop: under which guards, and whether the box of its elements has gaps."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.analysis.access_regions import loop_ranges
from tunesmith.ir.analysis.dependence import is_nonpositive
from tunesmith.ir.arith.interval import interval, nested_interval
from tunesmith.ir.poly import ONE, ZERO, Poly, Var
from tunesmith.ir.stmt import Block
from tunesmith.schedule.state import ScheduleState


def guards_of_box(s: ScheduleState, block: Block, ranges: Mapping[Var, Poly]) -> list[Poly]:
    """What must hold outside the loops of `ranges` for `block` to compute its box at all.

    All guards at their lowest, none left out, not even those that the box implies: which ones those are depends on numbers.
    Refuses (guard) when a guard cuts the box itself, unless it holds in all iterations, as that of an earlier move may.
    """
    spatial = {v for it, e in zip(block.iters, block.bindings, strict=True) if it.kind == "S" for v in e.vars if v in ranges}
    own = [e - it.extent for it, e in zip(block.iters, block.bindings, strict=True)]
    everywhere = loop_ranges([(f.var, f.extent) for f in s.loops_of(block.name)])
    kept: list[Poly] = []
    for p in block.predicate:
        if not p.vars.isdisjoint(spatial) and p not in own:
            if is_nonpositive(nested_interval(p, everywhere)[1] + 1):
                continue
            raise s.refuse("guard", f"block {block.name} computes only a part of its box, where {p!r} < 0", block)
        kept.append(interval(p, ranges)[0])
    return kept


def is_tiling(e: Poly, ranges: Mapping[Var, Poly]) -> bool:
    """Whether the loops of `ranges`, each over [0, ranges[v]], give `e` every value from its lowest on, and each once.

    They do when their steps are 1, n1, n1 * n2, ... with n1, n2, ... their extents in this order, as a split makes them.  Only
    normal forms are compared: an expression that is a tiling for some numbers alone is none here.
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
        # Of two that fit, one of a single iteration leaves the step as it is for the other.
        v = next((v for v in fitting if ranges[v] == ZERO), fitting[0])
        del steps[v]
        step = step * (ranges[v] + 1)
    return True
