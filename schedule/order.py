"""Check the dependences between a moving block and the blocks that it moves past.

A move takes a block out of one statement of a sequence and into another: its order changes relative to the blocks in these two statements
and between them.  Inside loops around the sequence, each iteration is such a move, and instances that change their iteration are a further
move.  Buffers are compared; elements only if the normal forms of their indices decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunesmith.ir.analysis.access_regions import Access, accesses, loop_ranges, plain_iter, reads, region, union, writes
from tunesmith.ir.analysis.dependence import is_nonpositive
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ZERO, Poly, Var, substitute
from tunesmith.ir.stmt import Block, For, Seq
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.footprints import is_tiling
from tunesmith.schedule.state import ScheduleState


@dataclass(frozen=True)
class Move:
    """The move of a block to the nest of another block.

    Attributes:
        shared: the loops around both, outermost first.
        up: whether the block moves against program order.
        here: the blocks of the statement that it leaves, including itself.
        between: the blocks between the two statements.
        there: the blocks of the statement that it enters.
        around: all blocks inside the shared loops; empty without a shared loop.
    """

    shared: tuple[For, ...]
    up: bool
    here: list[Block]
    between: list[Block]
    there: list[Block]
    around: list[Block]


def move(s: ScheduleState, block: str, to: str) -> Move | None:
    """The move of the block to the nest of the block `to`; None if it is already inside."""
    a, b = s.path(block), s.path(to)
    n = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x is not y)
    fork = a[n - 1] if n else None
    if type(fork) is not Seq:
        return None
    i, j = fork.stmts.index(a[n]), fork.stmts.index(b[n])
    shared = tuple([f for f in a[:n] if type(f) is For])
    between = [c for x in fork.stmts[min(i, j) + 1 : max(i, j)] for c in blocks_under(x)]
    around = blocks_under(shared[0]) if shared else []
    return Move(shared, j < i, blocks_under(a[n]), between, blocks_under(b[n]), around)


def steps_ascend(s: ScheduleState, block: Block) -> bool:
    """Whether the loops run the reduction steps of each element in lexicographic order of the reduction variables."""
    loops = {f.var: f for f in s.loops_of(block.name)}
    digits: list[Var] = []
    for e in [e for it, e in zip(block.iters, block.bindings, strict=True) if it.kind == "R" and it.extent != 1]:
        mine = [v for v in loops if v in e.vars]
        steps = [step_of(e, v) for v in mine]
        for outer, inner, v in zip(steps, steps[1:], mine[1:], strict=False):
            if outer is None or inner is None or not is_nonpositive(inner * loops[v].extent - outer):
                return False
        if steps and (steps[-1] is None or not is_nonpositive(1 - steps[-1])):
            return False
        digits += mine
    return digits == sorted(digits, key=list(loops).index)


def inner_ranges(s: ScheduleState, block: Block, outer: Sequence[For]) -> dict[Var, Poly]:
    """The largest values of the loops around the block that are not in `outer`."""
    return loop_ranges([(f.var, f.extent) for f in s.loops_of(block.name) if f not in outer])


def in_loops(block: Block, indices: tuple[Poly, ...]) -> tuple[Poly, ...]:
    """Indices of the block as expressions of the loops around it."""
    bound = {it.var: e for it, e in zip(block.iters, block.bindings, strict=True)}
    return tuple([substitute(e, bound) for e in indices])


def same_elements(s: ScheduleState, a: Block, at: Access, b: Block, bt: Access, outer: Sequence[For]) -> bool:
    """Whether the two accesses have the same footprint in each iteration of the loops `outer`, and that of `a` has no gaps."""
    ranges = inner_ranges(s, a, outer)
    if not all(is_tiling(e, ranges) for e in in_loops(a, at.indices)):
        return False
    return region(a, at.indices, ranges) == region(b, bt.indices, inner_ranges(s, b, outer))


def is_settled(s: ScheduleState, writer: Block, outer: Sequence[For], seen: tuple[Block, ...] = ()) -> bool:
    """Whether no iteration of the loops `outer` changes an element of an earlier one, except by writing the same value."""
    common = {f.var for f in s.loops_of(writer.name) if f in outer}
    if not common:
        return True
    ranges = inner_ranges(s, writer, ())
    for w in writes(writer):
        at = in_loops(writer, w.indices)
        if not all(any(v in e.vars for e in at) for v in common) or not all(is_tiling(e, ranges) for e in at):
            break
    else:
        return True
    places = {tuple([plain_iter(e, writer) for e in w.indices]) for w in writes(writer)}
    spatial = {n for n, it in enumerate(writer.iters) if it.kind == "S"}
    partial = any(it.kind == "R" and not e.vars.isdisjoint(common) for it, e in zip(writer.iters, writer.bindings, strict=True))
    if partial or writer in seen or any(set(p) != spatial or len(p) != len(spatial) for p in places):
        return False
    if writer.init is None and any(not a.is_write and a.buffer in {w.buffer for w in writes(writer)} for a in accesses(writer)):
        return False
    made = {w.buffer for w in writes(writer)}
    if any(c is not writer and any(w.buffer in made for w in writes(c)) for c in s.blocks()):
        return False
    used = {a.buffer for a in reads(writer)}
    inside = blocks_under(outer[0])
    return all(is_settled(s, c, outer, (*seen, writer)) for c in inside if any(w.buffer in used for w in writes(c)))


def check_unchanged(s: ScheduleState, block: Block, readers: Sequence[Block], own: Sequence[Block] = ()) -> None:
    """Refuse (unchanged) if `block`, moved to its readers, would read other values than at its present position.

    Args:
        s: the schedule.
        block: a producer.
        readers: all blocks that read the buffer it writes.
        own: readers that write no element that another instance of them reads through `block`.
    """
    used = {a.buffer for a in reads(block)}
    order = s.blocks()
    writers = [c for c in order if c is not block and _first(c, used)]
    for to in readers:
        path = move(s, block.name, to.name)
        if path is None:
            continue
        if path.up:
            raise s.refuse("unchanged", f"block {to.name} is before block {block.name}, and reads values of an earlier iteration", to)
        nest = [f for f in s.loops_of(block.name) if f not in path.shared]
        crossed = [*path.here, *path.between, *path.there]
        for c in writers:
            early = order.index(c) < order.index(block)
            if c in crossed and not (c is to and c in own) and not (early and _is_new(s, c, writers, path.here) and is_settled(s, c, nest)):
                raise s.refuse("unchanged", _clash(block, c, _first(c, used), to), c)
            final = early and _is_new(s, c, writers, path.around) and is_settled(s, c, path.shared)
            if c in path.around and not final and not _same_footprint(s, block, readers, path.shared):
                raise s.refuse("unchanged", f"{_clash(block, c, _first(c, used), to)}, in another iteration of the loops around both", c)


def _written(c: Block) -> list[Buffer]:
    return [w.buffer for w in writes(c)]


def _is_new(s: ScheduleState, c: Block, writers: Sequence[Block], within: Sequence[Block]) -> bool:
    """Whether the buffers that `c` writes are intermediates that only these blocks write."""
    made = set(_written(c))
    return c in within and made <= set(s.func.allocs) and all(x in within or made.isdisjoint(_written(x)) for x in writers)


def _first(c: Block, buffers: Iterable[Buffer]) -> str | None:
    wanted = set(buffers)
    return next((b.name for b in _written(c) if b in wanted), None)


def _clash(block: Block, c: Block, buffer: str | None, to: Block) -> str:
    return f"block {block.name}, moved to block {to.name}, would read {buffer} after block {c.name} has written it"


def _same_footprint(s: ScheduleState, block: Block, readers: Sequence[Block], shared: Sequence[For]) -> bool:
    """Whether the readers' footprint in an iteration of the shared loops is that of `block`."""
    w = writes(block)[0]
    ranges = inner_ranges(s, block, shared)
    needed = [region(c, a.indices, inner_ranges(s, c, shared)) for c in readers for a in reads(c) if a.buffer is w.buffer]
    return all(is_tiling(e, ranges) for e in in_loops(block, w.indices)) and union(needed) == region(block, w.indices, ranges)


