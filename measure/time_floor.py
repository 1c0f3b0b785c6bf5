"""Bound the time of a program from below: no schedule computes it faster than the machine's peak rates allow.

A log may come from anywhere, and a record of 3 ns for a matrix product would be the best for ever.  The bound is generous: it counts
only work that no schedule can leave out, at a rate that is a multiple of the peak.
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
"""Seconds that every call takes: a few cycles."""
MARGIN = 64
"""How many times faster than its peak rates, which are for float32 and may be estimates, a machine may be: with instructions for other
types, with caches closer than those whose rates are known."""


def least_seconds(func: PrimFunc, target: Target) -> float:
    """Seconds that a call takes at least, whatever the schedule.

    Counted are iterations of reductions and elements of outputs.  What depends on constant parameters alone is computed ahead, so it is not
    counted, nor are sizes that come with the call.
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
    """The blocks below a statement, with the number of times that each runs; 0 if it is unknown, or a condition may leave some out."""
    if type(n) is For:
        yield from _instances(n.body, around * (n.extent.const or 0))
    elif type(n) is Seq:
        for x in n.stmts:
            yield from _instances(x, around)
    elif type(n) is Block:
        certain = type(n.body) is BufferStore and not n.predicate
        yield n, around if certain else 0
