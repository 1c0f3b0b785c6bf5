"""Schedule single memory-bound reductions, of rows or of all elements, with vector accumulators and threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import has_loop_for_each_variable
from tunesmith.search.space.rules.single_reduction import inline_producers, is_of_everything, single_reduction
from tunesmith.search.space.rules.tile_domains import middle_tiles, outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule if the output is a reduction whose producers are all pointwise, and one without threads if the work is small."""
    if not has_loop_for_each_variable(func):
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
    spatial, reduction = inline_producers(s, main)
    fused = s.fuse(spatial)
    chunk = s.sample_tile(fused, 2, "rows", [outer_tiles(s.loop(fused).extent.const or 1)])
    task, _ = s.split(fused, [None, *chunk])
    lane = _lanes(s, s.fuse(reduction), target)
    part = s.rfactor(lane)
    _accumulate(s, part, s.get_block(main))
    if threads:
        s.parallel(task)


def everything(s: Schedule, main: str, target: Target, threads: bool) -> None:
    """Parallelise over ranges of elements with one partial result each; the partial results are combined at the end."""
    _, reduction = inline_producers(s, main)
    in_ranges(s, reduction, target, threads)


def in_ranges(s: Schedule, reduction: Sequence[LoopRV], target: Target, threads: bool) -> None:
    """Reduce ranges of elements in parallel, given the loops of a reduction without other loops."""
    whole = s.fuse(reduction)
    extent = s.loop(whole).extent.const or 1
    lanes = target.vector_lanes("float32")
    widths = tuple(lanes * n for n in (1, 2, 4, 6, 8, 12, 16))
    factors = s.sample_tile(whole, 3, "part", [middle_tiles(extent, widths), widths], slack=lanes)
    task, _, lane = s.split(whole, [None, *factors])
    part = s.rfactor(task)
    inner = s.rfactor(lane)
    _accumulate(s, inner, part)
    if threads:
        s.parallel(task)


def _lanes(s: Schedule, loop: LoopRV, target: Target) -> LoopRV:
    lanes = target.vector_lanes("float32")
    width = s.sample_tile(loop, 2, "lanes", [tuple(lanes * n for n in (1, 2, 4, 6, 8, 12, 16))], slack=4 * lanes)
    return s.split(loop, [None, *width])[1]


def _accumulate(s: Schedule, part: BlockRV, total: BlockRV) -> None:
    """Keep the partial results in registers, and combine them."""
    s.set_scope(part, "register")
    loops = s.get_loops(part)
    s.vectorize(loops[-1])
    s.decompose_reduction(part, loops[-2])
    fold = s.get_loops(total)[-1]
    s.decompose_reduction(total, fold)
    s.vectorize(fold)
