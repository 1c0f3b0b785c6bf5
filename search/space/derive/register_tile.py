"""Schedule a register tile: its loops, its budget, a packed operand, and the accumulating block inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.poly import product
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.plans import rows_of
from tunesmith.search.space.derive.reductions import own_loops
from tunesmith.search.space.rules.block_classes import operands


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


def pack_operand(s: Schedule, name: str, position: int, width: IntRV, threads: bool) -> None:
    """Pack the first operand that the rows of the tile reuse into panels of the tile's width, before the nest.

    The layout is [batch dimensions, vector axis / width, the other dimensions, vector axis % width].  Only parameters and results of other
    nests can be packed there.
    """
    block = s.get_block(name)
    b = s.block(block)
    vector = b.iters[position].var
    rows = [b.iters[n].var for n in rows_of(b)]
    here = s.root_index(name)
    for a, o in zip(reads(b), operands(b), strict=True):
        made_here = any(w.buffer is a.buffer for c in s.blocks() if s.root_index(c.name) == here for w in writes(c))
        if made_here or not any(e.as_var() is vector for e in a.indices) or all(v in o.iters for v in rows):
            continue
        at = next(d for d, e in enumerate(a.indices) if e.as_var() is vector)
        rest = [d for d in range(len(a.indices)) if d != at]
        spatial = {it.var for it in b.iters if it.kind == "S"}
        batch = [d for d in rest if a.indices[d].vars <= spatial]
        rest = [d for d in rest if d not in batch]
        copy = s.cache_read(block, a.buffer.name, "global", [*batch, [at, "/", width], *rest, [at, "%", width]])
        loops = s.get_loops(copy)
        s.vectorize(loops[-1])
        tasks = s.fuse(loops[: len(batch) + 1])
        if threads:
            s.parallel(tasks)
        return


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
