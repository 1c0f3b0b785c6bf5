"""Build the loop nest of a group: tile the anchor's shared axes, compute the other blocks inside one task, schedule each block.

The anchor is elementwise: if the last block is a reduction, a block that copies its result is added.  Its shared axes are tiled and their
outermost loops fused into parallel tasks.  Every other block is computed inside a task, over the part that the task needs, in a workspace;
accumulators are computed at the innermost tile loop of the block that reads them, so they stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.poly import ONE, ZERO, Poly, poly, product
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.axes import Axis, AxisClasses
from tunesmith.search.space.derive.contiguity import contiguous_suffix
from tunesmith.search.space.derive.packing import pack
from tunesmith.search.space.derive.plans import Plan, rows_of
from tunesmith.search.space.derive.reductions import (
    Reduction,
    accumulate_in_registers,
    factor_into_lanes,
    finish_lanes,
    is_along_lanes,
    own_loops,
    reductions_of,
)
from tunesmith.search.space.derive.register_tile import TileLoops, budget, finish_tile
from tunesmith.search.space.rules.block_classes import vector_axis
from tunesmith.search.space.rules.tile_domains import outer_tiles
from tunesmith.support import dtype as dt

BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of register tiles in a task along one axis."""
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Numbers of rows of a register tile."""
WORKSPACE = 2
"""A task's workspaces fill at most this part of the second-level cache: one half."""


