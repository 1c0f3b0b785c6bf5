"""Move a producer into a loop of its consumers, where it computes the elements that they read."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import Footprint, accesses, loop_ranges, plain_iter, reads, region, union, writes
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.poly import ZERO, Poly, Var
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.domain import check_loops_cover, is_repeated
from tunesmith.schedule.footprints import without_overhang
from tunesmith.schedule.handles import INLINE, ROOT, BlockRV, LoopRV
from tunesmith.schedule.order import check_unchanged, move, steps_ascend
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.placement import check_extents, place, position, ranges_under
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.compute_inline import compute_inline
from tunesmith.schedule.state import ScheduleState


@primitive
def compute_at(
    s: ScheduleState,
    block: BlockRV,
    loop: LoopRV,
    shared_by: Sequence[LoopRV] = (),
    preserve_unit_loops: bool = True,
    index: int = -2,
    whole: Sequence[int] = (),
) -> None:
    """Move the producer `block` into the body of `loop`, before its consumers, over their footprint in one iteration.

    Args:
        block: the producer.
        loop: the loop to move it into, or a result of `sample_compute_location` that leaves or inlines the block.
        shared_by: loops around `loop` whose iterations share one copy, as threads share memory: the footprint covers all of them.
        preserve_unit_loops: keep loops with one iteration.  True, unlike in TVM, because a loop is kept for every sampled size or for none.
        index: position among the statements of the loop's body: -2 is the first possible one, -1 the last, directly before a consumer.
        whole: positions of iteration variables whose loops run over all their values, and not over the footprint, which may be larger for
            some sampled sizes, or include elements that guards of the consumers exclude.
    Rewrite: `split(j, [None, 4]); compute_at(B, j_0)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for j in T.serial(16):
            C[j] = B[j] + 1.0
      ->
        B = T.alloc_buffer((16,))
        for j_0 in T.serial(4):
            for ax0 in T.serial(4):
                B[j_0 * 4 + ax0] = A[j_0 * 4 + ax0] * 2.0
            for j_1 in T.serial(4):
                C[j_0 * 4 + j_1] = B[j_0 * 4 + j_1] + 1.0
    Requires:
        intermediate: the block writes one buffer, not a parameter of the function, at its own iteration variables, each once.
        own-values: the block reads no element of that buffer, except the one that it initialises and accumulates into.
        consumers-inside: every block that reads the buffer is inside the loop, and the block itself is not.
        only-writer: no other block writes the buffer.
        complete: loops around both the block and the loop only bind iteration variables that index the buffer.
        unchanged: no block that it moves past writes data that it reads, and the consumers come after it.
        domain: the loops of the block cover its domain; otherwise the new loops would run instances that the program does not.
        shared-by: the loops that share the copy are around the loop.
        box: the extents of the footprint do not depend on loop variables; without unit loops, sampled ones are at least 2.
        guard: guards of the block use only loops that are bound to its iteration variables, so that they can move; no `if` is around it.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        order: the steps of a reduction that cannot be reassociated keep their order.
        once: the loops of a reduction run each of its instances once, and one instance starts each element.
        index: the position exists and is not after a consumer.
        whole: the positions are those of iteration variables that index the buffer.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results; elements in the footprints of several iterations are computed in each.
    """
    b = s.block(block)
    if loop.var is ROOT:
        return
    if loop.var is INLINE:
        compute_inline(s, block)
        return
    target = s.loop(loop)
    outs = writes(b)
    buffer = outs[0].buffer
    positions = [plain_iter(e, b) for e in outs[0].indices]
    if (
        buffer not in s.func.allocs
        or any(w.buffer is not buffer or w.indices != outs[0].indices for w in outs)
        or None in positions
        or len(set(positions)) < len(positions)
    ):
        raise s.refuse("intermediate", f"block {b.name} must write one intermediate buffer at its own iteration variables, each once", b)
    if any(c is not b and any(w.buffer is buffer for w in writes(c)) for c in s.blocks()):
        raise s.refuse("only-writer", f"{buffer.name} has another writer", b)
    if any(not a.is_write and a.buffer is buffer and (b.init is None or a.indices != outs[0].indices) for a in accesses(b)):
        raise s.refuse("own-values", f"block {b.name} reads elements of {buffer.name} that its other instances write", b)
    inside = blocks_under(target)
    sharing = _sharing(s, target, shared_by)
    footprints: list[Footprint] = []
    for c in s.blocks():
        mine = [a for a in reads(c) if a.buffer is buffer]
        if mine and c is not b:
            if c not in inside or b in inside:
                raise s.refuse(
                    "consumers-inside",
                    f"consumer {c.name} of {b.name} is not inside loop {target.var.name}, or {b.name} already is",
                    target,
                )
            reader, ranges = without_overhang(c, {**sharing, **ranges_under(target, c.name)})
            footprints.extend(region(reader, a.indices, ranges) for a in mine)
    if not footprints:
        raise s.refuse("consumers-inside", f"block {b.name} has no consumer inside loop {target.var.name}", target)
    path = move(s, b.name, inside[0].name)
    around = {f.var for f in path.shared} if path else set()
    for n, (it, e) in enumerate(zip(b.iters, b.bindings, strict=True)):
        if n not in positions and not around.isdisjoint(e.vars):
            what = f"a loop around {target.var.name} binds {it.var.name} of block {b.name}, which does not index {buffer.name}"
            raise s.refuse("complete", what, b)
    check_unchanged(s, b, [c for c in inside if any(a.buffer is buffer for a in reads(c))])
    footprint = union(footprints)
    dims = {p: footprint[d] for d, p in enumerate(positions) if p is not None} | _whole(s, b, whole, positions)
    check_extents(s, b, dims)
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "guard")
    check_loops_cover(s, b, "domain")
    if any(it.kind == "R" for it in b.iters):
        if is_repeated(s, b, s.loops_of(b.name)):
            raise s.refuse(
                "once", f"the loops around block {b.name} run instances of its reduction more than once, and the new loops would not", b
            )
        unused = [it.var.name for n, it in enumerate(b.iters) if it.kind == "S" and it.extent != 1 and n not in positions]
        if unused:
            what = f"several instances of block {b.name} start the reduction of one element of {buffer.name}: {unused[0]} does not index it"
            raise s.refuse("once", what, b)
        _check_order(s, b)
    at = position(s, target, index, before=lambda c: any(a.buffer is buffer for a in reads(c)))
    place(s, b.name, target.var, dims, at, preserve_unit_loops)


def _whole(s: ScheduleState, b: Block, whole: Sequence[int], positions: Sequence[int | None]) -> dict[int, tuple[Poly, Poly]]:
    """The lowest value and the extent of the iteration variables that run over their domains, by position."""
    unknown = [n for n in whole if n not in positions]
    if unknown:
        known = ", ".join(str(p) for p in positions)
        raise s.refuse(
            "whole", f"iteration variable {unknown[0]} of block {b.name} does not index its buffer; those that do are {known}", b
        )
    return {n: (ZERO, b.iters[n].extent) for n in whole}


def _check_order(s: ScheduleState, b: Block) -> None:
    """Refuse a reduction that cannot be reassociated if its new loops, one for each iteration variable, would reorder its steps."""
    if reassociable_update(b) is not None:
        return
    if not steps_ascend(s, b):
        raise s.refuse("order", f"the steps of the reduction of block {b.name} depend on each other, and their order would change", b)


def _sharing(s: ScheduleState, target: For, loops: Sequence[LoopRV]) -> dict[Var, Poly]:
    """The largest values of the loops whose iterations share a copy."""
    found = [s.loop(x) for x in loops]
    for f in found:
        if f is target or ScheduleState.find_loop(f.body, target.var) is None:
            raise s.refuse("shared-by", f"loop {f.var.name} is not around loop {target.var.name}", f)
    return loop_ranges([(f.var, f.extent) for f in found])
