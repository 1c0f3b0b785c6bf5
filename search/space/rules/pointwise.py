"""Schedule elementwise operators on CPUs: inline into the output, vectorise the last axis, parallelise the rows.

An operator that transposes reads along another axis than it writes.  Tiles of these two axes are read in vectors along the first one and
transposed in registers, so that loads and stores are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.analysis.access_regions import plain_iter, reads, writes
from tunesmith.ir.analysis.guards import step_of
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ONE
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.contiguity import contiguous_suffix
from tunesmith.search.space.rules.block_classes import has_own_nests, is_output, is_pointwise
from tunesmith.search.space.rules.tile_domains import outer_tiles
from tunesmith.support.errors import ScheduleError

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Schedules with and without threads if every block is pointwise, and both in tiles that are transposed; scalars have only one."""
    blocks = blocks_under(func.body)
    if not blocks or not all(is_pointwise(b) for b in blocks) or not has_own_nests(func):
        return []
    serial: Named = ("pointwise serial", lambda s: schedule(s, target, False))
    if all(not b.iters for b in blocks):  # scalars: no loops to parallelise
        return [serial]
    found: list[Named] = [("pointwise", lambda s: schedule(s, target, True)), serial]
    if _transposes(func):
        found.append(("pointwise across", lambda s: schedule(s, target, True, across=True)))
        found.append(("pointwise across serial", lambda s: schedule(s, target, False, across=True)))
    return found


def _transposes(func: PrimFunc) -> bool:
    """Whether an output, with its producers inlined, reads along another axis than its last one."""
    s = Schedule(func)
    try:
        _inline(s)
    except ScheduleError:  # the sketches without tiles are refused for the same reason, and reported with it
        return False
    return any(axis_across(b) is not None for b in s.blocks())


def schedule(s: Schedule, target: Target, threads: bool, across: bool = False) -> None:
    """Inline, tile and vectorise all blocks; with `across`, those that transpose in transposed tiles."""
    _inline(s)
    for b in [b.name for b in s.blocks()]:
        axis = axis_across(s.block(s.get_block(b))) if across else None
        if axis is None:
            tile(s, b, target, threads)
        else:
            _tile_across(s, b, target, threads, axis)


def _inline(s: Schedule) -> None:
    for b in [b.name for b in s.blocks() if not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))


def axis_across(b: Block) -> int | None:
    """The position of the iteration variable that most reads of a transposed operand run along; None if no operand is transposed.

    The output is contiguous along the last iteration variable.  A transposed operand is strided along it and contiguous along another.
    """
    written = writes(b)[0]
    if len(b.iters) < 2 or plain_iter(written.indices[-1], b) != len(b.iters) - 1 or b.iters[-1].extent == ONE:
        return None
    found: dict[int, int] = {}
    for a in reads(b):
        strided = any(b.iters[-1].var in e.vars for e in a.indices[:-1])
        for n, it in enumerate(b.iters[:-1]):
            if strided and it.extent != ONE and step_of(a.indices[-1], it.var) == ONE:
                found[n] = found.get(n, 0) + 1
    return max(found, key=lambda n: (found[n], n)) if found else None


def _tile_across(s: Schedule, b: str, target: Target, threads: bool, axis: int) -> None:
    """Vectorise one block along the axis that it reads along, and unroll its last axis: code generation transposes such a tile."""
    block = s.get_block(b)
    loops = s.get_loops(block)
    lanes = target.vector_lanes(writes(s.block(block))[0].buffer.dtype)
    rows = s.sample_tile(
        loops[-1], 2, f"{b}_rows", [tuple(dict.fromkeys(max(lanes * n // 2, 1) for n in (1, 2, 4)))], waste=1.0, slack=lanes
    )
    columns = s.sample_tile(loops[axis], 2, f"{b}_columns", [tuple(lanes * n for n in (1, 2, 4))], waste=1.0, slack=lanes)
    row, last = s.split(loops[-1], [None, *rows])
    column, vector = s.split(loops[axis], [None, *columns])
    outer = [x for n, x in enumerate(loops[:-1]) if n != axis]
    s.reorder([*outer, column, row, last, vector])
    s.vectorize(vector)
    s.unroll(last)
    fused = s.fuse([*outer, column, row])
    if threads:
        extent = s.loop(fused).extent.const
        chunk = s.sample_tile(fused, 2, f"{b}_task", [outer_tiles(extent if extent is not None else 1024)], waste=1.0)
        s.parallel(s.split(fused, [None, *chunk])[0])


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