def check_ready(s: ScheduleState, block: Block, producers: Sequence[Block], inside: Sequence[Block], own: bool = False) -> None:
    """Refuse (ready) if `block`, moved up to `producers`, would read values not yet computed or change data of other blocks.

    Args:
        s: the schedule.
        block: the block that moves up.
        producers: the blocks whose writes it reads; the caller checks that it reads only elements they have written.
        inside: the blocks of the loop that it moves into, or the block that it is merged with.
        own: the producer accesses no element that another instance of `block` writes.
    """
    path = move(s, block.name, inside[0].name)
    if path is None:
        return
    if not path.up:
        raise s.refuse("ready", f"block {inside[0].name} runs after block {block.name}, which reads the earlier values", block)
    used, made = {a.buffer for a in reads(block)}, {w.buffer for w in writes(block)}
    finished = {b for p in producers for b in _written(p)}
    order = s.blocks()
    for c in [*path.there, *path.between, *path.here]:
        if c is block:
            continue
        for a in accesses(c):
            uses = a.buffer in made and not (c in producers and own) and not _reads_it_after(s, block, c, a, path)
            early = order.index(c) <= order.index(inside[-1])
            both = [f for f in s.loops_of(c.name) if f in s.loops_of(producers[0].name)] if producers else []
            done = a.buffer in finished and is_settled(s, c, both)
            there = c in inside or (early and (done or _made_before(s, block, producers, c, a)))
            if uses or (a.is_write and a.buffer in used and not there):
                what = f"block {block.name} cannot move up before block {c.name}, which accesses the same data: {a.buffer.name}"
                raise s.refuse("ready", what, c)
    for p in producers if path.shared else ():
        if not all(same_elements(s, p, w, block, a, path.shared) for w in writes(p) for a in reads(block) if a.buffer is w.buffer):
            what = (
                f"block {block.name} does not read exactly the elements that block {p.name} writes in an iteration of the loops around both"
            )
            raise s.refuse("ready", what, block)


