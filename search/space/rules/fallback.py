"""Schedule any function on CPUs: parallelise the independent leading spatial loops of every block.

Functions with little work also get a serial schedule.  Used only if no other rule applies.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.schedule.independence import is_independent
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.tile_domains import outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for any function, and one without threads if the work is small."""
    found: list[Named] = [("fallback", lambda s: schedule(s, True))]
    return found + ([("fallback serial", lambda s: schedule(s, False))] if worth_serial(func, target) else [])


def schedule(s: Schedule, threads: bool) -> None:
    """Parallelise the fused leading spatial loops of every block; blocks with dependences between their instances stay serial."""
    for b in [b.name for b in s.blocks()]:
        tile(s, b, threads)


def tile(s: Schedule, b: str, threads: bool) -> None:
    """Fuse and parallelise the leading spatial loops of one block whose iterations are independent."""
    block = s.get_block(b)
    kinds = [i.kind for i in s.block(block).iters]
    leading = [x for x, k in zip(s.get_loops(block), kinds, strict=False) if k == "S"]
    if kinds[: len(leading)] != ["S"] * len(leading):
        return
    leading = list(takewhile(lambda x: is_independent(s, s.loop(x)), leading))
    if not leading:
        return
    fused = s.fuse(leading)
    chunk = s.sample_tile(fused, 2, f"{b}_", [outer_tiles(s.loop(fused).extent.const or 1)], waste=1.0)
    task = s.split(fused, [None, *chunk])[0]
    if threads:
        s.parallel(task)
