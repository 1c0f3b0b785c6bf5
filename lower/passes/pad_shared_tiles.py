"""Zero-pad shared-memory tiles when they are copied, so that compute on them needs no bounds checks.

A copy under the guards of the operand becomes a copy of a choice between the operand and 0.  What is computed from such a tile into memory
of a thread is computed without guards: for elements that nobody stores in the end, or adding products of zeros.
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
"""Stores of one copy that are looked at one by one, to see that they are the whole tile."""
_PRIVATE = ("local",)


@dataclass(frozen=True, slots=True)
class Place:
    """A store and what stands around it.

    Attributes:
        store: the statement.
        loops: the loops around, outermost first.
        guards: conditions `< 0` on the way, all of which must hold.
        plain: nothing else decides whether it runs.
    """

    store: BufferStore
    loops: tuple[For, ...]
    guards: tuple[Poly, ...]
    plain: bool


@dataclass(frozen=True, slots=True)
class Zeros:
    """Where a buffer that is always written as a whole holds 0: at elements `at` where one of `guards` fails.

    Attributes:
        at: the index of a store.
        guards: in the same variables.
        inner: the variables that go with the element; others are around the buffer's users too.
    """

    at: tuple[Poly, ...]
    guards: tuple[Poly, ...]
    inner: frozenset[Var]


@function_pass(needs="OPAQUE")
def pad_shared_tiles(func: PrimFunc, target: Target) -> PrimFunc:
    """Fill tiles and drop guards; see the module's text."""
    return map_kernels(func, lambda k: _Kernel(k).run())


