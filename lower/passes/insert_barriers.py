"""Insert barriers between conflicting accesses of different threads of a block to shared or global memory.

The pass runs when every access to memory in common scopes is final.  The elements that each thread accesses are enumerated, so that
a thread that reads only its own values needs no barrier, and a double-buffered tile needs one barrier per iteration.
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
from tunesmith.ir.stmt import Allocate, BufferStore, Evaluate, For, If, Seq, Stmt, While, barrier, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk, walk_objects
from tunesmith.lower.kernels import map_kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

MAX_BLOCKS = 64
"""Limit on the enumerated blocks where a guard depends on the block; with more blocks, such guards are assumed to hold."""
MAX_POINTS = 1 << 18
"""Limit on the enumerated accesses of a statement; with more, any two threads are assumed to conflict."""


@dataclass(frozen=True)
class Access:
    """One load or store of memory that is common to several threads.

    Attributes:
        buffer: the buffer.
        index: the index of the first lane.
        lanes: (number, stride).
        is_write: whether it is a store.
        loops: enclosing serial loops, outermost first.
        guards: conditions `< 0` of the enclosing branches.
        pins: (variable, value) of loops of which only one iteration can conflict, because barriers separate the others.
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
class _Context:
    """The serial loops and the branch conditions `< 0` around a statement."""

    loops: tuple[For, ...]
    guards: tuple[Poly, ...]

    def under(self, cond: Expr) -> _Context:
        """The context inside a branch."""
        return _Context(self.loops, (*self.guards, cond.index)) if type(cond) is IsNegative and cond.lanes == 1 else self


@dataclass(frozen=True)
class Part:
    """A statement with its barriers.

    Attributes:
        stmt: the statement.
        head: accesses that may have no barrier of the statement before them.
        tail: accesses that may have no barrier of the statement after them.
        has_barrier: whether every path through the statement contains a barrier.
    """

    stmt: Stmt
    head: tuple[Access, ...]
    tail: tuple[Access, ...]
    has_barrier: bool


