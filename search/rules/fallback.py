"""fallback: any function: the spatial loops of every block become tasks, nothing else.  Asked only when no other rule applies."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.rules.tile_domains import outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for whatever it is."""
    return [("fallback", schedule)]


def schedule(s: Schedule) -> None:
    """Parallel over the fused leading spatial loops of every block."""
    for b in [b.name for b in s.blocks()]:
        tile(s, b)


def tile(s: Schedule, b: str) -> None:
    """Parallel over the fused leading spatial loops of one block."""
    block = s.get_block(b)
    kinds = [i.kind for i in s.block(block).iters]
    leading = [x for x, k in zip(s.get_loops(block), kinds, strict=False) if k == "S"]
    if not leading or kinds[: len(leading)] != ["S"] * len(leading):
        return
    fused = s.fuse(leading)
    chunk = s.sample_tile(fused, 2, f"{b}_", [outer_tiles(s.loop(fused).extent.const or 1)], waste=1.0)
    s.parallel(s.split(fused, [None, *chunk])[0])
