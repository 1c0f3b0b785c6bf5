"""Bound the run time of a workload from below, by the machine's peak rates, for every schedule.

Logs come from untrusted sources: a record of 3 ns for a matrix product would remain the best forever.  The bound is loose: it counts
only work that every schedule must do, at a multiple of the peak rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import product
from tunesmith.ir.stmt import Block, BufferStore, For, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.support import dtype

SHORTEST = 1e-9
"""Minimum seconds of any call: a few cycles."""
MARGIN = 64
"""Factor by which a machine may exceed its peak rates.  These are for float32 and may be estimates; instructions for other types and
caches closer to the core are faster."""


def min_seconds(func: PrimFunc, target: Target) -> float:
    """Lower bound of the seconds of a call, for any schedule.

    Counts iterations of reductions and elements of outputs.  Values that depend only on constant parameters are computed ahead and not
    counted; neither are dynamic shapes.
    """
    rates = [getattr(target, name, 0.0) for name in ("peak_gflops", "tensor_gflops")]
    bandwidths = [getattr(target, name, 0.0) for name in ("l2_gbs", "l3_gbs", "dram_gbs")]
    iterations, bytes_written = _work(func)
    seconds = SHORTEST
    for amount, peaks in ((iterations, rates), (bytes_written, bandwidths)):
        peak = max(peaks) * 1e9 * MARGIN
        if peak > 0:
            seconds = max(seconds, amount / peak)
    return seconds


def _work(func: PrimFunc) -> tuple[int, int]:
    """Iterations of the largest reduction, and bytes of the largest output."""
    varying = {b for b in func.params if isinstance(b, Buffer) and b.name not in func.constants}
    iterations, bytes_written = 0, 0
    for block, instances in _instances(func.body, 1):
        if varying.isdisjoint([a.buffer for a in reads(block)]):
            continue  # computed from constants
        written = {a.buffer for a in writes(block)}
        varying |= written
        if any(it.kind == "R" for it in block.iters):
            iterations = max(iterations, instances)
        for b in written:
            elements = min(instances, product(b.shape).const or 0) if b in func.params else 0
            bytes_written = max(bytes_written, elements * dtype.bits(b.dtype) // 8)
    return iterations, bytes_written


def _instances(n: Stmt, around: int) -> Iterator[tuple[Block, int]]:
    """The blocks below a statement, each with its number of instances; 0 if that is unknown or a condition may skip instances."""
    if type(n) is For:
        yield from _instances(n.body, around * (n.extent.const or 0))
    elif type(n) is Seq:
        for x in n.stmts:
            yield from _instances(x, around)
    elif type(n) is Block:
        certain = type(n.body) is BufferStore and not n.predicate
        yield n, around if certain else 0
