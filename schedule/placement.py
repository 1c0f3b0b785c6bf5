"""Moving a block under a loop: the nest that computes just the box that is needed there.  Shared by compute_at and reverse_compute_at."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.analysis.access_regions import loop_ranges
from tunesmith.ir.poly import ZERO, Param, Poly, Var, substitute
from tunesmith.ir.stmt import Block, For, nest, seq
from tunesmith.ir.visit import path_to_block
from tunesmith.schedule.state import ScheduleState


def ranges_under(loop: For, block: str) -> dict[Var, Poly]:
    """Highest values of the loops between `loop` (exclusive) and the block."""
    path = path_to_block(loop.body, block)
    assert path is not None
    return loop_ranges([(n.var, n.extent) for n in path if type(n) is For])


def check_extents(s: ScheduleState, b: Block, dims: Mapping[int, tuple[Poly, Poly]]) -> None:
    """Refuse (box) boxes whose extents depend on loops."""
    for _, extent in dims.values():
        bound = [v.name for v in extent.vars if not isinstance(v, Param)]
        if bound:
            raise s.refuse("box", f"the box of {b.name} needs an extent that depends on {', '.join(sorted(bound))}: {extent!r}", b)


def place(s: ScheduleState, block: str, loop: Var, dims: Mapping[int, tuple[Poly, Poly]], at_front: bool) -> None:
    """Rebuild the nest of `block` inside `loop`, over the given boxes.

    Args:
        block: the block to move; its old nest is removed.
        loop: the loop it moves under.
        dims: (lowest value, extent) for iteration variables by position; the others run over their whole extent.
        at_front: before the loop's body, else behind it.
    """
    b = s.block(block)
    check_extents(s, b, dims)
    loops: list[tuple[Var, Poly]] = []
    bindings: list[Poly] = []
    predicate: list[Poly] = []
    for i, it in enumerate(b.iters):
        low, extent = dims.get(i, (ZERO, it.extent))
        var = Var(f"ax{i}")
        loops.append((var, extent))
        bindings.append(low + var)
        if i in dims:
            # Below too: a padded read that was inlined asks for elements in front of the buffer, and never looks at them.
            predicate += [low + var - it.extent, -(low + var) - 1]
    predicate.extend(_carried_guards(s, b, bindings))
    moved = nest(loops, b.with_(bindings=tuple(bindings), predicate=tuple(predicate)))
    s.remove_block(block)
    s.replace_loop(loop, lambda f: f.with_(body=seq([moved, f.body] if at_front else [f.body, moved])))


def _carried_guards(s: ScheduleState, b: Block, bindings: list[Poly]) -> list[Poly]:
    """The guards of the old place in terms of the new one.  The guard of an iteration variable's own extent is left behind:
    the new nest has its own."""
    own = [e - it.extent for it, e in zip(b.iters, b.bindings, strict=True)]
    at: dict[Var, Poly] = {}
    for e, new in zip(b.bindings, bindings, strict=True):
        v = e.as_var()
        if v is not None:
            at[v] = new
    kept: list[Poly] = []
    for p in b.predicate:
        if p in own:
            continue
        if any(not isinstance(v, Param) and v not in at for v in p.vars):
            raise s.refuse("guard", f"block {b.name} stands under a guard that cannot be moved: {p!r} < 0", b)
        kept.append(substitute(p, at))
    return kept
