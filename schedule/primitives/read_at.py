"""Copy the part of a buffer that a block reads in one iteration of a loop."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import Footprint, reads, region, union, writes
from tunesmith.ir.buffer import SCOPES, Buffer, BufferLoad
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Block, For, Iter, Stmt, nest, seq, store
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.outside import check_in_blocks
from tunesmith.schedule.placement import check_extents, ranges_under, statements
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.cache_read import find_read, redirect_loads
from tunesmith.schedule.state import ScheduleState


@primitive
def read_at(s: ScheduleState, loop: LoopRV, block: BlockRV, buffer: str, scope: str) -> BlockRV:
    """Make `block` read a copy of `buffer` in `scope`, made in each iteration of `loop` of the elements that it reads there.

    The copy is made directly before the statement of the loop's body that contains the block.  Returns the copying block.

    Args:
        loop: a loop around the block.
        block: the consumer.
        buffer: name of the buffer to copy, which the block reads; `cache_read` explains how the name is resolved.
        scope: storage scope of the copy.
    Rewrite: `read_at(i, C, "A", "workspace")`
        for i, j in T.grid(4, 8):
            C[i, j] = A[i, j] + A[i, j + 1]
      ->
        A_copy = T.alloc_buffer((4, 9), scope="workspace")
        for i in T.serial(4):
            for ax1 in T.serial(9):
                A_copy[i, ax1] = A[i, ax1]
            for j in T.serial(8):
                C[i, j] = A_copy[i, j] + A_copy[i, j + 1]
    Requires:
        scope: the scope exists.
        inside: the block is inside the loop.
        reads-it: the block reads a buffer of that name.
        made-before: no block of the same statement of the loop's body writes the buffer, because the copy is made before the statement.
        box: the extents of the footprint do not depend on loop variables.
        in-blocks: no statement outside of blocks writes the buffer.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results (source: TVM's read_at, whose copies get their loops from a rule of the compiler; here they are loops of the program).
    """
    target = s.loop(loop)
    b = s.block(block)
    if scope not in SCOPES:
        raise s.refuse("scope", f"unknown scope {scope!r}; scopes are {', '.join(SCOPES)}")
    at = next((n for n, x in enumerate(statements(target)) if b in blocks_under(x)), None)
    if at is None:
        raise s.refuse("inside", f"block {b.name} is not inside loop {target.var.name}", b)
    old = find_read(s, b, buffer)
    late = [c.name for c in blocks_under(statements(target)[at]) if any(w.buffer is old for w in writes(c))]
    if late:
        raise s.refuse("made-before", f"{old.name} is written by {', '.join(late)} in the statement of block {b.name}", b)
    check_in_blocks(s, b, "in-blocks", old)
    ranges = ranges_under(target, b.name)
    footprint = union([region(b, a.indices, ranges) for a in reads(b) if a.buffer is old])
    check_extents(s, b, dict(enumerate(footprint)))
    new = Buffer(f"{old.name}_copy", old.shape, old.dtype, scope)
    name = s.fresh_name(f"{old.name}_copy")
    copy = _copy(name, old, new, footprint)
    redirect_loads(s, b.name, old, new, lambda indices: indices)

    def insert(f: For) -> Stmt:
        stmts = statements(f)
        return f.with_(body=seq([*stmts[:at], copy, *stmts[at:]]))

    s.replace_loop(target.var, insert)
    s.add_allocs(new)
    return s.new_block(name)


def _copy(name: str, old: Buffer, new: Buffer, footprint: Footprint) -> Stmt:
    iters = tuple([Iter(Var(f"v{d}"), n, "S") for d, n in enumerate(old.shape)])
    loops = [(Var(f"ax{d}"), extent) for d, (_, extent) in enumerate(footprint)]
    places: list[Poly] = [low + v for (low, _), (v, _) in zip(footprint, loops, strict=True)]
    # Reads outside of the buffer, which a select excludes, are part of the footprint.
    guards = [g for p, n in zip(places, old.shape, strict=True) for g in (p - n, -p - 1)]
    body = store(new, [it.var for it in iters], BufferLoad(old, tuple([poly(it.var) for it in iters])))
    return nest(loops, Block(name, iters, tuple(places), tuple(guards), None, body))
