"""Schedule a register tile: its loops, its budget, and the accumulating block inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.ir.poly import product
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.reductions import own_loops


@dataclass(slots=True)
class TileLoops:
    """The loops of a writer inside a task: those over tiles, and those of one tile."""

    others: list[LoopRV] = field(default_factory=list)
    over_rows: list[LoopRV] = field(default_factory=list)
    over_vectors: list[LoopRV] = field(default_factory=list)
    rows: list[LoopRV] = field(default_factory=list)
    heights: list[IntRV] = field(default_factory=list)
    vector: LoopRV | None = None
    width: IntRV | None = None

    def order(self, s: Schedule, vector_first: bool) -> LoopRV:
        """Reorder; returns the innermost loop over tiles."""
        over = [*self.over_vectors, *self.over_rows] if vector_first else [*self.over_rows, *self.over_vectors]
        assert self.vector is not None
        s.reorder([*self.others, *over, *self.rows, self.vector])
        return over[-1]


def budget(s: Schedule, loops: TileLoops, lanes: int, registers: int) -> None:
    """Require that accumulators, one row of the vector operand and one broadcast fit the registers."""
    assert loops.width is not None
    v = loops.width.expr
    s.step = "register budget"
    s.require(
        "le0",
        product([h.expr for h in loops.heights]) * v + v + lanes - registers * lanes,
        "register-budget",
        "the register tile does not fit the registers",
    )


def finish_tile(s: Schedule, name: str, position: int, rows: Sequence[int], loops: TileLoops) -> None:
    """Order and mark the loops of the accumulating block, which is in its place, and those of its writer's tile."""
    block = s.get_block(name)
    iters = s.block(block).iters
    mine = own_loops(s, block)
    reduced = [x for x, it in zip(mine, iters, strict=True) if it.kind == "R"]
    units = [x for n, x in enumerate(mine) if iters[n].kind == "S" and n != position and n not in rows]
    s.reorder([*units, *reduced, *[mine[n] for n in rows], mine[position]])
    s.vectorize(mine[position])
    for n in rows:
        s.unroll(mine[n])
    assert loops.vector is not None
    s.vectorize(loops.vector)
    for x in loops.rows:
        s.unroll(x)
    s.decompose_reduction(block, reduced[0])