@function_pass(requires="FLAT", needed_by="kernels whose threads share memory")
def insert_barriers(func: PrimFunc, target: Target) -> PrimFunc:
    """Insert barriers into each kernel.

    Raises:
        BuildError: a barrier would be needed in a branch or a loop that not all threads take.
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
    body = _Barriers(name, n, threads, blocks).part(inner, _Context((), ()), True).stmt
    return n if body is inner else _replaced(n, inner, body)


def _replaced(n: Any, old: Stmt, new: Stmt) -> Stmt:
    return new if n is old else n.with_(body=_replaced(n.body, old, new))


def _with_body(n: Any, body: Stmt) -> Stmt:
    return n if body is n.body else n.with_(body=body)


class _Barriers:
    """The insertion of barriers into one kernel."""

    def __init__(self, name: str, root: Stmt, threads: Sequence[For], blocks: Sequence[For]) -> None:
        self.name = name
        self.blocks = {f.var: f.extent.const for f in blocks}
        self.threads = list(threads)
        self.thread_vars = {f.var for f in threads}
        stored = {x.buffer for x in walk_objects(root) if type(x) is BufferStore and x.buffer.scope in COMMON_SCOPES}
        loaded = {x.buffer for x in walk_objects(root) if type(x) is BufferLoad}
        self.shared = stored & loaded
        """Buffers with possible conflicts: those that are both stored and loaded in the kernel."""
        self.cache: dict[tuple[Access, Access, int, Any], bool] = {}

    def part(self, n: Stmt, at: _Context, uniform: bool) -> Part:
        """The statement with barriers; `uniform`: all threads execute it equally often."""
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
            has_barrier = len(parts) > 1 and all(p.has_barrier for p in parts)
            condition_accesses = tuple(self._accesses(n.cond, at))
            # No barrier fits between a condition and its branches: some threads enter a branch while others still read.
            self._check(not self._conflict(condition_accesses, heads, at.loops, None), n)
            return Part(made, (*condition_accesses, *heads), tails if has_barrier else (*condition_accesses, *tails), has_barrier)
        if type(n) is While:
            found = tuple(self._accesses(n, at))
            self._check(not self._conflict(found, found, at.loops, None), n)  # no barrier fits into it: threads leave it at different times
            return Part(n, found, found, False)
        if type(n) is Allocate:
            inside = self.part(n.body, at, uniform)
            return Part(_with_body(n, inside.stmt), inside.head, inside.tail, inside.has_barrier)
        if type(n) is Evaluate and type(n.value) is Call and n.value.name == "barrier":
            return Part(n, (), (), True)
        found = tuple(self._accesses(n, at))
        return Part(n, found, found, False)

    def _sequence(self, n: Seq, at: _Context, uniform: bool) -> Part:
        out: list[Stmt] = []
        head: list[Access] = []
        pending: tuple[Access, ...] = ()
        seen_barrier = False
        for k in n.stmts:
            p = self.part(k, at, uniform)
            if self._conflict(pending, p.head, at.loops, None):
                self._check(uniform, k)
                out.append(barrier())
                pending, seen_barrier = (), True
            if not seen_barrier:
                head += p.head
            pending = p.tail if p.has_barrier else (*pending, *p.tail)
            seen_barrier = seen_barrier or p.has_barrier
            out.append(p.stmt)
        same = len(out) == len(n.stmts) and all(a is b for a, b in zip(out, n.stmts, strict=True))
        return Part(n if same else seq(out), tuple(head), pending, seen_barrier)

    def _loop(self, n: For, at: _Context, uniform: bool) -> Part:
        same = uniform and n.extent.vars.isdisjoint(self.thread_vars)
        body = self.part(n.body, _Context((*at.loops, n), at.guards), same)
        # A loop of unknown extent may run zero times.
        count = n.extent.const or 0
        if count == 1 or not self._conflict(body.tail, body.head, at.loops, (n, body.has_barrier)):
            made, head, has_barrier = _with_body(n, body.stmt), body.head, body.has_barrier
        else:
            self._check(same, n)
            made, head, has_barrier = n.with_(body=seq([barrier(), body.stmt])), (), True
        tail = body.tail
        if has_barrier:
            # With a barrier in each iteration, accesses before the loop conflict only with the first one, accesses after it with the last.
            head = tuple([a.pinned(n.var, 0) for a in head])
            tail = tuple([a.pinned(n.var, count - 1) for a in tail]) if count else tail
        return Part(made, head, tail, has_barrier and count > 0)

    def _check(self, uniform: bool, n: Stmt) -> None:
        if not uniform:
            raise BuildError(
                f"{self.name}: a barrier is needed in a branch or a loop that not all threads of a block take. Make its condition "
                "independent of the thread"
            )

    def _uniform(self, cond: Any) -> bool:
        for x in walk(cond):
            if type(x) is Poly and not x.vars.isdisjoint(self.thread_vars):
                return False
            if type(x) is BufferLoad:
                return False
        return True

    def _accesses(self, n: Stmt | Expr, at: _Context) -> Iterable[Access]:
        for x in walk_objects(n):
            if type(x) in (BufferLoad, BufferStore) and x.buffer in self.shared:
                is_write = type(x) is BufferStore
                count = _lanes(x)
                stride = 1 if x.stride is None else x.stride.const
                yield Access(x.buffer, x.indices[0], (count, stride if stride is not None else 0), is_write, at.loops, at.guards)

    # ---- conflicts -----------------------------------------------------------------------------------------------------

    def _conflict(self, before: Iterable[Access], after: Iterable[Access], around: tuple[For, ...], loop: tuple[For, bool] | None) -> bool:
        """Whether two threads access one element, one of them with a store, in one iteration of the loops around.

        With a loop, the second access is in a later iteration of it; in the next one, if its body contains a barrier.
        """
        return any(
            a.buffer is b.buffer and (a.is_write or b.is_write) and self._accesses_conflict(a, b, around, loop)
            for a in before
            for b in after
        )

    def _accesses_conflict(self, a: Access, b: Access, around: tuple[For, ...], loop: tuple[For, bool] | None) -> bool:
        key = (a, b, len(around), loop)
        if key not in self.cache:
            self.cache[key] = self._compute_conflict(a, b, around, loop)
        return self.cache[key]

    def _compute_conflict(self, a: Access, b: Access, around: tuple[For, ...], loop: tuple[For, bool] | None) -> bool:
        # Inner loops are at independent iterations in the two accesses, even if both are inside them.
        common = [f for f in around if f.var in a.index.vars or f.var in b.index.vars]
        # Loops around both accesses have one value, which matters only as the index of a buffer version.
        used = {v for x in (a, b) for p in (x.index, *x.guards) for v in p.vars}
        grid = self._grid(used)
        fixed = {v for x in (a, b) for v in x.index.vars} - self.thread_vars - {f.var for x in (a, b) for f in x.loops} - set(grid)
        if any(not _cancels(v, a.index, b.index) for v in fixed):
            return True
        # Loops that select a buffer version take the values of one period; the iterations of other loops are merged.
        values = {f.var: range(n) for f in common if (n := _period(f.var, a.index, b.index)) is not None}
        iterated = [*common, *([] if loop is None else [loop[0]])]
        every = {f.var for f in iterated if (f.extent.const or MAX_POINTS) <= (_period(f.var, a.index, b.index) or 0)}
        for at in _points({**grid, **{v: (0,) for v in fixed}, **values}):
            for first, second in self._steps(a, b, loop):
                if self._overlap(a, b, {**at, **first}, {**at, **second}, every | set(grid)):
                    return True
        return False

    def _grid(self, used: set[Var]) -> dict[Var, Iterable[int]]:
        """The blocks to enumerate, by variable, if accesses depend on them and they are few; else empty."""
        extents = {v: n for v, n in self.blocks.items() if v in used}
        few = all(n is not None for n in extents.values()) and prod([n or 0 for n in extents.values()]) <= MAX_BLOCKS
        return {v: range(n or 0) for v, n in extents.items()} if few else {}

    @staticmethod
    def _steps(a: Access, b: Access, loop: tuple[For, bool] | None) -> Iterable[tuple[dict[Var, int], dict[Var, int]]]:
        """Representative pairs of iterations of the loop; no value is fixed if all iterations are merged."""
        n = None if loop is None else _period(loop[0].var, a.index, b.index)
        if loop is None or n is None:
            return [({}, {})]
        var, extent = loop[0].var, loop[0].extent.const or n + 2
        ahead = 2 if loop[1] else n + 1
        return [({var: i}, {var: j}) for i in range(min(n, extent)) for j in range(i + 1, min(i + ahead, extent))]

    def _overlap(self, a: Access, b: Access, first: Mapping[Var, int], second: Mapping[Var, int], every: set[Var]) -> bool:
        one, two = self._elements(a, first, every), self._elements(b, second, every)
        if one is None or two is None:
            return True
        (elements, owner), (others, other) = one, two
        if not elements.size or not others.size:
            return False
        low = min(int(elements.min()), int(others.min()))
        size = max(int(elements.max()), int(others.max())) - low + 1
        least = np.full(size, np.iinfo(np.int64).max)
        most = np.full(size, -1)
        np.minimum.at(least, elements - low, owner)
        np.maximum.at(most, elements - low, owner)
        accessed = most[others - low] >= 0
        same_thread = (least[others - low] == other) & (most[others - low] == other)
        return bool(np.any(accessed & ~same_thread))

    def _elements(self, a: Access, values: Mapping[Var, int], every: set[Var]) -> tuple[np.ndarray, np.ndarray] | None:
        """(elements, threads) of all accesses that the guards allow; None if there are too many.

        Guards on a loop with a representative iteration are ignored, and where too many points would be enumerated otherwise, guards on
        loops that the index does not contain.
        """
        known = self.thread_vars | every | ({f.var for f in a.loops} - set(values))
        values = {**values, **dict(a.pins)}
        guards = [g for g in a.guards if g.vars <= known]
        loops = self._enumerated(a, guards, values)
        if any(f.extent.const is None for f in loops) or a.lanes[1] == 0:
            return None
        if prod([f.extent.as_int() for f in loops]) * a.lanes[0] > MAX_POINTS:
            guards = [g for g in guards if g.vars <= a.index.vars | self.thread_vars | set(values)]
            loops = self._enumerated(a, guards, values)
        extents = [f.extent.as_int() for f in loops]
        if prod(extents) * a.lanes[0] > MAX_POINTS:
            return None
        points = np.indices(extents, dtype=np.int64).reshape(len(extents), -1)
        size = points.shape[1]
        grid: dict[Var, Any] = {f.var: points[i] for i, f in enumerate(loops)} | dict(values)
        elements = values_at(a.index, grid, size)
        owner = np.zeros(size, np.int64)
        for i, _ in enumerate(self.threads):
            owner = owner * extents[i] + points[i]
        runs = np.ones(size, bool)
        for g in guards:
            runs &= values_at(g, grid, size) < 0
        elements, owner = elements[runs], owner[runs]
        if a.lanes[0] > 1:
            elements = (elements[:, None] + np.arange(a.lanes[0]) * a.lanes[1]).ravel()
            owner = np.repeat(owner, a.lanes[0])
        return elements, owner

    def _enumerated(self, a: Access, guards: Iterable[Poly], values: Mapping[Var, int]) -> list[For]:
        """The loops of the threads, and those without a value on which the index or a guard depends."""
        used = a.index.vars.union(*[g.vars for g in guards])
        return [*self.threads, *[f for f in a.loops if f.var in used and f.var not in values]]


def _lanes(x: Any) -> int:
    return int(x.lanes) if type(x) is BufferLoad else dt.lanes(x.value.dtype)


def _cancels(v: Var, a: Poly, b: Poly) -> bool:
    """Whether a variable with the same value in both indices contributes the same term to both."""
    return _part(v, a) == _part(v, b) and all(len(m) == 1 for p in (a, b) for m, _ in p.terms if any(v in x.vars for x in m))


def _part(v: Var, p: Poly) -> dict[Any, int]:
    return {m: c for m, c in p.terms if any(v in x.vars for x in m)}


def _period(v: Var, a: Poly, b: Poly) -> int | None:
    """The period of both indices in the variable; None if they are not periodic."""
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
