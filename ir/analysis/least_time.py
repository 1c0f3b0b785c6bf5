"""Bound the time of a function from below by its arithmetic and its data, as a roofline does (source: Williams et al., 2009).

The bound is a scale, not a proof: algorithms with fewer operations than direct sums, such as Winograd's, may be faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tunesmith.ir.analysis.operation_count import operation_count
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.support import dtype as dt


class Rates(Protocol):
    """Rates of a machine: GFLOP/s, and GB/s of its last-level cache and of its memory."""

    @property
    def peak_gflops(self) -> float: ...
    @property
    def l3_gbs(self) -> float: ...
    @property
    def dram_gbs(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a function needs, with direct sums.

    Attributes:
        operations: arithmetic operations; None if they are not known.
        weight_bytes: bytes of the operands that are constants of the model.
        other_bytes: bytes of the other operands and of the results.
    """

    operations: int | None
    weight_bytes: int
    other_bytes: int

    @classmethod
    def of(cls, func: PrimFunc) -> Work | None:
        """The work of an unscheduled function; None for dynamic shapes."""
        buffers = [p for p in func.params if isinstance(p, Buffer)]
        if any(e.const is None for b in buffers for e in b.shape):
            return None
        sizes = {b.name: dt.nbytes(b.dtype) * math.prod(e.as_int() for e in b.shape) for b in buffers}
        constants = str(func.attr("constants") or "").split()
        weights = sum(size for name, size in sizes.items() if name in constants)
        return cls(operation_count(func), weights, sum(sizes.values()) - weights)

    def seconds(self, rates: Rates, l3_bytes: int) -> tuple[float, float]:
        """The least time of the arithmetic, and that of the data; a last-level cache has `l3_bytes`."""
        near = self.other_bytes <= l3_bytes
        data = self.weight_bytes / rates.dram_gbs + self.other_bytes / (rates.l3_gbs if near else rates.dram_gbs)
        return (self.operations or 0) / rates.peak_gflops * 1e-9, data * 1e-9


def least_seconds(func: PrimFunc, target: Target) -> float:
    """The least time of a call on the target, for direct sums; 0 if the function has dynamic shapes, or the target no rates.

    Functions that compute in a narrow type may use tensor instructions, whose rate is then the peak.
    """
    work = Work.of(func)
    peaks = [getattr(target, name, None) or 0.0 for name in ("peak_gflops", "tensor_gflops")]
    dram = getattr(target, "dram_gbs", None) or 0.0
    near = getattr(target, "l3_gbs", None) or getattr(target, "l2_gbs", None) or dram
    if work is None or not peaks[0] or not dram:
        return 0.0
    narrow = any(isinstance(p, Buffer) and dt.bits(p.dtype) < 32 for p in func.params)
    rates = _TargetRates(max(peaks) if narrow else peaks[0], near, dram)
    return max(work.seconds(rates, getattr(target, "l3_bytes", None) or getattr(target, "l2_bytes", None) or 0))


@dataclass(frozen=True, slots=True)
class _TargetRates:
    peak_gflops: float
    l3_gbs: float
    dram_gbs: float
