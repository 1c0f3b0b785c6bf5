"""Schedule single memory-bound reductions, of rows or of all elements, with vector accumulators and threads."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.contiguity import contiguous_last, contiguous_suffix
from tunesmith.search.space.rules.block_classes import has_own_nests
from tunesmith.search.space.rules.single_reduction import inline_producers, is_of_everything, single_reduction
from tunesmith.search.space.rules.tile_domains import middle_tiles, outer_tiles

TASKS_PER_CORE = 4
"""Iterations of the outer reduction loops for each core, from which they are the parallel ones."""
Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule if the output is a reduction whose producers are all pointwise, and one without threads if the work is small."""
    if not has_own_nests(func):
        return []
    main = single_reduction(func)
    if main is None:
        return []
    whole = is_of_everything(main)
    make = everything if whole else rows
    name = f"reduction {'of everything' if whole else 'of rows'}"
    found: list[Named] = [(name, lambda s: make(s, main.name, target, True))]
    return found + ([(f"{name} serial", lambda s: make(s, main.name, target, False))] if worth_serial(func, target) else [])


def rows(s: Schedule, main: str, target: Target, threads: bool) -> None:
    """Parallelise over rows; each row is reduced in vectors, whose lanes are combined at the end of the row."""
    spatial, _ = inline_producers(s, main)
    fused = s.fuse(spatial)
    chunk = s.sample_tile(fused, 2, "rows", [outer_tiles(s.loop(fused).extent.const or 1)])
    task, inside = s.split(fused, [None, *chunk])
    around, along = _reduction_loops(s, main)
    widths = _widths(target)
    over, lane = s.split(along, [None, *s.sample_tile(along, 2, "lanes", [widths], slack=4 * widths[0])])
    s.reorder([task, inside, *around, over, lane]) if around else None
    part = s.rfactor(lane)
    _accumulate(s, part, s.get_block(main), 2)
    if threads:
        s.parallel(task)


def everything(s: Schedule, main: str, target: Target, threads: bool) -> None:
    """Parallelise over ranges of elements with one partial result each; the partial results are combined at the end."""
    inline_producers(s, main)
    in_ranges(s, main, target, threads)


def in_ranges(s: Schedule, main: str, target: Target, threads: bool) -> None:
    """Reduce ranges of elements in parallel, for a block whose loops are all of the reduction."""
    around, along = _reduction_loops(s, main)
    widths = _widths(target)
    if around and (s.loop(around[0]).extent.const or 1) >= TASKS_PER_CORE * (target.num_cores or 1):
        (outer,) = around
        chunk = s.sample_tile(outer, 2, "part", [outer_tiles(s.loop(outer).extent.const or 1)])
        task, *inside = s.split(outer, [None, *chunk])
        over, lane = s.split(along, [None, *s.sample_tile(along, 2, "lanes", [widths], slack=widths[0])])
    else:
        inside = around
        factors = s.sample_tile(along, 3, "part", [middle_tiles(s.loop(along).extent.const or 1, widths), widths], slack=widths[0])
        task, over, lane = s.split(along, [None, *factors])
    reduced = {x.var for x in (task, *inside, over, lane)}
    single = [x for x in s.get_loops(s.get_block(main)) if x.var not in reduced]
    if single or inside:
        s.reorder([task, *single, *inside, over, lane])
    part = s.rfactor(task)
    inner = s.rfactor(lane)
    _accumulate(s, inner, part, 1 + len(single))
    if threads:
        s.parallel(task)


def _reduction_loops(s: Schedule, main: str) -> tuple[list[LoopRV], LoopRV]:
    """The reduction loops: those that run through memory without a gap as one, and the others before it as at most one."""
    block = s.get_block(main)
    b = s.block(block)
    reduced = [n for n, it in enumerate(b.iters) if it.kind == "R"]
    loops = {n: s.get_loops(block)[-k] for k, n in enumerate(reversed(reduced), 1)}
    ordered = contiguous_last(b, reduced)
    adjacent = contiguous_suffix(b, ordered)
    if ordered != reduced:
        s.reorder([loops[n] for n in ordered])
    outer, inner = ordered[:-adjacent], ordered[-adjacent:]
    along = s.fuse([loops[n] for n in inner])
    return [s.fuse([loops[n] for n in outer])] if outer else [], along


def _widths(target: Target) -> tuple[int, ...]:
    """Numbers of lanes of partial results."""
    lanes = target.vector_lanes("float32")
    return tuple([lanes * n for n in (1, 2, 4, 6, 8, 12, 16)])


def _accumulate(s: Schedule, part: BlockRV, total: BlockRV, spatial: int) -> None:
    """Keep the partial results in registers, and combine them; the first `spatial` loops are around the reduction."""
    s.set_scope(part, "register")
    loops = s.get_loops(part)
    s.vectorize(loops[-1])
    s.decompose_reduction(part, loops[spatial])
    fold = s.get_loops(total)[-1]
    s.decompose_reduction(total, fold)
    s.vectorize(fold)
