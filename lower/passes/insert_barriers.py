"""insert_barriers: threads of a block wait for each other where one touches what another has written, or writes what another has read.

It comes last, when every access to memory that threads have in common has its final place.  Which cells the threads touch is enumerated, so
that a thread which finds its own values waits for nobody, and a tile with two versions needs one barrier in each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, prod
from typing import Any

import numpy as np

from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Call, Expr, IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, COMMON_SCOPES, THREAD_AXES
from tunesmith.ir.poly import Op, Poly, Var
from tunesmith.ir.stmt import Allocate, BufferStore, Evaluate, For, If, Seq, Stmt, barrier, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk, walk_objects
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

MAX_BLOCKS = 64
"""Blocks that are looked at one by one where a guard depends on the block; of more, guards are taken to hold."""
MAX_POINTS = 1 << 18
"""Accesses of one statement that are looked at; if there are more, any two threads are taken to touch the same cells."""


@dataclass(frozen=True)
class Access:
    """One load or store of memory that threads have in common.

    Attributes:
        buffer: which.
        index: of its first lane.
        lanes: (number, distance).
        is_write: a store.
        loops: serial loops around it, outermost first.
        guards: conditions `< 0` of the branches around it.
        pins: (variable, value) of loops of which one iteration alone is within reach, as a barrier keeps the others away.
    """

    buffer: Buffer
    index: Poly
    lanes: tuple[int, int]
    is_write: bool
    loops: tuple[For, ...]
    guards: tuple[Poly, ...]
    pins: tuple[tuple[Var, int], ...] = ()

    def pinned(self, v: Var, value: int) -> Access:
        """The access in one iteration of a loop."""
        return replace(self, pins=(*self.pins, (v, value)))


@dataclass(frozen=True)
class _Place:
    """Where a statement stands: the serial loops around it, and the conditions `< 0` of the branches."""

    loops: tuple[For, ...]
    guards: tuple[Poly, ...]

    def under(self, cond: Expr) -> _Place:
        """The place inside a branch."""
        return _Place(self.loops, (*self.guards, cond.index)) if type(cond) is IsNegative and cond.lanes == 1 else self


@dataclass(frozen=True)
class Part:
    """A statement with its barriers.

    Attributes:
        stmt: the statement; None when it has not changed.
        head: accesses that may be reached without a barrier before them.
        tail: accesses that may leave it without a barrier behind them.
        waits: every way through it meets a barrier.
    """

    stmt: Stmt
    head: tuple[Access, ...]
    tail: tuple[Access, ...]
    waits: bool


@function_pass(needs="FLAT")
def insert_barriers(func: PrimFunc, target: Target) -> PrimFunc:
    """Insert barriers; see the module's text.

    Raises:
        BuildError: threads would have to wait in a branch that not all of them take.
    """
    return map_kernels(func, lambda k: _kernel(func.name, k))


def _kernel(name: str, n: Stmt) -> Stmt:
    threads: list[For] = []
    blocks: list[For] = []
    inner: Any = n
    while type(inner) is Allocate or (type(inner) is For and inner.thread in (*BLOCK_AXES, *THREAD_AXES)):
        if type(inner) is For and inner.thread in THREAD_AXES:
            threads.append(inner)
        elif type(inner) is For:
            blocks.append(inner)
        inner = inner.body
    if prod([f.extent.as_int() for f in threads]) == 1:
        return n
    body = _Barriers(name, n, threads, blocks).part(inner, _Place((), ()), True).stmt
    return n if body is inner else _replaced(n, inner, body)


def _replaced(n: Any, old: Stmt, new: Stmt) -> Stmt:
    return new if n is old else n.with_(body=_replaced(n.body, old, new))


def _with_body(n: Any, body: Stmt) -> Stmt:
    return n if body is n.body else n.with_(body=body)


class _Barriers:
    """One kernel."""

    def __init__(self, name: str, root: Stmt, threads: Sequence[For], blocks: Sequence[For]) -> None:
        self.name = name
        self.blocks = {f.var: f.extent.const for f in blocks}
        self.threads = list(threads)
        self.owners = {f.var for f in threads}
        stored = {x.buffer for x in walk_objects(root) if type(x) is BufferStore and x.buffer.scope in COMMON_SCOPES}
        loaded = {x.buffer for x in walk_objects(root) if type(x) is BufferLoad}
        self.shared = stored & loaded
        """Buffers in which threads may meet: what nobody stores to is the same for all, and what nobody loads is looked at later."""
        self.known: dict[tuple[Access, Access, int, Any], bool] = {}

    def part(self, n: Stmt, at: _Place, uniform: bool) -> Part:
        """The statement with barriers; `uniform`: all threads reach it, equally often."""
        if type(n) is Seq:
            return self._sequence(n, at, uniform)
        if type(n) is For:
            return self._loop(n, at, uniform)
        if type(n) is If:
            same = uniform and self._uniform(n.cond)
            parts = [self.part(k, p, same) for k, p in ((n.then, at.under(n.cond)), (n.orelse, at)) if k is not None]
            then, orelse = parts[0].stmt, parts[1].stmt if len(parts) > 1 else None
            made = n if then is n.then and orelse is n.orelse else n.with_(then=then, orelse=orelse)
            heads = tuple([a for p in parts for a in p.head])
            tails = tuple([a for p in parts for a in p.tail])
            waits = len(parts) > 1 and all(p.waits for p in parts)
            asked = tuple(self._accesses(n.cond, at))
            # No barrier fits between a condition and its branches, which those who take them enter while others still read.
            self._check(not self._conflict(asked, heads, at.loops, None), n)
            return Part(made, (*asked, *heads), tails if waits else (*asked, *tails), waits)
        if type(n) is Allocate:
            inside = self.part(n.body, at, uniform)
            return Part(_with_body(n, inside.stmt), inside.head, inside.tail, inside.waits)
        if type(n) is Evaluate and type(n.value) is Call and n.value.name == "barrier":
            return Part(n, (), (), True)
        found = tuple(self._accesses(n, at))
        return Part(n, found, found, False)

    def _sequence(self, n: Seq, at: _Place, uniform: bool) -> Part:
        out: list[Stmt] = []
        head: list[Access] = []
        pending: tuple[Access, ...] = ()
        waited = False
        for k in n.stmts:
            p = self.part(k, at, uniform)
            if self._conflict(pending, p.head, at.loops, None):
                self._check(uniform, k)
                out.append(barrier())
                pending, waited = (), True
            if not waited:
                head += p.head
            pending = p.tail if p.waits else (*pending, *p.tail)
            waited = waited or p.waits
            out.append(p.stmt)
        same = len(out) == len(n.stmts) and all(a is b for a, b in zip(out, n.stmts, strict=True))
        return Part(n if same else seq(out), tuple(head), pending, waited)

    def _loop(self, n: For, at: _Place, uniform: bool) -> Part:
        same = uniform and n.extent.vars.isdisjoint(self.owners)
        body = self.part(n.body, _Place((*at.loops, n), at.guards), same)
        # It may run no time at all, unless the number says otherwise.
        count = n.extent.const or 0
        if count == 1 or not self._conflict(body.tail, body.head, at.loops, (n, body.waits)):
            made, head, waits = _with_body(n, body.stmt), body.head, body.waits
        else:
            self._check(same, n)
            made, head, waits = n.with_(body=seq([barrier(), body.stmt])), (), True
        tail = body.tail
        if waits:
            # Where each step waits, what comes before the loop reaches its first step, and what comes after it only the last one.
            head = tuple([a.pinned(n.var, 0) for a in head])
            tail = tuple([a.pinned(n.var, count - 1) for a in tail]) if count else tail
        return Part(made, head, tail, waits and count > 0)

    def _check(self, uniform: bool, n: Stmt) -> None:
        if not uniform:
            raise BuildError(
                f"{self.name}: threads would have to wait for each other in a branch or a loop that not all of them take. Make its "
                "condition one that does not depend on the thread"
            )

    def _uniform(self, cond: Any) -> bool:
        for x in walk(cond):
            if type(x) is Poly and not x.vars.isdisjoint(self.owners):
                return False
            if type(x) is BufferLoad:
                return False
        return True

    def _accesses(self, n: Stmt | Expr, at: _Place) -> Iterable[Access]:
        for x in walk_objects(n):
            if type(x) in (BufferLoad, BufferStore) and x.buffer in self.shared:
                is_write = type(x) is BufferStore
                count = _lanes(x)
                stride = 1 if x.stride is None else x.stride.const
                yield Access(x.buffer, x.indices[0], (count, stride if stride is not None else 0), is_write, at.loops, at.guards)

    # ---- who touches what ----------------------------------------------------------------------------------------------

    def _conflict(self, before: Iterable[Access], after: Iterable[Access], around: tuple[For, ...], loop: tuple[For, bool] | None) -> bool:
        """Whether two threads touch one cell, one of them writing, in one iteration of the loops around.  With a loop: the second access is
        of a later iteration, of the next one if there is a barrier in the body."""
        return any(
            a.buffer is b.buffer and (a.is_write or b.is_write) and self._conflicting(a, b, around, loop) for a in before for b in after
        )

    def _conflicting(self, a: Access, b: Access, around: tuple[For, ...], loop: tuple[For, bool] | None) -> bool:
        key = (a, b, len(around), loop)
        if key not in self.known:
            self.known[key] = self._touching(a, b, around, loop)
        return self.known[key]

    def _touching(self, a: Access, b: Access, around: tuple[For, ...], loop: tuple[For, bool] | None) -> bool:
        # Loops further in are at a step of their own in each access, even if both accesses stand in them.
        common = [f for f in around if f.var in a.index.vars or f.var in b.index.vars]
        # What is around both has one value: it matters only as a number of a version.
        used = {v for x in (a, b) for p in (x.index, *x.guards) for v in p.vars}
        grid = self._grid(used)
        fixed = {v for x in (a, b) for v in x.index.vars} - self.owners - {f.var for x in (a, b) for f in x.loops} - set(grid)
        if any(not _cancels(v, a.index, b.index) for v in fixed):
            return True
        # Loops on which versions of a buffer depend take the values of one period; of others all iterations are put together.
        values = {f.var: range(n) for f in common if (n := _period(f.var, a.index, b.index)) is not None}
        stepped = [*common, *([] if loop is None else [loop[0]])]
        every = {f.var for f in stepped if (f.extent.const or MAX_POINTS) <= (_period(f.var, a.index, b.index) or 0)}
        for at in _points({**grid, **{v: (0,) for v in fixed}, **values}):
            for first, second in self._steps(a, b, loop):
                if self._overlap(a, b, {**at, **first}, {**at, **second}, every | set(grid)):
                    return True
        return False

    def _grid(self, used: set[Var]) -> dict[Var, Iterable[int]]:
        """Blocks to look at, by variable, where they make a difference and are few; else none of their variables."""
        extents = {v: n for v, n in self.blocks.items() if v in used}
        few = all(n is not None for n in extents.values()) and prod([n or 0 for n in extents.values()]) <= MAX_BLOCKS
        return {v: range(n or 0) for v, n in extents.items()} if few else {}

    @staticmethod
    def _steps(a: Access, b: Access, loop: tuple[For, bool] | None) -> Iterable[tuple[dict[Var, int], dict[Var, int]]]:
        """Pairs of iterations of the loop that stand for all; none of the values is fixed where all are put together."""
        n = None if loop is None else _period(loop[0].var, a.index, b.index)
        if loop is None or n is None:
            return [({}, {})]
        var, extent = loop[0].var, loop[0].extent.const or n + 2
        ahead = 2 if loop[1] else n + 1
        return [({var: i}, {var: j}) for i in range(min(n, extent)) for j in range(i + 1, min(i + ahead, extent))]

    def _overlap(self, a: Access, b: Access, first: Mapping[Var, int], second: Mapping[Var, int], every: set[Var]) -> bool:
        one, two = self._cells(a, first, every), self._cells(b, second, every)
        if one is None or two is None:
            return True
        (cells, owner), (others, other) = one, two
        if not cells.size or not others.size:
            return False
        low = min(int(cells.min()), int(others.min()))
        size = max(int(cells.max()), int(others.max())) - low + 1
        least = np.full(size, np.iinfo(np.int64).max)
        most = np.full(size, -1)
        np.minimum.at(least, cells - low, owner)
        np.maximum.at(most, cells - low, owner)
        touched = most[others - low] >= 0
        alone = (least[others - low] == other) & (most[others - low] == other)
        return bool(np.any(touched & ~alone))

    def _cells(self, a: Access, values: Mapping[Var, int], every: set[Var]) -> tuple[np.ndarray, np.ndarray] | None:
        """(cell, thread) of each access that no guard keeps out; None if there are too many.  A guard on a loop of which one step stands
        for all says nothing."""
        known = self.owners | every | ({f.var for f in a.loops} - set(values))
        guards = [g for g in a.guards if g.vars <= known]
        values = {**values, **dict(a.pins)}
        used = a.index.vars.union(*[g.vars for g in guards])
        inner = [f for f in a.loops if f.var in used and f.var not in values]
        loops = [*self.threads, *inner]
        if any(f.extent.const is None for f in loops) or a.lanes[1] == 0:
            return None
        extents = [f.extent.as_int() for f in loops]
        if prod(extents) * a.lanes[0] > MAX_POINTS:
            return None
        points = np.indices(extents, dtype=np.int64).reshape(len(extents), -1)
        size = points.shape[1]
        grid: dict[Var, Any] = {f.var: points[i] for i, f in enumerate(loops)} | dict(values)
        cells = values_at(a.index, grid, size)
        owner = np.zeros(size, np.int64)
        for i, _ in enumerate(self.threads):
            owner = owner * extents[i] + points[i]
        runs = np.ones(size, bool)
        for g in guards:
            runs &= values_at(g, grid, size) < 0
        cells, owner = cells[runs], owner[runs]
        if a.lanes[0] > 1:
            cells = (cells[:, None] + np.arange(a.lanes[0]) * a.lanes[1]).ravel()
            owner = np.repeat(owner, a.lanes[0])
        return cells, owner


def _lanes(x: Any) -> int:
    return int(x.lanes) if type(x) is BufferLoad else dt.lanes(x.value.dtype)


def _cancels(v: Var, a: Poly, b: Poly) -> bool:
    """Whether a variable that has one value adds the same to both."""
    return _part(v, a) == _part(v, b) and all(len(m) == 1 for p in (a, b) for m, _ in p.terms if any(v in x.vars for x in m))


def _part(v: Var, p: Poly) -> dict[Any, int]:
    return {m: c for m, c in p.terms if any(v in x.vars for x in m)}


def _period(v: Var, a: Poly, b: Poly) -> int | None:
    """After how many steps of the variable both indices are the same again; None if they never are."""
    period = 1
    for p in (a, b):
        for m, _ in p.terms:
            for x in m:
                if v not in x.vars:
                    continue
                divisor = x.args[1].const if type(x) is Op and x.op == "mod" else None
                if divisor is None or type(x) is not Op or any(type(y) is Op for n, _ in x.args[0].terms for y in n):
                    return None
                period = lcm(period, divisor)
    return period


def _points(ranges: Mapping[Var, Iterable[int]]) -> Iterable[dict[Var, int]]:
    out: list[dict[Var, int]] = [{}]
    for v, values in ranges.items():
        out = [{**p, v: x} for p in out for x in values]
    return out
