"""Move a block into a loop, with a new nest over its footprint there, for compute_at and reverse_compute_at."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.analysis.access_regions import loop_ranges
from tunesmith.ir.poly import ZERO, Param, Poly, Var, substitute
from tunesmith.ir.stmt import Block, For, nest, seq
from tunesmith.ir.visit import path_to_block
from tunesmith.schedule.footprints import own_guards
from tunesmith.schedule.state import ScheduleState


def ranges_under(loop: For, block: str) -> dict[Var, Poly]:
    """The largest values of the loops between `loop` (exclusive) and the block."""
    path = path_to_block(loop.body, block)
    assert path is not None
    return loop_ranges([(n.var, n.extent) for n in path if type(n) is For])


def check_extents(s: ScheduleState, b: Block, dims: Mapping[int, tuple[Poly, Poly]]) -> None:
    """Refuse (box) a footprint whose extents depend on loop variables."""
    for _, extent in dims.values():
        bound = [v.name for v in extent.vars if not isinstance(v, Param)]
        if bound:
            raise s.refuse(
                "box", f"the footprint of block {b.name} has an extent that depends on {', '.join(sorted(bound))}: {extent!r}", b
            )


def place(s: ScheduleState, block: str, loop: Var, dims: Mapping[int, tuple[Poly, Poly]], at_front: bool) -> None:
    """Rebuild the nest of `block` inside `loop`, over the given footprint.

    Args:
        block: the block to move; its old nest is removed.
        loop: the loop that it moves into.
        dims: (smallest value, extent) of iteration variables by position; the others run over their whole extent.
        at_front: put the nest before the loop's body, otherwise after it.
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
            # Inlined padding requests elements before the start of the buffer, which it never reads, so guard the lower bound too.
            predicate += [low + var - it.extent, -(low + var) - 1]
    predicate.extend(_carried_guards(s, b, bindings))
    moved = nest(loops, b.with_(bindings=tuple(bindings), predicate=tuple(predicate)))
    s.remove_block(block)
    s.replace_loop(loop, lambda f: f.with_(body=seq([moved, f.body] if at_front else [f.body, moved])))


def _carried_guards(s: ScheduleState, b: Block, bindings: list[Poly]) -> list[Poly]:
    """The guards of the old position, as expressions of the new loops.

    Guards of the domains of the iteration variables are dropped, because the new nest has its own.
    """
    own = own_guards(b)
    at: dict[Var, Poly] = {}
    for e, new in zip(b.bindings, bindings, strict=True):
        v = e.as_var()
        if v is not None:
            at[v] = new
    carried: list[Poly] = []
    for p in b.predicate:
        if p in own:
            continue
        if any(not isinstance(v, Param) and v not in at for v in p.vars):
            raise s.refuse("guard", f"block {b.name} has a guard that cannot be moved: {p!r} < 0", b)
        carried.append(substitute(p, at))
    return carried
