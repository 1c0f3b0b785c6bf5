"""Compute the indirect indices of a block before its nest, into buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir import structural
from tunesmith.ir.buffer import SCOPES, Buffer, BufferLoad
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Block
from tunesmith.ir.visit import Handler, transform, walk
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.staging import check_made_before, insert, own_nest, used_iters, with_guarded_loads
from tunesmith.schedule.state import ScheduleState


@primitive
def cache_index(s: ScheduleState, block: BlockRV, scope: str) -> list[BlockRV]:
    """Compute each indirect index of `block` once, in a new block before the nest, and load it from a buffer of int64.

    A gather that computes its row number from data, as resizing and quantized tables do, then computes it once for each combination of the
    iteration variables that it uses, not in every iteration of the others.  Indirect indices that depend on other indirect indices, or
    on no iteration variable, stay in the block.

    Returns the blocks that compute the indices, in program order.

    Args:
        block: the block that uses the indirect indices.
        scope: storage scope of the buffers.
    Rewrite: `cache_index(C, "global")`
        for i, j in T.grid(4, 8):
            C[i, j] = T.lookup(T.cast("int64", A[i] * 3.0), 8, lambda at: B[at, j])
      ->
        C_index = T.alloc_buffer((4,), "int64")
        for ax0 in T.serial(4):
            C_index[ax0] = T.cast("int64", A[ax0] * 3.0)
        for i, j in T.grid(4, 8):
            C[i, j] = T.lookup(C_index[i], 8, lambda at: B[at, j])
    Requires:
        scope: the scope exists.
        has-index: the block has an indirect index that uses its iteration variables and no other indirect index.
        own-indices: the value uses only iteration variables of the block.  Those that are used, and the signs of its indices, do not
            depend on sampled sizes, the extents of the variables not on loops, and an index without variables is inside its buffer.
        made-before: no block of the same nest writes data that the index is computed from, because it is computed before the nest.
        in-blocks: no statement outside of blocks writes data that the index is computed from.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM's cache_index, which also stores affine indices; here those are normal forms, which every analysis needs and
        which cost no more than the load would).
    """
    b = s.block(block)
    if scope not in SCOPES:
        raise s.refuse("scope", f"unknown scope {scope!r}; scopes are {', '.join(SCOPES)}")
    groups = _distinct_values(_cacheable(b))
    if not groups:
        raise s.refuse("has-index", f"block {b.name} has no indirect index that is computed from its iteration variables alone", b)
    made: list[BlockRV] = []
    loads: dict[int, BufferLoad] = {}
    for group in groups:
        value = group[0].value
        used = used_iters(s, b, [p for p in walk(value) if isinstance(p, Poly)], "own-indices")
        for buffer in dict.fromkeys(n.buffer for n in walk(value) if type(n) is BufferLoad):
            check_made_before(s, b, buffer)
        name = s.fresh_name(f"{b.name}_index")
        new = Buffer(name, [it.extent for it in used], value.dtype, scope)
        own = tuple([poly(it.var) for it in used])
        insert(s, s.root_index(b.name), own_nest(name, used, new, own, with_guarded_loads(s, value, "own-indices")))
        loads |= {id(n): BufferLoad(new, own) for n in group}
        s.add_allocs(new)
        made.append(s.new_block(name))

    def on_index(n: IndirectIndex, recurse: Any) -> IndirectIndex:
        load = loads.get(id(n))
        return n.with_(value=recurse(n.value) if load is None else load, body=recurse(n.body))

    table: dict[type, Handler] = {IndirectIndex: on_index}
    init = None if b.init is None else transform(b.init, table)
    s.replace_block(b.name, lambda c: c.with_(init=init, body=transform(c.body, table)))
    return made


def _cacheable(b: Block) -> list[IndirectIndex]:
    """The indirect indices of the block whose value uses its iteration variables and no other indirect index."""
    own: set[Var] = {it.var for it in b.iters}
    found = [n for part in (b.init, b.body) if part is not None for n in walk(part) if type(n) is IndirectIndex]
    out = []
    for n in found:
        used = {v for p in walk(n.value) if isinstance(p, Poly) for v in p.vars}
        nested = any(type(x) is IndirectIndex for x in walk(n.value)) or any(isinstance(v, IndirectVar) for v in used)
        if not nested and not used.isdisjoint(own):
            out.append(n)
    return out


def _distinct_values(found: Sequence[IndirectIndex]) -> list[list[IndirectIndex]]:
    """The indices, those with the same value together."""
    groups: list[list[IndirectIndex]] = []
    for n in found:
        group = next((g for g in groups if structural.equal(g[0].value, n.value)), None)
        if group is None:
            groups.append([n])
        else:
            group.append(n)
    return groups
