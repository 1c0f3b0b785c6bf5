"""Schedule elementwise operators on CPUs: inline into the output, vectorise the last axis, parallelise the rows."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.contiguity import contiguous_suffix
from tunesmith.search.space.rules.block_classes import has_own_nests, is_output, is_pointwise
from tunesmith.search.space.rules.tile_domains import outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Two schedules, with and without threads, if every block is pointwise; scalars have only the serial one."""
    blocks = blocks_under(func.body)
    if not blocks or not all(is_pointwise(b) for b in blocks) or not has_own_nests(func):
        return []
    serial: Named = ("pointwise serial", lambda s: schedule(s, target, False))
    if all(not b.iters for b in blocks):  # scalars: no loops to parallelise
        return [serial]
    return [("pointwise", lambda s: schedule(s, target, True)), serial]


def schedule(s: Schedule, target: Target, threads: bool) -> None:
    """Inline, tile and vectorise all blocks."""
    for b in [b.name for b in s.blocks() if not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))
    for b in [b.name for b in s.blocks()]:
        tile(s, b, target, threads)


def tile(s: Schedule, b: str, target: Target, threads: bool) -> None:
    """Vectorise one block along its last axis, or its last axes if they are contiguous, and parallelise its remaining loops."""
    block = s.get_block(b)
    loops = s.get_loops(block)
    if not loops:  # a scalar
        return
    lanes = target.vector_lanes("float32")
    adjacent = contiguous_suffix(s.block(block), range(len(loops)))
    if adjacent > 1:
        loops = [*loops[:-adjacent], s.fuse(loops[-adjacent:])]
    factors = s.sample_tile(loops[-1], 2, f"{b}_", [tuple(lanes * n for n in (1, 2, 4, 8, 16))], waste=1.0, slack=lanes)
    outer, inner = s.split(loops[-1], [None, *factors])
    s.vectorize(inner)
    fused = s.fuse([*loops[:-1], outer])
    if threads:
        extent = s.loop(fused).extent.const
        chunk = s.sample_tile(fused, 2, f"{b}_task", [outer_tiles(extent if extent is not None else 1024)], waste=1.0)
        s.parallel(s.split(fused, [None, *chunk])[0])
