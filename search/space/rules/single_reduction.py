"""Recognise workloads that are one memory-bound reduction of pointwise producers, and bring their loops into a common order."""

from __future__ import annotations

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import is_contraction, is_output, is_pointwise, is_reduction, reads_rows_once


def single_reduction(func: PrimFunc) -> Block | None:
    """The only reduction, if it is the output and all other blocks are pointwise; None for contractions that use an operand again."""
    blocks = blocks_under(func.body)
    reductions = [b for b in blocks if is_reduction(b)]
    if len(reductions) != 1 or not is_output(func, reductions[0]):
        return None
    if is_contraction(reductions[0]) and not reads_rows_once(reductions[0]):
        return None
    others = [b for b in blocks if b is not reductions[0]]
    return reductions[0] if all(is_pointwise(b) and not is_output(func, b) for b in others) else None


def is_of_everything(reduction: Block) -> bool:
    """Whether the reduction has a single result, instead of one for each row."""
    return not any(i.kind == "S" and i.extent.const != 1 for i in reduction.iters)


def inline_producers(s: Schedule, main: str) -> tuple[list[LoopRV], list[LoopRV]]:
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
