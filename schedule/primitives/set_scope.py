"""Move an intermediate buffer to another storage scope."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.buffer import SCOPES
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def set_scope(s: ScheduleState, block: BlockRV, scope: str) -> None:
    """Move the buffer that `block` writes to `scope`.

    Rewrite: `set_scope(B, "workspace")`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
      ->
        B = T.alloc_buffer((16,), scope="workspace")
        for i in T.serial(16):
            B[i] = A[i] * 2.0
    Requires:
        scope: the scope exists.
        intermediate: the block writes one buffer, which is not a parameter of the function.
        block-exists: the block is still in the program.
    Keeps: results.
    """
    if scope not in SCOPES:
        raise s.refuse("scope", f"unknown scope {scope!r}; scopes are {', '.join(SCOPES)}")
    b = s.block(block)
    outs = list(dict.fromkeys(a.buffer for a in writes(b)))
    if len(outs) != 1 or outs[0] not in s.func.allocs:
        raise s.refuse("intermediate", f"block {b.name} does not write a single intermediate buffer", b)
    new = outs[0].like(scope=scope)
    s.set_body(substitute(s.func.body, {}, {outs[0]: new}))
    s.replace_alloc(outs[0], new)