class Nest:
    """The nest of one group.

    Args:
        s: the schedule; the blocks of the group are at the root, each in a nest of its own.
        names: the blocks of the group in program order, the anchor last.
        plan: packing, order and threads.
        target: the machine.
    """

    def __init__(self, s: Schedule, names: Sequence[str], plan: Plan, target: Target) -> None:
        self.s, self.names, self.plan, self.target = s, list(names), plan, target
        self.lanes = target.vector_lanes(writes(self._block(names[-1]))[0].buffer.dtype)
        self.reductions: dict[str, Reduction] = {}
        self.tiles: dict[Axis, IntRV] = {}
        """Sizes of the register tile along shared axes."""
        self.sizes: dict[Axis, Poly] = {}
        """Elements of each shared axis in one task."""
        self.anchor_loops: dict[int, list[LoopRV]] = {}
        """The anchor's loops inside a task by iteration variable."""

    def build(self) -> None:
        """Schedule the group."""
        self._reductions()
        self.axes = AxisClasses(self.s.blocks())
        placed = [n for n in self.names if not self._is_accumulator(n)]
        shared = self.axes.shared(placed)
        vectors, rows = self._tiled_axes()
        outer, inner = self._split_anchor(shared, vectors, rows)
        self._tasks(outer, inner)
        self._budget(placed)
        # A footprint is that of the reader's loops, overhang included: all blocks are placed before any is split further.
        for name in reversed(placed):
            self._place(name)
        for name in reversed(placed):
            tile = self._written_by(name)
            if tile is not None:
                self._tile(name, tile)
            elif name in self.reductions:
                finish_lanes(self.s, self.reductions[name], self.at)
            else:
                self._vectorize(name)
        if self.plan.threads:
            self.s.parallel(self.task)

    @property
    def anchor(self) -> str:
        """The last block of the group."""
        return self.names[-1]

    def _block(self, name: str) -> Block:
        return self.s.block(self.s.get_block(name))

    def _is_accumulator(self, name: str) -> bool:
        return name in self.reductions and bool(self.reductions[name].writer)

    def _written_by(self, writer: str) -> Reduction | None:
        """The tile reduction whose accumulators the block reads."""
        return next((r for r in self.reductions.values() if r.writer == writer), None)

    def _place(self, name: str) -> None:
        """Compute a block inside the tasks, and with it the accumulators or partial results that only it reads."""
        s = self.s
        if name != self.anchor:
            s.set_scope(s.get_block(name), "workspace")
            s.compute_at(s.get_block(name), self.at)
        tile = self._written_by(name)
        inner = tile.block if tile is not None else self.reductions[name].part if name in self.reductions else ""
        if inner:
            s.compute_at(s.get_block(inner), self.at)

    # ---- before any block moves ---------------------------------------------------------------------------------------

    def _reductions(self) -> None:
        for name in reductions_of(self.s, self.names):
            if is_along_lanes(self._block(name), self.lanes):
                if name == self.anchor:
                    copy = self.s.block(self.s.cache_write(self.s.get_block(name), "workspace")).name
                    self.names.append(copy)
                self.reductions[name] = factor_into_lanes(self.s, name, self.lanes)
            else:
                r = accumulate_in_registers(self.s, name, self.names, {r.writer for r in self.reductions.values()})
                self.reductions[name] = r
                if r.writer not in self.names:
                    self.names.insert(self.names.index(name) + 1, r.writer)

    def _tiled_axes(self) -> tuple[dict[Axis, bool], set[Axis]]:
        """The vector axes of register tiles, with whether the tile has rows; and the axes of their rows."""
        vectors: dict[Axis, bool] = {}
        rows: set[Axis] = set()
        for r in self.reductions.values():
            if r.writer:
                b = self._block(r.block)
                position = vector_axis(b)
                if position is not None:
                    axis = self.axes.axis(r.block, position)
                    vectors[axis] = vectors.get(axis, False) or bool(rows_of(b))
                rows |= {self.axes.axis(r.block, n) for n in rows_of(b)}
        return vectors, rows - vectors.keys()

    # ---- the anchor ---------------------------------------------------------------------------------------------------

    def _split_anchor(self, shared: dict[Axis, int], vectors: dict[Axis, bool], rows: set[Axis]) -> tuple[list[LoopRV], list[LoopRV]]:
        """Tile the anchor's loops; returns (loops over tasks, loops inside a task)."""
        s, b = self.s, self._block(self.anchor)
        outer: list[LoopRV] = []
        inner: list[LoopRV] = []
        by_lanes = any(r.part for r in self.reductions.values())
        private = any(self.axes.axis(self.anchor, n) not in shared and it.extent != 1 for n, it in enumerate(b.iters))
        for n, (it, loop) in enumerate(zip(b.iters, s.get_loops(s.get_block(self.anchor)), strict=True)):
            axis = self.axes.axis(self.anchor, n)
            part = self.axes.outer_part(self.anchor, n)
            extent = it.extent.const or 1
            if part is not None and part[0] in shared and axis not in shared:
                loops = s.split(loop, [None, part[1]])
                self.sizes[axis], self.sizes[part[0]] = poly(part[1]), ONE
            elif extent == 1:
                loops = [loop]
            elif axis not in shared:
                self.anchor_loops[n] = [loop]
                inner.append(loop)
                continue
            elif axis in vectors:
                tiles = tuple([self.lanes * k for k in ((1, 2, 3, 4, 6) if vectors[axis] else (1, 2, 4, 8))])
                loops = self._tile_loop(loop, axis, it.var.name, BLOCKS if vectors[axis] else (1, 2, 4), tiles, self.lanes, 0.5)
            elif axis in rows:
                loops = self._tile_loop(loop, axis, it.var.name, _upto(BLOCKS, extent), _upto(ROWS, extent), 4, 0.25)
            elif n == len(b.iters) - 1 and not private and not by_lanes:
                factors = s.sample_tile(loop, 2, it.var.name, [tuple([self.lanes * k for k in (1, 2, 4, 8, 16)])], waste=1.0)
                loops = s.split(loop, [None, *factors])
                self.sizes[axis] = factors[0].expr
            else:
                factors = s.sample_tile(loop, 2, it.var.name, [_upto((1, 2, 4, 8), extent)])
                loops = s.split(loop, [None, *factors])
                self.sizes[axis] = factors[0].expr
            outer.append(loops[0])
            inner += loops[1:]
            self.anchor_loops[n] = loops[1:]
        return outer, inner

    def _tile_loop(
        self, loop: LoopRV, axis: Axis, name: str, blocks: Sequence[int], tiles: Sequence[int], slack: int, waste: float
    ) -> list[LoopRV]:
        """Split into tasks, tiles of a task, and elements of a register tile."""
        factors = self.s.sample_tile(loop, 3, name, [blocks, tiles], slack=slack, waste=waste)
        self.tiles[axis] = factors[1]
        self.sizes[axis] = factors[0].expr * factors[1].expr
        return self.s.split(loop, [None, *factors])

    def _tasks(self, outer: list[LoopRV], inner: list[LoopRV]) -> None:
        """Fuse the loops over tasks; the other blocks are computed in the loop over the parts of a task."""
        s = self.s
        s.reorder([*outer, *inner])
        fused = s.fuse(outer)
        chunk = s.sample_tile(fused, 2, f"{self.anchor}_task", [outer_tiles(8)], waste=1.0)
        self.task, self.at = s.split(fused, [None, *chunk])

    def _budget(self, placed: Sequence[str]) -> None:
        """Require that the workspaces of a task fit the cache."""
        size = ZERO
        for name in placed:
            if name != self.anchor:
                b = self._block(name)
                extents = [self.sizes.get(self.axes.axis(name, n), it.extent) for n, it in enumerate(b.iters) if it.kind == "S"]
                size = size + product([*extents, ONE]) * dt.nbytes(writes(b)[0].buffer.dtype)
        self.s.step = "workspace budget"
        most = (self.target.l2_bytes or 1 << 20) // WORKSPACE
        self.s.require("le0", size - most, "workspace-budget", "the workspaces of a task do not fit the second-level cache")

    # ---- each block ---------------------------------------------------------------------------------------------------

    def _own(self, name: str) -> dict[int, list[LoopRV]]:
        """The loops of a block inside a task by iteration variable."""
        if name == self.anchor:
            return dict(self.anchor_loops)
        return {n: [x] for n, x in enumerate(own_loops(self.s, self.s.get_block(name)))}

    def _tile(self, writer: str, r: Reduction) -> None:
        """Tile the writer of a register tile, compute the accumulators there, and pack an operand."""
        accumulator = self._block(r.block)
        position = vector_axis(accumulator)
        if position is None:
            raise self.s.refuse("vector-axis", f"the last index of the output of {r.block} is no iteration variable", accumulator)
        vector = self.axes.axis(r.block, position)
        rows = {self.axes.axis(r.block, n): n for n in rows_of(accumulator)}
        loops, positions = TileLoops(), list[int]()
        own = self._own(writer)
        for n in sorted(own):
            axis = self.axes.axis(writer, n)
            extent = self._block(writer).iters[n].extent.const or 1
            if not own[n] or (axis != vector and axis not in rows) or (axis in rows and self.sizes.get(axis) == ONE):
                loops.others += own[n]
                continue
            tile = self.tiles.get(axis)
            if writer == self.anchor and tile is not None:
                over, inside = own[n]
            else:
                if tile is None:
                    if axis == vector:
                        domain: Sequence[int] = tuple([self.lanes * k for k in (1, 2, 3, 4, 6)])
                    else:
                        domain = _upto(ROWS, extent)
                    waste = (self.lanes, 0.5) if axis == vector else (4, 0.25)
                    (tile,) = self.s.sample_tile(own[n][0], 2, f"{r.block}_{n}", [domain], slack=waste[0], waste=waste[1])
                over, inside = self.s.split(own[n][0], [None, tile])
            if axis == vector:
                loops.over_vectors, loops.vector, loops.width = [over], inside, tile
            else:
                loops.over_rows.append(over)
                loops.rows.append(inside)
                positions.append(rows[axis])
                loops.heights.append(tile)
        if loops.vector is None or loops.width is None:
            raise self.s.refuse("vector-axis", f"the writer {writer} does not iterate over the vector axis of {r.block}", accumulator)
        budget(self.s, loops, self.lanes, self.target.vector_registers)
        at = loops.order(self.s, self.plan.vector_first)
        self.s.compute_at(self.s.get_block(r.block), at)
        pack(self.s, r.block, position, loops.width, self.plan.pack, self.plan.threads)
        finish_tile(self.s, r.block, position, positions, loops)

    def _vectorize(self, name: str) -> None:
        """Vectorise an elementwise block along its last axis, or along its last axes if they are contiguous."""
        s, b, own = self.s, self._block(name), self._own(name)
        loops = [x for n in sorted(own) for x in own[n]]
        varying = [n for n in sorted(own) if own[n] and b.iters[n].extent != 1]
        if not varying:
            return
        if name != self.anchor and len(loops) > 1:
            s.reorder(loops)
        last = varying[-1]
        axis = self.axes.axis(name, last)
        x = own[last][-1]
        if axis in self.sizes and self.sizes[axis].const is None:
            if axis in self.tiles or (name == self.anchor and not any(r.part for r in self.reductions.values())):
                if name != self.anchor and axis in self.tiles:
                    x = s.split(x, [None, self.tiles[axis]])[1]
                s.vectorize(x)
                return
            if name == self.anchor or last == 0:
                return
        whole = [n for n in varying if len(own[n]) == 1 and self.axes.axis(name, n) not in self.sizes]
        tail = [n for n in whole if n > max([n for n in varying if n not in whole], default=-1)]
        adjacent = contiguous_suffix(b, tail) if tail else 1
        if adjacent > 1:
            x = s.fuse([own[n][-1] for n in tail[-adjacent:]])
        if (s.loop(x).extent.const or self.lanes) * 2 <= self.lanes:
            return
        width = s.sample_tile(x, 2, f"{name}_", [tuple([self.lanes * k for k in (1, 2, 4, 8)])], slack=2 * self.lanes, waste=0.5)
        s.vectorize(s.split(x, [None, *width])[1])


def _upto(domain: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple([n for n in domain if n <= most])
