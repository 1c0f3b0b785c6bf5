"""Schedule single reductions on GPUs, of rows or of all elements.

Each row is reduced by a group of threads, whose partial results are combined.  A reduction of all elements gives one partial result per
block, and a second kernel with one block combines them.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import has_own_nests
from tunesmith.search.space.rules.gpu_limits import widths_of
from tunesmith.search.space.rules.gpu_rows import GROUPS, THREADS, combine
from tunesmith.search.space.rules.single_reduction import inline_producers, is_of_everything, single_reduction

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 132, 264, 528, 1056)
"""Numbers of blocks for a reduction of all elements."""

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule if the output is a reduction whose producers are all pointwise."""
    main = single_reduction(func) if has_own_nests(func) else None
    if main is None:
        return []
    whole = is_of_everything(main)
    make = everything if whole else rows
    return [(f"gpu reduction {'of everything' if whole else 'of rows'}", lambda s: make(s, main.name, target))]


def _widths(s: Schedule, main: str, target: Target) -> tuple[int, ...]:
    return widths_of(s.block(s.get_block(main)).body.buffer.dtype, target)  # type: ignore[attr-defined]


def rows(s: Schedule, main: str, target: Target) -> None:
    """Assign a group of threads to each row, with several rows per block."""
    widths = _widths(s, main, target)
    spatial, reduction = inline_producers(s, main)
    fused = s.fuse(spatial)
    threads = tuple(t for t in THREADS if t <= target.max_threads_per_block)
    column = s.fuse(reduction)
    share = s.sample_tile(column, 3, "column", [threads, widths], waste=0.5, slack=32)
    group = s.sample_tile(fused, 2, "rows", [GROUPS], slack=8)
    s.limit([share[0], *group], target.max_threads_per_block, "threads")
    outer, inner = s.split(fused, [None, *group])
    thread = s.split(column, [None, *share])[1]
    part = s.rfactor(thread)
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.y")
    combine(s, part, s.get_block(main))


def everything(s: Schedule, main: str, target: Target) -> None:
    """Compute a partial result in each block, and combine them in a second kernel."""
    widths = _widths(s, main, target)
    _, reduction = inline_producers(s, main)
    whole = s.fuse(reduction)
    threads = tuple(t for t in THREADS if t <= target.max_threads_per_block)
    extent = s.loop(whole).extent.const or 1
    blocks = s.sample_categorical(tuple(b for b in BLOCKS if b == 1 or b * 32 <= extent), "blocks")
    share = s.sample_tile(whole, 3, "part", [threads, widths], waste=0.5, slack=4096)
    # Blocks are interleaved, so that simultaneous reads are adjacent in memory.
    turns, block, thread, lane = s.split(whole, [None, blocks, *share])
    part = s.rfactor(block)
    s.reorder([block, turns, thread, lane])
    inner = s.rfactor(thread)
    total = s.get_block(main)
    s.bind(block, "blockIdx.x")
    combine(s, inner, part)
    _finish(s, total, threads)


def _finish(s: Schedule, total: BlockRV, threads: tuple[int, ...]) -> None:
    """The second kernel: the threads of one block combine the partial results."""
    loop = s.get_loops(total)[-1]
    s.bind(s.add_unit_loop(loop), "blockIdx.x")
    share = s.sample_tile(loop, 2, "last", [threads], waste=4.0, slack=1024)
    thread = s.split(loop, [None, *share, 1])[1]
    inner = s.rfactor(thread)
    combine(s, inner, total)
