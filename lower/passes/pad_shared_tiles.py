"""Zero-pad shared-memory tiles when they are copied, so that compute on them needs no bounds checks.

The copy loses the guards of the operand and selects between the operand and 0 instead.  Computation from such a tile into thread-local
memory then needs no guards: it computes elements that are never stored, or adds products of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.ir.analysis.reduction_update import reduction_update
from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Cast, Expr, IsNegative, Select, conjunction, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, SHARED_SCOPES, THREAD_AXES
from tunesmith.ir.poly import Poly, Var, product, substitute
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass

MAX_POINTS = 1 << 17
"""Limit on the enumerated stores of a copy, for the proof that they cover the whole tile."""
_LOCAL = ("local",)


@dataclass(frozen=True, slots=True)
class GuardedStore:
    """A store with the loops and guards around it.

    Attributes:
        store: the statement.
        loops: the loops around, outermost first.
        guards: enclosing conditions `< 0`, all of which must hold.
        plain: no other condition decides whether the store runs.
    """

    store: BufferStore
    loops: tuple[For, ...]
    guards: tuple[Poly, ...]
    plain: bool


@dataclass(frozen=True, slots=True)
class ZeroElements:
    """The zero elements of a buffer that is always written completely: elements `at` where one of `guards` fails.

    Attributes:
        at: the indices of a store.
        guards: conditions `< 0` in the same variables.
        inner: the variables that depend on the element; other variables are also bound around the readers of the buffer.
    """

    at: tuple[Poly, ...]
    guards: tuple[Poly, ...]
    inner: frozenset[Var]


@function_pass(requires="OPAQUE", level=2)
def pad_shared_tiles(func: PrimFunc, target: Target) -> PrimFunc:
    """Zero-pad tiles and drop guards."""
    return map_kernels(func, lambda k: _Kernel(k).run())


class _Kernel:
    """One kernel: its stores by buffer, and the zero elements of buffers that are always written completely."""

    def __init__(self, root: Stmt) -> None:
        self.root = root
        self.stores_of: dict[Buffer, list[GuardedStore]] = {}
        self.outside: dict[Buffer, frozenset[Var]] = {}
        """For each allocation, the variables that are bound around it."""
        self.order: list[GuardedStore] = []
        self._collect(root, (), (), True)
        self.zeros_of: dict[Buffer, list[ZeroElements]] = {}
        self.padded: dict[BufferStore, list[Poly]] = {}
        """Stores to tiles, and their guards that become a selection of 0."""
        self.dropped: dict[BufferStore, list[Poly]] = {}

    def run(self) -> Stmt:
        """The rewritten kernel; the same object if nothing changes."""
        for b, stores in self.stores_of.items():
            if b.scope in SHARED_SCOPES and len(stores) == 1:
                self._pad(b, stores[0])
        for p in self.order:
            if p.store.buffer.scope in _LOCAL and p.plain and p.guards:
                self._drop_guards(p)
            self._record_initialized(p)
        return _rewrite(self.root, self.padded, self.dropped) if self.padded or self.dropped else self.root

    def _collect(self, n: Any, loops: tuple[For, ...], guards: tuple[Poly, ...], plain: bool) -> None:
        if type(n) is For:
            loops = (*loops, n)
        elif type(n) is Allocate:
            self.outside[n.buffer] = frozenset([f.var for f in loops])
        elif type(n) is If:
            if n.orelse is None and type(n.cond) is IsNegative and n.cond.lanes == 1:
                guards = (*guards, n.cond.index)
            else:
                plain = False
        elif type(n) is BufferStore:
            p = GuardedStore(n, loops, guards, plain)
            self.stores_of.setdefault(n.buffer, []).append(p)
            self.order.append(p)
        n.each_child(lambda k: self._collect(k, loops, guards, plain) if isinstance(k, Stmt) else None)

    # ---- tiles ---------------------------------------------------------------------------------------------------------

    def _pad(self, b: Buffer, p: GuardedStore) -> None:
        """Mark a copy that covers the whole tile without its guards: these become a selection of 0."""
        used = {v for e in p.store.indices for v in e.vars}
        inner = [f for f in p.loops if f.thread in THREAD_AXES or f.var in used]
        inner_vars = {f.var for f in inner}
        around = {f.var for f in p.loops if f.thread in BLOCK_AXES or (f.kind == "serial" and f.var not in used)}
        known = p.plain and used <= inner_vars and all(g.vars <= inner_vars | around for g in p.guards)
        if not known or any(e.const is None for e in (*b.shape, *[f.extent for f in inner])):
            return
        # No load of the tile is inside the loops that copy it, so the tile is complete before it is read.
        if any(_reads(f.body, b) for f in inner if f.thread not in THREAD_AXES) or _reads(p.store, b):
            return
        grid = _grid(inner)
        if grid is None:
            return
        pure = [g for g in p.guards if g.vars <= inner_vars]
        # At most one guard restricts the tile itself: that of the last iteration of the threads.
        required = next((ks for ks in ([], *[[g] for g in pure]) if self._covers(b, p.store, grid, ks)), None)
        if required is None:
            return
        dropped = [g for g in p.guards if g not in required]
        self.padded[p.store] = dropped
        self.zeros_of[b] = [ZeroElements(p.store.indices, tuple(dropped), frozenset(inner_vars))]

    @staticmethod
    def _covers(b: Buffer, store: BufferStore, grid: Mapping[Var, np.ndarray], guards: Iterable[Poly]) -> bool:
        """Whether the store, where the guards hold, stays inside the buffer and writes each element exactly once."""
        size = len(next(iter(grid.values())))
        run = np.ones(size, bool)
        for g in guards:
            run &= values_at(g, grid, size) < 0
        flat = np.zeros(int(run.sum()), np.int64)
        for e, n in zip(store.indices, b.shape, strict=True):
            at = values_at(e, grid, size)[run]
            if at.size and (at.min() < 0 or at.max() >= n.as_int()):
                return False
            flat = flat * n.as_int() + at
        return len(flat) == len(np.unique(flat)) == product(b.shape).as_int()

    # ---- thread-local memory -------------------------------------------------------------------------------------------

    def _drop_guards(self, p: GuardedStore) -> None:
        """Drop the guards that the store does not need."""
        ranges = {f.var: (0, max(_high(f), 0)) for f in p.loops}
        if not self._is_inside(p.store, ranges) or not self._is_always_safe(p.store.value, p.store.buffer, ranges):
            return
        term = _term(p.store)
        factors = None if term is None else _factors(term)
        if term is None and any(type(x) is BufferLoad and x.buffer is p.store.buffer for x in walk(p.store.value)):
            return
        on_zeros = [g for g in p.guards if factors is not None and all(self._is_zero(x, g) for x in factors)]
        unneeded = [g for g in p.guards if g in on_zeros or self._is_of_element(p, g)]
        # An accumulation keeps the guards of the initializing store, or it would add to uninitialized elements.
        required = (
            {h for q in self.stores_of[p.store.buffer] if q is not p for h in _at(q, p, self._remaining_guards(q))}
            if term is not None
            else set()
        )
        unneeded = [g for g in unneeded if g not in required]
        if unneeded:
            self.dropped[p.store] = unneeded

    def _remaining_guards(self, p: GuardedStore) -> list[Poly]:
        return [g for g in p.guards if g not in self.dropped.get(p.store, ())]

    def _is_of_element(self, p: GuardedStore, g: Poly) -> bool:
        """Whether the guard excludes elements, not iterations: it depends only on the element and guards all stores to it."""
        steady = self.outside.get(p.store.buffer, frozenset()) | {v for e in p.store.indices if (v := e.as_var()) is not None}
        others = [q for q in self.stores_of[p.store.buffer] if q is not p]
        return g.vars <= steady and all(q.plain and g in _at(q, p, q.guards) for q in others)

    def _is_inside(self, access: BufferStore | BufferLoad, ranges: Mapping[Var, tuple[int, int]]) -> bool:
        for e, n in zip(access.indices, access.buffer.shape, strict=True):
            if n.const is None or any(v not in ranges for v in e.vars):
                return False
            low, high = bounds(e, ranges)
            if low < 0 or high >= n.const:
                return False
        return True

    def _is_always_safe(self, value: Expr, own: Buffer, ranges: Mapping[Var, tuple[int, int]]) -> bool:
        """Whether the value may be computed without guards: all its loads are in range and initialized."""
        for x in walk(value):
            if type(x) is BufferLoad:
                if x.buffer is not own and x.buffer not in self.zeros_of:
                    return False
                if not self._is_inside(x, ranges):
                    return False
        return True

    def _is_zero(self, load: BufferLoad, guard: Poly) -> bool:
        """Whether the load is 0 where the guard fails."""
        return any(_same_guard(z, g, load.indices, guard) for z in self.zeros_of.get(load.buffer, ()) for g in z.guards)

    def _record_initialized(self, p: GuardedStore) -> None:
        """Record a thread-local buffer as always written if all its stores are unguarded; a copy of zeros is zero."""
        b = p.store.buffer
        if b.scope not in _LOCAL or b in self.zeros_of:
            return
        every = self.stores_of[b]
        if not all(q.plain and not self._remaining_guards(q) for q in every):
            return
        zeros: list[ZeroElements] = []
        if len(every) == 1 and type(p.store.value) is BufferLoad:
            inner = frozenset([f.var for f in p.loops]) - self.outside.get(b, frozenset())
            zeros = [ZeroElements(p.store.indices, tuple(self.dropped.get(p.store, ())), inner)]
            if not all(self._is_zero(p.store.value, g) for g in zeros[0].guards):
                zeros = []
        self.zeros_of[b] = zeros


def _at(q: GuardedStore, p: GuardedStore, guards: Iterable[Poly]) -> list[Poly]:
    """Guards of the store `q` at the element of the store `p`."""
    pairs = zip(q.store.indices, p.store.indices, strict=True)
    at = {v: f for e, f in pairs if (v := e.as_var()) is not None}
    return [substitute(g, at) for g in guards]


def _reads(n: Any, b: Buffer) -> bool:
    return any(type(x) is BufferLoad and x.buffer is b for x in walk(n))


def _high(f: For) -> int:
    return (f.extent.const if f.extent.const is not None else 1 << 31) - 1


def _grid(loops: list[For]) -> dict[Var, np.ndarray] | None:
    """All combinations of values of the variables, in arrays of one length; None if there are too many."""
    extents = [f.extent.as_int() for f in loops]
    if not extents or math.prod(extents) > MAX_POINTS:
        return None
    points = np.indices(extents, dtype=np.int64).reshape(len(extents), -1)
    return {f.var: points[i] for i, f in enumerate(loops)}


def _same_guard(z: ZeroElements, g: Poly, indices: tuple[Poly, ...], guard: Poly) -> bool:
    """Whether the guard `g` of a store equals `guard` at the element `indices`: g is an index of the store plus outer variables."""
    for e, at in zip(z.at, indices, strict=True):
        if e.vars.isdisjoint(z.inner):
            continue
        for sign in (1, -1):
            rest = g - e * sign
            if rest.vars.isdisjoint(z.inner) and rest + at * sign == guard:
                return True
    # A guard that does not depend on the element.
    return g.vars.isdisjoint(z.inner) and g == guard


def _term(store: BufferStore) -> Expr | None:
    """x of `b[i] = b[i] + x`; None for other stores."""
    update = reduction_update(store)
    return update.term if update is not None and update.op == "add" else None


def _factors(term: Expr) -> list[BufferLoad] | None:
    """The factors of a term that is a product of loads; None for other terms."""
    if type(term) is BufferLoad:
        return [term]
    if type(term) is Cast:
        return _factors(term.a)
    if type(term) is Binary and term.op == "mul":
        a, b = _factors(term.a), _factors(term.b)
        return None if a is None or b is None else a + b
    return None


def _rewrite(root: Stmt, padded: Mapping[BufferStore, list[Poly]], dropped: Mapping[BufferStore, list[Poly]]) -> Stmt:
    """Remove guards of these stores; stores in `padded` select between the value and 0."""

    def go(n: Any) -> Any:
        if type(n) is If and n.orelse is None and type(n.cond) is IsNegative and n.cond.lanes == 1:
            stores = [x for x in walk(n.then) if type(x) is BufferStore]
            unneeded = [n.cond.index in (padded.get(x) or dropped.get(x) or ()) for x in stores]
            if all(unneeded) and stores:
                return go(n.then)
            if any(unneeded):
                return _spread(n.cond, n.then, go)
        if type(n) is BufferStore:
            guards = padded.get(n)
            if guards:
                conds = conjunction(tuple([IsNegative(g) for g in guards]))
                return n.with_(value=Select(conds, n.value, const(0, n.buffer.dtype)))
            return n
        return n.map_children(lambda k: go(k) if isinstance(k, Stmt) else k)

    return go(root)


def _spread(cond: Expr, n: Stmt, go: Any) -> Stmt:
    """Push a condition that some statements of `n` do not need down to the statements."""
    if type(n) is Seq:
        return seq([go(If(cond, k)) for k in n.stmts])
    if type(n) is BufferStore:
        return go(If(cond, n))
    return n.map_children(lambda k: _spread(cond, k, go) if isinstance(k, Stmt) else k)
