"""Count the bytes that a GPU kernel transfers through caches and from memory, from the footprints of its blocks."""

from __future__ import annotations

from tunesmith.costmodel.analysis.gpu_access import SECTOR, Requests
from tunesmith.costmodel.analysis.gpu_kernels import Kernel, own_loops, tile_loops
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis, Store, Use
from tunesmith.costmodel.formulas.expr_graph import Num
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.gpu import is_block_axis
from tunesmith.ir.target.target import Target

L2_SHARE = 0.5
"""Share of the L2 cache in the near partition."""
MISSED = 0.25
"""Share of repeated traffic that misses an L2 cache that is too small: blocks that run concurrently share their reads."""


def kernel_bytes(a: ProgramAnalysis, k: Kernel) -> Num:
    """Footprint of a kernel in device memory, in bytes; data that several blocks access counts once."""
    largest: dict[Buffer, Num] = {}
    for s in k.stores:
        for u in s.uses.values():
            if u.buffer.scope == "global":
                size = s.nbytes(u, len(s.loops))
                largest[u.buffer] = a.dag.maximum(largest[u.buffer], size) if u.buffer in largest else size
    return a.dag.total(list(largest.values()))


def block_bytes(a: ProgramAnalysis, s: Store, r: Requests, requested: Num, capacity: Num) -> Num:
    """Bytes that a thread block transfers from the L2 cache for one use.

    Args:
        a: the program.
        s: the block of the program.
        r: its requests for the use.
        requested: bytes of all requests.
        capacity: bytes available to the thread block in the cache above L2.
    """
    d, u = a.dag, r.use
    level = next((i for i, x in enumerate(s.loops) if is_block_axis(x.thread)), len(s.loops))
    region = _sectors(a, s, u, level)
    inside = {x.var for x in tile_loops(s)}
    # Iterations that the access does not depend on fetch its footprint again.
    repeats = d.product([d.where(s.indexed(u, x), 1.0, x.size) for x in own_loops(s) if x.var not in inside])
    return d.minimum(requested, d.where(region < capacity, region, region * repeats))


def memory_bytes(a: ProgramAnalysis, target: Target, k: Kernel, s: Store, u: Use, fetched: Num, total: Num) -> Num:
    """Bytes that a kernel transfers from memory for one use: 0 if the L2 cache holds the kernel's footprint from run to run.

    Args:
        a: the program.
        target: the GPU with the L2 cache.
        k: the kernel.
        s: the block of the program.
        u: the use.
        fetched: bytes that a thread block transfers from the L2 cache.
        total: footprint of the kernel in bytes.
    """
    d = a.dag
    lost = d.minimum(d.maximum(total / (target.l2_bytes * L2_SHARE) - 1.0, 0.0), 1.0)
    whole = _sectors(a, s, u, len(s.loops))
    return (whole + d.maximum(fetched * k.grid - whole, 0.0) * MISSED) * lost


def _sectors(a: ProgramAnalysis, s: Store, u: Use, level: int) -> Num:
    """Bytes of the sectors in a use's footprint."""
    extents = s.extents(u, level)
    if not extents:
        return a.dag.const(SECTOR)
    return a.dag.product(extents[:-1]) * a.dag.maximum(extents[-1] * u.item, float(SECTOR))
