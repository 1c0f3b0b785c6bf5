"""reverse_compute_at: move a consumer under a loop of its producer, consuming there what has just been made."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import Box, accesses, plain_iter, reads, region, writes
from tunesmith.ir.arith.interval import interval
from tunesmith.ir.gpu import is_thread_axis
from tunesmith.ir.poly import Poly, substitute
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.domain import check_loops_cover, covers_domain, is_repeated
from tunesmith.schedule.footprints import guards_of_box, is_tiling
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.independence import check_independent, is_one_element
from tunesmith.schedule.order import check_ready, in_loops, inner_ranges, move
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.placement import check_extents, place, ranges_under
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def reverse_compute_at(s: ScheduleState, block: BlockRV, loop: LoopRV) -> None:
    """Move the consumer `block` to the end of `loop`, over the box its producers write in one iteration.

    Rewrite: `split(i, [None, 4]); reverse_compute_at(C, i_0)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for j in T.serial(16):
            C[j] = B[j] + 1.0
      ->
        B = T.alloc_buffer((16,))
        for i_0 in T.serial(4):
            for i_1 in T.serial(4):
                B[i_0 * 4 + i_1] = A[i_0 * 4 + i_1] * 2.0
            for ax0 in T.serial(4):
                C[i_0 * 4 + ax0] = B[i_0 * 4 + ax0] + 1.0
    Requires:
        elementwise: the block reads the produced buffer at its own iteration variables and reduces nothing.
        own-values: different instances of the block write different elements, and read of what they write only their own.
        producer-inside: a block under the loop writes a buffer that the block reads; the block is not there already.
        complete: the producer finishes its reduction inside the loop.
        ready: nothing that the block moves past writes what it reads, or uses what it writes; in each iteration of loops around
            both, it reads just what the producer writes there.
        once: a block that reads what it writes is not run again: loops outside tile what the producer writes.
        domain: the loops of both blocks run their whole domains, before the move and after it, and the producer writes every element
            that the block reads.
        independent: loops around the new place that run in parallel stay independent.
        dense: what the producer writes in one iteration is a box without gaps.
        one-box: it reads all that is written there over the same box.
        box: the extents of the box do not depend on loop variables.
        guard: the block is under no `if`, and its guards are on loops that are its iteration variables, so that they can move along;
            guards of the producer are on its own extents, on loops outside, or on its reduction.
        in-blocks: no statement outside of blocks, and no condition of an `if`, works on the same data as the block.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results, provided the boxes of different iterations are the whole buffer (they are, for tilings).
    """
    b = s.block(block)
    target = s.loop(loop)
    inside = blocks_under(target)
    if b in inside:
        raise s.refuse("producer-inside", f"block {b.name} already is under loop {target.var.name}", target)
    if any(it.kind == "R" for it in b.iters):
        raise s.refuse("elementwise", f"block {b.name} is a reduction", b)
    used = {a.buffer for a in reads(b)}
    producers = [c for c in inside if any(w.buffer in used for w in writes(c))]
    if producers:
        check_ready(s, b, producers, inside)
    outer = _loops_down_to(s, target)
    boxes: dict[int, list[Box]] = {}
    guards: list[Poly] = []
    for c in inside:
        ranges = ranges_under(target, c.name)
        if any(a.buffer is w.buffer for w in writes(c) for a in reads(b)):
            guards.extend(guards_of_box(s, c, ranges))
        for w in writes(c):
            for a in reads(b):
                if a.buffer is not w.buffer:
                    continue
                if any(it.kind == "R" and not e.vars.isdisjoint(outer) for it, e in zip(c.iters, c.bindings, strict=True)):
                    raise s.refuse("complete", f"block {c.name} still reduces outside loop {target.var.name}", target)
                bound = {it.var: e for it, e in zip(c.iters, c.bindings, strict=True)}
                if not all(is_tiling(substitute(e, bound), ranges) for e in w.indices):
                    what = f"block {c.name} writes {w.buffer.name} with gaps in one iteration of {target.var.name}"
                    raise s.refuse("dense", what, target)
                for d, e in enumerate(a.indices):
                    p = plain_iter(e, b)
                    if p is None:
                        raise s.refuse("elementwise", f"block {b.name} reads {w.buffer.name} at {e!r}, not at an iteration variable", b)
                    boxes.setdefault(p, []).append((region(c, w.indices, ranges)[d],))
    if not boxes:
        raise s.refuse("producer-inside", f"no block under loop {target.var.name} writes what {b.name} reads", target)
    if any(box != many[0] for many in boxes.values() for box in many):
        raise s.refuse("one-box", f"block {b.name} would read more than has been written in loop {target.var.name}", b)
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "guard")
    _check_whole(s, b, target, set(boxes))
    _check_once(s, b, target, producers)
    dims: dict[int, tuple[Poly, Poly]] = {p: many[0][0] for p, many in boxes.items()}
    check_extents(s, b, dims)
    check_loops_cover(s, b, "domain")
    for c in producers:
        for w in writes(c):
            for a in reads(b):
                if a.buffer is w.buffer:
                    _check_domain(s, b, a.indices, c, w.indices)
    place(s, b.name, target.var, dims, at_front=False)
    check_loops_cover(s, s.block(b.name), "domain")
    s.replace_block(b.name, lambda moved: moved.with_(predicate=(*moved.predicate, *guards)))
    for f in s.loops_of(b.name):
        if f.kind in ("parallel", "thread"):
            together = is_thread_axis(f.thread)
            check_independent(s, f, "independent", within_blocks=together, same_values=together)
    if not is_one_element(b):
        raise s.refuse(
            "own-values", f"instances of block {b.name} depend on each other through what they write, and would change their order", b
        )


def _check_domain(s: ScheduleState, b: Block, reads_at: tuple[Poly, ...], producer: Block, writes_at: tuple[Poly, ...]) -> None:
    """Every value of the block's iteration variables must be one for which the producer writes an element."""
    message = f"block {b.name} runs for more than block {producer.name} writes"
    domain = {it.var: it.extent - 1 for it in producer.iters}
    for read, written in zip(reads_at, writes_at, strict=True):
        p = plain_iter(read, b)
        if p is None:
            continue
        low, high = interval(written, domain)
        if not is_tiling(written, domain):
            raise s.refuse("domain", message, b)
        s.require("le0", low, "domain", message)
        s.require("le0", b.iters[p].extent - 1 - high, "domain", message)
    if not covers_domain(s, producer):
        raise s.refuse("domain", f"{message}: the loops around {producer.name} may leave out a part of its domain", producer)


def _check_whole(s: ScheduleState, b: Block, target: For, bound: set[int]) -> None:
    """Iteration variables that the produced box does not give run over their whole extent: they must have done so before."""
    path = move(s, b.name, blocks_under(target)[0].name)
    around = {f.var for f in path.shared} if path else set()
    for n, (it, e) in enumerate(zip(b.iters, b.bindings, strict=True)):
        if n not in bound and not around.isdisjoint(e.vars):
            what = f"a loop around both gives {it.var.name} of block {b.name}, which what it reads does not depend on"
            raise s.refuse("ready", what, b)


def _check_once(s: ScheduleState, b: Block, target: For, producers: list[Block]) -> None:
    """A block that reads what it writes must not run twice for an element."""
    made = {w.buffer for w in writes(b)}
    if not any(a.buffer in made and not a.is_write for a in accesses(b)):
        return
    path = move(s, b.name, producers[0].name)
    shared = path.shared if path else ()
    if is_repeated(s, b, [f for f in s.loops_of(b.name) if f not in shared]):
        raise s.refuse("once", f"block {b.name} reads what it writes, and its loops may run an instance of it again", b)
    outside = _loops_down_to(s, target) - {f.var for f in shared}
    for p in producers:
        ranges = inner_ranges(s, p, shared)
        for w in writes(p):
            at = in_loops(p, w.indices)
            if not all(any(v in e.vars for e in at) for v in outside) or not all(is_tiling(e, ranges) for e in at):
                what = f"block {b.name} reads what it writes, and block {p.name} may write an element again in loop {target.var.name}"
                raise s.refuse("once", what, b)


def _loops_down_to(s: ScheduleState, target: For) -> set[object]:
    """Variables of the loops around and including `target`."""

    def find(n: object, seen: tuple[object, ...]) -> set[object] | None:
        if type(n) is For:
            here = (*seen, n.var)
            return set(here) if n is target else find(n.body, here)
        for k in getattr(n, "stmts", ()):
            r = find(k, seen)
            if r is not None:
                return r
        return None

    return find(s.func.body, ()) or set()
