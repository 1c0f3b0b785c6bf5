"""Align the stride of a dimension of an intermediate buffer, against bank conflicts and cache-set conflicts."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import BlockRV, IntRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

MAX_FACTOR = 4096


@primitive
def storage_align(s: ScheduleState, block: BlockRV, buffer: str, axis: int, factor: IntRV | int, offset: IntRV | int = 0) -> None:
    """Enlarge the stride of dimension `axis` of the intermediate `buffer` to `offset` plus a multiple of `factor`.

    The elements in between are not used.  With `factor=32, offset=8` the rows of a float16 tile in shared memory begin in different banks;
    with an offset of one cache line, rows whose size is a power of two fall into different cache sets.  The stride is computed from the
    shape that the buffer has at the end of lowering, which may be the tile that a loop uses of it.

    Args:
        block: a block that accesses the buffer.
        buffer: name of the buffer.
        axis: the dimension; negative numbers count from the end, so that -2 is the dimension of rows.
        factor: the stride is `offset` plus a multiple of it, in elements.
        offset: the remainder.
    Rewrite: `storage_align(S, "S", -2, 32, 8)`
        S = T.alloc_buffer((8, 32), scope="shared")
        for i, j in T.grid(8, 32):
            S[i, j] = A[i, j]
      ->
        S = T.alloc_buffer((8, 32), scope="shared", align=[(-2, 32, 8)])
        for i, j in T.grid(8, 32):
            S[i, j] = A[i, j]
    Requires:
        accesses-it: the block accesses a buffer of that name.
        intermediate: the buffer is allocated by T.alloc_buffer; the strides of a parameter are those of the caller.
        axis: the buffer has the dimension, and it is not the last one, whose elements are adjacent.
        factor: it is from 1 to 4096 elements.
        offset: it is from 0 to the factor minus 1.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM's storage_align, which takes the index of a written buffer; pad_rows adds a number of elements instead).
    """
    b = s.block(block)
    old = next((a.buffer for a in accesses(b) if a.buffer.name == buffer), None)
    if old is None:
        names = ", ".join(dict.fromkeys(a.buffer.name for a in accesses(b)))
        raise s.refuse("accesses-it", f"block {b.name} does not access a buffer named {buffer!r}; it accesses {names}", b)
    if old not in s.func.allocs:
        what = f"{old.name} is a parameter, whose strides the caller chooses; align a copy, with cache_read"
        if old not in s.func.buffers:
            what = f"{old.name} is allocated inside the body; use T.alloc_buffer"
        raise s.refuse("intermediate", what, b)
    rank = len(old.shape)
    from_end = axis - rank if axis >= 0 else axis
    if not -rank <= from_end < -1:
        what = f"axis is {axis}; {old.name} has {rank} dimensions, and the elements of the last one are adjacent"
        raise s.refuse("axis", what, b)
    step, rest = s.value(factor), s.value(offset)
    s.require("le0", 1 - step, "factor", "the factor is at least 1", step)
    s.require_at_most(step, MAX_FACTOR, "factor", f"the factor is at most {MAX_FACTOR} elements")
    s.require("le0", -rest, "offset", "the offset is at least 0", rest)
    s.require("le0", rest - step + 1, "offset", f"the offset is less than the factor {step!r}", rest)
    new = old.like(align=[*[a for a in old.align if a.axis != from_end], (from_end, step, rest)])
    s.set_body(substitute(s.func.body, {}, {old: new}))
    s.replace_alloc(old, new)
