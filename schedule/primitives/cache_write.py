"""Make a block write to a cache, and add a block that copies the cache back to the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, reads, writes
from tunesmith.ir.buffer import SCOPES, Buffer, BufferLoad
from tunesmith.ir.poly import ONE, ZERO, Var, poly
from tunesmith.ir.stmt import Block, BufferStore, Iter, nest, store
from tunesmith.ir.visit import blocks_under, transform
from tunesmith.schedule.domain import check_first_step, covers_domain, digits_of
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.staging import insert
from tunesmith.schedule.state import ScheduleState


@primitive
def cache_write(s: ScheduleState, block: BlockRV, scope: str, layout: Sequence[int] | None = None) -> BlockRV:
    """Make `block` write to a new buffer in `scope`; the returned block copies it to the old buffer after the nest.

    Args:
        block: the producer.
        scope: storage scope of the cache.
        layout: dimensions of the old buffer, in the order of the cache; None keeps the order.
    Rewrite: `cache_write(C, "workspace")`
        for i in T.serial(16):
            C[i] = A[i] + 1.0
      ->
        C_workspace = T.alloc_buffer((16,), scope="workspace")
        for i in T.serial(16):
            C_workspace[i] = A[i] + 1.0
        for ax0 in T.serial(16):
            C[ax0] = C_workspace[ax0]
    Requires:
        scope: the scope exists.
        layout: it contains every dimension once.
        one-output: the block writes one buffer.
        only-writer: no other block writes that buffer.
        whole: if the buffer is a parameter, the block writes every element, because all elements are written back.
        own-values: the block reads no element of the buffer, except the one that it initialises and accumulates into.
        read-after: no other block of the same nest reads that buffer, because it is written back after the nest.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the buffer.
        block-exists: the block is still in the program.
    Keeps: results; readers in other blocks still read the old buffer.
    """
    producer = s.block(block)
    if scope not in SCOPES:
        raise s.refuse("scope", f"unknown scope {scope!r}; scopes are {', '.join(SCOPES)}")
    outs = list(dict.fromkeys(a.buffer for a in writes(producer)))
    if len(outs) != 1:
        raise s.refuse("one-output", f"block {producer.name} writes {len(outs)} buffers", producer)
    old = outs[0]
    check_own_values(s, producer, old)
    if old not in s.func.allocs and not _writes_all(s, producer, old):
        raise s.refuse(
            "whole", f"block {producer.name} may not write all elements of {old.name}; the others would be overwritten", producer
        )
    check_read_after(s, producer, old)
    order = tuple(range(len(old.shape))) if layout is None else tuple(layout)
    if any(type(d) is not int for d in order) or sorted(order) != list(range(len(old.shape))):
        raise s.refuse(
            "layout", f"{old.name} has {len(old.shape)} dimensions, each of which must occur in the layout once, got {list(order)}"
        )
    new = old.like(f"{old.name}_{scope}", [old.shape[d] for d in order], scope)
    redirect_to(s, producer.name, old, new, order)
    name = s.fresh_name(f"{old.name}_write")
    iters = tuple([Iter(Var(f"v{i}"), e, "S") for i, e in enumerate(old.shape)])
    loops = [Var(f"ax{i}") for i in range(len(iters))]
    value = BufferLoad(new, tuple([poly(iters[d].var) for d in order]))
    copy = Block(name, iters, tuple([poly(v) for v in loops]), (), None, store(old, [i.var for i in iters], value))
    insert(s, s.root_index(producer.name) + 1, nest(list(zip(loops, old.shape, strict=True)), copy))
    s.add_allocs(new)
    return s.new_block(name)


def check_own_values(s: ScheduleState, producer: Block, buffer: Buffer) -> None:
    """Refuse (only-writer, in-blocks, own-values) a block that shares the elements of the buffer that it computes with other statements."""
    others = [b.name for b in s.blocks() if b is not producer and any(a.buffer is buffer for a in writes(b))]
    if others:
        raise s.refuse("only-writer", f"{buffer.name} is also written by {', '.join(others)}", producer)
    check_in_blocks(s, producer, "in-blocks", buffer)
    started = producer if producer.init is None else producer.with_(init=None, body=producer.init)
    if any(a.buffer is buffer for a in reads(producer)) or _loads(started, buffer):
        raise s.refuse("own-values", f"block {producer.name} reads earlier values of {buffer.name}", producer)


def check_read_after(s: ScheduleState, producer: Block, buffer: Buffer) -> None:
    """Refuse (read-after) a buffer that another block of the same nest reads, before it is written back."""
    nest_of = s.root_stmts()[s.root_index(producer.name)]
    early = [b.name for b in blocks_under(nest_of) if b is not producer and any(a.buffer is buffer for a in reads(b))]
    if early:
        raise s.refuse("read-after", f"{buffer.name} is read by {', '.join(early)} in the nest of block {producer.name}", producer)
    if buffer not in s.func.buffers:
        raise s.refuse("read-after", f"{buffer.name} is allocated in the nest of block {producer.name}; use T.alloc_buffer", producer)


def _writes_all(s: ScheduleState, block: Block, buffer: Buffer) -> bool:
    """Whether the block writes every element of the buffer, at its own spatial iteration variables."""
    for w in writes(block):
        own = [plain_iter(e, block) for e in w.indices]
        extents = [(ONE if e == ZERO else ZERO) if p is None else block.iters[p].extent for p, e in zip(own, w.indices, strict=True)]
        used = [p for p in own if p is not None]
        if len(set(used)) < len(used) or any(block.iters[p].kind != "S" for p in used) or tuple(extents) != buffer.shape:
            return False
    return runs_everywhere(s, block)


def runs_everywhere(s: ScheduleState, block: Block) -> bool:
    """Whether the block completes its single store, with all reduction steps and the init, for all values of its spatial variables."""
    if type(block.body) is not BufferStore or (block.init is not None and type(block.init) is not BufferStore):
        return False
    if not covers_domain(s, block):
        return False
    if not any(it.kind == "R" for it in block.iters):
        return True
    return digits_of(s, block, "R") is not None and (block.init is None or check_first_step(s, block, "whole") == [])


def _loads(block: Block, buffer: Buffer) -> bool:
    return any(a.buffer is buffer and not a.is_write for a in accesses(block))


def redirect_to(s: ScheduleState, block: str, old: Buffer, new: Buffer, order: Sequence[int] | None = None) -> None:
    """Redirect the accesses of the block from `old` to `new`, which has the dimensions of `old` in the given order."""

    def on_access(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        if m.buffer is not old:
            return m
        return m.with_(buffer=new, indices=m.indices if order is None else tuple([m.indices[d] for d in order]))

    table = {BufferLoad: on_access, BufferStore: on_access}

    def redirect(b: Block) -> Block:
        return b.with_(init=None if b.init is None else transform(b.init, table), body=transform(b.body, table))

    s.replace_block(block, redirect)
