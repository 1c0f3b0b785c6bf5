"""Plan tensor offsets in one memory block, so that tensors with overlapping lifetimes do not overlap in memory.

Greedy by size, as in TensorFlow Lite (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020) and in TVM's
USMP: the largest tensor first, each in the smallest gap that is free during its whole lifetime.  Placement in the order of first use
is sometimes better; the smaller of the two plans is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tunesmith.runtime.arrays import aligned


class Lifetime(NamedTuple):
    """Size and lifetime of a tensor.

    Attributes:
        nbytes: size in bytes.
        first: the step that writes the tensor first.
        last: the last step that uses the tensor, `first` or later; both ends are part of the lifetime.
    """

    nbytes: int
    first: int
    last: int


class MemoryPlan(NamedTuple):
    """Offsets of tensors in a memory block.

    Attributes:
        offsets: offset of each tensor, in the order of the lifetimes; multiples of `arrays.ALIGNMENT`.
        nbytes: size of the block.
    """

    offsets: tuple[int, ...]
    nbytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Plan the offsets of tensors; deterministic, with at most quadratic time and memory in the number of tensors."""
    numbers = range(len(lifetimes))
    by_size = sorted(numbers, key=lambda i: (-aligned(lifetimes[i].nbytes), lifetimes[i].first, i))
    by_first_use = sorted(numbers, key=lambda i: (lifetimes[i].first, -aligned(lifetimes[i].nbytes), i))
    return min([_placed(lifetimes, order) for order in (by_size, by_first_use)], key=lambda plan: plan.nbytes)


def _placed(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> MemoryPlan:
    """Place each tensor, in order, in the smallest gap between the placed tensors with overlapping lifetimes."""
    offsets = [0] * len(lifetimes)
    table = np.empty((len(lifetimes), 4), np.int64)  # first, last, start and end of the placed tensors
    total = 0
    for count, i in enumerate(order):
        size, first, last = aligned(lifetimes[i].nbytes), lifetimes[i].first, lifetimes[i].last
        placed = table[:count]
        overlapping = placed[(placed[:, 0] <= last) & (placed[:, 1] >= first)]
        offsets[i] = _gap(sorted(map(tuple, overlapping[:, 2:].tolist())), size)
        table[count] = first, last, offsets[i], offsets[i] + size
        total = max(total, offsets[i] + size)
    return MemoryPlan(tuple(offsets), total)


def _gap(taken: Sequence[tuple[int, ...]], size: int) -> int:
    """The offset of the smallest gap of at least `size` bytes; the end of the last interval if there is none."""
    best, best_size = -1, -1
    end = 0
    for start, stop in taken:
        if start - end >= size and (best < 0 or start - end < best_size):
            best, best_size = end, start - end
        end = max(end, stop)
    return end if best < 0 else best
