"""pad_rows: the rows of an intermediate buffer stand apart, so that columns of a tile in shared memory lie in different banks."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import BlockRV, IntRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

MAX_PAD = 1024


@primitive
def pad_rows(s: ScheduleState, block: BlockRV, pad: IntRV | int) -> None:
    """Leave `pad` elements after each row (run of the last dimension) of the buffer that `block` writes.

    It is added to what is left of the row when the buffer shrinks to its tile.

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
        positive: the padding is no negative number.
        bounded: it is at most 1024 elements, which is more than the banks of any memory.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM's storage_align, which asks for a remainder of the distance of rows instead).
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
