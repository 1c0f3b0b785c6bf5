"""Look up blocks and loops, and the producers and consumers of a block; nothing is changed."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def get_block(s: ScheduleState, name: str) -> BlockRV:
    """The block named `name`.

    Requires:
        block-exists: the function has a block of that name.
    """
    return s.new_block(s.block(name).name)


@primitive
def get_loops(s: ScheduleState, block: BlockRV) -> list[LoopRV]:
    """The loops around `block`, outermost first.

    Requires:
        block-exists: the block is still in the program.
    """
    return [s.new_loop(f.var) for f in s.loops_of(block)]


@primitive
def get_child_blocks(s: ScheduleState, loop: LoopRV) -> list[BlockRV]:
    """The blocks inside `loop`, in program order.

    Requires:
        loop-exists: the loop is still in the program.
    """
    return [s.new_block(b.name) for b in blocks_under(s.loop(loop))]


@primitive
def get_producers(s: ScheduleState, block: BlockRV) -> list[BlockRV]:
    """The other blocks that write a buffer that `block` reads, in program order.

    Requires:
        block-exists: the block is still in the program.
    """
    me = s.block(block)
    wanted = {a.buffer for a in reads(me)}
    return [s.new_block(b.name) for b in s.blocks() if b is not me and any(a.buffer in wanted for a in writes(b))]


@primitive
def get_consumers(s: ScheduleState, block: BlockRV) -> list[BlockRV]:
    """The other blocks that read a buffer that `block` writes, in program order.

    Requires:
        block-exists: the block is still in the program.
    """
    me = s.block(block)
    made = {a.buffer for a in writes(me)}
    return [s.new_block(b.name) for b in s.blocks() if b is not me and any(a.buffer in made for a in reads(b))]


@primitive
def get_output_blocks(s: ScheduleState) -> list[BlockRV]:
    """The blocks that write a parameter of the function, in program order."""
    params = {p for p in s.func.params if isinstance(p, Buffer)}
    return [s.new_block(b.name) for b in s.blocks() if any(a.buffer in params for a in writes(b))]
