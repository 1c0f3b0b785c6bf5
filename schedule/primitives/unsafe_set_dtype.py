"""Change the element type of an intermediate buffer, which rounds the values stored in it."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import cast
from tunesmith.ir.stmt import BufferStore, Evaluate
from tunesmith.ir.visit import substitute, transform
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState
from tunesmith.support import dtype as dt


@primitive
def unsafe_set_dtype(s: ScheduleState, block: BlockRV, dtype: str) -> None:
    """Store the intermediate buffer that `block` writes as `dtype`.  Stores convert to it, loads convert back.

    Unsafe: results may change.  Every store rounds to `dtype`, by at most 2**-8 of the value for bfloat16, 2**-11 for float16 and 2**-24
    for float32; a reduction that accumulates in the buffer rounds in each step.  Values beyond the range become infinite in float16,
    integers wrap around, and fractions are lost in integers.  A type that holds all values of the old one changes no element.

    `tune` does not widen its tolerance for it: a candidate is compared with the function before scheduling, within the rounding errors of
    the types of that function.  A float16 intermediate of a float32 function is therefore reported as a wrong result.  If the change is
    wanted, change the type in the function, or check the results of the compiled function against your own tolerance.

    The conversions hide reductions: steps that reassociate updates, such as `rfactor` and `reorder`, come first.

    Args:
        block: the block that writes the buffer.
        dtype: the new element type.
    Rewrite: `unsafe_set_dtype(B, "float16")`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for i in T.serial(16):
            C[i] = B[i] + 1.0
      ->
        B = T.alloc_buffer((16,), "float16")
        for i in T.serial(16):
            B[i] = T.cast("float16", A[i] * 2.0)
        for i in T.serial(16):
            C[i] = T.cast("float32", B[i]) + 1.0
    Requires:
        dtype: the type is a scalar number type, and so is the old one.
        intermediate: the block writes one buffer, which is not a parameter of the function.
        block-exists: the block is still in the program.
    Keeps: the set of executed block instances, not the results (source: TVM's unsafe_set_dtype).
    """
    numbers = [x for x in dt.SCALARS if x != "bool"]
    if dtype not in numbers:
        raise s.refuse("dtype", f"the type is {dtype!r}; number types are {', '.join(numbers)}")
    b = s.block(block)
    outs = list(dict.fromkeys(a.buffer for a in writes(b)))
    if len(outs) != 1 or outs[0] not in s.func.allocs:
        raise s.refuse("intermediate", f"block {b.name} does not write a single intermediate buffer", b)
    old = outs[0]
    if old.dtype not in numbers:
        raise s.refuse("dtype", f"{old.name} holds {old.dtype}, which is no number type", b)
    new = old.like(dtype=dtype)

    def on_load(n: BufferLoad, recurse: Any) -> Any:
        return n if n.buffer is not old else cast(dt.vector(old.dtype, n.lanes), n.with_(buffer=new))

    def on_store(n: BufferStore, recurse: Any) -> BufferStore:
        m: BufferStore = n.map_children(recurse)
        return m if m.buffer is not old else m.with_(buffer=new, value=cast(dt.vector(dtype, dt.lanes(m.value.dtype)), m.value))

    def on_evaluate(n: Evaluate, recurse: Any) -> Evaluate:
        return substitute(n, {}, {old: new})  # a prefetch takes the place of the load, not its value

    s.set_body(transform(s.func.body, {BufferLoad: on_load, BufferStore: on_store, Evaluate: on_evaluate}))
    s.replace_alloc(old, new)
