"""Simplify programs under known ranges: guards that always hold, loops of one iteration, constant conditions.

Scheduling primitives do not simplify their results; this rewrite runs after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tunesmith.ir.analysis.size_ranges import Range
from tunesmith.ir.arith.condition import undivided, without_remainder
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.arith.simplify import extent_of, is_plain
from tunesmith.ir.arith.simplify import simplify as simplify_poly
from tunesmith.ir.expr import Binary, Broadcast, Const, Expr, IsNegative, Not, Select
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import ZERO, Op, Poly, Var, minimum, poly
from tunesmith.ir.stmt import TENSORIZED, Allocate, BindIndex, Block, BufferStore, For, If, Seq, Stmt, While, seq
from tunesmith.ir.visit import substitute, transform
from tunesmith.support import dtype as dt


class Simplifier:
    """Simplify statements and expressions under known ranges of variables (both ends included)."""

    def __init__(self, ranges: Mapping[Var, Range] | None = None) -> None:
        self.ranges: dict[Var, Range] = dict(ranges or {})
        self.tensorized: set[Var] = set()
        self.extents: dict[Var, Poly] = {}  # of the loops around a statement whose extents depend on sizes
        self._simplified: dict[Any, Poly] = {}
        self._unchanged: set[BufferStore] = set()
        self._table: dict[type, Any] = {
            BufferStore: self._store,
            Poly: lambda n, _: self.index(n),
            For: lambda n, _: self.loop(n),
            Block: self._block,
            If: self._if,
            While: self._while,
            IsNegative: self._is_negative,
            Select: self._select,
            Binary: self._binary,
            Not: self._not,
            Seq: self._seq,
            Allocate: self._allocate,
            IndirectIndex: self._indirect_index,
            BindIndex: self._bind_index,
        }

    def __call__(self, n: Any) -> Any:
        return transform(n, self._table)

    def index(self, p: Poly) -> Poly:
        """The simplest known form of an index."""
        if is_plain(p, self.ranges):
            return p
        extents = {v: self.extents[v] for v in p.vars if v in self.extents} if self.extents else {}
        key = (p, *[self.ranges.get(v) for v in p.vars], *extents.items())  # copies of a statement repeat their indices
        done = self._simplified.get(key)
        if done is None:
            done = self._simplified[key] = simplify_poly(p, self.ranges, extents)
        return p if done == p else done

    def bounds(self, p: Poly) -> Range:
        """The lowest and the highest value of an index."""
        low, high = bounds(p, self.ranges)
        for a, b in self._bounds_by_extents(p) if self.extents and low < high else ():
            low, high = max(low, a), min(high, b)
        return low, high

    def _bounds_by_extents(self, p: Poly) -> Iterator[Range]:
        """Bounds that follow from extents of loops that depend on sizes, which ranges do not have."""
        for v, extent in self.extents.items():
            split = coefficient(p, v) if v in p.vars else None
            if split is not None:  # monotone in v: at one end v is 0, at the other extent - 1
                step, rest = split
                ends = [bounds(e, self.ranges) for e in (rest, rest + (extent - 1) * step)]
                yield min([low for low, _ in ends]), max([high for _, high in ends])
        for m, c in p.terms:
            extent_or_none = extent_of(Poly(((m, 1),)), self.extents) if len(m) == 1 and type(m[0]) is Op else None
            last = None if extent_or_none is None else (extent_or_none - 1).const
            if last is not None:
                low, high = bounds(p - Poly(((m, c),)), self.ranges)
                yield low + min(0, c * last), high + max(0, c * last)

    def loop(self, n: For) -> Stmt | None:
        """The simplified loop; None when it never runs."""
        extent = self.index(n.extent)
        high = self.bounds(extent)[1]
        if high <= 0:
            return None
        if extent.const == 1 and n.kind != "thread":
            return self(substitute(n.body, {n.var: ZERO}))
        self.ranges[n.var] = (0, high - 1)
        if extent.const is None:
            self.extents[n.var] = extent
        if n.kind == TENSORIZED:
            self.tensorized.add(n.var)
        body = self(n.body)
        self.tensorized.discard(n.var)
        del self.ranges[n.var]
        self.extents.pop(n.var, None)
        if body is None:
            return None
        if body is n.body and extent is n.extent:
            return n
        return n.with_(extent=extent, body=body)

    def guards(self, predicate: tuple[Poly, ...]) -> tuple[Poly, ...] | None:
        """The entries that are neither always true nor implied by another entry; None when an entry is always false."""
        kept: list[Poly] = []
        for e in predicate:
            e = self._condition(e)
            low, high = self.bounds(e)
            if low >= 0:
                return None
            if high >= 0 and not any(self.bounds(e - k)[1] <= 0 for k in kept):
                kept = [k for k in kept if self.bounds(k - e)[1] > 0]
                kept.append(e)
        return tuple(kept)

    def _condition(self, e: Poly) -> Poly:
        """The simplest known form of an index of which only the sign matters."""
        e = self.index(e)
        q = undivided(e)
        if self.tensorized and not q.vars.isdisjoint(self.tensorized):
            q = without_remainder(q, self.bounds)  # a guard of whole tiles is one condition of all iterations of the instruction
        return e if q is e else self.index(q)

    def _block(self, n: Block, recurse: Any) -> Stmt | None:
        predicate = self.guards(n.predicate)
        if predicate is None:
            return None
        bindings = tuple([self.index(b) for b in n.bindings])
        for it, b in zip(n.iters, bindings, strict=True):
            low, high = self.bounds(b)
            top = self.bounds(it.extent)[1] - 1
            self.ranges[it.var] = (max(low, 0), min(high, top) if predicate else high)
        init = None if n.init is None else recurse(n.init)
        body = recurse(n.body)
        if body is None:
            if init is None:
                return None
            firsts = tuple([b - 1 for it, b in zip(n.iters, bindings, strict=True) if it.kind == "R"])
            return n.with_(bindings=bindings, predicate=(*predicate, *firsts), init=None, body=init)
        kept = all(a is b for a, b in zip((*bindings, *predicate), (*n.bindings, *n.predicate), strict=False))
        if kept and len(predicate) == len(n.predicate) and init is n.init and body is n.body:
            return n
        return n.with_(bindings=bindings, predicate=predicate, init=init, body=body)

    def _store(self, n: BufferStore, recurse: Any) -> Stmt:
        if n in self._unchanged:  # an earlier visit left it as it was, which is correct under any ranges
            return n
        m: BufferStore = n.map_children(recurse)
        if m is n:
            self._unchanged.add(n)
        return m

    def _if(self, n: If, recurse: Any) -> Stmt | None:
        cond = recurse(n.cond)
        if type(cond) is Const:
            return recurse(n.then) if cond.value else None if n.orelse is None else recurse(n.orelse)
        then, orelse = recurse(n.then), None if n.orelse is None else recurse(n.orelse)
        if then is None:
            return None if orelse is None else If(negate(cond), orelse)
        return n if cond is n.cond and then is n.then and orelse is n.orelse else If(cond, then, orelse)

    def _while(self, n: While, recurse: Any) -> Stmt | None:
        cond = recurse(n.cond)
        if type(cond) is Const and not cond.value:
            return None
        body = recurse(n.body) or seq([])
        return n if cond is n.cond and body is n.body else While(cond, body)

    def _is_negative(self, n: IsNegative, recurse: Any) -> Expr:
        e = self.index(n.index) if n.lanes > 1 else self._with_negative_arguments(self._condition(n.index))
        low, high = self.bounds(e)
        if n.lanes > 1 and n.stride is not None:
            a, b = self.bounds(n.stride * (n.lanes - 1))
            low, high = low + min(a, 0), high + max(b, 0)
        if high < 0 or low >= 0:
            return truth(high < 0, n.lanes)
        return n if e is n.index else IsNegative(e, n.lanes, n.stride)

    def _with_negative_arguments(self, e: Poly) -> Poly:
        """`e`, whose sign is of interest, without the arguments of a minimum for which it is never negative."""
        for m, c in e.terms:
            a = m[0] if len(m) == 1 and c == 1 else None
            if type(a) is Op and a.op == "min":
                rest = e - poly(a)
                left = [x for x in a.args if self.bounds(x + rest)[0] < 0]
                return rest + minimum(*left) if left and len(left) < len(a.args) else e
        return e

    def _select(self, n: Select, recurse: Any) -> Expr:
        cond = recurse(n.cond)
        holds = known_truth(cond)
        if holds is not None:
            return recurse(n.a if holds else n.b)
        a, b = recurse(n.a), recurse(n.b)
        return n if cond is n.cond and a is n.a and b is n.b else Select(cond, a, b)

    def _binary(self, n: Binary, recurse: Any) -> Expr:
        m: Binary = n.map_children(recurse)
        if m.op in ("and", "or"):
            for x, y in ((m.a, m.b), (m.b, m.a)):
                holds = known_truth(x)
                if holds is not None:
                    return y if holds == (m.op == "and") else x
        return m

    def _not(self, n: Not, recurse: Any) -> Expr:
        a = recurse(n.a)
        holds = known_truth(a)
        return truth(not holds, dt.lanes(n.dtype)) if holds is not None else n if a is n.a else Not(a)

    def _indirect_index(self, n: IndirectIndex, recurse: Any) -> Expr:
        self.ranges[n.var] = (0, max(self.bounds(n.extent)[1] - 1, 0))
        out: Expr = n.map_children(recurse)
        del self.ranges[n.var]
        return out

    def _bind_index(self, n: BindIndex, recurse: Any) -> Stmt | None:
        extent, value = recurse(n.extent), recurse(n.value)
        self.ranges[n.var] = (0, max(self.bounds(extent)[1] - 1, 0))
        body = recurse(n.body)
        del self.ranges[n.var]
        if body is None or (body is n.body and extent is n.extent and value is n.value):
            return None if body is None else n
        return BindIndex(n.var, extent, value, body)

    def _allocate(self, n: Allocate, recurse: Any) -> Stmt | None:
        body = recurse(n.body)
        return n if body is n.body else None if body is None else Allocate(n.buffer, body)

    def _seq(self, n: Seq, recurse: Any) -> Stmt | None:
        kept = [r for s in n.stmts if (r := recurse(s)) is not None]
        if len(kept) == len(n.stmts) and all(a is b for a, b in zip(kept, n.stmts, strict=True)):
            return n
        return seq(kept) if kept else None


def truth(value: bool, lanes: int = 1) -> Expr:
    """A constant condition for `lanes` lanes."""
    one = Const(value, "bool")
    return one if lanes == 1 else Broadcast(one, lanes)


def known_truth(cond: Expr) -> bool | None:
    """The value of a condition that is constant and the same in all lanes; None for other conditions."""
    one = cond.a if type(cond) is Broadcast else cond
    return bool(one.value) if type(one) is Const else None


def negate(cond: Expr) -> Expr:
    """The negated condition."""
    if type(cond) is IsNegative and cond.lanes == 1:
        return IsNegative(-cond.index - 1)
    return Not(cond)
