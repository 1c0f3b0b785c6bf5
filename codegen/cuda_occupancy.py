"""How many blocks of a kernel a multiprocessor holds, and how many registers its threads may have so that it does.

The formula is that of NVIDIA's occupancy calculator (`cuda_occupancy.h`) for compute capability 7.0 and later.
"""

from __future__ import annotations

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.stmt import Allocate, Stmt
from tunesmith.ir.target import Target
from tunesmith.support import dtype as dt

REGISTER_UNIT = 256
"""Registers are given to warps in such portions."""
SHARED_UNIT = 128
QUARTERS = 4
"""Schedulers of a multiprocessor, each with a part of the registers."""
ADDRESSES = 24
"""Registers of a thread beside its arrays: indices, addresses, what is on its way."""


def blocks_per_sm(target: Target, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that one multiprocessor holds at once; 0 when it cannot run one.

    Args:
        target: kind cuda.
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, declared and given at the launch.
    """
    if threads > target.max_threads_per_block or shared_bytes > target.shared_memory_per_block or registers > target.registers_per_thread:
        return 0
    warps = -(-threads // target.warp_size)
    each = -(-registers * target.warp_size // REGISTER_UNIT) * REGISTER_UNIT
    quarter = target.registers_per_sm // QUARTERS
    if each * -(-warps // QUARTERS) > quarter:
        return 0
    by_registers = QUARTERS * (quarter // max(each, 1)) // warps
    by_warps = target.warps_per_sm // warps
    taken = -(-(shared_bytes + target.shared_memory_reserved) // SHARED_UNIT) * SHARED_UNIT
    by_shared = target.shared_memory_per_sm // taken if taken else target.max_blocks_per_sm
    return min(by_registers, by_warps, by_shared, target.max_blocks_per_sm)


def most_registers(target: Target, threads: int, blocks: int) -> int:
    """Registers that a thread may have while so many blocks are held."""
    warps = -(-threads // target.warp_size)
    quarter = target.registers_per_sm // QUARTERS
    each = quarter // -(-blocks * warps // QUARTERS) // REGISTER_UNIT * REGISTER_UNIT
    return min(target.registers_per_thread, each // target.warp_size)


def register_estimate(kernel: Stmt) -> int:
    """Registers that a thread of a lowered kernel will need: its arrays that live together, and some for addresses."""
    return _live(kernel) + ADDRESSES


def _live(n: Stmt) -> int:
    inside = 0

    def kid(k: object) -> None:
        nonlocal inside
        if isinstance(k, Stmt):
            inside = max(inside, _live(k))

    n.each_child(kid)
    return inside + (_words(n.buffer) if type(n) is Allocate and n.buffer.scope == "local" else 0)


def _words(b: Buffer) -> int:
    return -(-(b.shape[0].const or 0) * max(dt.nbytes(b.dtype), 2) // 4)


def wanted_blocks(target: Target, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that a kernel should be compiled for, so that compilers neither spill nor take more registers than help.

    As many as fit with the estimated registers, and at least one.
    """
    return max(1, blocks_per_sm(target, threads, min(registers, target.registers_per_thread), shared_bytes))
