"""Turn loops marked `vectorized` into vector loads, arithmetic and stores of the target's width.

A loop of E iterations becomes ceil(E / lanes) vectors, the last one masked.  A guard `lane < n` becomes a mask of n leading
lanes.  Loops inside become loops over vectors.  A store whose index does not depend on the lane becomes a horizontal reduction.
Loops without a vector form are unrolled into scalar statements, long ones in chunks.  Strides and counts may be expressions of dynamic
extents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import gcd
from typing import Any

from tunesmith.ir.analysis.identity_element import identity_element
from tunesmith.ir.analysis.reduction_update import accumulation
from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.arith.linear import linear
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.intrinsics import PREFETCHES
from tunesmith.ir.poly import ONE, Poly, Var, maximum, minimum, poly
from tunesmith.ir.stmt import BindIndex, BufferStore, Evaluate, For, If, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier
from tunesmith.lower.uniform_division import UniformDivision, Versions, exact_buffers, requires_exact_operands
from tunesmith.support import dtype as dt

COPIES = 64
"""Scalar statements that a loop without a vector form is unrolled to, at most."""


class NotVectorizable(Exception):
    """Raised for a statement without a vector form, whose loop becomes scalar."""


@function_pass(requires="FLAT", needed_by="code generators, which have no vectorized loops")
def vectorize_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Vectorize the loops marked `vectorized`."""
    s = Simplifier(symbol_ranges(func))
    sizes = [p for p in func.params if isinstance(p, Var)]
    chosen: dict[Stmt, Versions] = {}
    exact = exact_buffers(func.body)

    def stmt(made: Versions | Stmt) -> Stmt:
        if not isinstance(made, Versions):
            return made
        out = made.stmt()
        chosen[out] = made
        return out

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind == "vectorized":
            return stmt(_vectorize(n, s, sizes, target, exact))
        low, high = s.bounds(n.extent)
        s.ranges[n.var] = (0, max(high - 1, 0))
        out: For = n.map_children(recurse)
        del s.ranges[n.var]
        versions = chosen[out.body].under(out) if out.body in chosen and low > 0 else None
        return out if versions is None else stmt(versions)

    def on_bind(n: BindIndex, recurse: Any) -> BindIndex:
        s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
        out: BindIndex = n.map_children(recurse)
        del s.ranges[n.var]
        return out

    return with_body(func, transform(func.body, {For: on_for, BindIndex: on_bind}))