class _Kernel:
    """One kernel: its stores by buffer, and what is known of buffers that are always written as a whole."""

    def __init__(self, root: Stmt) -> None:
        self.root = root
        self.places: dict[Buffer, list[Place]] = {}
        self.outside: dict[Buffer, frozenset[Var]] = {}
        """For each allocation the variables that are bound around it."""
        self.order: list[Place] = []
        self._collect(root, (), (), True)
        self.whole: dict[Buffer, list[Zeros]] = {}
        self.filled: dict[BufferStore, list[Poly]] = {}
        """Stores of tiles, and the guards that become a choice of 0."""
        self.dropped: dict[BufferStore, list[Poly]] = {}

    def run(self) -> Stmt:
        """The kernel, rewritten where anything is to be done."""
        for b, places in self.places.items():
            if b.scope in SHARED_SCOPES and len(places) == 1:
                self._fill(b, places[0])
        for p in self.order:
            if p.store.buffer.scope in _PRIVATE and p.plain and p.guards:
                self._free(p)
            self._note_whole(p)
        return _rewrite(self.root, self.filled, self.dropped) if self.filled or self.dropped else self.root

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
            p = Place(n, loops, guards, plain)
            self.places.setdefault(n.buffer, []).append(p)
            self.order.append(p)
        n.each_child(lambda k: self._collect(k, loops, guards, plain) if isinstance(k, Stmt) else None)

    # ---- tiles ---------------------------------------------------------------------------------------------------------

    def _fill(self, b: Buffer, p: Place) -> None:
        """Make the copy one of the whole tile, if that is what it is but for guards."""
        used = {v for e in p.store.indices for v in e.vars}
        inner = [f for f in p.loops if f.thread in THREAD_AXES or f.var in used]
        mine = {f.var for f in inner}
        around = {f.var for f in p.loops if f.thread in BLOCK_AXES or (f.kind == "serial" and f.var not in used)}
        known = p.plain and used <= mine and all(g.vars <= mine | around for g in p.guards)
        if not known or any(e.const is None for e in (*b.shape, *[f.extent for f in inner])):
            return
        # The tile is complete before anybody reads it: no reader stands in the loops that fill it.
        if any(_reads(f.body, b) for f in inner if f.thread not in THREAD_AXES) or _reads(p.store, b):
            return
        grid = _grid(inner)
        if grid is None:
            return
        pure = [g for g in p.guards if g.vars <= mine]
        # At most one guard is about the tile itself, that of the last turn of the threads.
        kept = next((ks for ks in ([], *[[g] for g in pure]) if self._covers(b, p.store, grid, ks)), None)
        if kept is None:
            return
        dropped = [g for g in p.guards if g not in kept]
        self.filled[p.store] = dropped
        self.whole[b] = [Zeros(p.store.indices, tuple(dropped), frozenset(mine))]

    @staticmethod
    def _covers(b: Buffer, store: BufferStore, grid: Mapping[Var, np.ndarray], guards: Iterable[Poly]) -> bool:
        """Whether the store, where the guards hold, is inside the buffer and reaches each element just once."""
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

    # ---- memory of threads ---------------------------------------------------------------------------------------------

    def _free(self, p: Place) -> None:
        """Drop the guards that the store can do without."""
        ranges = {f.var: (0, max(_high(f), 0)) for f in p.loops}
        if not self._inside(p.store, ranges) or not self._safe(p.store.value, p.store.buffer, ranges):
            return
        term = _term(p.store)
        factors = None if term is None else _factors(term)
        if term is None and any(type(x) is BufferLoad and x.buffer is p.store.buffer for x in walk(p.store.value)):
            return
        nothing = [g for g in p.guards if factors is not None and all(self._is_zero(x, g) for x in factors)]
        free = [g for g in p.guards if g in nothing or self._is_of_element(p, g)]
        # Nothing is added to what has not been set: a guard stays that stays where the element is set.
        kept = {h for q in self.places[p.store.buffer] if q is not p for h in _at(q, p, self._left(q))} if term is not None else set()
        free = [g for g in free if g not in kept]
        if free:
            self.dropped[p.store] = free

    def _left(self, p: Place) -> list[Poly]:
        return [g for g in p.guards if g not in self.dropped.get(p.store, ())]

    def _is_of_element(self, p: Place, g: Poly) -> bool:
        """Whether the guard leaves out elements, not steps: it is a matter of the element, and stands before all that is stored to it."""
        steady = self.outside.get(p.store.buffer, frozenset()) | {v for e in p.store.indices if (v := e.as_var()) is not None}
        others = [q for q in self.places[p.store.buffer] if q is not p]
        return g.vars <= steady and all(q.plain and g in _at(q, p, q.guards) for q in others)

    def _inside(self, access: BufferStore | BufferLoad, ranges: Mapping[Var, tuple[int, int]]) -> bool:
        for e, n in zip(access.indices, access.buffer.shape, strict=True):
            if n.const is None or any(v not in ranges for v in e.vars):
                return False
            low, high = bounds(e, ranges)
            if low < 0 or high >= n.const:
                return False
        return True

    def _safe(self, value: Expr, own: Buffer, ranges: Mapping[Var, tuple[int, int]]) -> bool:
        """Whether the value may be computed anywhere: it reads only what is always there."""
        for x in walk(value):
            if type(x) is BufferLoad:
                if x.buffer is not own and x.buffer not in self.whole:
                    return False
                if not self._inside(x, ranges):
                    return False
        return True

    def _is_zero(self, load: BufferLoad, guard: Poly) -> bool:
        """Whether the load is 0 where the guard fails."""
        return any(_same_guard(z, g, load.indices, guard) for z in self.whole.get(load.buffer, ()) for g in z.guards)

    def _note_whole(self, p: Place) -> None:
        """A buffer of a thread all of whose stores are free of guards is always written; a copy of zeros is zero."""
        b = p.store.buffer
        if b.scope not in _PRIVATE or b in self.whole:
            return
        every = self.places[b]
        if not all(q.plain and not self._left(q) for q in every):
            return
        zeros: list[Zeros] = []
        if len(every) == 1 and type(p.store.value) is BufferLoad:
            inner = frozenset([f.var for f in p.loops]) - self.outside.get(b, frozenset())
            zeros = [Zeros(p.store.indices, tuple(self.dropped.get(p.store, ())), inner)]
            if not all(self._is_zero(p.store.value, g) for g in zeros[0].guards):
                zeros = []
        self.whole[b] = zeros


