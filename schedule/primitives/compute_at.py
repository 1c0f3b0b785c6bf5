"""compute_at: move a producer under a loop of its consumers, computing there what they need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import Box, accesses, loop_ranges, plain_iter, reads, region, union, writes
from tunesmith.ir.analysis.dependence import is_nonpositive
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.domain import check_loops_cover, is_repeated
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.order import check_unchanged, move
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.placement import check_extents, place, ranges_under
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def compute_at(s: ScheduleState, block: BlockRV, loop: LoopRV, shared_by: Sequence[LoopRV] = ()) -> None:
    """Move the producer `block` to the front of `loop`, over the box its consumers read in one iteration.

    Args:
        block: the producer.
        loop: where it moves.
        shared_by: loops around `loop` whose iterations all use the same copy, as threads use shared memory: the box is what is read in
            all of them.
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
        own-values: of that buffer the block reads only the element that it initialises and accumulates into.
        consumers-inside: every block that reads the buffer stands under the loop, and the block itself does not.
        only-writer: no other block writes the buffer.
        complete: loops around both the block and the loop only give the block's place in the buffer, and take no part in a reduction.
        unchanged: nothing that the block moves past writes what it reads, and the consumers come after it.
        domain: the loops of the block run its whole domain: others would compute instances that the program does not.
        shared-by: the loops that share the copy stand around the loop.
        box: the extents of the box do not depend on loop variables.
        guard: guards of the block are on loops that are its iteration variables, so that they can move along; it is under no `if`.
        in-blocks: no statement outside of blocks, and no condition of an `if`, works on the same data as the block.
        order: steps of a reduction that may not change their order keep it: its loops have that of its iteration variables.
        once: the loops of a reduction run each of its instances once, and one instance begins each element.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results; boxes of neighbouring iterations may overlap and are then computed again.
    """
    b = s.block(block)
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
        raise s.refuse("own-values", f"block {b.name} reads values of {buffer.name} that other instances of it have written", b)
    inside = blocks_under(target)
    sharing = _sharing(s, target, shared_by)
    boxes: list[Box] = []
    for c in s.blocks():
        mine = [a for a in reads(c) if a.buffer is buffer]
        if mine and c is not b:
            if c not in inside or b in inside:
                raise s.refuse(
                    "consumers-inside", f"consumer {c.name} of {b.name} is not under loop {target.var.name}, or {b.name} already is", target
                )
            ranges = {**sharing, **ranges_under(target, c.name)}
            boxes.extend(region(c, a.indices, ranges) for a in mine)
    if not boxes:
        raise s.refuse("consumers-inside", f"block {b.name} has no consumer under loop {target.var.name}", target)
    path = move(s, b.name, inside[0].name)
    around = {f.var for f in path.shared} if path else set()
    for n, (it, e) in enumerate(zip(b.iters, b.bindings, strict=True)):
        if n not in positions and not around.isdisjoint(e.vars):
            what = f"loop {target.var.name} is inside a loop that gives {it.var.name} of block {b.name}, which does not index {buffer.name}"
            raise s.refuse("complete", what, b)
    check_unchanged(s, b, [c for c in inside if any(a.buffer is buffer for a in reads(c))])
    box = union(boxes)
    check_extents(s, b, {p: box[d] for d, p in enumerate(positions) if p is not None})
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "guard")
    check_loops_cover(s, b, "domain")
    if any(it.kind == "R" for it in b.iters):
        if is_repeated(s, b, s.loops_of(b.name)):
            raise s.refuse("once", f"the loops around block {b.name} run instances of its reduction again, and others would not", b)
        unused = [it.var.name for n, it in enumerate(b.iters) if it.kind == "S" and it.extent != 1 and n not in positions]
        if unused:
            what = f"several instances of block {b.name} begin the reduction of one element of {buffer.name}: {unused[0]} does not index it"
            raise s.refuse("once", what, b)
        _check_order(s, b)
    place(s, b.name, target.var, {p: box[d] for d, p in enumerate(positions) if p is not None}, at_front=True)


def _check_order(s: ScheduleState, b: Block) -> None:
    """The new loops are those of the iteration variables, in their order."""
    if reassociable_update(b) is not None:
        return
    loops = {f.var: f for f in s.loops_of(b.name)}
    digits: list[Var] = []
    kept = True
    for e in [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R" and it.extent != 1]:
        mine = [v for v in loops if v in e.vars]
        for outer, inner in itertools.pairwise(mine):
            step, small = step_of(e, outer), step_of(e, inner)
            kept = kept and step is not None and small is not None and is_nonpositive(small * loops[inner].extent - step)
        digits += mine
    if not kept or digits != sorted(digits, key=list(loops).index):
        raise s.refuse("order", f"the steps of the reduction of block {b.name} depend on each other, and would change their order", b)


def _sharing(s: ScheduleState, target: For, loops: Sequence[LoopRV]) -> dict[Var, Poly]:
    """Highest values of the loops whose iterations share a copy."""
    found = [s.loop(x) for x in loops]
    for f in found:
        if f is target or ScheduleState.find_loop(f.body, target.var) is None:
            raise s.refuse("shared-by", f"loop {f.var.name} does not stand around loop {target.var.name}", f)
    return loop_ranges([(f.var, f.extent) for f in found])
