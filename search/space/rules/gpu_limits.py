"""What a kernel may ask for, as constraints over tile sizes."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ZERO, Poly, ceildiv, product
from tunesmith.ir.target.target import Target
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt

LEGAL = ("threads", "shared-memory")
"""Constraints about what a device has; others keep out what would be slow."""
ALIGNMENT = 16
"""Bytes that arrays in shared memory are rounded up to."""


def widths_of(dtype: str, target: Target) -> tuple[int, ...]:
    """Elements that a thread can load at once."""
    most = target.vector_lanes(dtype)
    return tuple(n for n in (1, 2, 4, 8, 16) if n <= most)


def fetch_widths(buffer: Buffer, target: Target) -> tuple[int, ...]:
    """Elements of a row that a thread can fetch at once: rows must be whole vectors."""
    last = buffer.shape[-1].const or 1
    return tuple(n for n in widths_of(buffer.dtype, target) if last % n == 0)


def limit_shared(s: Schedule, tiles: Sequence[Poly], target: Target) -> None:
    """Tiles of so many bytes fit together into the shared memory of a block."""
    s.step = "shared-memory"
    total = sum([ceildiv(t, ALIGNMENT) * ALIGNMENT for t in tiles], ZERO)
    s.require("le0", total - target.shared_memory_per_block, "shared-memory", "the tiles do not fit the shared memory of a block")


def tile_bytes(s: Schedule, copy: BlockRV, rank: int) -> Poly:
    """Bytes of the tile that a block fills, whose innermost `rank` loops are its dimensions."""
    buffer = writes(s.block(copy))[0].buffer
    extents = [s.loop(x).extent for x in s.get_loops(copy)[-rank:]]
    row = extents[-1] + buffer.pad if rank > 1 else extents[-1]
    return product([*extents[:-1], row]) * dt.nbytes(buffer.dtype)
