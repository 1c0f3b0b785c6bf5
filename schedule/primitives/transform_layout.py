"""Change the layout of an intermediate buffer: permute and split its dimensions, in all blocks that access it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Const, const
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Block, BufferStore, Iter, Stmt, nest, seq, store
from tunesmith.ir.visit import transform, walk
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.layout import (
    Dim,
    Layout,
    check_scalar_accesses,
    checked_layout,
    extent_of,
    index_in,
    original_indices,
    split_dimensions,
)
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


@primitive
def transform_layout(s: ScheduleState, block: BlockRV, buffer: str, index_map: Layout, pad_value: float | None = None) -> None:
    """Store the intermediate `buffer` in another layout; all statements that access it use the new indices.

    Steps that move the blocks of the buffer come first, because they need indices that are single variables.

    Args:
        block: a block that accesses the buffer.
        buffer: name of the buffer.
        index_map: dimensions of the new layout, as the `layout` of cache_read: an int (that dimension), [d, "/", f] (its outer part) or
            [d, "%", f] (its inner part), where f is a sampled factor or an int.
        pad_value: value of the elements that a factor which does not divide its extent adds; blocks named after the buffer store it
            before the first access.  None leaves them undefined.
    Rewrite: `transform_layout(B, "B", [[1, "/", 4], 0, [1, "%", 4]])`
        B = T.alloc_buffer((3, 8))
        for i, j in T.grid(3, 8):
            B[i, j] = A[i, j] * 2.0
        for i, j in T.grid(3, 8):
            C[i, j] = B[i, j] + 1.0
      ->
        B = T.alloc_buffer((2, 3, 4))
        for i, j in T.grid(3, 8):
            B[j // 4, i, j % 4] = A[i, j] * 2.0
        for i, j in T.grid(3, 8):
            C[i, j] = B[j // 4, i, j % 4] + 1.0
    Requires:
        accesses-it: the block accesses a buffer of that name.
        intermediate: the buffer is allocated by T.alloc_buffer; the layout of a parameter is that of the caller.
        layout: every dimension occurs in the layout once, or once as "/" and once as "%" with the same factor.
        scalar: the buffer is accessed element by element, not by vector loads and stores of the script.
        pad-value: the value is a value of the element type.
        block-exists: the block is still in the program.
    Keeps: results.  No access reads the padding: an index in [0, n) is mapped to the place whose original index it is, and the original
        index of padding is at least n (source: TVM's transform_layout, whose index_map is a function, and which can change parameters).
    """
    b = s.block(block)
    old = next((a.buffer for a in accesses(b) if a.buffer.name == buffer), None)
    if old is None:
        names = ", ".join(dict.fromkeys(a.buffer.name for a in accesses(b)))
        raise s.refuse("accesses-it", f"block {b.name} does not access a buffer named {buffer!r}; it accesses {names}", b)
    if old not in s.func.allocs:
        what = f"{old.name} is a parameter, whose layout the caller chooses; change that of a copy, with cache_read or cache_write"
        if old not in s.func.buffers:
            what = f"{old.name} is allocated inside the body; use T.alloc_buffer"
        raise s.refuse("intermediate", what, b)
    spec = checked_layout(s, index_map, len(old.shape), old.name)
    check_scalar_accesses(s, old)
    value = None if pad_value is None else _pad_value(s, old, pad_value)
    new = old.like(shape=[extent_of(old.shape, d) for d in spec])
    redirect_all(s, old, new, spec)
    if value is not None:
        stmts = s.root_stmts()
        first = next(i for i, x in enumerate(stmts) if any(_is_access(n, new) for n in walk(x)))
        fills = [_fill(s, old, new, spec, d, value) for d in sorted(split_dimensions(spec))]
        s.set_body(seq([*stmts[:first], *fills, *stmts[first:]]))


def redirect_all(s: ScheduleState, old: Buffer, new: Buffer, spec: Sequence[Dim]) -> None:
    """Replace the allocation `old` by `new`, which has the layout `spec` of it, in all statements."""

    def on_access(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        return m.with_(buffer=new, indices=tuple([index_in(m.indices, d) for d in spec])) if m.buffer is old else m

    s.set_body(transform(s.func.body, {BufferLoad: on_access, BufferStore: on_access}))
    s.replace_alloc(old, new)


def _is_access(n: Any, buffer: Buffer) -> bool:
    return type(n) in (BufferLoad, BufferStore) and n.buffer is buffer


def _pad_value(s: ScheduleState, buffer: Buffer, value: float) -> Const:
    """The value as a literal of the buffer's type."""
    try:
        made = const(value, buffer.dtype)
    except ScriptError:
        made = None
    bits = dt.bits(buffer.dtype)
    low, high = (0, 2**bits - 1) if dt.is_unsigned(buffer.dtype) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if made is None or (dt.is_int(buffer.dtype) and not low <= made.value <= high) or (buffer.dtype == "bool" and value not in (0, 1)):
        raise s.refuse("pad-value", f"the padding of {buffer.name} is {value!r}, which is not a value of {buffer.dtype}")
    return made


def _fill(s: ScheduleState, old: Buffer, new: Buffer, spec: Sequence[Dim], dim: int, value: Const) -> Stmt:
    """A nest that stores `value` in the padding of a dimension, which is in its last outer part."""
    iters, loops, indices, at = [], [], [], []
    for n, (entry, extent) in enumerate(zip(spec, new.shape, strict=True)):
        if entry[:2] == (dim, "/"):
            indices.append(extent - 1)
            at.append(extent - 1)
            continue
        iters.append(Iter(Var(f"v{n}"), extent, "S"))
        loops.append((Var(f"ax{n}"), extent))
        indices.append(poly(iters[-1].var))
        at.append(poly(loops[-1][0]))
    inside: Poly = old.shape[dim] - 1 - original_indices(spec, at)[dim]
    name = s.fresh_name(f"{old.name}_pad{dim}")
    return nest(loops, Block(name, tuple(iters), tuple([poly(v) for v, _ in loops]), (inside,), None, store(new, indices, value)))
