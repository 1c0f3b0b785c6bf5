"""Schedule matrix products and convolutions on GPUs: blocks, virtual threads, warps and per-thread register tiles.

The loop nest of docs/design/006-gpu.md: for each step of the reduction, all threads of a block copy a tile of each operand to shared
memory; each thread loads fragments of it into registers and updates its tile of accumulators.  Operands without reuse are read directly
from global memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, Poly, minimum, product
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.auto_bind import bind_rest
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import (
    consumers,
    has_own_nests,
    is_contraction,
    is_output,
    is_pointwise,
    operands,
    producers,
    vector_axis,
)
from tunesmith.search.space.rules.gpu_limits import fetch_widths, limit_shared, tile_bytes
from tunesmith.support import dtype as dt

Named = tuple[str, Callable[[Schedule], None]]

VIRTUAL = (1, 2, 4)
"""Virtual threads along an axis."""
THREADS = (1, 2, 4, 8, 16, 32, 64)
"""Threads, or warps, along an axis."""
LANES = (1, 2, 4, 8, 16, 32)
"""Threads of a warp along an axis."""
ROWS = (1, 2, 4, 6, 8, 12, 16)
"""Accumulators per thread along an axis."""
STEPS = (4, 8, 16, 32, 64)
"""Iterations of a long reduction loop that are fetched together."""
WINDOW = 11
"""Maximum extent of a window's reduction loop, which is fetched one iteration at a time or completely."""
MAX_ACCUMULATORS = 160
MAX_UNROLLED = 2048
"""Multiply-adds in the unrolled part of the loop: compilers take 0.2 ms for each, and instruction caches are limited."""
MAX_UNROLLED_DIRECT = 256
"""The same limit if an operand is read from global memory behind its own guards: each then takes compilers ten times as long."""
MAX_STEPS = 128
"""Reduction steps in the unrolled part: compilers analyse all their loads together."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        staged: buffer names of the operands copied to shared memory.
        lanes: the axes (row and vector) over which the threads of a warp are distributed; () for none.
    """

    staged: tuple[str, ...]
    lanes: tuple[int, ...]

    @property
    def name(self) -> str:
        """A readable, unique name."""
        where = f"shared({' '.join(self.staged)})" if self.staged else "direct"
        return f"gpu tile {where}"


