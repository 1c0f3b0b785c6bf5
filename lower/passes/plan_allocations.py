"""Allocate intermediate buffers in the innermost loop that carries none of their values, with compacted shapes.

The loop contains all uses of the buffer, and the shape is the footprint of the accesses inside.  Thread-private memory that is allocated
outside a parallel loop and used inside is an error.  On a GPU, thread-private memory shrinks to the footprint of one thread, even if the
footprints of threads interleave; shared memory has the footprint of all threads of a block and is allocated outside their loops.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tunesmith.ir.analysis.guarded_accesses import GuardedAccess, guarded_accesses
from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.arith.interval import bounds, nested_interval
from tunesmith.ir.buffer import TILE_SCOPE, Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, SHARED_SCOPES, is_block_axis
from tunesmith.ir.poly import ZERO, Op, Poly, Var, minimum, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, Seq, Stmt, While, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, walk
from tunesmith.lower.loop_carried import carries_values
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support.errors import BuildError

MAX_POINTS = 1 << 17
"""Limit on enumerated iterations."""
MAX_NESTED = 32
"""Limit on nested allocations in a CPU function; passes walk into them by recursion."""
MAX_TILE = 1 << 16
"""Limit on the elements of a tile along a dimension of dynamic extent: a larger bound only reflects the range of the extent, and the buffer
keeps its dimension."""


@function_pass(requires="OPAQUE", needed_by="parallel loops and kernels, whose threads have buffers of their own")
def plan_allocations(func: PrimFunc, target: Target) -> PrimFunc:
    """Turn allocations of the function into `Allocate` statements with compacted shapes (source: TVM's CompactBufferAllocation).

    Raises:
        BuildError: a thread-private buffer is allocated outside a parallel or block loop and used inside; a parallel loop carries values
            of a buffer; a buffer of scope register has dynamic extents; more than `MAX_NESTED` buffers pass values between
            nests, and one of them is in tile registers.
    """
    body, remaining = _with_allocations(func, target) if func.allocs else (func.body, ())
    tile = next((b for b in remaining if b.scope == TILE_SCOPE), None)
    if tile is not None:
        raise BuildError(
            f"{func.name}: several nests use the buffer {tile.name} of scope {TILE_SCOPE}, and more than {MAX_NESTED} buffers pass values "
            f"between nests, so that {tile.name} would be in memory. Compute the blocks that access it in one nest (compute_at, "
            "reverse_compute_at)"
        )
    if any(b.scope == TILE_SCOPE for b in func.allocs):
        body = transform(body, {Allocate: _around_tiles})
    _check_private(func.name, body, ())
    if not func.allocs:
        return func
    return func.with_(body=body, allocs=remaining)


def _with_allocations(func: PrimFunc, target: Target) -> tuple[Stmt, tuple[Buffer, ...]]:
    """The body with its allocations, and the allocations that stay with the function to limit the nesting depth.

    For each buffer only the root statements that use it are visited.
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
            outside.insert(0, b)  # kernels pass values through it
        elif len(at) == 1:
            parts[at[0]] = _allocate_innermost(func, parts[at[0]], b, Simplifier(symbol_ranges(func)), target)
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


def _around_tiles(n: Allocate, recurse: Any) -> Stmt:
    """Allocate tile registers from their first to their last use, so that parallel loops before and after are outside."""
    made: Allocate = n.map_children(recurse)
    return _narrowed(made.buffer, made.body) if made.buffer.scope == TILE_SCOPE else made


def _narrowed(b: Buffer, n: Stmt) -> Stmt:
    if type(n) is Allocate:
        return Allocate(n.buffer, _narrowed(b, n.body))
    using = [i for i, k in enumerate(n.stmts) if _uses(k, b)] if type(n) is Seq else []
    if type(n) is not Seq or not using:
        return Allocate(b, n)
    first, end = using[0], using[-1] + 1
    return seq([*n.stmts[:first], Allocate(b, seq(n.stmts[first:end])), *n.stmts[end:]])


def _check_private(name: str, n: Stmt, private: tuple[Buffer, ...]) -> None:
    """Reject thread-private buffers that are used inside an inner parallel loop; `private` are those allocated around `n`."""
    if type(n) is BufferStore:
        return
    if type(n) is Allocate and n.buffer.scope != "global":
        private = (*private, n.buffer)
    if type(n) is For and (n.kind == "parallel" or n.thread in BLOCK_AXES):
        for b in private:
            if _uses(n.body, b):
                raise BuildError(
                    f"{name}: the buffer {b.name} of scope {b.scope} is private to a thread, but it is allocated outside the "
                    f"{n.thread or n.kind} loop {n.var} and used inside, where other threads cannot read it. Give it the scope global "
                    "(set_scope), or compute it inside the loop (compute_at), or leave the loop serial"
                )
    n.each_child(lambda k: _check_private(name, k, private) if isinstance(k, Stmt) else None)


def _uses(n: Any, b: Buffer) -> bool:
    return any(type(x) in (BufferLoad, BufferStore) and x.buffer is b for x in walk(n))


def _allocate_innermost(func: PrimFunc, n: Stmt, b: Buffer, s: Simplifier, target: Target) -> Stmt:
    """Allocate the buffer around the innermost statement that contains all its uses, outside loops that carry its values."""
    path = _path(n, b, s)
    sizes = frozenset(p for p in func.params if isinstance(p, Var))
    depth = len(path) - 1
    threads = {f.var: f.extent - 1 for f in walk(n) if type(f) is For and _is_thread(f)} if b.scope in SHARED_SCOPES else {}
    for at in reversed(range(depth)):
        loop = path[at]
        if type(loop) is not For or (loop.kind == "thread" and target.is_gpu) or loop.extent == 1:
            continue  # bound loops are serial on a CPU, and verify_thread_access checks them on a GPU
        if loop.kind == "vectorized" and b.scope != "register" and _runs_in_lockstep(loop.body):
            depth = at  # lanes use different elements, or write the same values, and a vector has an element for each
            continue
        carried = carries_values(loop, b, s, threads, sizes)
        if carried is False:
            break
        if carried:
            if loop.kind == "parallel":
                raise BuildError(
                    f"{func.name}: the parallel loop {loop.var} may carry values of the buffer {b.name} from one iteration to another. "
                    "Leave the loop serial, or write in each iteration every element that it reads"
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


def _runs_in_lockstep(n: Stmt) -> bool:
    """Whether the body of a vectorized loop is straight-line code in loops that all lanes run together, as `vectorize_loops` requires."""
    while type(n) is For:
        n = n.body
    return not any(type(x) is For for x in walk(n))


def _with_child(n: Stmt, old: Stmt, new: Stmt) -> Stmt:
    return n.map_children(lambda k: new if k is old else k)


def _is_thread(f: For) -> bool:
    return f.kind == "thread" and not is_block_axis(f.thread)


def _path(n: Stmt, b: Buffer, s: Simplifier) -> list[Stmt]:
    """The statements from `n` to the innermost one with all uses of the buffer; adds the ranges of their loops to `s`.

    The path ends at a While, whose iterations may pass values to each other.
    """
    path = [n]
    while type(n) is not BufferStore and type(n) is not While:
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
    lows, shape = _footprint(b, accesses, s, inner)
    stores, loads = [a for a in accesses if a.is_write], [a for a in accesses if not a.is_write]
    if b.scope in SHARED_SCOPES and stores and loads:
        known = dict(s.ranges)
        for x in walk(n):
            if type(x) is For:
                known[x.var] = (0, bounds(x.extent, known)[1] - 1)
        # The last iteration of the threads that copy a tile, or that share what is computed from it, may exceed it under a guard.
        for some, others in ((loads, stores), (stores, loads)):
            tight = _footprint(b, some, s, inner)
            if _elements(tight[1]) < _elements(shape) and all(_is_inside(a, *tight, Simplifier(known)) for a in others):
                lows, shape = tight
    if b.scope == "register" and shape:
        width = target.vector_lanes(b.dtype)
        if any(e.const is None for e in shape):
            raise BuildError(
                f"{name}: the buffer {b.name} of scope register has {' x '.join(map(str, shape))} elements, but registers need constant "
                "extents. Split the loops of dynamic extent, or give the buffer the scope global (set_scope)"
            )
        last = shape[-1].as_int()
        shape[-1] = poly(last if last == 1 else -(-last // width) * width)
    new = b.like(shape=shape)

    def on_access(x: Any, recurse: Any) -> Any:
        m = x.map_children(recurse)
        if x.buffer is not b:
            return m
        # In a dimension of one element every valid index is 0.
        single = [b.scope == "local" and low == 0 and e == 1 == dim for low, e, dim in zip(lows, shape, b.shape, strict=True)]
        moved = zip(m.indices, lows, single, strict=True)
        return m.with_(buffer=new, indices=tuple([ZERO if only else i - low for i, low, only in moved]))

    out = Allocate(new, transform(n, {BufferLoad: on_access, BufferStore: on_access}))
    return out


def _footprint(b: Buffer, accesses: list[GuardedAccess], s: Simplifier, inner: dict[Var, tuple[int, int]]) -> tuple[list[Poly], list[Poly]]:
    """Lowest index and extent of the joint footprint of the accesses, per dimension."""
    distinct = {(a.indices, tuple(a.ranges.items())): a for a in accesses}
    footprints = [[nested_interval(i, a.ranges) for i in a.indices] for a in distinct.values()]
    lows: list[Poly] = []
    shape: list[Poly] = []
    for d, dim in enumerate(b.shape):
        low = minimum(*[s.index(footprint[d][0]) for footprint in footprints])
        extents = [_extent(footprint[d][1], low, s, inner) for footprint in footprints]
        if any(e is None for e in extents) or any(type(a) is Op and a.op == "min" for m, _ in low.terms for a in m):
            low, extent = ZERO, dim
        else:
            extent = poly(max(e for e in extents if e is not None))
            # A GPU tile may be larger than the buffer: elements beyond it are padded or never read.
            fixed = dim.const is not None and b.scope in ("local", *SHARED_SCOPES)
            if (not fixed or extent.as_int() > 64 * MAX_TILE) and (MAX_TILE if dim.const is None else dim.const) < extent.as_int():
                low, extent = ZERO, dim
        lows.append(low)
        shape.append(extent)
    return lows, shape


def _elements(shape: list[Poly]) -> float:
    """Number of elements; infinite for dynamic extents."""
    return math.prod([math.inf if e.const is None else e.const for e in shape])


def _is_inside(a: GuardedAccess, lows: list[Poly], shape: list[Poly], s: Simplifier) -> bool:
    """Whether the access stays in the footprint where its guards on inner loops hold; enumerates all iterations."""
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
