"""Compute the occupancy of a kernel: resident blocks per multiprocessor, and the register limit for a given number of blocks.

The formulas are those of NVIDIA's occupancy calculator (`cuda_occupancy.h`) for compute capability 7.0 and later: registers are allocated
to warps in units, from the register file of the warp's scheduler; shared memory is allocated to blocks in units.  The formulas are
generic over an `Arithmetic`: compilers evaluate them on integers, cost models on formulas over the parameters of a sketch.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from tunesmith.ir.target.target import Target

SCHEDULERS = 4
"""Schedulers of a multiprocessor, each with its share of warps and registers."""
REGISTER_UNIT = 256
"""Allocation unit of the registers of a warp."""
SHARED_UNIT = 128
"""Allocation unit of the shared memory of a block, bytes."""

N = TypeVar("N")


class Arithmetic(Protocol[N]):
    """Operations on numbers of type N that are not Python operators."""

    def floordiv(self, a: N, b: N, /) -> N:
        """a // b."""

    def ceildiv(self, a: N, b: Any, /) -> N:
        """ceil(a / b)."""

    def minimum(self, a: N, b: Any, /) -> N:
        """min(a, b)."""

    def maximum(self, a: N, b: Any, /) -> N:
        """max(a, b)."""

    def const(self, a: int, /) -> N:
        """A constant."""


class Integers:
    """Python's integers as an `Arithmetic`."""

    def floordiv(self, a: int, b: int) -> int:
        """a // b."""
        return a // b

    def ceildiv(self, a: int, b: int) -> int:
        """ceil(a / b)."""
        return -(-a // b)

    def minimum(self, a: int, b: int) -> int:
        """min(a, b)."""
        return min(a, b)

    def maximum(self, a: int, b: int) -> int:
        """max(a, b)."""
        return max(a, b)

    def const(self, a: int) -> int:
        """a."""
        return a


INTEGERS = Integers()


def resident_blocks(a: Arithmetic[Any], target: Target, threads: Any, registers: Any, shared: Any) -> Any:
    """Resident blocks per multiprocessor; 0 if a block does not fit.

    Args:
        a: the arithmetic of the numbers.
        target: a GPU.
        threads: threads per block, at least 1.
        registers: registers per thread, as the compiler reports them.
        shared: shared memory per block in bytes, static and dynamic.
    """
    warps = a.ceildiv(threads, target.warp_size)
    blocks = a.minimum(a.floordiv(a.const(target.warps_per_sm), warps), target.max_blocks_per_sm)
    allocated = a.ceildiv(shared + target.shared_memory_reserved, SHARED_UNIT) * SHARED_UNIT
    blocks = a.minimum(blocks, a.floordiv(a.const(target.shared_memory_per_sm), a.maximum(allocated, 1)))
    if target.warp_size == 1:
        return blocks  # registers and warps are not modeled
    per_warp = a.ceildiv(registers * target.warp_size, REGISTER_UNIT) * REGISTER_UNIT
    warps_per_scheduler = a.floordiv(a.const(target.registers_per_sm // SCHEDULERS), a.maximum(per_warp, 1))
    blocks = a.minimum(blocks, a.floordiv(warps_per_scheduler * SCHEDULERS, warps))
    whole = per_warp * a.ceildiv(warps, SCHEDULERS) * SCHEDULERS
    return blocks * (1 - (whole > target.registers_per_sm))


def register_cap(a: Arithmetic[Any], target: Target, threads: Any, blocks: Any) -> Any:
    """Registers per thread that allow `blocks` resident blocks of `threads` threads."""
    warps = a.ceildiv(threads, target.warp_size)
    warps_per_scheduler = a.ceildiv(warps * blocks, SCHEDULERS)
    share = a.floordiv(a.const(target.registers_per_sm // SCHEDULERS), warps_per_scheduler)
    units = a.floordiv(share, a.const(REGISTER_UNIT)) * REGISTER_UNIT
    return a.minimum(a.floordiv(units, a.const(target.warp_size)), target.registers_per_thread)