@dataclass(slots=True)
class _Nest:
    """Loops by level during the construction of a nest: for each spatial axis (block, virtual, warp, lane, register) in order."""

    blocks: list[LoopRV] = field(default_factory=list)
    virtual: list[LoopRV] = field(default_factory=list)
    warps: list[LoopRV] = field(default_factory=list)
    lanes: list[LoopRV] = field(default_factory=list)
    rows: list[LoopRV] = field(default_factory=list)
    steps: list[LoopRV] = field(default_factory=list)
    inner: list[LoopRV] = field(default_factory=list)
    threads: list[IntRV] = field(default_factory=list)
    tile: list[IntRV] = field(default_factory=list)
    step: list[IntRV] = field(default_factory=list)


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules for a function with exactly one contraction; none for others."""
    blocks = blocks_under(func.body)
    mains = [b for b in blocks if is_contraction(b)]
    if len(mains) != 1 or not has_own_nests(func):
        return []
    main = mains[0]
    axis = vector_axis(main)
    if axis is None:
        return []
    before = [p.name for p in producers(func, main) if is_pointwise(p)]
    if not all(is_pointwise(b) for b in blocks if b is not main):
        return []
    if len([b for b in consumers(func, main)]) > 1:
        return []
    lanes = _lane_axes(main, axis) if target.warp_size > 1 else ()
    reused = _reused(main)
    plans = [Plan((), lanes)]
    if reused:
        plans.insert(0, Plan(reused, lanes))
    return [(p.name, lambda s, p=p: schedule(s, main.name, before, p, target)) for p in plans]  # type: ignore[misc]


def _reused(main: Block) -> tuple[str, ...]:
    """Operands whose elements are read by several threads of a block."""
    spatial = {i.var for i in main.iters if i.kind == "S" and i.extent.const != 1}
    return tuple(dict.fromkeys(o.buffer.name for o in operands(main) if o.iters and not spatial <= o.iters))


def _lane_axes(main: Block, axis: int) -> tuple[int, ...]:
    """The axes over which the threads of a warp are distributed: the vector axis and the longest other one."""
    others = [n for n, i in enumerate(main.iters) if i.kind == "S" and n != axis and (i.extent.const or 0) > 1]
    others.sort(key=lambda n: main.iters[n].extent.const or 0)
    return (others[-1], axis) if others else (axis,)


def schedule(s: Schedule, main: str, before: list[str], plan: Plan, target: Target) -> None:
    """Build the nest of `plan`."""
    for b in [b.name for b in s.blocks() if is_pointwise(b) and b.name not in (main, *before) and not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))
    block = s.get_block(main)
    tiles = [_stage(s, block, name, target) for name in plan.staged]
    for b in before:
        s.compute_inline(s.get_block(b))  # inlined into the copies, so that padding is applied during the fetch
    after = consumers(s.func, s.block(block))
    nest = _tile(s, block, plan, target)
    around = [*nest.virtual, *nest.warps, *nest.lanes]
    s.reorder([*nest.blocks, *around, *nest.steps, *nest.inner, *nest.rows])
    _limit(s, nest, target, s.block(block), len(plan.staged) == len(operands(s.block(block))))
    # The epilogue, in registers.
    if after:
        s.set_scope(block, "local")
        last = s.get_block(after[0].name)
    else:
        last = s.cache_write(block, "local")
    s.reverse_compute_at(last, around[-1])
    for tile in tiles:
        tile.place(s, nest, around)
    _mark_tile(s, last, nest)
    for x in nest.rows if plan.staged else nest.rows[:-1]:
        s.unroll(x)
    if not plan.staged:
        s.vectorize(nest.rows[-1])
    for x in nest.inner:
        s.unroll(x)
    s.decompose_reduction(block, nest.steps[0])
    s.bind(s.fuse(nest.blocks), "blockIdx.x")
    for loop, axis in zip(reversed(nest.virtual), "xyz", strict=False):
        s.bind(loop, f"vthread.{axis}")
    s.bind(s.fuse([*nest.warps, *nest.lanes]), "threadIdx.x")
    if tiles:
        versions = s.sample_categorical((1, 2), "versions")
        s.annotate(nest.steps[-1], "double_buffer", versions)
        buffers = minimum(versions.expr, s.loop(nest.steps[-1]).extent)  # a loop with one step needs no second buffer
        limit_shared(s, [t.size * buffers for t in tiles], target)
    for tile in tiles:
        tile.share(s)
    bind_rest(s)


def _tile(s: Schedule, block: BlockRV, plan: Plan, target: Target) -> _Nest:
    """Sample tile sizes and split all loops."""
    nest = _Nest()
    b = s.block(block)
    axis = vector_axis(b)
    tiled = [n for n, it in enumerate(b.iters) if it.kind == "S" and (it.extent.const != 1 or n == axis)]
    long = any(it.kind == "R" and (it.extent.const or 1) > WINDOW for it in b.iters)
    for n, (it, loop) in enumerate(zip(b.iters, s.get_loops(block), strict=True)):
        extent = it.extent.const or 1
        if it.kind == "R" and long and extent <= WINDOW and not plan.staged:
            nest.steps.append(loop)  # without staging, an unrolled window would need a guard for each element
            continue
        if it.kind == "R":
            domain = (1, extent) if extent <= WINDOW else tuple(k for k in STEPS if k <= extent) or (extent,)
            factor = s.sample_tile(loop, 2, f"{loop.var.name}_", [tuple(dict.fromkeys(domain))], slack=8)
            outer, inner = s.split(loop, [None, *factor])
            nest.steps.append(outer)
            nest.inner.append(inner)
            nest.step.append(factor[0])
            continue
        if n not in tiled:
            nest.blocks.append(loop)
            continue
        rows = tuple(r for r in ROWS if r < 2 * extent)
        if n == axis:
            rows = tuple(r for r in (1, 2, 4, 8, 16) if r < 2 * extent)
        threads = tuple(t for t in THREADS if t < 2 * extent)
        virtual = [tuple(v for v in VIRTUAL if v <= extent)] if n in tiled[-3:] else []
        lanes = [tuple(x for x in LANES if x <= target.warp_size)] if n in plan.lanes else []
        factors = s.sample_tile(loop, 3 + len(virtual) + len(lanes), loop.var.name, [*virtual, threads, *lanes, rows], slack=16)
        parts = s.split(loop, [None, *factors])
        at = 1 + len(virtual)
        nest.blocks.append(parts[0])
        nest.virtual += parts[1:at]
        nest.warps.append(parts[at])
        nest.lanes += parts[at + 1 : -1]
        nest.rows.append(parts[-1])
        nest.threads += factors[at - 1 : -1]
        nest.tile += [*factors[: at - 1], factors[-1]]
    if plan.lanes:
        s.step = "warp"
        warp = [s.loop(x).extent for x in nest.lanes]
        s.require("eq0", product(warp) - target.warp_size, "warp", "the lanes do not fill a warp")
    return nest


def _limit(s: Schedule, nest: _Nest, target: Target, b: Block, staged: bool) -> None:
    """Limit threads, code size and registers, so that the kernel is legal and does not obviously spill."""
    s.limit(nest.threads, target.max_threads_per_block, "threads")
    s.limit(nest.tile, MAX_ACCUMULATORS, "accumulators")
    s.limit([*nest.tile, *nest.step], MAX_UNROLLED if staged else MAX_UNROLLED_DIRECT, "written-out")
    s.limit(nest.step, MAX_STEPS, "steps")
    s.step = "registers"
    words = max(dt.nbytes(writes(b)[0].buffer.dtype) // 4, 1)
    registers = product([f.expr for f in nest.tile]) * words + 28
    block = registers * product([f.expr for f in nest.threads])
    s.require("le0", block - target.registers_per_sm, "registers", "one block does not fit the registers")


@dataclass(slots=True)
class _StagedOperand:
    """An operand with its copy in shared memory and its fragments in registers."""

    copy: BlockRV
    fragment: BlockRV
    order: list[int]
    width: IntRV
    size: Poly = ZERO

    def place(self, s: Schedule, nest: _Nest, around: list[LoopRV]) -> None:
        """Compute the copy at the outer reduction loop, and the fragments at the inner one."""
        rank = len(self.order)
        s.compute_at(self.fragment, nest.inner[-1])
        loops = s.get_loops(self.fragment)[-rank:]
        for x in loops[:-1]:
            s.unroll(x)
        s.vectorize(loops[-1])
        s.compute_at(self.copy, nest.steps[-1], around)
        if self.order != sorted(self.order):
            s.pad_rows(self.copy, 4)
        self.size = tile_bytes(s, self.copy, rank)

    def share(self, s: Schedule) -> None:
        """Distribute the copy over the threads of the block with coalesced accesses."""
        rank = len(self.order)
        own = s.get_loops(self.copy)[-rank:]
        s.reorder([own[self.order.index(d)] for d in range(rank)])
        s.cooperative_fetch(self.copy, self.width)


def _stage(s: Schedule, block: BlockRV, name: str, target: Target) -> _StagedOperand:
    """Stage an operand in shared memory and fragments, with the reduction dimensions first, so that fragments are vectors."""
    b = s.block(block)
    access = next(a for a in reads(b) if a.buffer.name == name)
    spatial = {it.var for it in b.iters if it.kind == "S"}
    wide = [d for d, e in enumerate(access.indices) if e.vars & spatial]
    order = [*[d for d in range(len(access.indices)) if d not in wide], *wide]
    width = s.sample_categorical(fetch_widths(access.buffer, target), f"{name}_vector")
    copy = s.cache_read(block, name, "shared", order)
    fragment = s.cache_read(block, writes(s.block(copy))[0].buffer.name, "local")
    return _StagedOperand(copy, fragment, order, width)


def _mark_tile(s: Schedule, last: BlockRV, nest: _Nest) -> None:
    """Unroll and vectorise the block that writes the tile back."""
    rank = sum(it.kind == "S" for it in s.block(last).iters)
    loops = s.get_loops(last)[-rank:]
    for x in loops[:-1]:
        s.unroll(x)
    s.vectorize(loops[-1])
