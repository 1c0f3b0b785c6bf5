"""Pad the rows of an intermediate buffer, so that the columns of a tile in shared memory map to different banks."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import BlockRV, IntRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

MAX_PAD = 1024


@primitive
def pad_rows(s: ScheduleState, block: BlockRV, pad: IntRV | int) -> None:
    """Add `pad` unused elements after each row (last dimension) of the buffer that `block` writes.

    If lowering compacts the buffer to its tile, the compacted row is padded.

    Rewrite: `pad_rows(S, 4)`
        S = T.alloc_buffer((8, 32), scope="shared")
        for i, j in T.grid(8, 32):
            S[i, j] = A[i, j]
      ->
        S = T.alloc_buffer((8, 32), scope="shared", pad=4)
        for i, j in T.grid(8, 32):
            S[i, j] = A[i, j]
    Requires:
        intermediate: the block writes one buffer, which is not a parameter of the function.
        positive: the padding is not negative.
        bounded: the padding is at most 1024 elements, more than any memory has banks.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM's storage_align, which takes the remainder of the row stride instead).
    """
    b = s.block(block)
    outs = list(dict.fromkeys(a.buffer for a in writes(b)))
    if len(outs) != 1 or outs[0] not in s.func.allocs:
        raise s.refuse("intermediate", f"block {b.name} does not write a single intermediate buffer", b)
    value = s.value(pad)
    s.require("le0", -value, "positive", "rows are padded by 0 elements or more", value)
    s.require_at_most(value, MAX_PAD, "bounded", f"rows are padded by at most {MAX_PAD} elements")
    new = outs[0].like(pad=value)
    s.set_body(substitute(s.func.body, {}, {outs[0]: new}))
    s.replace_alloc(outs[0], new)
