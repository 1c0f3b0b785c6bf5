"""Estimate the work of blocks on one CPU core, and compare it with the cost of a parallel loop.

Default schedules and sketch rules use the estimate to decide whether threads can pay off.  It is a lower bound: one vector operation per
clock, loads and stores at L2 bandwidth.  The cost models (`costmodel/`) are more accurate.
"""

from __future__ import annotations

import math

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, writes
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Call, Cast, IsNegative, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import product
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under, walk_objects
from tunesmith.support import dtype as dt

WORTH_THREADS = 10
"""Minimum work for threads by default: single-core time in fork-joins (`Target.fork_join_us`)."""
WORTH_SERIAL = 20
"""Maximum work for which a search considers a single thread: single-core time in fork-joins."""
CALL, DIVISION, ACCESS = 10, 4, 0.5
"""Cost of a call such as `exp`, of a division, and of a load or store, in vector operations."""


def operations(block: Block, target: Target) -> float:
    """Vector operations per block instance, divided by the vector lanes if consecutive instances write consecutive elements."""
    found, nodes = 0.0, 0.0
    for n in walk_objects(block.body):
        t = type(n)
        if t is BufferLoad or t is BufferStore:
            found += ACCESS
        elif t is Call:
            nodes += CALL
        elif t is Binary:
            nodes += DIVISION if n.op in ("div", "floordiv", "mod") else 1
        elif t in (Select, Cast, IsNegative):
            nodes += 1
    out = writes(block)
    axis = plain_iter(out[0].indices[-1], block) if out and out[0].indices else None
    lanes = target.vector_lanes(out[0].buffer.dtype) if out and axis is not None else 1
    return (max(nodes, 1.0) + found) / lanes


def instance_seconds(block: Block, target: Target) -> float:
    """Single-core seconds per instance of a block."""
    nbytes = sum(dt.nbytes(a.buffer.dtype) for a in accesses(block))
    return max(operations(block, target) / (target.clock_ghz * 1e9), nbytes / (target.l2_gbs_core * 1e9))


def serial_seconds(blocks: list[Block], target: Target) -> float:
    """Single-core seconds of all instances of blocks; infinite if their number is symbolic."""
    return sum(_instances(b) * instance_seconds(b, target) for b in blocks)


def worth_threads(seconds: float, target: Target) -> bool:
    """Whether work with this single-core time is parallel by default."""
    return target.num_cores > 1 and seconds >= WORTH_THREADS * target.fork_join_us * 1e-6


def grain(block: Block, target: Target) -> int:
    """The minimum number of instances of a block for which threads pay off."""
    return math.ceil(WORTH_THREADS * target.fork_join_us * 1e-6 / instance_seconds(block, target))


def worth_serial(func: PrimFunc, target: Target) -> bool:
    """Whether a single-threaded sketch may be the fastest, and differs from the parallel one.

    Measured rates are not used, so that equal targets have equal search spaces: a core is assumed to execute 4 operations per nanosecond,
    and a fork-join to take the default of `ir.target.defaults`.
    """
    fork_join_ns = 500 + 100 * target.num_cores
    most = WORTH_SERIAL * fork_join_ns * 4
    return target.num_cores > 1 and sum(_instances(b) * operations(b, target) for b in blocks_under(func.body)) <= most


def _instances(block: Block) -> float:
    count = product([it.extent for it in block.iters]).const
    return math.inf if count is None else float(count)
