"""Schedule scatters on CPUs: updates of one element stay in order, loops whose iterations update different elements are parallel."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import plain_iter, writes
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import BindIndex, Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.schedule.independence import is_independent
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.tile_domains import outer_tiles

VECTORS = (1, 2, 4, 8, 16)
"""Numbers of vectors that one update computes."""


def is_scatter(b: Block) -> bool:
    """Whether the block stores at indices that are data."""
    return b.init is None and any(type(n) is BindIndex for n in walk(b.body))


def nest(s: Schedule, name: str, target: Target, threads: bool) -> None:
    """Schedule a scatter in a nest of its own.

    Loops over different elements of the output are outside, and parallel; neighbouring elements at one indirect index are vectorised.
    """
    block = s.get_block(name)
    loops = s.get_loops(block)
    # A fused loop over rows and one column writes at quotients and remainders, which is harder to prove independent.
    free = [n for n, x in enumerate(loops) if s.loop(x).extent.const != 1 and is_independent(s, s.loop(x))]
    ordered = [x for n, x in enumerate(loops) if n not in free]
    last = _contiguous(s.block(block))
    outer = [loops[n] for n in free if n != last]
    if last in free:
        lanes = target.vector_lanes("float32")
        width = s.sample_tile(loops[last], 2, f"{name}_", [tuple(lanes * n for n in VECTORS)], waste=1.0, slack=lanes)
        part, inner = s.split(loops[last], [None, *width])
        outer.append(part)
        s.reorder([*outer, *ordered, inner])
        s.vectorize(inner)
    elif outer and ordered:
        s.reorder([*outer, *ordered])
    if outer:
        fused = s.fuse(outer)
        chunk = s.sample_tile(fused, 2, f"{name}_task", [outer_tiles(s.loop(fused).extent.const or 1)], waste=1.0)
        task = s.split(fused, [None, *chunk])[0]
        if threads:
            s.parallel(task)


def _contiguous(b: Block) -> int | None:
    """The position of the variable whose neighbouring values update neighbours in memory, at the same indirect indices."""
    looked_up: set[Var] = {v for n in walk(b.body) if type(n) is BindIndex for p in walk(n.value) if type(p) is Poly for v in p.vars}
    found = {plain_iter(w.indices[-1], b) if w.indices else None for w in writes(b)}
    at = found.pop() if len(found) == 1 else None
    return None if at is None or b.iters[at].var in looked_up else at
