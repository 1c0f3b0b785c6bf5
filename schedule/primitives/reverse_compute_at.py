"""Move a consumer into a loop of its producer, where it reads the elements just computed."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import Footprint, accesses, plain_iter, reads, region, writes
from tunesmith.ir.arith.interval import interval
from tunesmith.ir.gpu import is_thread_axis
from tunesmith.ir.poly import Poly, substitute
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.domain import check_loops_cover, covers_domain, is_repeated
from tunesmith.schedule.footprints import footprint_guards, is_tiling
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.independence import check_independent, is_one_element
from tunesmith.schedule.order import check_ready, in_loops, inner_ranges, move
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.placement import check_extents, place, position, ranges_under
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.reshaped_block import reshaped
from tunesmith.schedule.state import ScheduleState


@primitive
def reverse_compute_at(s: ScheduleState, block: BlockRV, loop: LoopRV, preserve_unit_loops: bool = True, index: int = -1) -> None:
    """Move the consumer `block` into the body of `loop`, after its producers, over their footprint in one iteration.

    Args:
        block: the consumer.
        loop: the loop to move it into.
        preserve_unit_loops: keep loops with one iteration.  True, unlike in TVM, because a loop is kept for every sampled size or for none.
        index: position among the statements of the loop's body: -1 is the last, -2 the first possible one, directly after a producer.
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
        elementwise: the block reads the produced buffer at its own iteration variables, or reads all of it in another shape as in
            C[c] = B[c // n, c % n], and reduces nothing.
        own-values: different instances of the block write different elements, and each reads only its own element of that buffer.
        producer-inside: a block inside the loop writes a buffer that the block reads; the block itself is outside.
        complete: the producer finishes its reduction inside the loop.
        ready: no block that it moves past writes data that it reads, or accesses data that it writes; in each iteration of loops
            around both, it reads exactly the elements that the producer writes.
        once: a block that reads the buffer it writes runs each instance once: outer loops tile the elements that the producer writes.
        domain: the loops of both blocks cover their domains, before and after the move, and the producer writes every element that the
            block reads.
        independent: parallel and bound loops around the new position stay independent.
        dense: the footprint of the producer in one iteration has no gaps.
        one-box: all accesses to produced buffers have the same footprint.
        box: the extents of the footprint do not depend on loop variables; without unit loops, sampled ones are at least 2.
        guard: no `if` is around the block, and its guards use only loops that are bound to its iteration variables, so that they can
            move; each guard of the producer depends on its own extents, on outer loops, or on its reduction.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        index: the position exists and is after all producers.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results, provided that the footprints of all iterations cover the buffer, as those of tilings do.
    """
    b = old = s.block(block)
    target = s.loop(loop)
    inside = blocks_under(target)
    if b in inside:
        raise s.refuse("producer-inside", f"block {b.name} is already inside loop {target.var.name}", target)
    if any(it.kind == "R" for it in b.iters):
        raise s.refuse("elementwise", f"block {b.name} is a reduction", b)
    one_element = is_one_element(b)
    b = _over_producer(s, b, inside)
    used = {a.buffer for a in reads(b)}
    producers = [c for c in inside if any(w.buffer in used for w in writes(c))]
    if producers:
        check_ready(s, b, producers, inside)
    outer = _loops_down_to(s, target)
    footprints: dict[int, list[Footprint]] = {}
    guards: list[Poly] = []
    for c in inside:
        ranges = ranges_under(target, c.name)
        if any(a.buffer is w.buffer for w in writes(c) for a in reads(b)):
            guards.extend(footprint_guards(s, c, ranges))
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
                    footprints.setdefault(p, []).append((region(c, w.indices, ranges)[d],))
    if not footprints:
        raise s.refuse("producer-inside", f"no block inside loop {target.var.name} writes a buffer that {b.name} reads", target)
    if any(x != found[0] for found in footprints.values() for x in found):
        raise s.refuse("one-box", f"block {b.name} would read elements that loop {target.var.name} has not written yet", b)
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "guard")
    _check_whole(s, b, target, set(footprints))
    _check_once(s, b, target, producers)
    dims: dict[int, tuple[Poly, Poly]] = {p: found[0][0] for p, found in footprints.items()}
    check_extents(s, b, dims)
    if b is old:  # otherwise it was checked in its old iteration variables
        check_loops_cover(s, b, "domain")
    for c in producers:
        for w in writes(c):
            for a in reads(b):
                if a.buffer is w.buffer:
                    _check_domain(s, b, a.indices, c, w.indices)
    at = position(s, target, index, after=lambda c: c in producers)
    place(s, b.name, target.var, dims, at, preserve_unit_loops)
    check_loops_cover(s, s.block(b.name), "domain")
    s.replace_block(b.name, lambda moved: moved.with_(predicate=(*moved.predicate, *guards)))
    for f in s.loops_of(b.name):
        if f.kind in ("parallel", "thread"):
            together = is_thread_axis(f.thread)
            check_independent(s, f, "independent", within_blocks=together, same_values=together)
    if not one_element:
        raise s.refuse(
            "own-values", f"instances of block {b.name} depend on each other through the buffer they write, and their order would change", b
        )


def _over_producer(s: ScheduleState, b: Block, inside: list[Block]) -> Block:
    """The block over the indices of a buffer that it reads in another shape, if a block of `inside` writes that buffer."""
    made = {w.buffer for c in inside for w in writes(c)}
    for buffer in dict.fromkeys(a.buffer for a in reads(b) if a.buffer in made):
        new = reshaped(b, buffer)
        if new is not None:
            check_loops_cover(s, b, "domain")
            s.replace_block(b.name, lambda _, new=new: new)  # type: ignore[misc]
            b = new
    return b


def _check_domain(s: ScheduleState, b: Block, reads_at: tuple[Poly, ...], producer: Block, writes_at: tuple[Poly, ...]) -> None:
    """Refuse a block whose iteration variables have values for which the producer writes no element."""
    message = f"block {b.name} runs for elements that block {producer.name} does not write"
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
        raise s.refuse("domain", f"{message}: the loops around {producer.name} may not cover its domain", producer)


def _check_whole(s: ScheduleState, b: Block, target: For, bound: set[int]) -> None:
    """Refuse iteration variables outside the footprint that a common loop binds: they would run over their whole extent."""
    path = move(s, b.name, blocks_under(target)[0].name)
    around = {f.var for f in path.shared} if path else set()
    for n, (it, e) in enumerate(zip(b.iters, b.bindings, strict=True)):
        if n not in bound and not around.isdisjoint(e.vars):
            what = f"a loop around both binds {it.var.name} of block {b.name}, and the elements it reads do not depend on this variable"
            raise s.refuse("ready", what, b)


def _check_once(s: ScheduleState, b: Block, target: For, producers: list[Block]) -> None:
    """Refuse a block that reads the buffer it writes and would run twice for an element."""
    made = {w.buffer for w in writes(b)}
    if not any(a.buffer in made and not a.is_write for a in accesses(b)):
        return
    path = move(s, b.name, producers[0].name)
    shared = path.shared if path else ()
    if is_repeated(s, b, [f for f in s.loops_of(b.name) if f not in shared]):
        raise s.refuse("once", f"block {b.name} reads the buffer it writes, and its loops may run an instance more than once", b)
    outside = _loops_down_to(s, target) - {f.var for f in shared}
    for p in producers:
        ranges = inner_ranges(s, p, shared)
        for w in writes(p):
            at = in_loops(p, w.indices)
            if not all(any(v in e.vars for e in at) for v in outside) or not all(is_tiling(e, ranges) for e in at):
                what = f"block {b.name} reads the buffer it writes, and loop {target.var.name} may repeat block {p.name} for an element"
                raise s.refuse("once", what, b)


def _loops_down_to(s: ScheduleState, target: For) -> set[object]:
    """Variables of `target` and the loops around it."""

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
