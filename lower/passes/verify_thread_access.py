"""Reject kernels that no barrier can make correct: reads of thread-local elements written by another thread, and updates of one element
by several threads.

Both come from loops that were bound while an intermediate result was computed for several threads or blocks, for example a halo.
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
from tunesmith.ir.gpu import BLOCK_AXES, THREAD_AXES
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import Allocate, BufferStore, For, Seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.kernels import kernels
from tunesmith.lower.pass_infra import function_pass
from tunesmith.support.errors import BuildError

MAX_POINTS = 1 << 14
"""Iterations of an access that are looked at; beyond, it is not judged."""
ENDS = 2
"""Blocks and threads that are looked at, the first ones: those next to each other meet, if any do."""


@function_pass(needs="OPAQUE")
def verify_thread_access(func: PrimFunc, target: Target) -> PrimFunc:
    """Refuse a function for a GPU with such accesses; see the module's text.

    Raises:
        BuildError: with the buffer and its index.
    """
    _check_threads(func.name, func.body, frozenset(), frozenset())
    for kernel in kernels(func.body):
        made = [n for n in walk(kernel) if type(n) is Allocate and n.buffer.scope == "local"]
        for a in made:
            _check_own(func.name, a)
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


def _check_threads(name: str, n: Any, threads: frozenset[Var], mine: frozenset[Buffer]) -> None:
    """Refuse memory of a thread in which a thread looks for what another one has written; `mine` are such."""
    if type(n) is For and n.kind == "thread":
        threads = threads | {n.var}
    if type(n) is Allocate and n.buffer.scope == "local":
        mine = mine | {n.buffer}
    if type(n) in (BufferLoad, BufferStore) and n.buffer in mine and any(not i.vars.isdisjoint(threads) for i in n.indices):
        raise BuildError(
            f"{name}: the buffer {n.buffer.name} of scope local is each thread's own, but its place depends on the thread: "
            f"{n.buffer.name}[{', '.join(map(str, n.indices))}]. Share the loops that write and read it in the same way, or give it the "
            "scope shared (set_scope)"
        )
    n.each_child(lambda k: None if type(k) is Poly else _check_threads(name, k, threads, mine))


def _check_own(name: str, made: Allocate) -> None:
    """A thread writes every element of its own memory that it reads, at least where guards allow it."""
    b = made.buffer
    places = guarded_accesses(made.body, b)
    written: set[int] = set()
    for p in [p for p in places if p.is_write]:
        cells = _cells(p, b, ())
        if cells is None:
            return
        written.update(cells.tolist())
    for p in [p for p in places if not p.is_write and p.exact]:
        cells = _cells(p, b, p.guards)
        if cells is None:
            continue
        missing = sorted(set(cells.tolist()) - written)
        if missing:
            raise BuildError(
                f"{name}: the buffer {b.name} of scope local is each thread's own, but {_shown(p)} reads elements that this thread does "
                "not write. Share the loops that write and read it in the same way, or give it the scope shared (set_scope)"
            )


def _shown(p: GuardedAccess) -> str:
    return f"{p.node.buffer.name}[{', '.join(map(str, p.indices))}]"


def _cells(p: GuardedAccess, b: Buffer, guards: tuple[Poly, ...]) -> np.ndarray | None:
    """Elements that the access touches where the guards hold; None if that cannot be looked at."""
    own = {f.var: f for f in p.loops}
    known = [g for g in guards if all(v in own for v in g.vars)]
    points = _points({v: own[v] for e in (*p.indices, *known) for v in e.vars if v in own}, {})
    if points is None or any(v not in own for e in p.indices for v in e.vars) or any(e.const is None for e in b.shape):
        return None
    size = len(next(iter(points.values()))) if points else 1
    return _flat(p.node, b, points, size)[_hold(known, points, size)]


def _flat(access: BufferLoad | BufferStore, b: Buffer, points: Mapping[Var, np.ndarray], size: int) -> np.ndarray:
    flat = np.zeros(size, np.int64)
    for e, n in zip(access.indices, b.shape, strict=True):
        flat = flat * n.as_int() + values_at(e, points, size)
    return flat


def _hold(guards: list[Poly], points: Mapping[Var, np.ndarray], size: int) -> np.ndarray:
    run = np.ones(size, bool)
    for g in guards:
        run &= values_at(g, points, size) < 0
    return run


def _points(loops: Mapping[Var, For], most: Mapping[Var, int]) -> dict[Var, np.ndarray] | None:
    """All values of the variables, of some only the first ones; None if they are unknown or too many."""
    if any(f.extent.const is None for f in loops.values()):
        return None
    extents = [min(f.extent.as_int(), most.get(v, f.extent.as_int())) for v, f in loops.items()]
    if math.prod(extents) > MAX_POINTS:
        return None
    grid = np.indices(extents, dtype=np.int64).reshape(len(extents), -1) if extents else ()
    return dict(zip(loops, grid, strict=True))


def _check_global(name: str, b: Buffer, body: Any) -> None:
    """What is set and then added to, is so by one thread."""
    stores = [p for p in guarded_accesses(body, b) if p.is_write]
    adds = [p for p in stores if any(type(x) is BufferLoad and x.buffer is b for x in walk(p.node.value))]  # type: ignore[union-attr]
    if not adds or any(e.const is None for e in b.shape):
        return  # of one store all write the same
    for p in stores:
        bound = {f.var: f for f in p.loops if f.thread in (*BLOCK_AXES, *THREAD_AXES)}
        used = {f.var: f for f in p.loops if f.var in bound or any(f.var in e.vars for e in (*p.indices, *p.guards))}
        points = _points(used, dict.fromkeys(bound, ENDS))
        if not bound or points is None or any(v not in used for e in (*p.indices, *p.guards) for v in e.vars):
            continue
        size = len(next(iter(points.values())))
        run = _hold(list(p.guards), points, size)
        who = np.zeros(size, np.int64)
        for v in bound:
            who = who * ENDS + points[v]
        pairs = np.unique(np.stack([_flat(p.node, b, points, size)[run], who[run]]), axis=1)
        if len(np.unique(pairs[0])) < pairs.shape[1]:
            raise BuildError(
                f"{name}: the buffer {b.name} of scope global is set and added to by several threads or blocks at {_shown(p)}, and nobody "
                "waits for the others. Compute it in loops of its own, or give each its own copy (set_scope: shared or local)"
            )


def _check_blocks(name: str, b: Buffer, kernel: Any) -> None:
    """A block of threads reads nothing that another block of the kernel writes: no barrier orders them."""
    places = guarded_accesses(kernel, b)
    written: dict[int, set[int]] = {}
    for p in [p for p in places if p.is_write]:
        for cell, block in _by_iteration(p, b, BLOCK_AXES) or ():
            written.setdefault(cell, set()).add(block)
    for p in [p for p in places if not p.is_write and p.exact]:
        if any(written.get(cell, {block}) != {block} for cell, block in _by_iteration(p, b, BLOCK_AXES) or ()):
            raise BuildError(
                f"{name}: {_shown(p)} of scope global may read in one block of threads what another block writes, and blocks do not wait "
                "for each other. Give each block its own copy (set_scope: shared or local), or compute the buffer in loops of its own"
            )


def _check_iterations(name: str, b: Buffer, loop: For) -> None:
    """An iteration of a loop of blocks or virtual threads reads nothing that only another one writes: each has memory of its own."""
    places = guarded_accesses(Seq((loop,)), b)
    written: dict[int, set[int]] = {}
    for p in [p for p in places if p.is_write]:
        found = _by_iteration(p, b, (loop.thread,))
        if found is None:
            return
        for cell, iteration in found:
            written.setdefault(cell, set()).add(iteration)
    for p in [p for p in places if not p.is_write and p.exact]:
        if any(cell in written and iteration not in written[cell] for cell, iteration in _by_iteration(p, b, (loop.thread,)) or ()):
            raise BuildError(
                f"{name}: {_shown(p)} may be read in one iteration of the {loop.thread} loop {loop.var} and written in another alone, and "
                "each iteration has memory of its own. Leave the loop serial, or write in each iteration all that it reads"
            )


def _by_iteration(p: GuardedAccess, b: Buffer, axes: Sequence[str | None]) -> list[tuple[int, int]] | None:
    """(element, iteration) of an access, for the first iterations of the loops of these axes; None if that cannot be looked at."""
    own = {f.var: f for f in p.loops}
    guards = [g for g in p.guards if all(v in own for v in g.vars)]
    blocks = [f.var for f in p.loops if f.thread in axes]
    used = {v: own[v] for e in (*p.indices, *guards) for v in e.vars if v in own} | {v: own[v] for v in blocks}
    points = _points(used, dict.fromkeys(blocks, ENDS))
    if points is None or any(v not in own for e in p.indices for v in e.vars) or any(e.const is None for e in b.shape):
        return None
    size = len(next(iter(points.values()))) if points else 1
    run = _hold(guards, points, size)
    block = np.zeros(size, np.int64)
    for v in blocks:
        block = block * ENDS + points[v]
    pairs = np.unique(np.stack([_flat(p.node, b, points, size)[run], block[run]]), axis=1)
    return [(int(cell), int(which)) for cell, which in pairs.T]
