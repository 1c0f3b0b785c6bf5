"""Move a block into a loop, with a new nest over its footprint there, for compute_at and reverse_compute_at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tunesmith.ir.analysis.access_regions import loop_ranges
from tunesmith.ir.analysis.size_ranges import LARGEST_SIZE, size_ranges
from tunesmith.ir.poly import ONE, ZERO, Param, Poly, Var, substitute
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.stmt import Block, For, Seq, Stmt, nest, seq
from tunesmith.ir.visit import blocks_under, path_to_block
from tunesmith.schedule.footprints import own_guards
from tunesmith.schedule.state import ScheduleState


def ranges_under(loop: For, block: str) -> dict[Var, Poly]:
    """The largest values of the loops between `loop` (exclusive) and the block."""
    path = path_to_block(loop.body, block)
    assert path is not None
    return loop_ranges([(n.var, n.extent) for n in path if type(n) is For])


def check_extents(s: ScheduleState, b: Block, dims: Mapping[int, tuple[Poly, Poly]]) -> None:
    """Refuse (box) a footprint whose extents depend on loop variables, or on sizes without upper bound."""
    bounded = {v for v, (_, most) in size_ranges(s.func).items() if most < LARGEST_SIZE}
    for _, extent in dims.values():
        found = [v for v in extent.vars if not isinstance(v, Param) and v not in bounded]
        if found:
            names = ", ".join(sorted([v.name for v in found]))
            hint = ". Tune the function for a range of its sizes" if all(v in sizes_of(s.func) for v in found) else ""
            raise s.refuse("box", f"the footprint of block {b.name} has an extent that depends on {names}: {extent!r}{hint}", b)


def position(
    s: ScheduleState,
    loop: For,
    index: int,
    *,
    after: Callable[[Block], bool] = lambda _: False,
    before: Callable[[Block], bool] = lambda _: False,
) -> int:
    """The position in the body of `loop` that the argument `index` selects: -1 is the last possible one, -2 the first possible one.

    Refuses (index) a position that is not after all statements with a block of `after` and before all with a block of `before`.
    """
    stmts = statements(loop)
    first = max([n + 1 for n, x in enumerate(stmts) if any(map(after, blocks_under(x)))], default=0)
    last = min([n for n, x in enumerate(stmts) if any(map(before, blocks_under(x)))], default=len(stmts))
    found = {-1: last, -2: first}.get(index, index)
    if not first <= found <= last:
        raise s.refuse("index", f"index is {index}; the possible positions in loop {loop.var.name} are {first} to {last}, or -1, -2", loop)
    return found


def statements(loop: For) -> Sequence[Stmt]:
    """The statements of the body of `loop`."""
    return loop.body.stmts if type(loop.body) is Seq else (loop.body,)


def place(
    s: ScheduleState, block: str, loop: Var, dims: Mapping[int, tuple[Poly, Poly]], index: int, preserve_unit_loops: bool = True
) -> None:
    """Rebuild the nest of `block` inside `loop`, over the given footprint.

    Args:
        s: the schedule.
        block: the block to move; its old nest is removed.
        loop: the loop that it moves into.
        dims: (smallest value, extent) of iteration variables by position; the others run over their whole extent.
        index: position of the new nest among the statements of the loop's body.
        preserve_unit_loops: keep loops with one iteration.
    """
    b = s.block(block)
    check_extents(s, b, dims)
    loops: list[tuple[Var, Poly]] = []
    bindings: list[Poly] = []
    predicate: list[Poly] = []
    for i, it in enumerate(b.iters):
        low, extent = dims.get(i, (ZERO, it.extent))
        var = Var(f"ax{i}")
        is_kept = preserve_unit_loops or extent != ONE
        at = low + var if is_kept else low
        loops += [(var, extent)] if is_kept else []
        if not preserve_unit_loops and any(isinstance(v, Param) for v in extent.vars):
            s.require("le0", 2 - extent, "box", f"loop {var.name} would be left out for some of the sampled sizes", extent)
        bindings.append(at)
        if i in dims:
            # Inlined padding requests elements before the start of the buffer, which it never reads, so guard the lower bound too.
            predicate += [at - it.extent, -at - 1]
    predicate.extend(_carried_guards(s, b, bindings))
    moved = nest(loops, b.with_(bindings=tuple(bindings), predicate=tuple(predicate)))
    s.remove_block(block)

    def insert(f: For) -> Stmt:
        stmts = statements(f)
        return f.with_(body=seq([*stmts[:index], moved, *stmts[index:]]))

    s.replace_loop(loop, insert)


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
