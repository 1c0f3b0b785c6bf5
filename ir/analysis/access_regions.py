"""Compute the footprints of a block's accesses, as boxes (lowest index, extent) over the relaxed loops.

Footprints are not clipped to the buffer: clipping would introduce `min` into extents and hide the affine structure that schedules rely on
(docs/design/001-parametric.md).  Guards protect the accesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tunesmith.ir.arith.interval import interval
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.poly import Poly, Var, maximum, minimum, poly, substitute
from tunesmith.ir.stmt import BindIndex, Block, BufferStore, Stmt
from tunesmith.ir.visit import walk


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of a block, with indices in terms of the block's iteration variables."""

    buffer: Buffer
    indices: tuple[Poly, ...]
    is_write: bool


Footprint = tuple[tuple[Poly, Poly], ...]
"""(lowest index, extent) of each dimension."""


def accesses(block: Block) -> list[Access]:
    """The loads and stores of the body and the init, in program order.  They are not merged, because accesses that coincide for some tile
    sizes may differ for others."""
    return list(_accesses(block)[0])


def _accesses(block: Block) -> tuple[tuple[Access, ...], tuple[Access, ...], tuple[Access, ...]]:
    """(all, reads, writes) of a block, cached: blocks are immutable, and many schedule steps query all blocks."""
    known = _KNOWN.get(block)
    if known is None:
        found = _found(block)
        written = tuple([a for a in found if a.is_write])
        places = [(w.buffer, w.indices) for w in written]
        read = tuple([a for a in found if not a.is_write and not any(a.buffer is b and a.indices == i for b, i in places)])
        known = _KNOWN[block] = (tuple(found), read, written)
    return known


_KNOWN: WeakKeyDictionary[Block, tuple[tuple[Access, ...], tuple[Access, ...], tuple[Access, ...]]] = WeakKeyDictionary()


def _found(block: Block) -> list[Access]:
    out: list[Access] = []
    for part in (block.init, block.body):
        if part is None:
            continue
        for n in walk(part):
            if type(n) is BufferLoad:
                out.append(Access(n.buffer, n.indices, False))
            elif type(n) is BufferStore:
                out.append(Access(n.buffer, n.indices, True))
    return out


def reads(block: Block) -> list[Access]:
    """The loads of the block, except those of the element that a reduction accumulates into."""
    return list(_accesses(block)[1])


def writes(block: Block) -> list[Access]:
    """The stores of the block."""
    return list(_accesses(block)[2])


def written_buffers(stmt: Stmt) -> list[Buffer]:
    """The distinct buffers stored to below `stmt`, in program order."""
    return list(dict.fromkeys(n.buffer for n in walk(stmt) if type(n) is BufferStore))


def iteration_box(block: Block, ranges: Mapping[Var, Poly]) -> tuple[dict[Var, Poly], dict[Var, Poly]]:
    """Iteration variables as `low + t`, t over [0, width], when loops run over [0, ranges[v]]: (values by variable, width by t)."""
    values: dict[Var, Poly] = {}
    widths: dict[Var, Poly] = {}
    for it, binding in zip(block.iters, block.bindings, strict=True):
        if binding.vars.isdisjoint(ranges):
            values[it.var] = binding
            continue
        low, high = interval(binding, ranges)
        t = Var(it.var.name)
        values[it.var] = low + t
        widths[t] = high - low
    return values, widths


def region(block: Block, indices: tuple[Poly, ...], ranges: Mapping[Var, Poly]) -> Footprint:
    """The footprint of an access of `block` when loops run over [0, ranges[v]].

    Args:
        block: the accessing block.
        indices: one expression per dimension, in terms of the iteration variables.
        ranges: loops to relax, with their highest values; all other loops stay symbolic.
    """
    values, widths = iteration_box(block, ranges)
    if any(isinstance(v, IndirectVar) for e in indices for v in e.vars):
        widths |= {v: substitute(n, values) - 1 for v, n in indirect_index_ranges(block).items()}
    out: list[tuple[Poly, Poly]] = []
    for e in indices:
        low, high = interval(substitute(e, values), widths)
        out.append((low, high - low + 1))
    return tuple(out)


def indirect_index_ranges(block: Block) -> dict[Var, Poly]:
    """The variables of indirect indices in a block, with their extents; each may take any value in its range."""
    parts = [part for part in (block.init, block.body) if part is not None]
    return {n.var: n.extent for part in parts for n in walk(part) if isinstance(n, (IndirectIndex, BindIndex))}


def union(footprints: list[Footprint]) -> Footprint:
    """The smallest footprint that contains all of `footprints`."""
    out: list[tuple[Poly, Poly]] = []
    for dims in zip(*footprints, strict=True):
        low = minimum(*[d[0] for d in dims])
        high = maximum(*[d[0] + d[1] for d in dims])
        out.append((low, high - low))
    return tuple(out)


def plain_iter(e: Poly, block: Block) -> int | None:
    """The position of the iteration variable that `e` is, None if `e` is any other expression."""
    v = e.as_var()
    return next((i for i, it in enumerate(block.iters) if it.var is v), None) if v is not None else None


def loop_ranges(loops: Sequence[tuple[Var, Poly]]) -> dict[Var, Poly]:
    """The highest value of each loop variable, from (variable, extent) pairs."""
    return {v: poly(e) - 1 for v, e in loops}
