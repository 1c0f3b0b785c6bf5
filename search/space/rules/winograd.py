"""Schedule convolutions of stride 1 as products of transformed tiles (Winograd), beside direct sums.

    parallel over rows of tiles (or over columns of the products, with the transformed image computed before)
        transform the image of the tiles                     workspace
        for columns:
            for points: products of tiles and channels       register tiles, written to a workspace
            for tiles, vectors of columns: inverse transform, epilogue, written to the output

The transformed filter is a constant, computed and packed ahead.  Tiles of 2, 3 and 4 outputs save 1 - 4 / 9, 1 - 25 / 81 and 3 / 4 of the
products; which is fastest depends on the sizes of image and filter, so that the search measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tunesmith.ir.analysis.access_regions import plain_iter, reads, writes
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import is_output, is_pointwise
from tunesmith.search.space.rules.contraction import candidate, pad
from tunesmith.search.space.rules.tile_domains import ROWS, VECTORS

TILES = (2, 3, 4)
"""Outputs of a tile in each dimension."""
Named = tuple[str, Callable[[Schedule], None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        tile: outputs of a tile in each dimension.
        columns: tasks are columns of the products, and the transformed image is computed before; otherwise rows of tiles.
        threads: the tasks run in parallel.
    """

    tile: int
    columns: bool
    threads: bool

    @property
    def name(self) -> str:
        """As records spell it."""
        return f"winograd F({self.tile}){' columns' * self.columns}{' serial' * (not self.threads)}"


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules of a function with one convolution of float32 with a constant filter, a window of 3 x 3 and one output."""
    found = candidate(func, target)
    if found is None or not _is_convolution(func, found.main):
        return []
    threading = (True, False) if worth_serial(func, target) else (True,)
    plans = [Plan(tile, columns, threads) for tile in TILES for columns in (False, True) for threads in threading]
    return [(plan.name, partial(schedule, main=found.main.name, pads=found.pads, plan=plan, target=target)) for plan in plans]


def _is_convolution(func: PrimFunc, main: Block) -> bool:
    """Whether `winograd` applies to a window of 3 x 3 and channels that are last in the image, the constant filter and the output."""
    outputs = [b for b in blocks_under(func.body) if is_output(func, b)]
    made, operands = writes(main)[0], [a for a in reads(main) if a.buffer is not writes(main)[0].buffer]
    if len(outputs) != 1 or made.buffer.dtype != "float32" or writes(outputs[0])[0].buffer.shape != made.buffer.shape:
        return False
    kinds = {it.var: it.kind for it in main.iters}
    last = [a.indices[-1].as_var() for a in (made, *operands) if a.indices]
    filters = [a for a in operands if a.buffer.name in func.constants and a.indices[-1].as_var() is last[0]]
    images = [a for a in operands if kinds.get(a.indices[-1].as_var()) == "R"]  # type: ignore[arg-type]
    if len(operands) != 2 or len(filters) != 1 or len(images) != 1 or last[0] is None or len(filters[0].indices) != 4:
        return False
    taps = {it.var for it in main.iters if it.kind == "R" and it.extent == 3}
    windows = [e for e in images[0].indices if not taps.isdisjoint(e.vars) and e.as_var() is None]
    s = Schedule(func)
    return len(windows) == 2 and s.accepts(lambda: s.winograd(s.get_block(main.name), TILES[0]))


def schedule(s: Schedule, main: str, pads: tuple[str, ...], plan: Plan, target: Target) -> None:
    """Build the nest of `plan`."""
    inlined = [b.name for b in s.blocks() if is_pointwise(b) and b.name not in pads and not is_output(s.func, b)]
    made = s.winograd(s.get_block(main), plan.tile)
    copy, image, (products, *inverse) = made[0], made[1:3], made[5:]
    for name in (*pads, *([] if is_output(s.func, s.block(s.get_block(main))) else [main]), *inlined):
        s.compute_inline(s.get_block(name))
    out = next(s.get_block(b.name) for b in s.blocks() if is_output(s.func, b))
    levels = _output(s, out, s.block(inverse[-1]), plan, target)
    task = levels.columns if plan.columns else levels.tiles
    place = None if plan.columns else task
    sums = s.cache_write(products, "register")
    for b in reversed(inverse):
        s.compute_at(b, levels.vector)
        _unroll(s, b, 2)
        s.set_scope(b, "register")
    s.compute_at(sums, levels.columns)
    s.set_scope(sums, "workspace")
    _products(s, sums, products, writes(s.block(made[4]))[0].buffer.name, levels.width, target)
    _image(s, image, place, plan, target)
    pad(s, copy, place, target, plan.threads)
    if plan.threads:
        s.parallel(task)


@dataclass(frozen=True, slots=True)
class _Levels:
    """Loops of the output: over blocks of tile rows, blocks of columns, and vectors of a tile; and the columns of a block."""

    tiles: LoopRV
    columns: LoopRV
    vector: LoopRV
    width: IntRV


def _output(s: Schedule, out: BlockRV, tiles: Block, plan: Plan, target: Target) -> _Levels:
    """Split the loops of the output into tiles, and mark those inside of a tile."""
    b = s.block(out)
    read = next(a for a in reads(b) if a.buffer is writes(tiles)[0].buffer)
    loops = dict(zip([it.var for it in b.iters], s.get_loops(out), strict=True))
    last = plain_iter(writes(b)[0].indices[-1], b)
    assert last is not None
    column = b.iters[last].var
    windows: list[Var] = [next(iter(e.vars)) for e in read.indices[:2]]
    others = [x for v, x in loops.items() if v is not column and v not in windows]
    (ty, y), (tx, x) = (s.split(loops[v], [None, plan.tile]) for v in windows)
    lanes = target.vector_lanes("float32")
    rows = s.sample_tile(ty, 2, "tile_rows", [tuple(n for n in ROWS if n <= (s.loop(ty).extent.const or 1))])
    over, inside = s.split(ty, [None, *rows])
    most = tuple(n for n in VECTORS if n <= max(target.vector_registers // 4, 2))
    width, _ = s.sample_tile(loops[column], 3, "columns", [most, (lanes,)], slack=lanes)
    blocks, vectors, lane = s.split(loops[column], [None, width, lanes])
    outer = [blocks, over] if plan.columns else [over, blocks]
    s.reorder([*others, *outer, inside, tx, vectors, y, x, lane])
    s.vectorize(lane)
    s.unroll(y)
    s.unroll(x)
    return _Levels(over, blocks, vectors, width)


def _unroll(s: Schedule, block: BlockRV, count: int) -> None:
    """Unroll the first loops of a block that is in the nest of another, and vectorise its last one."""
    rank = len(s.block(block).iters)
    loops = s.get_loops(block)[-rank:]
    for x in loops[:count]:
        s.unroll(x)
    s.vectorize(loops[-1])


def _products(s: Schedule, sums: BlockRV, products: BlockRV, name: str, width: IntRV, target: Target) -> None:
    """Sum the products in register tiles of tiles and columns."""
    lanes = target.vector_lanes("float32")
    rank = len(s.block(sums).iters)
    p0, p1, t0, t1, *others, column = s.get_loops(sums)[-rank:]
    factors = [s.sample_tile(t, 2, name, [tuple(n for n in ROWS if n <= most)])[0] for t, name, most in ((t0, "t0", 4), (t1, "t1", 16))]
    (t0o, t0i), (t1o, t1i) = (s.split(t, [None, f]) for t, f in zip((t0, t1), factors, strict=True))
    s.reorder([p0, p1, *others, t0o, t1o, t0i, t1i, column])
    v = width.expr
    over = factors[0].expr * factors[1].expr * v + v + 1 - target.vector_registers
    s.step = "register budget"
    s.require("le0", over, "register-budget", "the register tile does not fit the registers")
    s.compute_at(products, t1o)
    s.unroll(t0i)
    s.unroll(t1i)
    s.vectorize(column)
    b = s.block(products)
    loops = s.get_loops(products)[-len(b.iters) :]
    spatial = [x for x, it in zip(loops, b.iters, strict=True) if it.kind == "S"]
    reduced = [x for x, it in zip(loops, b.iters, strict=True) if it.kind == "R"]
    vector, lane = s.split(spatial[-1], [None, lanes])
    s.reorder([*spatial[:2], *spatial[4:-1], *reduced, *spatial[2:4], vector, lane])
    s.vectorize(lane)
    for x in (*spatial[2:4], vector):
        s.unroll(x)
    s.decompose_reduction(products, reduced[0])
    # The filter of a block of columns is read in the order of memory: panels of vectors first, and then those of a block together.
    panels = s.cache_read(products, name, "global", [[3, "/", lanes], 0, 1, 2, [3, "%", lanes]])
    copy = s.cache_read(products, name, "global", [[0, "/", width], 1, 2, 3, [0, "%", width], 4])
    for packed in (panels, copy):
        s.vectorize(s.get_loops(packed)[-1])
    s.annotate(copy, "pack_constant", name.removesuffix("_winograd"))
    s.annotate(p1, "prefetch_operand", writes(s.block(copy))[0].buffer.name)
    s.annotate(p1, "prefetch_ahead", s.sample_categorical((0, 1), "prefetch"))


def _image(s: Schedule, stages: list[BlockRV], at: LoopRV | None, plan: Plan, target: Target) -> None:
    """Transform the tiles in vectors of channels, all points of a tile at once."""
    first, last = stages
    s.set_scope(last, "global" if at is None else "workspace")
    if at is not None:
        s.compute_at(last, at)
    rank = len(s.block(last).iters)
    p0, p1, t0, t1, *others, channel = s.get_loops(last)[-rank:]
    over, lane = s.split(channel, [None, target.vector_lanes("float32")])
    s.reorder([t0, t1, *others, over, p0, p1, lane])
    s.compute_at(first, over)
    s.set_scope(first, "register")
    for b in stages:
        inner = s.get_loops(b)
        inner = inner[-3:] if b is last else [inner[-rank], inner[-rank + 1], inner[-1]]
        s.unroll(inner[0])
        s.unroll(inner[1])
        s.vectorize(inner[2])
    if at is None and plan.threads:
        s.parallel(s.fuse([t0, t1]))
