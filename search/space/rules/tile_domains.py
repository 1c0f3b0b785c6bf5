"""Choose the domains of tile sizes: dense for register tiles, derived from the extent for cache blocks."""

from __future__ import annotations

ROWS = (*range(1, 17), 18, 20, 22, 24, 26, 28, 30)
"""Numbers of rows of a register tile."""
VECTORS = (1, 2, 3, 4, 5, 6)
"""Numbers of vectors of a register tile."""
FEW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
"""Sizes of a cache block in inner tiles."""


def vector_tiles(lanes: int, registers: int) -> tuple[int, ...]:
    """Numbers of columns of a register tile: 1 to min(6, max(registers // 4, 2)) whole vectors."""
    return tuple(lanes * n for n in VECTORS if n <= max(registers // 4, 2))


def middle_tiles(extent: int, inner: tuple[int, ...], limit: int = 64) -> tuple[int, ...]:
    """Numbers of inner tiles in a cache block: small numbers, powers of two, and those that cover the extent in 1 to 8 blocks."""
    found = {n for n in FEW if n <= extent}
    n = 1
    while n <= extent:
        found.add(n)
        n *= 2
    for t in inner:
        if t <= extent:
            found |= {-(-extent // (t * blocks)) for blocks in (1, 2, 3, 4, 6, 8)}
    ordered = sorted(found)
    return (
        tuple(ordered)
        if len(ordered) <= limit
        else tuple(sorted(set(ordered[:: -(-len(ordered) // limit)]) | {ordered[-1], *[n for n in ordered if n <= 8]}))
    )


def outer_tiles(extent: int) -> tuple[int, ...]:
    """Numbers of blocks in one task of the parallel loop."""
    return tuple(n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n <= extent)
