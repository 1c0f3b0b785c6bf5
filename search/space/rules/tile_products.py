"""Schedule contractions of bytes and of bfloat16 on CPUs by products of tiles (AMX).

    parallel tasks                                    blocks of rows x blocks of columns
      [copy the rows into tiles, or pad them]         in the thread's workspace
      over tiles
        sums = 0                                      up to 6 tile registers
        for reduction: sums += rows @ columns         the operands take the other two registers
        scratch = sums                                whole tiles of 1 KB
        epilogue: scratch -> output                   vectors of 16 columns, without the padding

A long reduction may be split into blocks, so that the rows of a register tile stay in the L1 cache.  The sums of all tiles of a task are
then in the scratch memory from block to block, and the epilogue follows the last block.

The operand with columns is packed, tile by tile, outside the nest if it is a constant.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, reads, writes
from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.buffer import TILE_SCOPE, Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import product
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.tile_products import SUM_REGISTERS, TILE_ROWS
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.layout import Layout
from tunesmith.schedule.reshaped_block import reshaped
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import consumers, is_output
from tunesmith.search.space.rules.contraction import Candidate, Named, candidate, inline_elementwise, pad, split_longest
from tunesmith.search.space.rules.dot_instruction import grouped_layout, vectorize_groups
from tunesmith.search.space.rules.tile_domains import middle_tiles, outer_tiles
from tunesmith.search.space.rules.tile_instruction import TileProduct, rows_layout, tile_product_of

TILES = (1, 2, 3, 4, 6)
"""Tiles of a register tile along an axis."""
BLOCKS = (8, 12, 16, 24, 32)
"""Block sizes of a long reduction, in tiles: 8 tiles of 1 KB for each row and column of the register tile fit the L1 cache."""
LEVELS = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch.

    Attributes:
        columns_first: iterate the register tiles of a block along the columns in the outer loop.
        rows: "place" (rows are read where they are), "tiles" (each task copies its rows into tiles first), "block" (each task pads its
            rows first) or "root" (the whole operand is padded first).
        constant: the packed operand is a weight: it is packed outside the nest, once before all calls if they are known to share it.
        blocked: the longest reduction loop is split into blocks.
        threads: the outermost loops are parallel.
    """

    columns_first: bool
    rows: str
    constant: bool
    blocked: bool
    threads: bool

    @property
    def name(self) -> str:
        """A readable, unique name."""
        parts = ["amx", "columns-rows" if self.columns_first else "rows-columns", f"rows({self.rows})"]
        marks = {"const": self.constant, "blocked": self.blocked, "serial": not self.threads}
        return " ".join([*parts, *[mark for mark, there in marks.items() if there]])


@dataclass(slots=True)
class _Operand:
    """An operand of the product: the name of its buffer, and the blocks that write it."""

    name: str
    makers: list[str]


