"""Bytes that a kernel moves through the caches of a GPU and from its memory, read off the regions that its blocks touch."""

from __future__ import annotations

from tunesmith.costmodel.analysis.gpu_access import SECTOR, Requests
from tunesmith.costmodel.analysis.gpu_kernels import Kernel, own_loops, tile_loops
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store, Use
from tunesmith.costmodel.formulas.expr_graph import Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.gpu import is_block_axis
from tunesmith.ir.target.target import Target

L2_SHARE = 0.5
"""Share of the L2 cache that is near."""
MISSED = 0.25
"""Share of the repeated traffic that misses an L2 cache which is too small: blocks that run together share what they read."""


def kernel_bytes(a: ProgramAnalysis, k: Kernel) -> Num:
    """Bytes of all that a kernel touches in the memory of the device; what several blocks touch counts once."""
    largest: dict[Buffer, Num] = {}
    for s in k.stores:
        for u in s.uses.values():
            if u.buffer.scope == "global":
                size = s.nbytes(u, len(s.loops))
                largest[u.buffer] = a.dag.maximum(largest[u.buffer], size) if u.buffer in largest else size
    return a.dag.total(list(largest.values()))


def block_bytes(a: ProgramAnalysis, s: Store, r: Requests, asked: Num, room: Num) -> Num:
    """Bytes that a block of threads moves from the L2 cache for one use.

    Args:
        a: the program.
        s: the block of the program.
        r: its requests for the use.
        asked: bytes of all requests.
        room: bytes that the cache in front of the L2 cache holds for the block.
    """
    d, u = a.dag, r.use
    level = next((i for i, x in enumerate(s.loops) if is_block_axis(x.thread)), len(s.loops))
    region = _sectors(a, s, u, level)
    inside = {x.var for x in tile_loops(s)}
    # Iterations that do not move the access fetch it again; of those that move it, the region has all.
    repeats = d.product([d.where(s.indexed(u, x), 1.0, x.size) for x in own_loops(s) if x.var not in inside])
    return d.minimum(asked, d.where(region < room, region, region * repeats))


def memory_bytes(a: ProgramAnalysis, target: Target, k: Kernel, s: Store, u: Use, fetched: Num, total: Num) -> Num:
    """Bytes that a kernel moves from memory for one use: nothing when the L2 cache holds what the kernel touches from run to run.

    Args:
        a: the program.
        target: whose L2 cache.
        k: the kernel.
        s: the block of the program.
        u: the use.
        fetched: bytes that a block of threads moves from the L2 cache.
        total: bytes of all that the kernel touches.
    """
    d = a.dag
    lost = d.minimum(d.maximum(total / (target.l2_bytes * L2_SHARE) - 1.0, 0.0), 1.0)
    whole = _sectors(a, s, u, len(s.loops))
    return (whole + d.maximum(fetched * k.grid - whole, 0.0) * MISSED) * lost


def _sectors(a: ProgramAnalysis, s: Store, u: Use, level: int) -> Num:
    """Bytes of the sectors of a use's region."""
    extents = s.extents(u, level)
    if not extents:
        return a.dag.const(SECTOR)
    return a.dag.product(extents[:-1]) * a.dag.maximum(extents[-1] * u.item, float(SECTOR))
