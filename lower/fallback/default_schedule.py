"""Schedule functions that have no tuning record: vectorize the last axis and parallelize the outer loops.

Blocks with too little work for threads (`ir.analysis.work`) stay serial.  No search and no measurement takes place: the result depends
only on the function and the target.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile

from tunesmith.ir.analysis.access_regions import plain_iter, writes
from tunesmith.ir.analysis.work import serial_seconds, worth_threads
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import Block, For, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.dynamic_shape_schedule import dynamic_shape_schedule
from tunesmith.schedule.auto_bind import THREADS, bind_spatial
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import ScheduleError


def default_schedule(func: PrimFunc, target: Target) -> PrimFunc:
    """The function under a default schedule; the same object if it is scheduled already.

    Rewrite:
        for i, j, k in grid(64, 64, 64): C[i, j] += A[i, k] * B[k, j]
      ->
        for i in parallel(64):
            for j_0, k in grid(4, 64):
                for j_1 in vectorized(16): C[i, j_0 * 16 + j_1] += A[i, k] * B[k, j_0 * 16 + j_1]
    """
    if not is_unscheduled(func):
        return func
    if target.is_gpu:
        return _bind_threads(func, target)
    if any(isinstance(p, Var) for p in func.params):
        return dynamic_shape_schedule(func, target)
    return _scheduled(func, target).func


def default_trace(func: PrimFunc, target: Target) -> Trace:
    """The steps of `default_schedule` for an unscheduled function with constant shapes on a CPU.

    Each sum keeps the order of its terms, so results are bit for bit those of the unscheduled function.
    """
    return _scheduled(func, target).trace


def _scheduled(func: PrimFunc, target: Target) -> Schedule:
    s = Schedule(func)
    for name in [b.name for b in s.blocks()]:
        block = s.get_block(name)
        for step in (_vectorize, _parallelize):
            with suppress(ScheduleError):  # scalar or serial code is correct, too
                step(s, block, target)
    return s


def _bind_threads(func: PrimFunc, target: Target) -> PrimFunc:
    """Bind the spatial iterations of every block to thread blocks and threads."""
    s = Schedule(func)
    for name in [b.name for b in s.blocks()]:
        with suppress(ScheduleError):
            bind_spatial(s, s.get_block(name), min(THREADS, target.max_threads_per_block))
    return s.func


def is_unscheduled(func: PrimFunc) -> bool:
    """Whether the function is unscheduled: serial loops, one loop nest per block, and one loop per iteration variable."""

    def plain(n: Stmt, loops: tuple[For, ...]) -> bool:
        if type(n) is Seq:
            return not loops and all(plain(x, ()) for x in n.stmts)
        if type(n) is For:
            return n.kind == "serial" and not n.annotations and plain(n.body, (*loops, n))
        if type(n) is not Block or n.predicate or n.annotations:
            return False
        return [(f.var, f.extent) for f in loops] == [(e.as_var(), it.extent) for e, it in zip(n.bindings, n.iters, strict=True)]

    return all(b.scope == "global" for b in func.allocs) and plain(func.body, ())


def _vectorize(s: Schedule, block: BlockRV, target: Target) -> None:
    """Vectorize along the last axis of the written buffer, inside all other loops."""
    b = s.block(block)
    loops = s.get_loops(block)
    target_store = writes(b)[0]
    axis = plain_iter(target_store.indices[-1], b) if target_store.indices else None
    if axis is None or b.iters[axis].kind != "S":
        return
    lanes = target.vector_lanes(target_store.buffer.dtype)
    extent = s.loop(loops[axis]).extent.const
    if extent is not None and extent < lanes:
        return
    _, inner = s.split(loops[axis], [None, lanes])
    s.reorder([x for x in s.get_loops(block) if x.var is not inner.var] + [inner])
    s.vectorize(inner)


def _parallelize(s: Schedule, block: BlockRV, target: Target) -> None:
    """Fuse the loops before the first reduction and run their iterations as parallel tasks, if there is enough work for threads."""
    b = s.block(block)
    if not worth_threads(serial_seconds([b], target), target):
        return
    reducing = {v for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R" for v in e.vars}
    outer = list(takewhile(lambda x: x.var not in reducing and s.loop(x).kind == "serial", s.get_loops(block)))
    if outer:
        s.parallel(s.fuse(outer))
