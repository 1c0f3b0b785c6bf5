"""Bound the code of a register tile, which is unrolled: its epilogue, and tiles that have no vector form."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.arith.simplify import simplify
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param, Var, evaluate, minimum, poly, product, substitute
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.visit import walk
from tunesmith.lower.code_size import UNROLLED, code_size, expression_size
from tunesmith.lower.passes.version_loops import MAX_VERSIONS
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.state import MAX_INTEGER
from tunesmith.search.space.rules.block_classes import inlined_sizes


def epilogue_size(func: PrimFunc, blocks: list[Block]) -> int:
    """Upper bound of the epilogue's instructions for one vector of the register tile.

    The tile is unrolled completely, with a vector in each register; two instructions per node are an upper bound.  Equal function calls
    are computed once.
    """
    sizes = inlined_sizes(func)
    calls = sum([expression_size(st.value) for b in blocks for st in walk(b.body) if type(st) is BufferStore])
    return max([2 * sizes[b.name].nodes for b in blocks], default=0) + calls


def bound_code(
    s: Schedule, block: BlockRV, axis: int, vector_factor: IntRV, rows: Sequence[IntRV], window: LoopRV | None, lanes: int
) -> None:
    """Require that a register tile that cannot be vectorised stays within the unrolling budget.

    Such a tile is unrolled to one statement per element in each loop version.  Tiles that can be vectorised need no constraint.
    """
    b = s.block(block)
    if _is_linear(b, b.iters[axis].var, lanes):
        return
    vector = minimum(vector_factor.expr, max(b.iters[axis].extent.const or lanes, 1))
    tile = product([vector, *[r.expr for r in rows]])
    copies = (s.loop(window).extent.const or 1) if window is not None else 1
    most = UNROLLED // (MAX_VERSIONS * copies * code_size(b.body))
    if evaluate(tile, {p: max(p.domain) for p in tile.vars if isinstance(p, Param)}) <= most:
        return
    s.step = "code budget"
    s.require("le0", tile - most, "code-budget", "the register tile cannot be vectorised and has too many elements to be unrolled")


def _is_linear(b: Block, axis: Var, lanes: int) -> bool:
    """Whether every index has a constant stride between vector lanes along `axis`, and every condition holds for a prefix of lanes."""
    lane, whole = Var("lane"), Var("whole")
    ranges = {it.var: (0, max((it.extent.const or 1) - 1, 0)) for it in b.iters}
    ranges |= {lane: (0, lanes - 1), whole: ranges[axis]}
    along = {axis: poly(whole) * lanes + lane}
    for x in walk(b.body):
        parts = x.indices if type(x) in (BufferLoad, BufferStore) else (x.index,) if type(x) is IsNegative else ()
        for p in parts:
            sizes = dict.fromkeys(p.vars - ranges.keys(), (0, MAX_INTEGER))
            known = coefficient(simplify(substitute(p, along), ranges | sizes), lane)
            if known is None or (type(x) is IsNegative and known[0] not in (0, 1)):
                return False
    return True
