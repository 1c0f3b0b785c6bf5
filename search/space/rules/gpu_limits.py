"""Express the resource limits of a GPU kernel as constraints over tile sizes."""

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
"""Labels of the constraints that the device imposes; other constraints exclude slow kernels."""
ALIGNMENT = 16
"""Alignment in bytes of arrays in shared memory."""


def widths_of(dtype: str, target: Target) -> tuple[int, ...]:
    """Numbers of elements that a thread can load at once."""
    most = target.vector_lanes(dtype)
    return tuple(n for n in (1, 2, 4, 8, 16) if n <= most)


def fetch_widths(buffer: Buffer, target: Target) -> tuple[int, ...]:
    """Numbers of elements that a thread can fetch at once; rows must consist of whole vectors."""
    last = buffer.shape[-1].const or 1
    return tuple(n for n in widths_of(buffer.dtype, target) if last % n == 0)


def limit_shared(s: Schedule, tiles: Sequence[Poly], target: Target) -> None:
    """Require that tiles of the given sizes in bytes fit together into the shared memory of a block."""
    s.step = "shared-memory"
    total = sum([ceildiv(t, ALIGNMENT) * ALIGNMENT for t in tiles], ZERO)
    s.require("le0", total - target.shared_memory_per_block, "shared-memory", "the tiles do not fit the shared memory of a block")


def tile_bytes(s: Schedule, copy: BlockRV, rank: int) -> Poly:
    """Bytes of the tile that the block `copy` writes; its innermost `rank` loops are the dimensions of the tile."""
    buffer = writes(s.block(copy))[0].buffer
    extents = [s.loop(x).extent for x in s.get_loops(copy)[-rank:]]
    row = extents[-1] + buffer.pad if rank > 1 else extents[-1]
    return product([*extents[:-1], row]) * dt.nbytes(buffer.dtype)