@dataclass(slots=True)
class _Tiling:
    """The loops of a nest.

    Attributes:
        levels: the spatial loops by level; the last level is the register tile.
        columns: the loops over columns by level.
        factors: the extents of the register tile, in tiles.
        reduction: the loops over the reduction, in order.
        instruction: the loops of the instruction.
    """

    levels: list[list[LoopRV]]
    columns: list[LoopRV] = field(default_factory=list)
    factors: list[IntRV] = field(default_factory=list)
    reduction: list[LoopRV] = field(default_factory=list)
    instruction: list[LoopRV] = field(default_factory=list)


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules for a function with exactly one contraction that an instruction of the target computes; none for others."""
    found = candidate(func, target) if target.base == "llvm" else None
    tiles = None if found is None else tile_product_of(found.main, target)
    if found is None or tiles is None or not _has_one_epilogue(func, found.main):
        return []
    return [(p.name, lambda s, p=p: schedule(s, found, tiles, p, target)) for p in plans(func, found, tiles, target)]  # type: ignore[misc]


def _has_one_epilogue(func: PrimFunc, main: Block) -> bool:
    """Whether at most one block reads the sums, directly or by blocks that are inlined, and writes an output, and every block between reads
    its operand element by element."""
    outputs: set[Block] = set()
    stack = [main]
    while stack:
        b = stack.pop()
        if is_output(func, b):
            outputs.add(b)
            continue
        made = writes(b)[0].buffer
        readers = consumers(func, b)
        if not all(_is_elementwise(reader, made) for reader in readers):
            return False
        stack += readers
    return len(outputs) <= 1


def _is_elementwise(reader: Block, made: Buffer) -> bool:
    """Whether a block reads a buffer at distinct iteration variables, or all of it in another shape, as `reverse_compute_at` requires."""
    b = reshaped(reader, made) or reader
    positions = [[plain_iter(e, b) for e in a.indices] for a in reads(b) if a.buffer is made]
    return all(p == positions[0] and None not in p and len(set(p)) == len(p) for p in positions)


def plans(func: PrimFunc, found: Candidate, tiles: TileProduct, target: Target) -> list[Plan]:
    """The structural choices."""
    left = tiles.left.buffer
    computed = [w.buffer for b in blocks_under(func.body) if b.name in found.pads for w in writes(b)]
    rows = ["block", "root"] if tiles.is_padded or left in computed else ["place"]
    if rows_layout(tiles, found.main, left.name) is not None:
        rows = ["tiles", *rows]
    constant = tiles.packed.buffer.name in func.constants
    threading = (True, False) if worth_serial(func, target) else (True,)
    longest = max(_steps(found.main, tiles))
    cuts = (False, True) if longest >= 2 * BLOCKS[0] else (False,)
    return [Plan(first, r, constant, cut, threads) for first, r, cut, threads in itertools.product((False, True), rows, cuts, threading)]


def _steps(main: Block, tiles: TileProduct) -> list[int]:
    """The extents of the reduction loops, that of the instruction's in tiles."""
    extents = {n: it.extent.const or 1 for n, it in enumerate(main.iters) if it.kind == "R"}
    return [-(-e // (TILE_ROWS * tiles.group)) if n == tiles.reduced else e for n, e in extents.items()]


def schedule(s: Schedule, found: Candidate, tiles: TileProduct, plan: Plan, target: Target) -> None:
    """Build the nest of `plan`."""
    main, pads = found.main.name, list(found.pads)
    inline_elementwise(s, main, pads)
    block = s.get_block(main)
    left, packed = (
        _Operand(name, [c for c in pads if writes(s.block(s.get_block(c)))[0].buffer.name == name])
        for name in (tiles.left.buffer.name, tiles.packed.buffer.name)
    )
    if tiles.is_padded:
        for copy in s.pad_einsum(block, list(tiles.padding)):
            made, read = writes(s.block(copy))[0].buffer.name, {a.buffer.name for a in reads(s.block(copy))}
            for operand in (left, packed):
                if operand.name in read:
                    for c in operand.makers:
                        s.compute_inline(s.get_block(c))
                    operand.name, operand.makers = made, [s.block(copy).name]
        for reader in consumers(s.func, s.block(block)):
            if not is_output(s.func, reader):
                s.compute_inline(s.get_block(reader.name))
    _nest(s, block, left, packed, tiles, plan, target)


def _nest(s: Schedule, block: BlockRV, left: _Operand, packed: _Operand, tiles: TileProduct, plan: Plan, target: Target) -> None:
    """Build the nest of a contraction of whole tiles.

    Args:
        s: the schedule.
        block: the contraction.
        left: the operand with rows.
        packed: the operand with columns.
        tiles: the instruction.
        plan: the structural choices.
        target: the machine.
    """
    readers = [c.name for c in consumers(s.func, s.block(block))]  # the epilogue; empty if the sums are written as they are
    t = _tile(s, block, tiles)
    inner = [[t.columns[n], *[x for x in level if x is not t.columns[n]]] for n, level in enumerate(t.levels)]
    over_tiles = inner[2] if plan.columns_first else [*inner[2][1:], inner[2][0]]
    tasks = t.levels[0]
    cut: list[LoopRV] = []
    if plan.blocked:
        cut = [split_longest(s, t.reduction, BLOCKS, "block")]
    s.reorder([*tasks, *cut, *inner[1], *over_tiles, *t.reduction, *inner[3][1:], inner[3][0], *t.instruction])
    s.step = "register budget"
    over = product([f.expr for f in t.factors]) - SUM_REGISTERS
    s.require("le0", over, "register-budget", "the register tile does not fit the tile registers")
    _pack(s, block, packed, tiles, plan, t.columns[1])
    _rows(s, block, left, tiles, plan, tasks[-1], target)
    register_tile = [*inner[3][1:], inner[3][0]]
    if plan.blocked:
        _blocked_sums(s, block, readers, tiles, tasks[-1], cut[0], over_tiles[-1])
    else:
        _sums(s, block, readers, tiles, over_tiles[-1], t.reduction[0], len(register_tile))
    for x in register_tile:
        s.unroll(x)
    s.tensorize(t.instruction[0], tiles.instruction)
    fused = s.fuse(tasks)
    if plan.threads:
        s.parallel(fused)


def _sums(
    s: Schedule, block: BlockRV, readers: Sequence[str], tiles: TileProduct, at: LoopRV, reduction: LoopRV, register_loops: int
) -> None:
    """Keep the sums of a register tile in tile registers; clear them before, and store them to scratch memory after the reduction."""
    epilogue = _epilogue(s, block, readers, TILE_SCOPE)
    row, column = _axes(s, block, tiles)
    sums = writes(s.block(block))[0].buffer.name
    s.reverse_compute_at(epilogue, at)
    spill = s.read_at(at, epilogue, sums, "workspace")
    scratch = writes(s.block(spill))[0].buffer.name
    init = s.decompose_reduction(block, reduction)
    for x in s.get_loops(init)[-2 - register_loops : -2]:
        s.unroll(x)
    spilled = _as_tiles(s, spill, row, column)
    _vectorize_epilogue(s, epilogue, scratch, row, column, unrolled=True)
    layout = _layout(len(s.block(spill).iters), row, column)
    s.transform_layout(block, sums, layout)
    s.transform_layout(spill, scratch, layout)
    s.tensorize(s.get_loops(init)[-2], f"x86.tilezero.{tiles.suffix}")
    s.tensorize(spilled, f"x86.tilestore.{tiles.suffix}")


def _blocked_sums(s: Schedule, block: BlockRV, readers: Sequence[str], tiles: TileProduct, task: LoopRV, cut: LoopRV, at: LoopRV) -> None:
    """Keep the sums of a task in scratch memory, and those of a register tile in tile registers during a block of the reduction."""
    epilogue = _epilogue(s, block, readers, "workspace")
    row, column = _axes(s, block, tiles)
    scratch = writes(s.block(block))[0].buffer.name
    s.reverse_compute_at(epilogue, task)
    init = s.decompose_reduction(block, cut)
    fill, spill = s.cache_reduction(block, at, TILE_SCOPE)
    sums = writes(s.block(block))[0].buffer.name
    s.vectorize(s.get_loops(init)[-1])
    nests = [_as_tiles(s, b, row, column) for b in (fill, spill)]
    _vectorize_epilogue(s, epilogue, scratch, row, column, unrolled=False)
    layout = _layout(len(writes(s.block(block))[0].indices), row, column)
    s.transform_layout(block, sums, layout)
    s.transform_layout(spill, scratch, layout)
    for nest, name in zip(nests, ("tileload", "tilestore"), strict=True):
        s.tensorize(nest, f"x86.{name}.{tiles.suffix}")


def _epilogue(s: Schedule, block: BlockRV, readers: Sequence[str], scope: str) -> BlockRV:
    """Move the sums to a scope; returns the block that reads them."""
    if not readers:
        return s.cache_write(block, scope)
    s.set_scope(block, scope)
    return s.get_block(readers[0])


def _axes(s: Schedule, block: BlockRV, tiles: TileProduct) -> tuple[int, int]:
    """The dimensions of the result with the rows and with the columns of tiles."""
    b = s.block(block)
    indices = [e.as_var() for e in writes(b)[0].indices]
    return indices.index(b.iters[tiles.rows].var), indices.index(b.iters[tiles.columns].var)


def _layout(rank: int, row: int, column: int) -> Layout:
    """Tile by tile: [other dimensions, tiles of rows, tiles of columns, rows, columns]."""
    rest = [d for d in range(rank) if d not in (row, column)]
    return [*rest, [row, "/", TILE_ROWS], [column, "/", TILE_ROWS], [row, "%", TILE_ROWS], [column, "%", TILE_ROWS]]


def _tile(s: Schedule, block: BlockRV, tiles: TileProduct) -> _Tiling:
    """Sample the tiles and split the loops."""
    t = _Tiling([[] for _ in range(LEVELS)])
    row: LoopRV | None = None
    column: LoopRV | None = None
    group: list[LoopRV] = []
    for n, (it, loop) in enumerate(zip(s.block(block).iters, s.get_loops(block), strict=True)):
        extent = it.extent.const or 1
        if n == tiles.reduced:
            over, *group = s.split(loop, [None, TILE_ROWS, tiles.group])
            t.reduction.append(over)
        elif it.kind == "R":
            t.reduction.append(loop)
        elif n in (tiles.rows, tiles.columns):
            count = -(-extent // TILE_ROWS)
            inner = tuple([x for x in TILES if x <= count])
            domains = [outer_tiles(count), middle_tiles(count, inner), inner, (TILE_ROWS,)]
            *factors, _ = s.sample_tile(loop, LEVELS + 1, loop.var.name, domains, slack=TILE_ROWS)
            # The sides of a tile are literals: packed operands are addressed by tiles.
            *parts, last = s.split(loop, [None, *factors, TILE_ROWS])
            t.factors.append(factors[-1])
            for level, x in zip(t.levels, parts, strict=True):
                level.append(x)
            if n == tiles.rows:
                row = last
            else:
                column, t.columns = last, parts
        elif extent == 1:
            t.levels[0].append(loop)
        else:
            inner = tuple([x for x in TILES if x <= extent])
            factors = s.sample_tile(loop, LEVELS, loop.var.name, [outer_tiles(extent), middle_tiles(extent, inner), inner])
            t.factors.append(factors[-1])
            for level, x in zip(t.levels, s.split(loop, [None, *factors]), strict=True):
                level.append(x)
    assert row is not None and column is not None
    t.instruction = [row, column, *group]
    return t


def _pack(s: Schedule, block: BlockRV, operand: _Operand, tiles: TileProduct, plan: Plan, at: LoopRV) -> None:
    """Pack the operand with columns into tiles, in the order in which they are read."""
    layout = grouped_layout(s.block(block), operand.name, tiles.columns, tiles.reduced, TILE_ROWS, tiles.group)
    copy = s.cache_read(block, operand.name, "global" if plan.constant else "workspace", layout)
    for maker in operand.makers:
        s.compute_inline(s.get_block(maker))
    if not plan.constant:
        s.compute_at(copy, at)
    vectorize_groups(s, copy)
    if plan.constant:
        s.annotate(copy, "pack_constant", tiles.packed.buffer.name)
        if plan.threads:
            s.parallel(s.get_loops(copy)[0])
        s.annotate(at, "prefetch_operand", writes(s.block(copy))[0].buffer.name)
        s.annotate(at, "prefetch_ahead", s.sample_categorical((0, 1), "prefetch"))


def _rows(s: Schedule, block: BlockRV, operand: _Operand, tiles: TileProduct, plan: Plan, at: LoopRV, target: Target) -> None:
    """Copy the operand with rows into tiles, or pad it."""
    if plan.rows == "tiles":
        copy = s.cache_read(block, operand.name, "workspace", rows_layout(tiles, s.block(block), operand.name))
        for maker in operand.makers:
            s.compute_inline(s.get_block(maker))
        s.compute_at(copy, at)
        s.vectorize(s.get_loops(copy)[-1])
        return
    for maker in operand.makers:
        pad(s, s.get_block(maker), at if plan.rows == "block" else None, target, plan.threads)


def _as_tiles(s: Schedule, spill: BlockRV, row: int, column: int) -> LoopRV:
    """Split the loops of the block that copies the sums to scratch memory into tiles; returns the outer loop of a tile."""
    rank = len(writes(s.block(spill))[0].indices)
    loops = s.get_loops(spill)[-rank:]
    rows, columns = (s.split(loops[d], [None, TILE_ROWS]) for d in (row, column))
    outer = [x for d, x in enumerate(loops) if d not in (row, column)] + [rows[0], columns[0]]
    s.reorder([*outer, rows[1], columns[1]])
    for x in outer:
        s.unroll(x)
    return rows[1]


def _vectorize_epilogue(s: Schedule, epilogue: BlockRV, scratch: str, row: int, column: int, unrolled: bool) -> None:
    """Vectorize the epilogue along the columns; the rows of a tile are a loop, and those around it may be unrolled."""
    b = s.block(epilogue)
    tile = next(a for a in accesses(b) if a.buffer.name == scratch)
    spatial = [i for i, it in enumerate(b.iters) if it.kind == "S"]
    loops = dict(zip(spatial, s.get_loops(epilogue)[-len(spatial) :], strict=True))
    places = [plain_iter(e, b) for e in tile.indices]
    vector, rows = (loops.pop(p) for p in (places[column], places[row]) if p is not None)
    over, inside = s.split(rows, [None, TILE_ROWS])
    inner = [vector] if unrolled else s.split(vector, [None, TILE_ROWS])
    s.reorder([*loops.values(), over, inside, *inner])
    s.vectorize(inner[-1])
    for x in (*loops.values(), over) if unrolled else ():
        s.unroll(x)
