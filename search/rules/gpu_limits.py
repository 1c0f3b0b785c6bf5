"""What a kernel may ask for, as constraints over tile sizes, and how what is left of a schedule gets its blocks and threads."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import ZERO, Poly, ceildiv, product
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.target import Target
from tunesmith.schedule.handles import BlockRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.support import dtype as dt

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


def bind_rest(s: Schedule, target: Target) -> None:
    """Give blocks and threads to the nests that have none, one element a thread."""
    for b in [b.name for b in s.blocks()]:
        loops = s.loops_of(b)
        if any(f.kind == "thread" for f in loops):
            continue
        bind_spatial(s, s.get_block(b), min(256, target.max_threads_per_block))


def bind_spatial(s: Schedule, block: BlockRV, threads: int) -> None:
    """The leading spatial loops of a block, fused, over blocks of so many threads."""
    b: Block = s.block(block)
    reducing = {v for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R" for v in e.vars}
    handles = s.get_loops(block)
    own: list[For] = [s.loop(x) for x in handles]
    spatial = [x for x, f in zip(handles, own, strict=True) if f.var not in reducing]
    rest = [x for x, f in zip(handles, own, strict=True) if f.var in reducing]
    if rest and spatial:
        s.reorder([*spatial, *rest])
    if not spatial:
        return
    outer, inner = s.split(s.fuse(spatial), [None, threads])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")

