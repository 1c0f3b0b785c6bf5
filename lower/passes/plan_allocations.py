"""plan_allocations: an intermediate buffer is allocated in the innermost loop that holds all its uses and passes none of its values to
another iteration, and shrinks to what is accessed there.

Memory of one thread that lives longer than one iteration of a parallel loop which uses it has no meaning, and is refused.  On a GPU,
memory of a thread shrinks to what that thread touches, also where others touch what lies between; memory that the threads of a block share
holds what all of them touch, and is allocated outside of their loops.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tunesmith.ir.analysis.guarded_accesses import GuardedAccess, guarded_accesses
from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.arith.interval import bounds, nested_interval
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, SHARED_SCOPES, is_block_axis
from tunesmith.ir.poly import ZERO, Op, Poly, Var, minimum, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, walk
from tunesmith.lower.loop_carried import carries_values
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier, symbol_ranges
from tunesmith.support.errors import BuildError

MAX_POINTS = 1 << 17
"""Iterations that are looked at one by one."""
MAX_NESTED = 32
"""Allocations of a function for CPUs that become statements around each other; passes walk into them by recursion."""
MAX_TILE = 1 << 16
"""Elements along a dimension whose extent comes with the call: beyond, a bound is no tile but what such extents can be at most, and the
buffer keeps its dimension."""


@function_pass(needs="OPAQUE")
def plan_allocations(func: PrimFunc, target: Target) -> PrimFunc:
    """Allocations of the function become `Allocate` statements with compacted shapes (source: TVM's CompactBufferAllocation).

    Raises:
        BuildError: a buffer that is private to a thread is used inside a parallel loop and allocated outside, or by other threads of a GPU;
            a buffer passes values from one iteration of a parallel loop to another; threads or blocks add to one element.
    """
    body, kept = _placed(func, target) if func.allocs else (func.body, ())
    _check_private(func.name, body, ())
    if not func.allocs:
        return func
    return func.with_(body=body, allocs=kept)


def _placed(func: PrimFunc, target: Target) -> tuple[Stmt, tuple[Buffer, ...]]:
    """The body with its allocations, and those that stay with the function, lest they nest too deeply.

    Statements of the function that do not use a buffer are not looked at for it.
    """
    parts = list(func.body.stmts) if type(func.body) is Seq else [func.body]
    users: dict[Buffer, dict[int, None]] = {b: {} for b in func.allocs}
    for i, part in enumerate(parts):
        for n in walk(part):
            if type(n) in (BufferLoad, BufferStore) and n.buffer in users:
                users[n.buffer][i] = None
    outside: list[Buffer] = []
    for b in func.allocs:
        at = list(users[b])
        if target.is_gpu and b.scope == "global":
            outside.insert(0, b)  # kernels find it where they left it
        elif len(at) == 1:
            parts[at[0]] = _place(func, parts[at[0]], b, Simplifier(symbol_ranges(func)), target)
        elif at:
            using = Seq(tuple([parts[i] for i in at]))
            made: Any = _allocate(func.name, using, b, Simplifier(symbol_ranges(func)), target, {})
            outside.append(made.buffer)
            for i, part in zip(at, made.body.stmts, strict=True):
                parts[i] = part
    body = func.body
    if type(body) is not Seq:
        body = parts[0]
    elif any(a is not b for a, b in zip(parts, body.stmts, strict=True)):
        body = Seq(tuple(parts))
    nested = outside if target.is_gpu else outside[:MAX_NESTED]
    for b in reversed(nested):
        body = Allocate(b, body)
    return body, tuple(outside[len(nested) :])


def _check_private(name: str, n: Stmt, private: tuple[Buffer, ...]) -> None:
    """Refuse what the module's text says; `private` are buffers that are allocated around `n`, each thread's own."""
    if type(n) is BufferStore:
        return
    if type(n) is Allocate and n.buffer.scope != "global":
        private = (*private, n.buffer)
    if type(n) is For and (n.kind == "parallel" or n.thread in BLOCK_AXES):
        for b in private:
            if _uses(n.body, b):
                raise BuildError(
                    f"{name}: the buffer {b.name} of scope {b.scope} is each thread's own, but it is allocated outside the "
                    f"{n.thread or n.kind} loop {n.var} and used inside, where other threads would not find what was written to it. Give "
                    "it the scope global (set_scope), or make it inside the loop (compute_at), or leave the loop serial"
                )
    n.each_child(lambda k: _check_private(name, k, private) if isinstance(k, Stmt) else None)


def _uses(n: Any, b: Buffer) -> bool:
    return any(type(x) in (BufferLoad, BufferStore) and x.buffer is b for x in walk(n))


def _place(func: PrimFunc, n: Stmt, b: Buffer, s: Simplifier, target: Target) -> Stmt:
    """Allocate the buffer around the innermost statement that has all its uses, and outside of loops that pass its values on."""
    path = _path(n, b, s)
    sizes = frozenset(p for p in func.params if isinstance(p, Var))
    depth = len(path) - 1
    threads = {f.var: f.extent - 1 for f in walk(n) if type(f) is For and _is_thread(f)} if b.scope in SHARED_SCOPES else {}
    for at in reversed(range(depth)):
        loop = path[at]
        if type(loop) is not For or (loop.kind == "thread" and target.is_gpu) or loop.extent == 1:
            continue  # loops that are bound are serial on a CPU, and judged by verify_thread_access for a GPU
        carried = carries_values(loop, b, s, threads, sizes)
        if carried is False:
            break
        if carried:
            if loop.kind == "parallel":
                raise BuildError(
                    f"{func.name}: the buffer {b.name} may pass values from one iteration of the parallel loop {loop.var} to another. "
                    "Leave the loop serial, or write in each iteration all that it reads"
                )
            depth = at
    sharing = {f.var: threads[f.var] for f in path[:depth] if type(f) is For and f.var in threads}
    for f in path[depth:]:
        if type(f) is For:
            s.ranges.pop(f.var, None)
    new = _allocate(func.name, path[depth], b, s, target, sharing)
    for at in reversed(range(depth)):
        new = _with_child(path[at], path[at + 1], new)
    return new


def _with_child(n: Stmt, old: Stmt, new: Stmt) -> Stmt:
    return n.map_children(lambda k: new if k is old else k)


def _is_thread(f: For) -> bool:
    return f.kind == "thread" and not is_block_axis(f.thread)


def _path(n: Stmt, b: Buffer, s: Simplifier) -> list[Stmt]:
    """The statements from `n` down to the innermost one that has all uses of the buffer; `s` learns the ranges of the loops."""
    path = [n]
    while type(n) is not BufferStore:
        kids = _children(n)
        using = [k for k in kids if isinstance(k, Stmt) and _uses(k, b)]
        if len(using) != 1 or any(not isinstance(k, Stmt) and _uses(k, b) for k in kids):
            break
        if type(n) is For:
            s.ranges[n.var] = (0, s.bounds(n.extent)[1] - 1)
        n = using[0]
        path.append(n)
    return path


def _children(n: Stmt) -> list[Any]:
    out: list[Any] = []
    n.each_child(out.append)
    return out


def _allocate(name: str, n: Stmt, b: Buffer, s: Simplifier, target: Target, sharing: dict[Var, Poly]) -> Stmt:
    accesses = guarded_accesses(n, b, sharing)
    inner = {x.var: (0, s.bounds(x.extent)[1] - 1) for x in walk(n) if type(x) is For and x.extent.const is not None}
    lows, shape = _box(b, accesses, s, inner)
    loads = [a for a in accesses if not a.is_write]
    if b.scope in SHARED_SCOPES and loads:
        # The last turn of the threads that fill a tile may go beyond it, under a guard.
        tight = _box(b, loads, s, inner)
        known = dict(s.ranges)
        for x in walk(n):
            if type(x) is For:
                known[x.var] = (0, bounds(x.extent, known)[1] - 1)
        if all(_is_inside(a, *tight, Simplifier(known)) for a in accesses if a.is_write):
            lows, shape = tight
    if b.scope == "register" and shape:
        width = target.vector_lanes(b.dtype)
        if any(e.const is None for e in shape):
            raise BuildError(
                f"{name}: the buffer {b.name} of scope register holds {' x '.join(map(str, shape))} elements, and registers need numbers. "
                "Split the loops whose extents come with the call, or give the buffer the scope global (set_scope)"
            )
        last = shape[-1].as_int()
        shape[-1] = poly(last if last == 1 else -(-last // width) * width)
    new = b.like(shape=shape)

    def on_access(x: Any, recurse: Any) -> Any:
        m = x.map_children(recurse)
        if x.buffer is not b:
            return m
        # Of one element an index within the buffer is 0, whatever it looks like.
        single = [b.scope == "local" and low == 0 and e == 1 == dim for low, e, dim in zip(lows, shape, b.shape, strict=True)]
        moved = zip(m.indices, lows, single, strict=True)
        return m.with_(buffer=new, indices=tuple([ZERO if only else i - low for i, low, only in moved]))

    out = Allocate(new, transform(n, {BufferLoad: on_access, BufferStore: on_access}))
    return out


def _box(b: Buffer, accesses: list[GuardedAccess], s: Simplifier, inner: dict[Var, tuple[int, int]]) -> tuple[list[Poly], list[Poly]]:
    """Lowest index and extent of what the accesses touch, for each dimension."""
    boxes = [[nested_interval(i, a.ranges) for i in a.indices] for a in accesses]
    lows: list[Poly] = []
    shape: list[Poly] = []
    for d, dim in enumerate(b.shape):
        low = minimum(*[s.index(box[d][0]) for box in boxes])
        extents = [_extent(box[d][1], low, s, inner) for box in boxes]
        if any(e is None for e in extents) or any(type(a) is Op and a.op == "min" for m, _ in low.terms for a in m):
            low, extent = ZERO, dim
        else:
            extent = poly(max(e for e in extents if e is not None))
            # A tile of a GPU keeps its size where it is larger than the buffer: what is beyond is filled, or never looked at.
            fixed = dim.const is not None and b.scope in ("local", *SHARED_SCOPES)
            if (not fixed or extent.as_int() > 64 * MAX_TILE) and (MAX_TILE if dim.const is None else dim.const) < extent.as_int():
                low, extent = ZERO, dim
        lows.append(low)
        shape.append(extent)
    return lows, shape


def _is_inside(a: GuardedAccess, lows: list[Poly], shape: list[Poly], s: Simplifier) -> bool:
    """Whether the access, where its guards on the loops inside hold, stays in the box: every iteration is looked at."""
    indices = [s.index(i - low) for i, low in zip(a.indices, lows, strict=True)]
    guards = [g for g in a.guards if all(v in a.ranges for v in g.vars)]
    used = {v for p in (*indices, *guards) for v in p.vars}
    if not used <= set(a.ranges) or any(a.ranges[v].const is None for v in used) or any(e.const is None for e in shape):
        return False
    extents = {v: a.ranges[v].as_int() + 1 for v in used}
    size = math.prod(extents.values())
    if size > MAX_POINTS:
        return False
    grid: Any = np.indices(list(extents.values()), dtype=np.int64).reshape(len(extents), -1) if extents else ()
    points = dict(zip(extents, grid, strict=True))
    runs = np.ones(size, bool)
    for g in guards:
        runs &= values_at(g, points, size) < 0
    at = [values_at(i, points, size)[runs] for i in indices]
    return all(not x.size or (x.min() >= 0 and x.max() < e.as_int()) for x, e in zip(at, shape, strict=True))


def _extent(high: Poly, low: Poly, s: Simplifier, inner: dict[Var, tuple[int, int]]) -> int | None:
    e = s.index(high - low + 1)
    if e.const is not None:
        return e.const
    known = {**s.ranges, **inner}
    return bounds(e, known)[1] if all(v in known for v in e.vars) else None