def _at(q: Place, p: Place, guards: Iterable[Poly]) -> list[Poly]:
    """Guards of the store `q`, taken at the element of the store `p`."""
    pairs = zip(q.store.indices, p.store.indices, strict=True)
    at = {v: f for e, f in pairs if (v := e.as_var()) is not None}
    return [substitute(g, at) for g in guards]


def _reads(n: Any, b: Buffer) -> bool:
    return any(type(x) is BufferLoad and x.buffer is b for x in walk(n))


def _high(f: For) -> int:
    return (f.extent.const if f.extent.const is not None else 1 << 31) - 1


def _grid(loops: list[For]) -> dict[Var, np.ndarray] | None:
    """All values of the variables, in arrays of one length; None if there are too many."""
    extents = [f.extent.as_int() for f in loops]
    if not extents or math.prod(extents) > MAX_POINTS:
        return None
    points = np.indices(extents, dtype=np.int64).reshape(len(extents), -1)
    return {f.var: points[i] for i, f in enumerate(loops)}


def _same_guard(z: Zeros, g: Poly, indices: tuple[Poly, ...], guard: Poly) -> bool:
    """Whether the guard `g` of a store, taken at the element `indices`, is `guard`: g is an index of the store plus what is around."""
    for e, at in zip(z.at, indices, strict=True):
        if e.vars.isdisjoint(z.inner):
            continue
        for sign in (1, -1):
            rest = g - e * sign
            if rest.vars.isdisjoint(z.inner) and rest + at * sign == guard:
                return True
    # A guard on nothing that goes with the element.
    return g.vars.isdisjoint(z.inner) and g == guard


def _term(store: BufferStore) -> Expr | None:
    """x of `b[i] = b[i] + x`; None for other stores."""
    update = reduction_update(store)
    return update.term if update is not None and update.op == "add" else None


def _factors(term: Expr) -> list[BufferLoad] | None:
    """The loads whose product a term is; None if it is something else."""
    if type(term) is BufferLoad:
        return [term]
    if type(term) is Cast:
        return _factors(term.a)
    if type(term) is Binary and term.op == "mul":
        a, b = _factors(term.a), _factors(term.b)
        return None if a is None or b is None else a + b
    return None


def _rewrite(root: Stmt, filled: Mapping[BufferStore, list[Poly]], dropped: Mapping[BufferStore, list[Poly]]) -> Stmt:
    """Guards of these stores taken away; those of `filled` choose between the value and 0."""

    def go(n: Any) -> Any:
        if type(n) is If and n.orelse is None and type(n.cond) is IsNegative and n.cond.lanes == 1:
            stores = [x for x in walk(n.then) if type(x) is BufferStore]
            free = [n.cond.index in (filled.get(x) or dropped.get(x) or ()) for x in stores]
            if all(free) and stores:
                return go(n.then)
            if any(free):
                return _spread(n.cond, n.then, go)
        if type(n) is BufferStore:
            guards = filled.get(n)
            if guards:
                conds = conjunction(tuple([IsNegative(g) for g in guards]))
                return n.with_(value=Select(conds, n.value, const(0, n.buffer.dtype)))
            return n
        return n.map_children(lambda k: go(k) if isinstance(k, Stmt) else k)

    return go(root)


def _spread(cond: Expr, n: Stmt, go: Any) -> Stmt:
    """`n` under a condition that some of its statements are free of: each of its parts under the condition."""
    if type(n) is Seq:
        return seq([go(If(cond, k)) for k in n.stmts])
    if type(n) is BufferStore:
        return go(If(cond, n))
    return n.map_children(lambda k: _spread(cond, k, go) if isinstance(k, Stmt) else k)
