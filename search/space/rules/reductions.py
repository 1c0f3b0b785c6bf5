"""Schedule single memory-bound reductions, of rows or of all elements, with vector accumulators and threads."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import has_loop_for_each_variable, is_contraction, is_output, is_pointwise, is_reduction
from tunesmith.search.space.rules.tile_domains import middle_tiles, outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule if the output is a reduction whose producers are all pointwise, and one without threads if the work is small."""
    if not has_loop_for_each_variable(func):
        return []
    blocks = blocks_under(func.body)
    reductions = [b for b in blocks if is_reduction(b)]
    if len(reductions) != 1 or not is_output(func, reductions[0]) or is_contraction(reductions[0]):
        return []
    if not all(is_pointwise(b) for b in blocks if b is not reductions[0]):
        return []
    main = reductions[0]
    whole = not any(i.kind == "S" and i.extent.const != 1 for i in main.iters)
    make = everything if whole else rows
    name = f"reduction {'of everything' if whole else 'of rows'}"
    found: list[Named] = [(name, lambda s: make(s, main.name, target, True))]
    return found + ([(f"{name} serial", lambda s: make(s, main.name, target, False))] if worth_serial(func, target) else [])


def _prepare(s: Schedule, main: str) -> tuple[list[LoopRV], list[LoopRV]]:
    """Inline the producers and reorder; returns (spatial loops, reduction loops)."""
    for b in [b.name for b in s.blocks() if b.name != main]:
        s.compute_inline(s.get_block(b))
    block = s.get_block(main)
    kinds = [i.kind for i in s.block(block).iters]
    loops = s.get_loops(block)
    spatial = [x for x, k in zip(loops, kinds, strict=True) if k == "S"]
    reduction = [x for x, k in zip(loops, kinds, strict=True) if k == "R"]
    s.reorder([*spatial, *reduction])
    return spatial, reduction


def rows(s: Schedule, main: str, target: Target, threads: bool) -> None:
    """Parallelise over rows; each row is reduced in vectors, whose lanes are combined at the end of the row."""
    spatial, reduction = _prepare(s, main)
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
    _, reduction = _prepare(s, main)
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
