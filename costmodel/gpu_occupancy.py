"""How many blocks of a kernel one multiprocessor holds at a time, as NVIDIA's occupancy calculator counts, on nodes of a graph.

Registers are given to warps in units, out of the quarter of the multiprocessor that a warp lives on; shared memory is given to blocks.
The same formulas in plain integers are in the tests.
"""

from __future__ import annotations

from tunesmith.costmodel.dag import Dag, Num
from tunesmith.ir.target import Target

PARTITIONS = 4
"""Schedulers of a multiprocessor, each with its share of warps and registers."""
REGISTER_UNIT = 256
"""Registers that a warp is given at once."""
SHARED_UNIT = 128
"""Bytes of shared memory that a block is given at once."""


def blocks_per_sm(d: Dag, target: Target, threads: Num, registers: Num, shared: Num) -> Num:
    """Blocks that are resident on a multiprocessor together; 0 where not even one fits (source: `cuda_occupancy.h`).

    Args:
        d: the graph.
        target: a GPU.
        threads: of a block.
        registers: of a thread, as the compiler gives them.
        shared: bytes of a block.
    """
    warps = d.ceildiv(threads, float(target.warp_size))
    blocks = d.minimum(floor(d, d.const(target.warps_per_sm), warps), float(target.max_blocks_per_sm))
    unit = float(SHARED_UNIT)
    taken = d.ceildiv(shared + float(target.shared_memory_reserved), unit) * unit
    blocks = d.minimum(blocks, floor(d, d.const(target.shared_memory_per_sm), d.maximum(taken, 1.0)))
    if target.warp_size == 1:
        return blocks  # no machine of registers and warps is known
    each = d.ceildiv(registers * float(target.warp_size), float(REGISTER_UNIT)) * float(REGISTER_UNIT)
    quarter = floor(d, d.const(target.registers_per_sm // PARTITIONS), each)
    blocks = d.minimum(blocks, floor(d, quarter * float(PARTITIONS), warps))
    whole = each * d.ceildiv(warps, float(PARTITIONS)) * float(PARTITIONS)
    return blocks * (1.0 - (whole > float(target.registers_per_sm)))


def register_cap(d: Dag, target: Target, threads: Num, blocks: Num | float) -> Num:
    """Registers that a thread may use so that `blocks` blocks of so many threads are resident together."""
    warps = d.ceildiv(threads, float(target.warp_size))
    each = d.ceildiv(warps * blocks, float(PARTITIONS))
    share = floor(d, d.const(target.registers_per_sm // PARTITIONS), each)
    units = floor(d, share, d.const(REGISTER_UNIT)) * float(REGISTER_UNIT)
    return d.minimum(floor(d, units, d.const(target.warp_size)), float(target.registers_per_thread))


def floor(d: Dag, a: Num, b: Num) -> Num:
    """a // b."""
    return d.make("floordiv", a, b)
