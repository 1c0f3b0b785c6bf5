"""Keep the part of an intermediate that consecutive iterations share in a circular buffer."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.access_regions import Footprint, accesses, plain_iter, reads, region, writes
from tunesmith.ir.analysis.dependence import is_nonpositive
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import minimum, mod, poly
from tunesmith.ir.stmt import Block, BufferStore, For
from tunesmith.ir.visit import blocks_under, transform
from tunesmith.schedule.footprints import is_tiling
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.order import in_loops, is_settled
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.placement import check_extents, ranges_under, statements
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def rolling_buffer(s: ScheduleState, block: BlockRV, buffer: str) -> None:
    """Compute only the new elements of a sliding footprint, and keep the others in a circular buffer of the footprint's extent.

    The first iteration of the loop computes the whole footprint; `loop_partition(loop, [1])` separates it from the others.  In a chain of
    producers, roll the last one first.

    Args:
        block: the producer, inside a loop of its consumers (see `compute_at`).
        buffer: name of the buffer that it writes.
    Rewrite: `compute_at(B, i); rolling_buffer(B, "B")`
        B = T.alloc_buffer((10,))
        for k in T.serial(10):
            B[k] = A[k] * 2.0
        for i in T.serial(8):
            C[i] = B[i] + B[i + 2]
      ->
        B = T.alloc_buffer((3,))
        for i in T.serial(8):
            for ax0 in T.serial(3):
                if T.min(i, 2 - ax0) < 1:
                    B[(i + ax0) % 3] = A[i + ax0] * 2.0
            C[i] = B[i % 3] + B[(i + 2) % 3]
    Requires:
        intermediate: the block writes one intermediate buffer, of that name, at its own iteration variables, each once, and has no other
            writer; it reads only the element that it initialises and accumulates into.
        sliding: the innermost loop around the block and all its consumers moves the footprint along one dimension, by a fixed step.
        overlap: the step is at least 1, and smaller than the footprint.
        serial: that loop is serial or unrolled, and the position of the footprint along the dimension depends on no bound loop, because
            threads would use the same elements of the circular buffer for different values.
        after: the consumers follow the block in the body of that loop, and read only the footprint of the same iteration.
        dense: the footprint has no gaps.
        box: the extents of the footprint do not depend on loop variables.
        complete: the block finishes its reductions inside that loop.
        guard: guards of the block depend on its own extents, or neither on the loop nor on the sliding dimension; no `if` in the loop is
            around the block.
        unchanged: the data that the block reads are the same in all iterations of the loop.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM's rolling_buffer; Halide's sliding window and storage folding).
    """
    b = s.block(block)
    old, positions = _intermediate(s, b, buffer)
    loop = _loop(s, b, old)
    ranges = ranges_under(loop, b.name)
    (footprint,) = {region(b, w.indices, ranges) for w in writes(b)}
    check_extents(s, b, dict(enumerate(footprint)))
    moving = [d for d, (low, _) in enumerate(footprint) if loop.var in low.vars]
    step = step_of(footprint[moving[0]][0], loop.var) if len(moving) == 1 else None
    if step is None:
        raise s.refuse("sliding", f"loop {loop.var.name} does not move the footprint of block {b.name} along one dimension", loop)
    (d,) = moving
    low, extent = footprint[d]
    s.require("le0", 1 - step, "overlap", f"loop {loop.var.name} does not move the footprint of block {b.name} forward", step)
    s.require("le0", step + 1 - extent, "overlap", f"consecutive footprints of block {b.name} share no element", extent)
    if loop.kind not in ("serial", "unrolled"):
        raise s.refuse("serial", f"loop {loop.var.name} is {loop.kind}; its iterations must run in order", loop)
    bound = [f.var.name for f in s.loops_of(b.name) if f.kind == "thread" and f.var in low.vars]
    if bound:
        raise s.refuse("serial", f"the footprint of block {b.name} depends on loop {bound[0]}, which is bound to a thread axis", b)
    _check_order(s, b, old, loop, footprint)
    if not all(is_tiling(e, ranges) for e in in_loops(b, writes(b)[0].indices)):
        raise s.refuse("dense", f"block {b.name} writes {old.name} with gaps in one iteration of {loop.var.name}", b)
    if any(it.kind == "R" and any(f.var in e.vars and f.var not in ranges for f in s.loops_of(b.name)) for it, e in _bound(b)):
        raise s.refuse("complete", f"block {b.name} still reduces outside the body of loop {loop.var.name}", b)
    _check_guards(s, b, loop, positions[d])
    _check_unchanged(s, b, loop)
    check_in_blocks(s, b, "in-blocks")
    is_new = minimum(poly(loop.var), low + extent - step - b.bindings[positions[d]]) - 1
    s.replace_block(b.name, lambda x: x.with_(predicate=(*x.predicate, is_new)))
    new = old.like(shape=[*old.shape[:d], extent, *old.shape[d + 1 :]])

    def on_access(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        if m.buffer is not old:
            return m
        return m.with_(buffer=new, indices=(*m.indices[:d], mod(m.indices[d], extent), *m.indices[d + 1 :]))

    s.set_body(transform(s.func.body, {BufferLoad: on_access, BufferStore: on_access}))
    s.replace_alloc(old, new)


def _bound(b: Block) -> list[Any]:
    return list(zip(b.iters, b.bindings, strict=True))


def _intermediate(s: ScheduleState, b: Block, name: str) -> tuple[Buffer, list[int]]:
    """The buffer, and the positions of the iteration variables that index it."""
    outs = writes(b)
    old, at = outs[0].buffer, outs[0].indices
    positions = [p for e in at if (p := plain_iter(e, b)) is not None and b.iters[p].kind == "S"]
    own = all(w.buffer is old and w.indices == at for w in outs) and len(set(positions)) == len(at)
    others = [c.name for c in s.blocks() if c is not b and any(w.buffer is old for w in writes(c))]
    if old.name != name or old not in s.func.allocs or not own or others:
        what = f"block {b.name} does not write an intermediate buffer {name!r} at its own iteration variables, as its only writer"
        raise s.refuse("intermediate", what, b)
    if any(a.buffer is old and not a.is_write and (b.init is None or a.indices != at) for a in accesses(b)):
        raise s.refuse("intermediate", f"block {b.name} reads earlier values of {name}", b)
    return old, positions


def _loop(s: ScheduleState, b: Block, old: Buffer) -> For:
    """The innermost loop around the block and all its consumers."""
    around = s.loops_of(b.name)
    for c in s.blocks():
        if c is not b and any(a.buffer is old for a in reads(c)):
            around = [f for f in around if f in s.loops_of(c.name)]
    if not around:
        raise s.refuse("sliding", f"block {b.name} and its consumers are in no common loop; use compute_at first", b)
    return around[-1]


def _check_order(s: ScheduleState, b: Block, old: Buffer, loop: For, footprint: Footprint) -> None:
    """Refuse consumers that precede the block in an iteration, or read elements beyond the footprint of the iteration."""
    stmts = statements(loop)
    at = next(n for n, x in enumerate(stmts) if b in blocks_under(x))
    for n, x in enumerate(stmts):
        for c in blocks_under(x):
            if c is b or not any(a.buffer is old for a in reads(c)):
                continue
            ranges = ranges_under(loop, c.name)
            inside = all(_contains(footprint, region(c, a.indices, ranges)) for a in reads(c) if a.buffer is old)
            if n <= at or not inside:
                what = (
                    f"block {c.name} may read elements of {old.name} that block {b.name} computes in another iteration of {loop.var.name}"
                )
                raise s.refuse("after", what, c)


def _contains(outer: Footprint, inner: Footprint) -> bool:
    return all(is_nonpositive(low - x) and is_nonpositive(x + n - low - extent) for (low, extent), (x, n) in zip(outer, inner, strict=True))


def _check_guards(s: ScheduleState, b: Block, loop: For, position: int) -> None:
    """Refuse guards that depend on the iteration in which an element is computed, and not only on the element."""
    check_unconditional(s, b, "guard", loop)
    own = {p for it, e in _bound(b) for p in (e - it.extent, -e - 1)}
    changing = {loop.var, *b.bindings[position].vars}
    for p in b.predicate:
        if p not in own and not p.vars.isdisjoint(changing):
            raise s.refuse("guard", f"the guard {p!r} < 0 of block {b.name} may differ between iterations of {loop.var.name}", b)


def _check_unchanged(s: ScheduleState, b: Block, loop: For) -> None:
    """Refuse blocks inside the loop that change data which the block reads."""
    ranges = ranges_under(loop, b.name)
    order = s.blocks()
    for c in blocks_under(loop):
        made = [w for w in writes(c) if c is not b and any(a.buffer is w.buffer for a in reads(b))]
        if not made:
            continue
        mine = ranges_under(loop, c.name)
        whole = all(
            all(is_tiling(e, mine) for e in in_loops(c, w.indices)) and _contains(region(c, w.indices, mine), region(b, a.indices, ranges))
            for w in made
            for a in reads(b)
            if a.buffer is w.buffer
        )
        if not (whole and order.index(c) < order.index(b) and is_settled(s, c, (loop,))):
            what = f"block {c.name} writes {made[0].buffer.name}, which block {b.name} reads, in loop {loop.var.name}"
            raise s.refuse("unchanged", f"{what}, and its values may differ between iterations", c)
