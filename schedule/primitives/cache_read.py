"""Copy an input of a block into another storage scope, optionally in another layout (packing)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses, reads, writes
from tunesmith.ir.buffer import SCOPES, Buffer, BufferLoad
from tunesmith.ir.expr import Expr, Select, conjunction, const, select
from tunesmith.ir.poly import Poly, Var, less_than, poly
from tunesmith.ir.stmt import Block, BufferStore, Iter, Stmt, nest, store
from tunesmith.ir.visit import transform
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.layout import Dim, Layout, checked_layout, extent_of, index_in, original_indices, split_dimensions
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.staging import check_made_before, insert
from tunesmith.schedule.state import ScheduleState


@primitive
def cache_read(
    s: ScheduleState, block: BlockRV, buffer: str, scope: str, layout: Layout | None = None, access: int | None = None
) -> BlockRV:
    """Make `block` read a copy of `buffer` in `scope`; a new block before the nest of `block` makes the copy.

    Returns the copying block.

    Args:
        block: the consumer.
        buffer: name of the buffer to copy, which the block reads.  If it reads a copy of that buffer, the copy is copied: two steps with
            one name make a cache of a cache, as in shared memory and registers.
        scope: storage scope of the copy.
        layout: dimensions of the copy, each an int (that dimension of the buffer), [d, "/", f] (its outer part) or
            [d, "%", f] (its inner part), where f is a sampled factor or an int.  Elements beyond the buffer are 0.
            None keeps the layout.  `[[1, "/", 16], 0, [1, "%", 16]]` packs B[k, j] into panels of 16 columns.
        access: which of the block's different reads of the buffer is redirected to the copy, counted from 0 in the order of the
            program: 1 is A[j, k] of A[i, k] * A[j, k].  None redirects all of them.
    Rewrite: `cache_read(C, "A", "workspace", [[1, "/", 4], 0, [1, "%", 4]])`
        for i, j in T.grid(3, 8):
            C[i, j] = A[i, j] + 1.0
      ->
        A_copy = T.alloc_buffer((2, 3, 4), scope="workspace")
        for ax0, ax1, ax2 in T.grid(2, 3, 4):
            A_copy[ax0, ax1, ax2] = A[ax1, ax0 * 4 + ax2]
        for i, j in T.grid(3, 8):
            C[i, j] = A_copy[j // 4, i, j % 4] + 1.0
    Requires:
        reads-it: the block reads a buffer of that name.
        access: the block has a read of the buffer of that number.
        made-before: no block of the same nest writes the buffer, because the copy is made before the nest.
        scope: the scope exists.
        layout: every dimension occurs in the layout once, or once as "/" and once as "%" with the same factor.
        in-blocks: no statement outside of blocks writes the buffer.
        block-exists: the block is still in the program.
    Keeps: results.
    """
    consumer = s.block(block)
    if scope not in SCOPES:
        raise s.refuse("scope", f"unknown scope {scope!r}; scopes are {', '.join(SCOPES)}")
    old = find_read(s, consumer, buffer)
    check_made_before(s, consumer, old)
    spec = checked_layout(s, layout, len(old.shape), old.name)
    new = Buffer(f"{old.name}_copy", [extent_of(old.shape, d) for d in spec], old.dtype, scope)
    name = s.fresh_name(f"{old.name}_copy")
    copy = _copy_nest(name, old, new, spec)
    chosen = None if access is None else _read(s, consumer, old, access)
    redirect_loads(s, consumer.name, old, new, lambda indices: tuple([index_in(indices, d) for d in spec]), chosen)
    insert(s, s.root_index(consumer.name), copy)
    s.add_allocs(new)
    return s.new_block(name)


def find_read(s: ScheduleState, block: Block, name: str) -> Buffer:
    """The buffer named `name` that the block reads, or the copy of it that the block reads."""
    found = list(dict.fromkeys(a.buffer for a in reads(block)))
    for copies in (False, True):
        for buffer in found:
            at: Buffer | None = buffer
            while at is not None:
                if at.name == name:
                    return buffer
                at = _copied(s, at) if copies else None
    names = ", ".join(b.name for b in found)
    raise s.refuse("reads-it", f"block {block.name} does not read a buffer named {name!r}; it reads {names}", block)


def _copied(s: ScheduleState, buffer: Buffer) -> Buffer | None:
    """The buffer of which `buffer` is a copy in the same or another layout; None if it is not a copy."""
    made = [c for c in s.blocks() if any(w.buffer is buffer for w in writes(c))]
    loads = {a.buffer for c in made for a in accesses(c) if not a.is_write}
    if len(made) != 1 or len(loads) != 1 or type(made[0].body) is not BufferStore or made[0].init is not None:
        return None
    value = made[0].body.value
    source = value.a if type(value) is Select else value
    (load,) = loads
    return load if type(source) is BufferLoad and load is not buffer else None


def _read(s: ScheduleState, block: Block, buffer: Buffer, access: int) -> tuple[Poly, ...]:
    """The indices of one of the block's reads of the buffer."""
    different = list(dict.fromkeys([a.indices for a in reads(block) if a.buffer is buffer]))
    if not 0 <= access < len(different):
        found = ", ".join(f"{n}: {buffer.name}{list(e)}" for n, e in enumerate(different))
        raise s.refuse("access", f"block {block.name} has no read {access!r} of {buffer.name}; its reads are {found}", block)
    return different[access]


def redirect_loads(
    s: ScheduleState,
    block: str,
    old: Buffer,
    new: Buffer,
    at: Callable[[tuple[Poly, ...]], tuple[Poly, ...]],
    chosen: tuple[Poly, ...] | None = None,
) -> None:
    """Redirect the loads of the block from `old` to `new`, at other indices; with `chosen`, only the loads at these indices."""

    def on_load(n: BufferLoad, recurse: Any) -> BufferLoad:
        m: BufferLoad = n.map_children(recurse)
        return BufferLoad(new, at(m.indices)) if m.buffer is old and (chosen is None or n.indices == chosen) else m

    def redirect(b: Block) -> Block:
        init = None if b.init is None else transform(b.init, {BufferLoad: on_load})
        return b.with_(init=init, body=transform(b.body, {BufferLoad: on_load}))

    s.replace_block(block, redirect)


def _copy_nest(name: str, old: Buffer, new: Buffer, spec: list[Dim]) -> Stmt:
    iters = tuple([Iter(Var(f"v{i}"), e, "S") for i, e in enumerate(new.shape)])
    loops = [Var(f"ax{i}") for i in range(len(iters))]
    source = original_indices(spec, [poly(it.var) for it in iters])
    guards: list[Expr] = [less_than(source[d], old.shape[d]) for d in sorted(split_dimensions(spec))]
    value: Expr = BufferLoad(old, tuple(source))
    if guards:
        value = select(conjunction(tuple(guards)), value, const(0, old.dtype))
    block = Block(name, iters, tuple([poly(v) for v in loops]), (), None, store(new, [i.var for i in iters], value))
    return nest(list(zip(loops, new.shape, strict=True)), block)
