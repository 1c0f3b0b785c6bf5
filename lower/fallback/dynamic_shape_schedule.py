"""Schedule functions with dynamic shapes that have no tuning record, when extents are unknown at compile time.

- A reduction with a contiguous result is tiled in registers.
- A reduction along contiguous memory is vectorized, with a horizontal fold at the end.
- All other blocks are vectorized along the last axis.
- The outer loops become parallel tasks, except the innermost loop of unknown extent if there are others: only constant divisors are
  cheap.  A call runs the tasks on one thread if its shapes give too little work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import takewhile

from tunesmith.ir.analysis.access_regions import plain_iter, reads, writes
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.analysis.work import grain, serial_seconds, worth_threads
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, product
from tunesmith.ir.stmt import GRAIN, Block, BufferStore, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.vectorize_loops import FOLDED
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

_ROWS = 4
"""Rows per register tile."""
_VECTORS = 4
"""Vectors per row of a register tile, and vectors combined before each fold: a fold takes as long as several loads."""

Step = Callable[[Schedule, str, Target], bool]


def dynamic_shape_schedule(func: PrimFunc, target: Target) -> PrimFunc:
    """Schedule each block by the first strategy that fits it and that the schedule primitives accept."""
    for name in [b.name for b in Schedule(func).blocks()]:
        strategies: tuple[Step, ...] = (_tile, _fold, _vectorize)
        for step in strategies:
            done = _attempt(func, step, name, target)
            if done is not None:
                func = done
                break
        func = _attempt(func, _parallelize, name, target) or func
        func = _attempt(func, _decompose, name, target) or func
    return func


def _attempt(func: PrimFunc, step: Step, name: str, target: Target) -> PrimFunc | None:
    """The function after a step; None if the step does not apply or a primitive raises ScheduleError."""
    s = Schedule(func)
    try:
        return s.func if step(s, name, target) else None
    except ScheduleError:
        return None


def _tile(s: Schedule, name: str, target: Target) -> bool:
    """Keep a tile of rows and vectors in registers during the whole reduction."""
    block = s.get_block(name)
    b = s.block(block)
    axes = _contiguous_result(b)
    if axes is None:
        return False
    row, column = axes
    loops: dict[Var | None, LoopRV] = {x.var: x for x in s.get_loops(block)}
    lanes = target.vector_lanes(writes(b)[0].buffer.dtype)
    at = loops[_loop_of(b, column)]
    # The lanes of a condition on the column are scalar code where it guards loads of unknown range: one vector is little code.
    width = _tile_width(s.loop(at).extent, lanes if _has_condition_on(b, b.iters[column].var) else lanes * _VECTORS, lanes)
    if width is None:
        return False
    outer, vectors = s.split(at, [None, width])
    rows: list[LoopRV] = []
    if row is not None:
        _, inner = s.split(loops[_loop_of(b, row)], [None, _ROWS])
        rows = [inner]
    reducing = [x for x in s.get_loops(block) if x.var in _reducing(b)]
    inside = {x.var for x in (*reducing, *rows, vectors)}
    s.reorder([*[x for x in s.get_loops(block) if x.var not in inside], *reducing, *rows, vectors])
    written = s.cache_write(block, "register")
    s.reverse_compute_at(written, outer)
    init = s.decompose_reduction(block, reducing[0])
    for part in (block, init, written):
        tile = s.get_loops(part)[-1 - len(rows) :]
        s.vectorize(tile[-1])
        for x in tile[:-1]:
            s.unroll(x)
    return True


def _fold(s: Schedule, name: str, target: Target) -> bool:
    """Vectorize a reduction along the contiguous memory that it reads."""
    block = s.get_block(name)
    b = s.block(block)
    axis = _folded_axis(b)
    if axis is None:
        return False
    loop = next(x for x in s.get_loops(block) if x.var is _loop_of(b, axis))
    lanes = target.vector_lanes(writes(b)[0].buffer.dtype) * _VECTORS
    extent = s.loop(loop).extent.const
    inner = loop if extent is not None and extent <= lanes else s.split(loop, [None, lanes])[1]
    s.reorder([x for x in s.get_loops(block) if x.var is not inner.var] + [inner])
    _decompose(s, name, target)
    s.vectorize(inner)
    return True


def _vectorize(s: Schedule, name: str, target: Target) -> bool:
    """Vectorize along the last axis of the written buffer, inside all other loops."""
    block = s.get_block(name)
    b = s.block(block)
    st = writes(b)[0]
    axis = plain_iter(st.indices[-1], b) if st.indices else None
    if axis is None or b.iters[axis].kind != "S":
        return False
    lanes = target.vector_lanes(st.buffer.dtype)
    loop = next(x for x in s.get_loops(block) if x.var is _loop_of(b, axis))
    extent = s.loop(loop).extent.const
    if extent is not None and extent < lanes:
        return False
    _, inner = s.split(loop, [None, lanes])
    s.reorder([x for x in s.get_loops(block) if x.var is not inner.var] + [inner])
    s.vectorize(inner)
    return True


def _parallelize(s: Schedule, name: str, target: Target) -> bool:
    """Fuse the loops outside the reduction of a block, and run their iterations as parallel tasks."""
    block = s.get_block(name)
    b = s.block(block)
    loops = s.get_loops(block)
    reducing = _reducing(b)
    outer = list(takewhile(lambda x: x.var not in reducing and s.loop(x).kind == "serial", loops))
    outer = outer[: _perfect_depth(s, outer)]
    if target.num_cores == 1 or not outer:
        return False
    known = serial_seconds([b], target)
    if known != math.inf and not worth_threads(known, target):
        return False
    few = product([s.loop(x).extent for x in outer[:-1]]).const
    if s.loop(outer[-1]).extent.const is None and (few is None or few >= target.num_cores):
        outer = outer[:-1]
    while len(outer) > 1 and s.loop(outer[0]).extent == 1:  # fused, its index would be a division by the extents of the others
        outer = outer[1:]
    tasks = s.fuse(outer)
    s.parallel(tasks)
    if known == math.inf:
        s.annotate(tasks, GRAIN, grain(b, target))
    return True


def _perfect_depth(s: Schedule, loops: list[LoopRV]) -> int:
    """The number of perfectly nested loops, from the outermost."""
    count = 0
    for x in loops:
        count += 1
        if type(s.loop(x).body) is not For:
            break
    return count


def _decompose(s: Schedule, name: str, target: Target) -> bool:
    """Store the initial value of each element before the reduction instead of under a condition inside it."""
    block = s.get_block(name)
    b = s.block(block)
    reducing = _reducing(b)
    first = next((x for x in s.get_loops(block) if x.var in reducing), None)
    if b.init is None or first is None:
        return False
    s.decompose_reduction(block, first)
    return True


def _reducing(b: Block) -> set[Var]:
    """The variables of the reduction loops."""
    return {v for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R" for v in e.vars}


def _loop_of(b: Block, axis: int) -> Var | None:
    return b.bindings[axis].as_var()


def _tile_width(extent: Poly, most: int, lanes: int) -> int | None:
    """The tile width: `most`, or less for a smaller constant extent; None if the extent is below one vector."""
    if extent.const is None:
        return most
    return None if extent.const < lanes else min(most, extent.const // lanes * lanes)


def _contiguous_result(b: Block) -> tuple[int | None, int] | None:
    """(row, column) of a reduction whose column axis is contiguous in the result and in all loads; row is the axis before it or None."""
    st = b.body
    if type(st) is not BufferStore or not st.indices or all(it.kind == "S" for it in b.iters):
        return None
    column = plain_iter(st.indices[-1], b)
    if column is None or b.iters[column].kind != "S" or b.iters[column].extent.const == 1:
        return None
    if not all(_is_contiguous(a.indices, b.iters[column].var) for a in reads(b) if a.indices):
        return None
    row = plain_iter(st.indices[-2], b) if len(st.indices) > 1 else None
    if row is None or b.iters[row].kind != "S" or row == column:
        return None, column
    extent = b.iters[row].extent.const
    return (row if extent is None or extent >= _ROWS else None), column


def _has_condition_on(b: Block, v: Var) -> bool:
    """Whether a select of the block depends on a variable."""
    conditions = [n.cond for n in walk(b.body) if type(n) is Select]
    return any(v in x.vars for c in conditions for x in walk(c) if type(x) is Poly)


def _folded_axis(b: Block) -> int | None:
    """The reduction axis along which all loads are contiguous; None if there is none or the reduction has no horizontal form."""
    update = reassociable_update(b)
    if update is None or update.op not in FOLDED:
        return None
    loads = [a.indices for a in reads(b) if a.indices]
    for axis, it in enumerate(b.iters):
        if it.kind == "R" and it.extent.const != 1 and all(_is_contiguous(i, it.var) for i in loads):
            return axis
    return None


def _is_contiguous(indices: tuple[Poly, ...], v: Var) -> bool:
    """Whether consecutive values of `v` access adjacent elements, or the same element."""
    last = coefficient(indices[-1], v)
    return last is not None and last[0] in (0, 1) and all(v not in i.vars for i in indices[:-1])
