"""Match reduction updates, C[i] = C[i] op x, whose terms may be combined in any order."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Expr
from tunesmith.ir.node import Node
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.visit import walk_objects

REASSOCIABLE = ("add", "mul", "min", "max")
"""Operations whose terms may be combined in any order, up to the rounding of floats."""


@dataclass(frozen=True, slots=True)
class ReductionUpdate:
    """A store `C[i] = C[i] op term`.

    Attributes:
        store: the store.
        op: one of `REASSOCIABLE`.
        load: the load of C[i], the left operand.
        term: the right operand.
    """

    store: BufferStore
    op: str
    load: BufferLoad
    term: Expr


def loads_from(root: Node, buffer: Buffer) -> bool:
    """Whether `root` reads any element of the buffer."""
    return any(type(n) is BufferLoad and n.buffer is buffer for n in walk_objects(root))


def accumulation(n: object) -> ReductionUpdate | None:
    """Match `C[i] = C[i] op term`, whatever the term reads; None for other statements."""
    if type(n) is not BufferStore:
        return None
    v = n.value
    if type(v) is not Binary or v.op not in REASSOCIABLE or type(v.a) is not BufferLoad or v.a.lanes != 1:
        return None
    return ReductionUpdate(n, v.op, v.a, v.b) if v.a.buffer is n.buffer and v.a.indices == n.indices else None


def reduction_update(n: object) -> ReductionUpdate | None:
    """Match a statement as a reduction update; None for other statements.

    A term that reads C, as in C[i] = C[i] + (C[i] + x) or C[i] = C[i] + C[i - 1], depends on the order of updates and does not match.
    """
    found = accumulation(n)
    return None if found is None or loads_from(found.term, found.store.buffer) else found


def reassociable_update(b: Block) -> ReductionUpdate | None:
    """The update of a block whose instances may run in any order and may be partitioned; None for other blocks.

    The element depends on spatial iteration variables only, and the init stores to the same element without reading the buffer.
    """
    update = reduction_update(b.body)
    if update is None:
        return None
    reduced = {it.var for it in b.iters if it.kind == "R"}
    if any(not i.vars.isdisjoint(reduced) for i in update.store.indices):
        return None
    init = b.init
    if init is None:
        return update
    if type(init) is not BufferStore or init.buffer is not update.store.buffer or init.indices != update.store.indices:
        return None
    return None if loads_from(init.value, init.buffer) else update
