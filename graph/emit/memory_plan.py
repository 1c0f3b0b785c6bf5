"""Plan the memory of tensors with limited lifetimes: offsets in one block for the host, shared buffers for devices.

Greedy by size, as in TensorFlow Lite (Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020) and in TVM's
USMP: the largest tensor first, each in the smallest gap that is free during its whole lifetime.  Placement in the order of first use
is sometimes better; the smaller of the two plans is returned.

Not all devices have addresses within an allocation (OpenCL), so a device has several buffers, each of which is used by tensors with
disjoint lifetimes: the "shared objects" of the same paper.
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


class BufferPlan(NamedTuple):
    """Assignment of tensors to buffers.

    Attributes:
        buffers: index of the buffer of each tensor, in the order of the lifetimes.
        sizes: size of each buffer in bytes.
    """

    buffers: tuple[int, ...]
    sizes: list[int]


def plan_buffers(lifetimes: Sequence[Lifetime]) -> BufferPlan:
    """Assign tensors to as few bytes of buffers as the greedy order finds; tensors with overlapping lifetimes have different buffers.

    The largest tensor comes first, so a buffer has the size of its first tensor; each other tensor takes the smallest buffer that is free.
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i))
    chosen = [0] * len(lifetimes)
    users: list[list[Lifetime]] = []
    for i in order:
        life = lifetimes[i]
        free = [k for k, taken in enumerate(users) if all(t.last < life.first or life.last < t.first for t in taken)]
        # Sizes decrease: the last free buffer is the smallest.
        chosen[i] = free[-1] if free else len(users)
        if not free:
            users.append([])
        users[chosen[i]].append(life)
    return BufferPlan(tuple(chosen), [aligned(taken[0].nbytes) for taken in users])


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
