"""Copy an input of a block into another storage scope, optionally in another layout (packing)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses, reads, writes
from tunesmith.ir.buffer import SCOPES, Buffer, BufferLoad
from tunesmith.ir.expr import Expr, Select, conjunction, const, select
from tunesmith.ir.poly import Poly, Var, ceildiv, floordiv, less_than, mod, poly
from tunesmith.ir.stmt import Block, BufferStore, Iter, Stmt, nest, seq, store
from tunesmith.ir.visit import blocks_under, transform
from tunesmith.schedule.handles import BlockRV, IntRV
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState

Layout = Sequence["int | Sequence[int | str | IntRV]"]


@primitive
def cache_read(s: ScheduleState, block: BlockRV, buffer: str, scope: str, layout: Layout | None = None) -> BlockRV:
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
    root = s.root_index(consumer.name)
    late = [b.name for b in blocks_under(s.root_stmts()[root]) if any(a.buffer is old for a in writes(b))]
    if late:
        raise s.refuse(
            "made-before",
            f"{old.name} is written by {', '.join(late)} in the nest of block {consumer.name}; read_at copies inside it",
            consumer,
        )
    check_in_blocks(s, consumer, "in-blocks", old)
    spec = _check_layout(s, old, layout)
    new = Buffer(f"{old.name}_copy", [_extent(old, d) for d in spec], old.dtype, scope)
    name = s.fresh_name(f"{old.name}_copy")
    copy = _copy_nest(name, old, new, spec)

    redirect_loads(s, consumer.name, old, new, lambda indices: tuple([_forward(indices, d) for d in spec]))
    stmts = s.root_stmts()
    s.set_body(seq([*stmts[:root], copy, *stmts[root:]]))
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


def redirect_loads(s: ScheduleState, block: str, old: Buffer, new: Buffer, at: Callable[[tuple[Poly, ...]], tuple[Poly, ...]]) -> None:
    """Redirect the loads of the block from `old` to `new`, at other indices."""

    def on_load(n: BufferLoad, recurse: Any) -> BufferLoad:
        m: BufferLoad = n.map_children(recurse)
        return BufferLoad(new, at(m.indices)) if m.buffer is old else m

    def redirect(b: Block) -> Block:
        init = None if b.init is None else transform(b.init, {BufferLoad: on_load})
        return b.with_(init=init, body=transform(b.body, {BufferLoad: on_load}))

    s.replace_block(block, redirect)


_Dim = tuple[int, str, "Poly | None"]


def _check_layout(s: ScheduleState, old: Buffer, layout: Layout | None) -> list[_Dim]:
    rank = len(old.shape)
    if layout is None:
        return [(d, "", None) for d in range(rank)]
    spec: list[_Dim] = []
    if not isinstance(layout, (list, tuple)):
        raise s.refuse("layout", f"the layout is {layout!r}; it must be a list with an entry for each dimension")
    for item in layout:
        entry = tuple(item) if isinstance(item, (list, tuple)) else (item,)
        if len(entry) == 1 and isinstance(entry[0], int):
            spec.append((entry[0], "", None))
        elif len(entry) == 3 and isinstance(entry[0], int) and entry[1] in ("/", "%") and isinstance(entry[2], (int, IntRV)):
            spec.append((entry[0], str(entry[1]), s.value(entry[2])))
        else:
            raise s.refuse("layout", f"a layout entry is an int, [d, '/', f] or [d, '%', f]; got {item!r}")
    beyond = sorted({d for d, _, _ in spec if not 0 <= d < rank})
    if beyond:
        raise s.refuse("layout", f"the layout names dimension {beyond[0]}, but {old.name} has {rank} dimensions, counted from 0")
    for d in range(rank):
        parts = [(op, f) for dim, op, f in spec if dim == d]
        whole = parts == [("", None)]
        halves = len(parts) == 2 and {op for op, _ in parts} == {"/", "%"} and parts[0][1] == parts[1][1]
        if not (whole or halves):
            raise s.refuse("layout", f"dimension {d} of {old.name} must occur in the layout once, or as '/' and '%' with one factor")
    for _, _, f in spec:
        if f is not None:
            s.require("le0", 1 - f, "layout", "a dimension is split by a factor of at least 1", f)
    return spec


def _extent(old: Buffer, dim: _Dim) -> Poly:
    d, op, f = dim
    if f is None:
        return old.shape[d]
    return ceildiv(old.shape[d], f) if op == "/" else f


def _forward(indices: tuple[Poly, ...], dim: _Dim) -> Poly:
    d, op, f = dim
    if f is None:
        return indices[d]
    return floordiv(indices[d], f) if op == "/" else mod(indices[d], f)


def _copy_nest(name: str, old: Buffer, new: Buffer, spec: list[_Dim]) -> Stmt:
    iters = tuple([Iter(Var(f"v{i}"), e, "S") for i, e in enumerate(new.shape)])
    loops = [Var(f"ax{i}") for i in range(len(iters))]
    source = [poly(0)] * len(old.shape)
    guards: list[Expr] = []
    for it, (d, op, f) in zip(iters, spec, strict=True):
        source[d] = source[d] + (poly(it.var) if f is None or op == "%" else poly(it.var) * f)
    for d in {d for d, _, f in spec if f is not None}:
        guards.append(less_than(source[d], old.shape[d]))
    value: Expr = BufferLoad(old, tuple(source))
    if guards:
        value = select(conjunction(tuple(guards)), value, const(0, old.dtype))
    block = Block(name, iters, tuple([poly(v) for v in loops]), (), None, store(new, [i.var for i in iters], value))
    return nest(list(zip(loops, new.shape, strict=True)), block)