def _reads_it_after(s: ScheduleState, block: Block, c: Block, a: Access, path: Move) -> bool:
    """Whether `c`, after `block` in one nest, reads in each iteration of their loops the elements that `block` writes in it."""
    if a.is_write or c not in path.here or path.here.index(c) < path.here.index(block):
        return False
    both = [f for f in s.loops_of(block.name) if f in s.loops_of(c.name)]
    return all(same_elements(s, block, w, c, a, both) for w in writes(block) if w.buffer is a.buffer)


def _made_before(s: ScheduleState, block: Block, producers: Sequence[Block], c: Block, w: Access) -> bool:
    """Whether `c`, before the producers in one nest, has finished all elements that `block` reads of it after the move."""
    both = [f for f in s.loops_of(c.name) if f in s.loops_of(producers[0].name)]
    footprint: dict[int | None, tuple[Poly, Poly]] = {n: (ZERO, it.extent) for n, it in enumerate(block.iters)}
    for p in producers:
        for out in writes(p):
            low_and_extent = region(p, out.indices, inner_ranges(s, p, both))
            for a in reads(block):
                if a.buffer is out.buffer:
                    footprint |= {plain_iter(e, block): low_and_extent[d] for d, e in enumerate(a.indices)}
    made = region(c, w.indices, inner_ranges(s, c, both))
    dense = all(is_tiling(e, inner_ranges(s, c, both)) for e in in_loops(c, w.indices))
    mine = [a for a in reads(block) if a.buffer is w.buffer]
    plain = all(plain_iter(e, block) is not None for a in mine for e in a.indices)
    return (
        dense
        and plain
        and is_settled(s, c, both)
        and all(footprint[plain_iter(e, block)] == made[d] for a in mine for d, e in enumerate(a.indices))
    )
