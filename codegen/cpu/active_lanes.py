"""Compute the number of active lanes of masked vectors, and whether their inactive lanes are ever used."""

from __future__ import annotations

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import ZERO, Poly, Var
from tunesmith.ir.stmt import BindIndex, BufferStore, For, Stmt
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt


def active_lanes(mask: Poly | None, lanes: int) -> Poly | None:
    """Number of leading active lanes; None for all, 0 for none, if the count is constant."""
    count = None if mask is None else mask.const
    if count is None or 0 <= count < lanes:
        return mask
    return None if count > 0 else ZERO


def inactive_lanes_are_unused(buffer: Buffer, body: Stmt) -> bool:
    """Whether each lane of a buffer is active in all its accesses or in none, so that a masked store may write all lanes.

    Preserving the inactive lanes of an accumulator costs a blend for each update, and a second register.

    Args:
        buffer: a buffer that only `body` accesses.
        body: a lowered statement.
    """
    masks: dict[Poly, tuple[int, Poly | None]] = {}
    bound: set[Var] = set()
    for n in walk_objects(body):
        if type(n) is For or type(n) is BindIndex:
            bound.add(n.var)
        if isinstance(n, BufferLoad | BufferStore) and n.buffer is buffer:
            lanes = dt.lanes(n.dtype if isinstance(n, BufferLoad) else n.value.dtype)
            (index,) = n.indices
            apart = n.stride is not None and n.stride.const != 1
            access = (lanes, active_lanes(n.mask, lanes))
            if apart or any(c % lanes for _, c in index.terms) or masks.setdefault(index, access) != access:
                return False
    kinds = set(masks.values())
    # Vectors at variable indices may be the same elements, so all must have the same lanes.
    if len({lanes for lanes, _ in kinds}) != 1 or (len(kinds) > 1 and any(index.const is None for index in masks)):
        return False
    return not any(mask is not None and bound.intersection(mask.vars) for _, mask in kinds)
