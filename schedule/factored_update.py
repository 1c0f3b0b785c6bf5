"""Match the updates that `rfactor` divides into partial results, and build the update that combines them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tunesmith.ir import structural
from tunesmith.ir.analysis.identity_element import identity_element
from tunesmith.ir.analysis.reduction_update import accumulation, loads_from, reassociable_update
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Cast, Const, Expr, Select
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Block, BufferStore, Seq, Stmt, seq
from tunesmith.ir.visit import substitute

BETTER = {"max": "gt", "min": "lt"}
"""The comparison of a term with the extreme so far that makes the term the new extreme."""
_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_OPPOSITE = {"lt": "ge", "gt": "le", "le": "gt", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class FactoredUpdate:
    """An update C[i] = C[i] op x; or the updates of an extreme and its index, P[i] = k if x > C[i] else P[i]; C[i] = max(C[i], x).

    Attributes:
        op: the operation.
        value: the store to C.
        place: the store to P, before that to C; None for one store.
        index: the value k.
    """

    op: str
    value: BufferStore
    place: BufferStore | None = None
    index: Expr | None = None

    @property
    def stores(self) -> tuple[BufferStore, ...]:
        """The stores, in order."""
        return (self.value,) if self.place is None else (self.place, self.value)

    @property
    def starts_from_identity(self) -> bool:
        """Whether only an init with the identity element may be applied to each partial result; an extreme may start from any value."""
        return self.op in ("add", "mul")

    def renamed(self, values: Mapping[Var, Poly]) -> FactoredUpdate:
        """The update with other variables."""
        place, index = [None if n is None else substitute(n, values) for n in (self.place, self.index)]
        return FactoredUpdate(self.op, substitute(self.value, values), place, index)  # type: ignore[arg-type]

    def under(self, cond: Expr) -> Stmt:
        """The update if `cond` holds, otherwise none."""
        update: Binary = self.value.value  # type: ignore[assignment]  # matched
        if self.place is None:
            term = Select(cond, update.b, identity_element(self.op, self.value.buffer.dtype))
            return self.value.with_(value=update.with_(b=term))
        assert self.index is not None
        old = BufferLoad(self.place.buffer, self.place.indices)
        # Both operands of `and` are evaluated, and the term may be out of range where the condition fails.
        index = Select(cond, Select(Binary(BETTER[self.op], update.b, update.a), self.index, old), old)
        value = self.value.with_(value=update.with_(b=Select(cond, update.b, update.a)))
        return seq([self.place.with_(value=index), value])

    def combined(self, at: tuple[Poly, ...], partial: Mapping[Buffer, BufferLoad]) -> Stmt:
        """The update of the elements `at` by partial results; of equal extremes the one with the smaller index remains, as in order."""
        update: Binary = self.value.value  # type: ignore[assignment]  # matched
        so_far, term = BufferLoad(self.value.buffer, at), partial[self.value.buffer]
        value = BufferStore(self.value.buffer, at, update.with_(a=so_far, b=term))
        if self.place is None:
            return value
        old, new = BufferLoad(self.place.buffer, at), partial[self.place.buffer]
        tie = Binary("and", Binary("eq", term, so_far), Binary("lt", new, old))
        better = Binary("or", Binary(BETTER[self.op], term, so_far), tie)
        return seq([BufferStore(self.place.buffer, at, Select(better, new, old)), value])


def factored_update(b: Block) -> FactoredUpdate | None:
    """The update of a block with an init; None for other blocks."""
    if b.init is None:
        return None
    update = reassociable_update(b)
    return _arg_extreme(b) if update is None else FactoredUpdate(update.op, update.store)


def _arg_extreme(b: Block) -> FactoredUpdate | None:
    """The index of the first of the largest or smallest terms, and that term.

    The index is the only reduction variable, as a 32 or 64-bit integer; the caller checks that it ascends.
    """
    if type(b.body) is not Seq or type(b.init) is not Seq or len(b.body.stmts) != 2 or len(b.init.stmts) != 2:
        return None
    place, value = b.body.stmts
    update = accumulation(value)
    if update is None or update.op not in BETTER or type(place) is not BufferStore or type(place.value) is not Select:
        return None
    buffers = {place.buffer, update.store.buffer}
    starts = {x.buffer for x in b.init.stmts if type(x) is BufferStore and x.indices == place.indices}
    if len(buffers) != 2 or starts != buffers or place.indices != update.store.indices:
        return None
    if any(loads_from(n, x) for n in (update.term, b.init) for x in buffers):
        return None
    index = _chosen(place, update.store, update.op, update.term)
    reduced = [it for it in b.iters if it.kind == "R"]
    plain = index.a if type(index) is Cast else index
    if len(reduced) != 1 or not isinstance(plain, Poly) or plain.as_var() is not reduced[0].var:
        return None
    if place.buffer.dtype not in ("int32", "int64") or any(reduced[0].var in e.vars for e in place.indices):
        return None
    return FactoredUpdate(update.op, update.store, place, index)


def _chosen(place: BufferStore, value: BufferStore, op: str, term: Expr) -> Expr | None:
    """The index k of P[i] = k if term > C[i] else P[i], also in the forms with swapped operands or sides."""
    choice = place.value
    if type(choice) is not Select or type(choice.cond) is not Binary or choice.cond.op not in _FLIPPED:
        return None
    cond, new, old = choice.cond, choice.a, choice.b
    so_far = BufferLoad(value.buffer, value.indices)
    if _same(value, cond.a, so_far) and _same(value, cond.b, term):
        compared = _FLIPPED[cond.op]
    elif _same(value, cond.a, term) and _same(value, cond.b, so_far):
        compared = cond.op
    else:
        return None
    if _OPPOSITE[compared] == BETTER[op]:
        compared, new, old = BETTER[op], old, new
    return new if compared == BETTER[op] and _same(value, old, BufferLoad(place.buffer, place.indices)) else None


def _same(at: BufferStore, a: Expr, b: Expr) -> bool:
    return structural.equal(at.with_(value=a), at.with_(value=b))


def starts_from(b: Block, update: FactoredUpdate) -> bool:
    """Whether the init of the block may be applied to each partial result."""
    if not update.starts_from_identity:
        return True
    init = b.init
    identity = identity_element(update.op, update.value.buffer.dtype)
    return type(init) is BufferStore and type(init.value) is Const and init.value.value == identity.value
