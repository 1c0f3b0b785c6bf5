"""Reject kernels with races or cross-thread reads of thread-local memory that no barrier can fix.

The cases are reads of thread-local elements that another thread writes, reads of elements that another block writes, and updates of one
element by several threads.  They occur when loops are bound although several threads or blocks compute an intermediate result, for
example a halo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tunesmith.ir.analysis.guarded_accesses import GuardedAccess, guarded_accesses
from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.gpu import BLOCK_AXES, SHARED_SCOPES, THREAD_AXES
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Allocate, BufferStore, For, Seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.kernels import kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError

MAX_POINTS = 1 << 14
"""Limit on the enumerated iterations of an access; larger accesses are not checked."""
SAMPLED = 2
"""Number of enumerated blocks and threads, from the first: if any conflict, adjacent ones do."""


@function_pass(requires="OPAQUE", needed_by="insert_barriers, which cannot mend the races that it refuses")
def verify_thread_access(func: PrimFunc, target: Target) -> PrimFunc:
    """Check the memory accesses of a GPU function.

    Raises:
        BuildError: an access conflicts; the message names the buffer and its index.
    """
    _check_threads(func.name, func.body, frozenset(), frozenset())
    for kernel in kernels(func.body):
        allocations = [n for n in walk(kernel) if type(n) is Allocate and n.buffer.scope == "local"]
        for a in allocations:
            _check_local(func.name, a)
    for shared in [n for n in walk(func.body) if type(n) is Allocate and n.buffer.scope in SHARED_SCOPES]:
        _check_stores(func.name, shared.buffer, func.body)
    body: Any = func.body
    while type(body) is Allocate and body.buffer.scope == "global":
        _check_global(func.name, body.buffer, body.body)
        for kernel in kernels(body.body):
            _check_blocks(func.name, body.buffer, kernel)
        body = body.body
    for loop in [n for n in walk(func.body) if type(n) is For and n.kind == "thread" and n.thread not in THREAD_AXES]:
        for b in {n.buffer: None for n in walk(loop.body) if type(n) is BufferStore and n.buffer not in func.params}:
            _check_iterations(func.name, b, loop)
    return func


def _check_threads(name: str, n: Any, threads: frozenset[Var], local: frozenset[Buffer]) -> None:
    """Reject accesses of thread-local memory at an index that depends on the thread; `local` are the thread-local buffers."""
    if type(n) is For and n.kind == "thread":
        threads = threads | {n.var}
    if type(n) is Allocate and n.buffer.scope == "local":
        local = local | {n.buffer}
    if type(n) in (BufferLoad, BufferStore) and n.buffer in local and any(not i.vars.isdisjoint(threads) for i in n.indices):
        raise BuildError(
            f"{name}: the buffer {n.buffer.name} of scope local is private to a thread, but its index depends on the thread: "
            f"{n.buffer.name}[{', '.join(map(str, n.indices))}]. Bind the loops that write and read it in the same way, or give it the "
            "scope shared (set_scope)"
        )
    n.each_child(lambda k: None if type(k) is Poly else _check_threads(name, k, threads, local))


def _check_local(name: str, allocation: Allocate) -> None:
    """Check that a thread writes every element of thread-local memory that it reads, assuming that guards of writes hold."""
    b = allocation.buffer
    accesses = guarded_accesses(allocation.body, b)
    written: set[int] = set()
    for p in [p for p in accesses if p.is_write]:
        elements = _elements(p, b, ())
        if elements is None:
            return
        written.update(elements.tolist())
    for p in [p for p in accesses if not p.is_write and p.exact]:
        elements = _elements(p, b, p.guards)
        if elements is None:
            continue
        missing = sorted(set(elements.tolist()) - written)
        if missing:
            raise BuildError(
                f"{name}: the buffer {b.name} of scope local is private to a thread, but {_text(p)} reads elements that this thread does "
                "not write. Bind the loops that write and read it in the same way, or give it the scope shared (set_scope)"
            )


def _text(p: GuardedAccess) -> str:
    return f"{p.node.buffer.name}[{', '.join(map(str, p.indices))}]"


def _elements(p: GuardedAccess, b: Buffer, guards: tuple[Poly, ...]) -> np.ndarray | None:
    """The elements that are accessed where the guards hold; None if they cannot be enumerated."""
    own = {f.var: f for f in p.loops}
    known = [g for g in guards if all(v in own for v in g.vars)]
    points = _points({v: own[v] for e in (*p.indices, *known) for v in e.vars if v in own}, {})
    if points is None or any(v not in own for e in p.indices for v in e.vars) or any(e.const is None for e in b.shape):
        return None
    size = len(next(iter(points.values()))) if points else 1
    return _flat(p.node, b, points, size)[_guards_hold(known, points, size)]


def _flat(access: BufferLoad | BufferStore, b: Buffer, points: Mapping[Var, np.ndarray], size: int) -> np.ndarray:
    flat = np.zeros(size, np.int64)
    for e, n in zip(access.indices, b.shape, strict=True):
        flat = flat * n.as_int() + values_at(e, points, size)
    return flat


def _guards_hold(guards: list[Poly], points: Mapping[Var, np.ndarray], size: int) -> np.ndarray:
    run = np.ones(size, bool)
    for g in guards:
        run &= values_at(g, points, size) < 0
    return run


def _points(loops: Mapping[Var, For], most: Mapping[Var, int]) -> dict[Var, np.ndarray] | None:
    """All combinations of values of the variables, of those in `most` only the first ones; None if they are unknown or too many."""
    if any(f.extent.const is None for f in loops.values()):
        return None
    extents = [min(f.extent.as_int(), most.get(v, f.extent.as_int())) for v, f in loops.items()]
    if math.prod(extents) > MAX_POINTS:
        return None
    grid = np.indices(extents, dtype=np.int64).reshape(len(extents), -1) if extents else ()
    return dict(zip(loops, grid, strict=True))


def _check_global(name: str, b: Buffer, body: Any) -> None:
    """Check that a buffer with accumulating stores has a single writing thread per element, and that several threads that write one
    element of another buffer write the same values."""
    stores = [p for p in guarded_accesses(body, b) if p.is_write]
    adds = [p for p in stores if any(type(x) is BufferLoad and x.buffer is b for x in walk(p.node.value))]  # type: ignore[union-attr]
    if not adds:
        _check_stores(name, b, body)
        return
    for p in [] if any(e.const is None for e in b.shape) else stores:
        bound = {f.var: f for f in p.loops if f.thread in (*BLOCK_AXES, *THREAD_AXES)}
        used = {f.var: f for f in p.loops if f.var in bound or any(f.var in e.vars for e in (*p.indices, *p.guards))}
        points = _points(used, dict.fromkeys(bound, SAMPLED))
        if not bound or points is None or any(v not in used for e in (*p.indices, *p.guards) for v in e.vars):
            continue
        size = len(next(iter(points.values())))
        run = _guards_hold(list(p.guards), points, size)
        owner = np.zeros(size, np.int64)
        for v in bound:
            owner = owner * SAMPLED + points[v]
        pairs = np.unique(np.stack([_flat(p.node, b, points, size)[run], owner[run]]), axis=1)
        if len(np.unique(pairs[0])) < pairs.shape[1]:
            raise BuildError(
                f"{name}: the buffer {b.name} of scope global is set and added to by several threads or blocks at {_text(p)} without "
                "synchronization. Compute it in separate loops, or give each thread or block its own copy (set_scope: shared or local)"
            )


def _check_stores(name: str, b: Buffer, body: Any) -> None:
    """`_check_values` for the stores of a buffer to which no thread adds."""
    stores = [p for p in guarded_accesses(body, b) if p.is_write]
    adds = any(type(x) is BufferLoad and x.buffer is b for p in stores for x in walk(p.node.value))  # type: ignore[union-attr]
    for p in [] if adds or any(e.const is None for e in b.shape) else stores:
        _check_values(name, b, p)


def _check_values(name: str, b: Buffer, p: GuardedAccess) -> None:
    """Check that threads that store to one element store the same values: those whose formulas have the same indices."""
    own = {f.var: f for f in p.loops}
    bound = {f.var: f for f in p.loops if f.thread in (*BLOCK_AXES, *THREAD_AXES)}
    parts = [e for e in walk(p.node.value) if type(e) is Poly and not e.vars.isdisjoint(bound)]  # type: ignore[union-attr]
    used = bound | {v: own[v] for e in (*p.indices, *p.guards, *parts) for v in e.vars if v in own}
    points = _points(used, dict.fromkeys(bound, SAMPLED))
    if not parts or points is None or any(v not in own for e in (*p.indices, *p.guards, *parts) for v in e.vars):
        return
    size = len(next(iter(points.values())))
    run = _guards_hold(list(p.guards), points, size)
    separate = [v for v, f in bound.items() if f.thread in BLOCK_AXES and b.scope in SHARED_SCOPES]
    memory = np.stack([_flat(p.node, b, points, size), *[points[v] for v in separate]], axis=1)[run]
    threads = np.stack([points[v] for v in bound], axis=1)[run]
    values = np.stack([values_at(e, points, size) for e in parts], axis=1)[run]
    stored: dict[tuple[int, ...], dict[tuple[int, ...], set[tuple[int, ...]]]] = {}
    for at, thread, value in zip(memory.tolist(), threads.tolist(), values.tolist(), strict=True):
        stored.setdefault(tuple(at), {}).setdefault(tuple(thread), set()).add(tuple(value))
    if any(len({frozenset(found) for found in by_thread.values()}) > 1 for by_thread in stored.values()):
        raise BuildError(
            f"{name}: the buffer {b.name} of scope {b.scope} gets different values from several threads or blocks at {_text(p)}. Give each "
            "thread its own copy (set_scope: local), or give the buffer a dimension for the loop"
        )


def _check_blocks(name: str, b: Buffer, kernel: Any) -> None:
    """Check that no thread block reads what another block of the kernel writes: no barrier orders them."""
    accesses = guarded_accesses(kernel, b)
    written: dict[int, set[int]] = {}
    for p in [p for p in accesses if p.is_write]:
        for element, block in _by_iteration(p, b, BLOCK_AXES) or ():
            written.setdefault(element, set()).add(block)
    for p in [p for p in accesses if not p.is_write and p.exact]:
        if any(written.get(element, {block}) != {block} for element, block in _by_iteration(p, b, BLOCK_AXES) or ()):
            raise BuildError(
                f"{name}: {_text(p)} of scope global may read in one thread block what another block writes, and blocks cannot "
                "synchronize. Give each block its own copy (set_scope: shared or local), or compute the buffer in separate loops"
            )


def _check_iterations(name: str, b: Buffer, loop: For) -> None:
    """Check that no iteration of a block or virtual-thread loop reads what only another iteration writes: their memory is separate."""
    accesses = guarded_accesses(Seq((loop,)), b)
    written: dict[int, set[int]] = {}
    for p in [p for p in accesses if p.is_write]:
        found = _by_iteration(p, b, (loop.thread,))
        if found is None:
            return
        for element, iteration in found:
            written.setdefault(element, set()).add(iteration)
    for p in [p for p in accesses if not p.is_write and p.exact]:
        if any(
            element in written and iteration not in written[element] for element, iteration in _by_iteration(p, b, (loop.thread,)) or ()
        ):
            raise BuildError(
                f"{name}: {_text(p)} may be read in one iteration of the {loop.thread} loop {loop.var} and written only in another, but "
                "each iteration has its own memory. Leave the loop serial, or write in each iteration every element that it reads"
            )


def _by_iteration(p: GuardedAccess, b: Buffer, axes: Sequence[str | None]) -> list[tuple[int, int]] | None:
    """(element, iteration) of an access, for the first iterations of the loops of these axes; None if they cannot be enumerated."""
    own = {f.var: f for f in p.loops}
    guards = [g for g in p.guards if all(v in own for v in g.vars)]
    blocks = [f.var for f in p.loops if f.thread in axes]
    used = {v: own[v] for e in (*p.indices, *guards) for v in e.vars if v in own} | {v: own[v] for v in blocks}
    points = _points(used, dict.fromkeys(blocks, SAMPLED))
    if points is None or any(v not in own for e in p.indices for v in e.vars) or any(e.const is None for e in b.shape):
        return None
    size = len(next(iter(points.values()))) if points else 1
    run = _guards_hold(guards, points, size)
    block = np.zeros(size, np.int64)
    for v in blocks:
        block = block * SAMPLED + points[v]
    pairs = np.unique(np.stack([_flat(p.node, b, points, size)[run], block[run]]), axis=1)
    return [(int(element), int(which)) for element, which in pairs.T]
