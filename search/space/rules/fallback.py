"""Schedule any function on CPUs: parallelise the independent leading spatial loops of every block.

Functions with little work also get a serial schedule.  Used only if no other rule applies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import takewhile

from tunesmith.ir.analysis.dependence import loop_accesses
from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.stmt import Block, For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.lower.loop_carried import carries_values
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.simplifier import Simplifier
from tunesmith.schedule.auto_bind import independent_loops
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.tile_domains import outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for any function, and one without threads if the work is small."""
    found: list[Named] = [("fallback", lambda s: schedule(s, target, True))]
    return found + ([("fallback serial", lambda s: schedule(s, target, False))] if worth_serial(func, target) else [])


def schedule(s: Schedule, target: Target, threads: bool) -> None:
    """Parallelise the fused leading spatial loops of every block; blocks with dependences between their instances stay serial."""
    tile_all(s, [b.name for b in s.blocks()], target, threads)


def tile_all(s: Schedule, blocks: Iterable[str], target: Target, threads: bool) -> None:
    """`tile` for each of the blocks; those that share loops are tiled together."""
    done: set[str] = set()
    for b in blocks:
        if b not in done:
            done |= tile(s, b, target, threads)


def tile(s: Schedule, b: str, target: Target, threads: bool) -> set[str]:
    """Fuse and parallelise the leading loops of one block whose iterations are independent; returns the blocks in them."""
    leading = list(takewhile(lambda x: not _carries_values(s, s.loop(x), target), independent_loops(s, s.get_block(b), private=True)))
    if not leading:
        return set()
    fused = s.fuse(leading)
    chunk = s.sample_tile(fused, 2, f"{b}_", [outer_tiles(s.loop(fused).extent.const or 1)], waste=1.0)
    task = s.split(fused, [None, *chunk])[0]
    if threads:
        s.parallel(task)
    return {c.name for c in blocks_under(s.loop(task))}


def _carries_values(s: Schedule, loop: For, target: Target) -> bool:
    """Whether an intermediate buffer that is used only in this loop may carry values from one iteration to another.

    Lowering makes such a buffer private to an iteration of a parallel loop, and refuses one that carries values.  One block has no such
    buffers, except those that nothing else reads.
    """
    inner: Stmt = loop
    while type(inner) is For:
        inner = inner.body
    if type(inner) is Block:
        return False
    body = lower_blocks(s.func, target).body
    known = Simplifier(symbol_ranges(s.func))
    for f in s.loops_of(blocks_under(loop)[0].name):
        known.ranges[f.var] = (0, known.bounds(f.extent)[1] - 1)
        if f is loop:
            break
    lowered = s.find_loop(body, loop.var)
    inside, everywhere = (Counter(a.buffer for a in loop_accesses(n)) for n in (loop, s.func.body))
    own = [b for b in s.func.allocs if b in inside and inside[b] == everywhere[b]]
    return lowered is not None and any(carries_values(lowered, b, known, {}, frozenset(sizes_of(s.func))) for b in own)
