"""Make a block write to a cache that is copied back in each iteration of a loop."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.cache_write import cache_write
from tunesmith.schedule.primitives.reverse_compute_at import reverse_compute_at
from tunesmith.schedule.state import ScheduleState


@primitive
def write_at(s: ScheduleState, loop: LoopRV, block: BlockRV, buffer: str, scope: str) -> BlockRV:
    """Make `block` write to a new buffer in `scope`; the returned block copies it to the old buffer at the end of each iteration of `loop`.

    The same as `cache_write` and then `reverse_compute_at` of the copy, in one step.

    Args:
        loop: a loop around the block.
        block: the producer.
        buffer: name of the buffer that the block writes.
        scope: storage scope of the cache.
    Rewrite: `write_at(i, C, "C", "workspace")`
        for i, j in T.grid(4, 8):
            C[i, j] = A[i, j] + 1.0
      ->
        C_workspace = T.alloc_buffer((4, 8), scope="workspace")
        for i in T.serial(4):
            for j in T.serial(8):
                C_workspace[i, j] = A[i, j] + 1.0
            for ax1 in T.serial(8):
                C[i, ax1] = C_workspace[i, ax1]
    Requires:
        inside: the block is inside the loop.
        writes-it: the block writes a buffer of that name.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
        The preconditions of `cache_write`, and of `reverse_compute_at` for the copy, apply with their labels.
    Keeps: results (source: TVM's write_at, whose copies get their loops from a rule of the compiler; here they are loops of the program).
    """
    target = s.loop(loop)
    b = s.block(block)
    if target not in s.path(block):
        raise s.refuse("inside", f"block {b.name} is not inside loop {target.var.name}", b)
    made = list(dict.fromkeys(w.buffer.name for w in writes(b)))
    if buffer not in made:
        raise s.refuse("writes-it", f"block {b.name} does not write a buffer named {buffer!r}; it writes {', '.join(made)}", b)
    copy = cache_write(s, block, scope)
    reverse_compute_at(s, copy, loop)
    return copy
