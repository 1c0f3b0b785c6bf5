"""Copy a buffer into the order of a block's own iteration variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses, reads, writes
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Block, BufferStore, Iter
from tunesmith.ir.visit import transform
from tunesmith.schedule.footprints import is_tiling
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.layout import check_scalar_accesses
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.cache_write import check_own_values, check_read_after, runs_everywhere
from tunesmith.schedule.staging import check_made_before, guarded_load, insert, own_nest, used_iters
from tunesmith.schedule.state import ScheduleState


@primitive
def reindex(s: ScheduleState, block: BlockRV, buffer: str, kind: str) -> BlockRV:
    """Make `block` access a new buffer with one dimension for each iteration variable that its index of `buffer` uses.

    Convolutions and other indices that are not single variables become plain ones, as matrix products have them.

    Returns the copying block.

    Args:
        block: the block.
        buffer: name of the buffer, which the block accesses at one tuple of indices.
        kind: "read": a new block before the nest copies the elements that the block reads.  "write": a new block after the nest
            copies what the block wrote to the old buffer.
    Rewrite: `reindex(C, "A", "read")`
        for i, j, k in T.grid(2, 3, 3):
            init: C[i, j] = 0.0
            C[i, j] = C[i, j] + A[i * 2 + k]
      ->
        A_reindex = T.alloc_buffer((2, 3))
        for ax0, ax1 in T.grid(2, 3):
            A_reindex[ax0, ax1] = A[ax0 * 2 + ax1]
        for i, j, k in T.grid(2, 3, 3):
            if k < 1:
                C[i, j] = 0.0
            C[i, j] = C[i, j] + A_reindex[i, k]
    Requires:
        kind: the kind is "read" or "write".
        accesses-it: the block reads (writes) a buffer of that name.
        single-access: all accesses of the buffer in the block have the same indices.
        own-indices: the indices are expressions of the block's iteration variables.  Those that are used, and the signs, do not depend on
            sampled sizes, the extents of the variables not on loops, and an index without variables is inside the buffer.
        scalar: the buffer is accessed element by element, not by vector loads and stores of the script.
        made-before: (read) no block of the same nest writes the buffer, because the copy is made before the nest.
        only-writer: (write) no other block writes the buffer.
        own-values: (write) the block reads no element of the buffer, except the one that it initialises and accumulates into.
        whole: (write) the block completes one store for each value of the used variables, because all of them are copied.
        distinct: (write) different values of the used variables write different elements.
        read-after: (write) no other block of the same nest reads the buffer, because it is written after the nest.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the buffer.
        block-exists: the block is still in the program.
    Keeps: results.  Elements outside of the old buffer, which a guard or a choice excludes, are copied as 0 (source: TVM's reindex).
    """
    b = s.block(block)
    if kind not in ("read", "write"):
        raise s.refuse("kind", f"the kind is {kind!r}; it is 'read' or 'write'")
    found = reads(b) if kind == "read" else writes(b)
    old = next((a.buffer for a in found if a.buffer.name == buffer), None)
    if old is None:
        names = ", ".join(dict.fromkeys(a.buffer.name for a in found))
        raise s.refuse("accesses-it", f"block {b.name} does not {kind} a buffer named {buffer!r}; it {kind}s {names}", b)
    check_scalar_accesses(s, old)
    indices = _single_access(s, b, old)
    used = used_iters(s, b, indices, "own-indices")
    new = Buffer(f"{old.name}_reindex", [it.extent for it in used], old.dtype)
    name = s.fresh_name(new.name)
    own = [poly(it.var) for it in used]
    if kind == "read":
        check_made_before(s, b, old)
        copy = own_nest(name, used, new, own, guarded_load(s, BufferLoad(old, indices), "own-indices"))
    else:
        _check_written_back(s, b, _redirected(b, old, new, tuple(own)), old, indices, used)
        copy = own_nest(name, used, old, indices, BufferLoad(new, tuple(own)))
    root = s.root_index(b.name) + (kind == "write")
    s.replace_block(b.name, lambda c: _redirected(c, old, new, tuple(own)))
    insert(s, root, copy)
    s.add_allocs(new)
    return s.new_block(name)


def _single_access(s: ScheduleState, b: Block, buffer: Buffer) -> tuple[Poly, ...]:
    """The indices at which the block accesses the buffer."""
    first, *others = dict.fromkeys([a.indices for a in accesses(b) if a.buffer is buffer])
    if others:
        raise s.refuse("single-access", f"block {b.name} accesses {buffer.name} at {list(first)} and {list(others[0])}", b)
    return first


def _check_written_back(
    s: ScheduleState, b: Block, redirected: Block, buffer: Buffer, indices: Sequence[Poly], used: Sequence[Iter]
) -> None:
    check_own_values(s, b, buffer)
    if any(it.kind != "S" for it in used) or not runs_everywhere(s, redirected):
        what = f"block {b.name} may not complete an element of {buffer.name} for all values of its iteration variables"
        raise s.refuse("whole", what, b)
    ranges = {it.var: it.extent - 1 for it in used}
    while ranges:
        fixed = next((own for e in indices if (own := e.vars & ranges.keys()) and is_tiling(_unscaled(e, ranges), ranges)), None)
        if fixed is None:
            raise s.refuse("distinct", f"block {b.name} may write one element of {buffer.name} for different iterations", b)
        ranges = {v: n for v, n in ranges.items() if v not in fixed}
    check_read_after(s, b, buffer)


def _unscaled(e: Poly, ranges: Mapping[Var, Poly]) -> Poly:
    """The part of the expression that depends on the variables of `ranges`, divided by the common factor of its coefficients."""
    terms = [(m, c) for m, c in e.terms if any(not a.vars.isdisjoint(ranges) for a in m)]
    factor = gcd(*[c for _, c in terms])
    return Poly(tuple([(m, c // factor) for m, c in terms]))


def _redirected(b: Block, old: Buffer, new: Buffer, own: tuple[Poly, ...]) -> Block:
    """The block with its accesses of `old` redirected to the element `own` of `new`."""

    def on_access(n: Any, recurse: Any) -> Any:
        m = n.map_children(recurse)
        return m.with_(buffer=new, indices=own) if m.buffer is old else m

    table = {BufferLoad: on_access, BufferStore: on_access}
    return b.with_(init=None if b.init is None else transform(b.init, table), body=transform(b.body, table))