def _vectorize(n: For, s: Simplifier, sizes: Collection[Var], target: Target, exact: Collection[Buffer]) -> Versions | Stmt:
    extent = n.extent.const
    if extent is None:
        return n.with_(kind="serial")
    widest = max([dt.bits(x.buffer.dtype) for x in _lane_accesses(n.body, n.var)], default=32)
    lanes = max(target.vector_lanes("float32") * 32 // widest, 1)
    if target.is_gpu:
        lanes = gcd(lanes, extent)  # GPUs have no masked vector loads
    try:
        if lanes == 1:
            return n.with_(kind="unrolled") if target.is_gpu else _scalar(n, extent)
        divide = UniformDivision(n.body, not target.is_gpu, exact)
        return divide.versions(lambda: _as_vectors(n, extent, lanes, s, sizes, divide))
    except NotVectorizable:
        return _scalar(n, extent)


def _scalar(n: For, extent: int) -> For:
    """The loop unrolled, by its longest even chunk of at most `COPIES` statements.

    Copies of one statement share what does not depend on the lane and run in parallel in the core; a scalar loop does neither.
    """
    chunk = next(size for size in range(min(extent, COPIES), 0, -1) if extent % size == 0)
    if chunk in (1, extent):
        return n.with_(kind="unrolled" if extent <= COPIES else "serial")
    outer, inner = Var(n.var.name), Var(f"{n.var.name}_copy")
    copies = For(inner, poly(chunk), substitute(n.body, {n.var: poly(outer) * chunk + inner}), "unrolled")
    return n.with_(var=outer, extent=poly(extent // chunk), body=copies, kind="serial")


def _lane_accesses(root: Stmt, lane: Var) -> list[BufferLoad | BufferStore]:
    """The accesses below a loop, without those that compute indirect indices of stores which all lanes share."""
    shared = [n.value for n in walk(root) if type(n) is BindIndex and all(lane not in p.vars for p in walk(n.value) if type(p) is Poly)]
    omitted = {id(x) for value in shared for x in walk(value)}
    return [x for x in walk(root) if isinstance(x, (BufferLoad, BufferStore)) and id(x) not in omitted]


def _as_vectors(n: For, extent: int, lanes: int, s: Simplifier, sizes: Collection[Var], divide: UniformDivision) -> Stmt:
    parts: list[Stmt | None] = []
    folded, active = _strip_prefix_guard(n, sizes)
    if type(folded) is BufferStore and _is_uniform_store(folded, n.var):
        return _horizontal(n, folded, active, extent, lanes, s, sizes, divide)
    for start in range(0, extent, lanes):
        lane = Var("lane")
        s.ranges[lane] = (0, lanes - 1)
        body = s(substitute(n.body, {n.var: poly(start) + lane}))
        if body is not None:
            count = extent - start
            parts.append(_LaneVectorizer(lane, lanes, s, sizes, divide).stmt(body, poly(count) if count < lanes else None))
        del s.ranges[lane]
    return seq([p for p in parts if p is not None])


def _strip_prefix_guard(n: For, sizes: Collection[Var]) -> tuple[Stmt, Poly | None]:
    """(body without its guard, number of leading iterations that run it); (body, None) if the function has no dynamic extents."""
    b = n.body
    if sizes and type(b) is If and b.orelse is None and type(b.cond) is IsNegative and b.cond.lanes == 1:
        split = linear(b.cond.index, n.var, sizes)
        if split is not None and split[0] == 1:
            return b.then, -split[1]
    return b, None


def _count(n: Poly, lanes: int, s: Simplifier) -> Poly:
    """`n` as a count of lanes, clamped if dynamic extents may make it exceed the 32 bits of a mask."""
    low, high = s.bounds(n)
    return n if -(2**31) <= low and high < 2**31 else maximum(minimum(n, lanes), 0)


def _is_uniform_store(st: BufferStore, var: Var) -> bool:
    return all(var not in i.vars for i in st.indices)


FOLDED = ("add", "max", "min")
"""Operations with a horizontal form."""


def _horizontal(
    n: For,
    st: BufferStore,
    active: Poly | None,
    extent: int,
    lanes: int,
    s: Simplifier,
    sizes: Collection[Var],
    divide: UniformDivision,
) -> Stmt:
    """C[i] = C[i] op g(lane) over all lanes: combine the vectors of g, fold the result, and combine it with C[i] once."""
    update = accumulation(st)
    if update is None or update.op not in FOLDED:
        raise NotVectorizable
    op, term = update.op, update.term
    total: Expr | None = None
    conditional = active is not None and _LaneVectorizer(n.var, extent, s, sizes, divide).requires_active_lane(term, active)
    for start in range(0, extent, lanes):
        lane = Var("lane")
        s.ranges[lane] = (0, lanes - 1)
        left = poly(min(extent - start, lanes))
        count = left if active is None else _count(active - start if extent - start >= lanes else minimum(active - start, left), lanes, s)
        masked = active is not None or extent - start < lanes
        vectorizer = _LaneVectorizer(lane, lanes, s, sizes, divide)
        vectorizer.exact = st.buffer in divide.exact
        vectorizer.guards += [] if active is None else [frozenset(active.vars)]
        part = vectorizer.wide(vectorizer.expr(s(substitute(term, {n.var: poly(start) + lane})), count if masked else None))
        if masked:
            identity = Broadcast(identity_element(op, st.buffer.dtype), lanes)
            part = Select(IsNegative(-count, lanes, ONE), part, identity)
        total = part if total is None else Binary(op, total, part)
        del s.ranges[lane]
    assert total is not None
    folded = Call(f"reduce_{op}", (total,), st.buffer.dtype)
    store = BufferStore(st.buffer, st.indices, Binary(op, update.load, folded))
    return If(IsNegative(-active), store) if conditional and active is not None else store


class _LaneVectorizer:
    """Turn a statement in terms of `lane` into vectors of `lanes`; expressions that do not depend on the lane stay scalar."""

    def __init__(self, lane: Var, lanes: int, s: Simplifier, sizes: Collection[Var], divide: UniformDivision) -> None:
        self.lane, self.lanes, self.s, self.sizes, self.divide = lane, lanes, s, sizes, divide
        self._varies: dict[Any, bool] = {}
        self.exact = False
        """Whether quotients must be rounded correctly, because an enclosing operation may amplify an error of one ulp."""
        self.guards: list[frozenset[Var] | None] = []
        """The variables of each enclosing condition; None if it also depends on loads."""
        self._inner: set[Var] = set()
        """Loops around the current statement, inside the vectorized loop."""
        self._unconditional_reads: set[tuple[Any, ...]] = set()
        """(buffer, *indices) of the loads that every active lane of the current store executes unconditionally."""

    def wide(self, e: Expr) -> Expr:
        """`e` as a vector."""
        return e if dt.lanes(e.dtype) > 1 else Broadcast(e, self.lanes)

    def _linear(self, p: Poly) -> tuple[Poly, Poly]:
        split = linear(p, self.lane, self.sizes)
        if split is None:
            raise NotVectorizable
        return split

    def _and(self, mask: Poly | None, more: Poly) -> Poly | None:
        if mask is None:
            return more
        if not self.sizes and (mask.const is None or more.const is None):
            raise NotVectorizable
        return minimum(mask, more)

    def prefix(self, cond: Expr) -> Poly | None:
        """n when `cond` is `lane < n`, else None."""
        if type(cond) is IsNegative and cond.lanes == 1 and self.lane in cond.index.vars:
            c, rest = self._linear(cond.index)
            if c == 1:
                return _count(-rest, self.lanes, self.s)
        return None

    def _depends(self, n: Any) -> bool:
        if type(n) is Poly:
            return self.lane in n.vars
        known = self._varies.get(n)
        if known is None:
            kids: list[Any] = []
            n.each_child(kids.append)
            known = self._varies[n] = any([self._depends(k) for k in kids])
        return known

    def stmt(self, n: Stmt, mask: Poly | None) -> Stmt:
        """The vector form of a statement under a mask of leading lanes."""
        if type(n) is Seq:
            # Lanes run each statement in lockstep.  A block with its own loops may write an element in several lanes and iterations.
            if any(type(x) is For for x in walk(n)):
                raise NotVectorizable
            return seq([self.stmt(k, mask) for k in n.stmts])
        if type(n) is For:
            return self._loop(n, mask)
        if type(n) is If:
            if not self._depends(n.cond):
                self.guards.append(_variables(n.cond))
                then, orelse = self.stmt(n.then, mask), None if n.orelse is None else self.stmt(n.orelse, mask)
                self.guards.pop()
                return If(n.cond, then, orelse)
            count = self.prefix(n.cond)
            if count is None or n.orelse is not None:
                raise NotVectorizable
            self.guards.append(frozenset(count.vars))
            then = self.stmt(n.then, self._and(mask, count))
            self.guards.pop()
            return If(IsNegative(-count), then) if self.requires_active_lane(n.then, count) else then
        if type(n) is BindIndex:
            if self._depends(n.value) or self._depends(n.extent):
                raise NotVectorizable
            self.s.ranges[n.var] = (0, max(self.s.bounds(n.extent)[1] - 1, 0))
            body = self.stmt(n.body, mask)
            del self.s.ranges[n.var]
            return n.with_(body=body)
        if type(n) is Evaluate and type(n.value) is Call and n.value.name in PREFETCHES:
            # One cache line per vector: that of the first lane.
            return substitute(n, {self.lane: poly(0)})
        if type(n) is not BufferStore:
            raise NotVectorizable
        stride, base = self._linear(n.indices[0])
        if stride == 0:
            raise NotVectorizable
        self._unconditional_reads = {(x.buffer, *x.indices) for x in _unconditional(n.value)}
        self.exact = n.buffer in self.divide.exact
        value = self.wide(self.expr(n.value, mask))
        return BufferStore(n.buffer, (base,), value, stride, mask)

    def _loop(self, n: For, mask: Poly | None) -> For:
        """A loop over vectors; its variable is renewed, because each vector of the outer loop has a copy of it."""
        if n.kind not in ("serial", "unrolled") or self.lane in n.extent.vars:
            raise NotVectorizable
        var = Var(n.var.name)
        self.s.ranges[var] = (0, max(self.s.bounds(n.extent)[1] - 1, 0))
        self._inner.add(var)
        body = self.stmt(substitute(n.body, {n.var: poly(var)}), mask)
        del self.s.ranges[var]
        return n.with_(var=var, body=body)

    def expr(self, e: Expr, mask: Poly | None) -> Expr:
        """The vector form of an expression, or the scalar expression if it does not depend on the lane."""
        if not self._depends(e):
            return e
        outside, self.exact = self.exact, self.exact or requires_exact_operands(e)
        found = self._vector(e, mask)
        self.exact = outside
        return found

    def _vector(self, e: Expr, mask: Poly | None) -> Expr:
        if isinstance(e, BufferLoad):
            stride, base = self._linear(e.indices[0])
            return BufferLoad(e.buffer, (base,), self.lanes, stride, mask)
        if isinstance(e, Poly):
            c, rest = self._linear(e)
            return Ramp(rest, c, self.lanes)
        if isinstance(e, IsNegative):
            c, rest = self._linear(e.index)
            return IsNegative(rest, self.lanes, c)
        if isinstance(e, Select):
            return self._select(e, mask)
        if isinstance(e, Cast):
            a = self.wide(self.expr(e.a, mask))
            return Cast(dt.vector(e.dtype, self.lanes), a)
        if isinstance(e, Binary) and e.op == "div" and not self._depends(e.b) and dt.is_float(e.dtype) and not self.exact:
            return self.divide(self.wide(self.expr(e.a, mask)), e.b, self._is_hoistable)
        if isinstance(e, Binary):
            return Binary(e.op, self.wide(self.expr(e.a, mask)), self.wide(self.expr(e.b, mask)))
        if isinstance(e, Not):
            return Not(self.wide(self.expr(e.a, mask)))
        if isinstance(e, Call):
            return Call(e.name, tuple([self.wide(self.expr(a, mask)) for a in e.args]), dt.vector(e.dtype, self.lanes))
        if isinstance(e, IndirectIndex) and not self._depends(e.value) and not self._depends(e.extent):
            self.s.ranges[e.var] = (0, max(self.s.bounds(e.extent)[1] - 1, 0))
            body = self.expr(e.body, mask)
            del self.s.ranges[e.var]
            return IndirectIndex(e.var, e.extent, e.value, body)
        raise NotVectorizable

    def _select(self, e: Select, mask: Poly | None) -> Expr:
        if not self._depends(e.cond):
            self.guards.append(_variables(e.cond))
            sides = [self.wide(self.expr(x, mask)) for x in (e.a, e.b)]
            self.guards.pop()
            return Select(e.cond, *sides)
        count = self.prefix(e.cond)
        if count is None:
            # Only leading lanes can be masked, so both sides are evaluated in all lanes.
            if not all(self._is_speculatable(x, mask) for x in (*walk(e.a), *walk(e.b))):
                raise NotVectorizable
            return Select(self.expr(e.cond, mask), self.wide(self.expr(e.a, mask)), self.wide(self.expr(e.b, mask)))
        unmasked = [*[x for x in walk(e.a) if not self._depends(x)], *walk(e.b)]
        if not all(self._in_range(x) for x in unmasked if type(x) is BufferLoad):
            raise NotVectorizable
        a = self.wide(self.expr(e.a, self._and(mask, count)))
        if type(a) is BufferLoad and a.mask is not None and type(e.b) is Const and e.b.value == 0 and a.buffer.scope != "register":
            return a  # masked-off lanes of a load are zero
        return Select(IsNegative(-count, self.lanes, ONE), a, self.wide(self.expr(e.b, mask)))

    def requires_active_lane(self, n: Any, count: Poly) -> bool:
        """Whether `n` may run only if at least one of the `count` leading lanes is active.

        Uniform loads run once, without a mask.  They are in range if a lane is active, and hence always if their address does not depend
        on the variables of the guard.
        """
        if self.s.bounds(count)[0] > 0:
            return False
        guard = frozenset(count.vars)
        return any(not self._is_safe_unguarded(x, where, guard) for x, where in _loads(n, {}) if not self._depends(x))

    def _is_hoistable(self, b: Expr) -> bool:
        """Whether the uniform expression `b` may be computed before all conditions around it."""
        if any(isinstance(v, IndirectVar) or v in self._inner for x in walk(b) if type(x) is Poly for v in x.vars):
            return False
        return all(self._is_safe_unguarded(x, where, guard) for x, where in _loads(b, {}) for guard in self.guards)

    def _is_safe_unguarded(self, load: BufferLoad, where: frozenset[Var], guard: frozenset[Var] | None) -> bool:
        """Whether a load may run where a guard on the variables `guard` fails; its address depends on the variables `where`."""
        free = guard is not None and all(v in self.sizes for v in guard & where)
        return free or self._in_range(load)

    def _is_speculatable(self, n: Any, mask: Poly | None) -> bool:
        """Whether all lanes under `mask` may evaluate the node, also lanes that select the other side."""
        if type(n) is Binary and n.op in ("floordiv", "mod"):
            return type(n.b) is Const and n.b.value not in (0, -1)
        if type(n) is not BufferLoad:
            return type(n) is not IndirectIndex
        if (n.buffer, *n.indices) in self._unconditional_reads or self._in_range(n):
            return True
        split, size = linear(n.indices[0], self.lane, self.sizes), n.buffer.shape[0].const
        if mask is None or split is None or size is None or split[0].const is None or not self._depends(n):
            return False
        step, base = split
        ends = [self.s.bounds(base), self.s.bounds(base + step * (mask - 1))]
        return min(low for low, _ in ends) >= 0 and max(high for _, high in ends) < size

    def _in_range(self, load: BufferLoad) -> bool:
        """Whether the load is in range for all lanes; False for indirect indices, whose values are unknown."""
        if any(isinstance(v, IndirectVar) and v not in self.s.ranges for v in load.indices[0].vars):
            return False
        low, high = self.s.bounds(load.indices[0])
        size = load.buffer.shape[0].const
        return low >= 0 and size is not None and high < size


def _loads(n: Any, indirect: dict[Var, frozenset[Var]]) -> Iterator[tuple[BufferLoad, frozenset[Var]]]:
    """Loads of `n` and the variables that their addresses depend on, also through indirect indices."""
    if type(n) is Poly:
        return
    if type(n) is IndirectIndex:
        inside = frozenset(v for x in walk(n.value) if type(x) is Poly for v in x.vars)
        indirect = {**indirect, n.var: frozenset(w for v in inside for w in indirect.get(v, (v,)))}
    if type(n) is BufferLoad:
        yield n, frozenset(w for v in n.indices[0].vars for w in indirect.get(v, (v,)))
    kids: list[Any] = []
    n.each_child(kids.append)
    for k in kids:
        yield from _loads(k, indirect)


def _variables(cond: Expr) -> frozenset[Var] | None:
    """The variables that a condition depends on; None if it contains loads."""
    parts = list(walk(cond))
    return None if any(type(x) is BufferLoad for x in parts) else frozenset([v for x in parts if type(x) is Poly for v in x.vars])


def _unconditional(e: Expr) -> list[BufferLoad]:
    """The loads of `e` that run whatever the outcome of its selects, with indices that are valid outside `IndirectIndex` scopes."""
    found: list[BufferLoad] = []
    stack: list[Any] = [e]
    while stack:
        n = stack.pop()
        if type(n) is BufferLoad:
            found.append(n)
        elif type(n) is Select:
            stack.append(n.cond)
        elif type(n) is IndirectIndex:
            stack.append(n.value)
        elif type(n) is not Poly:
            n.each_child(stack.append)
    return found
