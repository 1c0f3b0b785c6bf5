"""Prepare the reductions of a group before any block moves: accumulators in registers, or partial results in vector lanes.

A *tile* reduction is vectorised along a spatial axis: its accumulators are a register tile, computed where its writer consumes them.  A
*lane* reduction is vectorised along its own reduction axis: each lane of several vectors accumulates a partial result, and the lanes are
combined once for each element (source: Suriana et al., CGO 2017; rfactor).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.ir.stmt import Block
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.axes import AxisClasses
from tunesmith.search.space.derive.contiguity import contiguous_last, contiguous_suffix
from tunesmith.search.space.derive.plans import rows_of
from tunesmith.search.space.rules.block_classes import consumers, is_contraction, is_pointwise, is_reduction, operands, vector_axis

WIDTHS = (1, 2, 3, 4, 6, 8)
"""Numbers of vectors of partial results."""


@dataclass(slots=True)
class Reduction:
    """A reduction of a group.

    Attributes:
        block: name of the block that accumulates (tile), or that combines the lanes.
        writer: the elementwise block that reads the accumulators of a tile reduction; empty for a lane reduction.
        part: the block of partial results of a lane reduction; empty for a tile reduction.
        width: the number of lanes.
    """

    block: str
    writer: str = ""
    part: str = ""
    width: list[IntRV] = field(default_factory=list)


def is_along_lanes(b: Block, lanes: int) -> bool:
    """Whether a reduction is vectorised along its reduction axis.

    That axis is long enough and contiguous in an operand, and no operand is reused by rows or contiguous along the output's last axis, in
    which case the output's axis is vectorised.
    """
    reduced = {it.var for it in b.iters if it.kind == "R"}
    streamed = [o for o in operands(b) if o.iters & reduced]
    if not any(o.contiguous & reduced for o in streamed):
        return False
    if math.prod([it.extent.const or lanes for it in b.iters if it.kind == "R"]) < lanes:
        return False
    if rows_of(b):
        return not is_contraction(b)
    vector = vector_axis(b)
    return vector is None or not any(b.iters[vector].var in o.contiguous for o in streamed)


def accumulate_in_registers(s: Schedule, name: str, group: Sequence[str], taken: set[str]) -> Reduction:
    """Keep the result of a tile reduction in registers.

    Its writer is its only consumer, if that is elementwise over the same axes; otherwise a new block that copies the accumulators.

    Args:
        s: the schedule.
        name: the reduction.
        group: the blocks of the group.
        taken: the writers of other reductions.
    """
    block = s.get_block(name)
    b = s.block(block)
    readers = consumers(s.func, b)
    axes = AxisClasses(s.blocks())
    if len(readers) == 1 and readers[0].name in group and readers[0].name not in taken and is_pointwise(readers[0]):
        if axes.axes(readers[0].name) == set(axes.spatial(name)):
            s.set_scope(block, "register")
            return Reduction(name, readers[0].name)
    return Reduction(name, s.block(s.cache_write(block, "register")).name)


def factor_into_lanes(s: Schedule, name: str, lanes: int) -> Reduction:
    """Factor a reduction into partial results, one for each lane of several vectors."""
    block = s.get_block(name)
    b = s.block(block)
    loops = s.get_loops(block)
    spatial = [x for x, it in zip(loops, b.iters, strict=True) if it.kind == "S"]
    reduced = [n for n, it in enumerate(b.iters) if it.kind == "R"]
    longest = contiguous_last(b, reduced)
    s.reorder([*spatial, *[loops[n] for n in longest]])
    adjacent = contiguous_suffix(b, longest)
    x = s.fuse([loops[n] for n in longest[-adjacent:]]) if adjacent > 1 else loops[longest[-1]]
    width = s.sample_tile(x, 2, f"{name}_", [tuple(lanes * n for n in WIDTHS)], slack=2 * lanes, waste=0.5)
    part = s.block(s.rfactor(s.split(x, [None, *width])[1])).name
    s.set_scope(s.get_block(part), "register")
    return Reduction(name, part=part, width=width)


def finish_lanes(s: Schedule, r: Reduction, at: LoopRV) -> None:
    """Compute the partial results at each element, and combine them; the combining block is already in its place.

    Args:
        s: the schedule.
        r: the lane reduction.
        at: the loop that contains the combining block, for a block without own spatial loops.
    """
    total, part = s.get_block(r.block), s.get_block(r.part)
    iters = s.block(total).iters
    loops = own_loops(s, total)
    spatial = [x for x, it in zip(loops, iters, strict=True) if it.kind == "S"]
    lane = next(x for x, it in zip(loops, iters, strict=True) if it.kind == "R")
    s.reorder([*spatial, lane])
    s.compute_at(part, spatial[-1] if spatial else at)
    iters = s.block(part).iters
    loops = own_loops(s, part)
    s.vectorize(loops[-1])
    s.decompose_reduction(part, next(x for x, it in zip(loops, iters, strict=True) if it.kind == "R"))
    s.decompose_reduction(total, lane)
    s.vectorize(lane)


def own_loops(s: Schedule, block: BlockRV) -> list[LoopRV]:
    """The innermost loops of a block that was moved: one for each iteration variable."""
    loops = s.get_loops(block)
    return loops[len(loops) - len(s.block(block).iters) :]


def reductions_of(s: Schedule, names: Sequence[str]) -> list[str]:
    """The blocks of the group that are reductions."""
    return [n for n in names if is_reduction(s.block(s.get_block(n)))]
