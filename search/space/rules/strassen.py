"""Schedule matrix products with constants by seven products of quarters (Strassen), beside direct sums.

    parallel over blocks of columns, or over blocks of rows
        add quarters of the rows of the left operand             workspace; or of all rows, before the loops
        for the seven products: register tiles over the whole reduction, written to a workspace
        for rows, vectors of columns: add the products, epilogue, written to the four quarters of the output

The sums of quarters of the constant are computed and packed ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tunesmith.ir.analysis.access_regions import plain_iter, reads, writes
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, substitute
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import is_output, is_pointwise
from tunesmith.search.space.rules.contraction import candidate
from tunesmith.search.space.rules.tile_domains import ROWS, VECTORS, middle_tiles

LEAST = (8, 64, 64)
"""Rows, columns and terms of a sum below which adding quarters costs more than a product saves."""
PRODUCTS = 7
"""Number of products of quarters."""
L2 = 1 << 20
"""Assumed size of a second-level cache of a target that does not state one."""
Named = tuple[str, Callable[[Schedule], None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        columns: tasks are blocks of columns, and share the sums of the left operand, which are computed before; otherwise tasks are blocks
            of rows, and compute their own.
        threads: the tasks run in parallel.
    """

    columns: bool
    threads: bool

    @property
    def name(self) -> str:
        """As records spell it."""
        return f"strassen {'columns' if self.columns else 'rows'}{' serial' * (not self.threads)}"


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules of a function with one product of float32 matrices, of which the right one is constant."""
    found = candidate(func, target)
    axes = None if found is None or found.pads else _axes(func, found.main, target)
    if found is None or axes is None:
        return []
    threading = (True, False) if worth_serial(func, target) else (True,)
    plans = [Plan(columns, threads) for columns in (False, True) for threads in threading]
    return [(plan.name, partial(schedule, main=found.main.name, axes=axes, plan=plan, target=target)) for plan in plans]


def _axes(func: PrimFunc, main: Block, target: Target) -> tuple[int, int, int] | None:
    """The positions of the row, the column and the reduction of a product with a constant; None for other blocks."""
    outputs = [b for b in blocks_under(func.body) if is_output(func, b)]
    made = writes(main)[0]
    operands = [a for a in reads(main) if a.buffer is not made.buffer]
    if len(outputs) != 1 or made.buffer.dtype != "float32" or writes(outputs[0])[0].buffer.shape != made.buffer.shape:
        return None
    column = plain_iter(made.indices[-1], main)
    weights = [a for a in operands if a.buffer.name in func.constants]
    if len(operands) != 2 or len(weights) != 1 or column is None:
        return None
    left = operands[1 - operands.index(weights[0])]
    depth = plain_iter(left.indices[-1], main)
    units = {it.var: ZERO for it in main.iters if it.kind == "R" and it.extent == 1}
    indices = [substitute(e, units) for e in left.indices[:-1]]
    plain = [r for e in indices if (r := plain_iter(e, main)) is not None]
    rows = [r for r in plain if main.iters[r].kind == "S" and (main.iters[r].extent.const or 0) >= LEAST[0]]
    if depth is None or not rows:
        return None
    axes = (rows[-1], column, depth)
    if any((main.iters[n].extent.const or 0) < least for n, least in zip(axes, LEAST, strict=True)):
        return None
    s = Schedule(func)
    return axes if s.accepts(lambda: s.strassen(s.get_block(main.name), axes, target.vector_lanes("float32"))) else None


def schedule(s: Schedule, main: str, axes: tuple[int, int, int], plan: Plan, target: Target) -> None:
    """Build the nest of `plan`."""
    inlined = [b.name for b in s.blocks() if is_pointwise(b) and not is_output(s.func, b)]
    b = s.block(s.get_block(main))
    row, column = [next(d for d, e in enumerate(writes(b)[0].indices) if plain_iter(e, b) == n) for n in axes[:2]]
    left, right, products = s.strassen(s.get_block(main), axes, target.vector_lanes("float32"))
    for name in (*([] if is_output(s.func, s.block(s.get_block(main))) else [main]), *inlined):
        s.compute_inline(s.get_block(name))
    out = next(s.get_block(b.name) for b in s.blocks() if is_output(s.func, b))
    levels = _output(s, out, row, column, plan, target)
    sums = s.cache_write(products, "register")
    s.compute_at(sums, levels.block)
    s.set_scope(sums, "workspace")
    _products(s, sums, products, writes(s.block(right))[0].buffer.name, row, levels, target)
    _left(s, left, None if plan.columns else levels.task, plan, target)
    if plan.threads:
        s.parallel(levels.task)


@dataclass(frozen=True, slots=True)
class _Levels:
    """Loops over the tasks and over the blocks of a task; and the pairs of rows and of panels of columns of a block."""

    task: LoopRV
    block: LoopRV
    rows: IntRV
    width: IntRV


def _output(s: Schedule, out: BlockRV, row: int, column: int, plan: Plan, target: Target) -> _Levels:
    """Split the loops of the output into tasks, blocks and quarters."""
    b = s.block(out)
    indices = writes(b)[0].indices
    loops = s.get_loops(out)
    at = [plain_iter(indices[d], b) for d in (row, column)]
    assert at[0] is not None and at[1] is not None
    others = [x for n, x in enumerate(loops) if n not in at]
    i, hi = s.split(loops[at[0]], [None, 2])
    (rows,) = s.sample_tile(i, 2, "rows", [middle_tiles(s.loop(i).extent.const or 1, ROWS)])
    over, inside = s.split(i, [None, rows])
    lanes = target.vector_lanes("float32")
    most = tuple(n for n in VECTORS if n <= max(target.vector_registers // 4, 2))
    width, *_ = s.sample_tile(loops[at[1]], 4, "columns", [most, (2,), (lanes,)], slack=2 * lanes)
    blocks, vectors, hj, lane = s.split(loops[at[1]], [None, width, 2, lanes])
    outer = [blocks, *others, over] if plan.columns else [*others, over, blocks]
    s.reorder([*outer, inside, hi, vectors, hj, lane])
    s.vectorize(lane)
    s.unroll(hi)
    s.unroll(hj)
    task = outer[0] if plan.columns else s.fuse(outer[:-1])
    return _Levels(task, outer[-1], rows, width)


def _products(s: Schedule, sums: BlockRV, products: BlockRV, name: str, row: int, levels: _Levels, target: Target) -> None:
    """Sum the products in register tiles of rows and columns."""
    lanes, registers = target.vector_lanes("float32"), target.vector_registers
    rank = len(s.block(sums).iters)
    which, *dims, lane = s.get_loops(sums)[-rank:]
    t, vector = dims[row], dims[-1]
    (size,) = s.sample_tile(t, 2, "tile", [ROWS])
    to, ti = s.split(t, [None, size])
    s.reorder([which, *[x for x in dims[:-1] if x is not t], to, ti, vector, lane])
    held = PRODUCTS * lanes * 4
    s.step = "workspace"
    over = levels.rows.expr * levels.width.expr * held - (target.l2_bytes or L2)
    s.require("le0", over, "workspace", "the products of a block do not fit the second-level cache")
    v = levels.width.expr
    s.step = "register budget"
    s.require("le0", size.expr * v + v + 1 - registers, "register-budget", "the register tile does not fit the registers")
    s.compute_at(products, to)
    for x in (ti, vector):
        s.unroll(x)
    s.vectorize(lane)
    b = s.block(products)
    loops = s.get_loops(products)[-len(b.iters) :]
    spatial = [x for x, it in zip(loops, b.iters, strict=True) if it.kind == "S"]
    reduced = [x for x, it in zip(loops, b.iters, strict=True) if it.kind == "R"]
    tile = [spatial[1 + row], *spatial[-2:]]
    s.reorder([*[x for x in spatial if x not in tile], *reduced, *tile])
    s.vectorize(tile[2])
    for x in tile[:2]:
        s.unroll(x)
    s.decompose_reduction(products, reduced[0])
    access = next(a for a in reads(b) if a.buffer.name == name)
    panel, within = [it.var for it in b.iters if it.kind == "S"][-2:]
    d = next(n for n, e in enumerate(access.indices) if e.as_var() is panel)
    rest = [n for n, e in enumerate(access.indices) if e.as_var() not in (panel, within)]
    copy = s.cache_read(products, name, "global", [[d, "/", levels.width], *rest, [d, "%", levels.width], d + 1])
    s.vectorize(s.get_loops(copy)[-1])
    s.annotate(copy, "pack_constant", name.removesuffix("_sums"))
    # Weights come from main memory at about the rate of use: the panel of the next product is prefetched during the current one.
    s.annotate(which, "prefetch_operand", writes(s.block(copy))[0].buffer.name)
    s.annotate(which, "prefetch_ahead", s.sample_categorical((0, 1), "prefetch"))


def _left(s: Schedule, left: BlockRV, at: LoopRV | None, plan: Plan, target: Target) -> None:
    """Add quarters of the left operand in vectors, all seven sums at once."""
    if at is not None:
        s.set_scope(left, "workspace")
        s.compute_at(left, at)
    rank = len(s.block(left).iters)
    which, *dims, last = s.get_loops(left)[-rank:]
    over, lane = s.split(last, [None, target.vector_lanes("float32")])
    s.reorder([*dims, over, which, lane])
    s.unroll(which)
    s.vectorize(lane)
    if at is None and plan.threads:
        s.parallel(s.fuse(dims))
