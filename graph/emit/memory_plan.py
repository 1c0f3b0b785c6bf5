"""Memory plan: offsets in one block for tensors whose lifetimes are known, so that those that live at once do not overlap.

Greedy by size, as TensorFlow Lite plans its arenas (Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
2020) and TVM's USMP too: the largest tensor first, each into the smallest gap that is free during its whole life.  The same placing in
the order of birth is better now and then; the smaller of the two plans is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tunesmith.runtime.arrays import aligned


class Lifetime(NamedTuple):
    """Of a tensor.

    Attributes:
        nbytes: its size.
        first: the step that writes it first.
        last: the last step that uses it, `first` or later; it lives during both and all between.
    """

    nbytes: int
    first: int
    last: int


class MemoryPlan(NamedTuple):
    """Where tensors lie.

    Attributes:
        offsets: of each tensor, in the order in which they were given; multiples of `arrays.ALIGNMENT`.
        nbytes: of the block.
    """

    offsets: tuple[int, ...]
    nbytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Offsets for tensors; deterministic, with time and memory that are quadratic at worst in the number of tensors."""
    numbers = range(len(lifetimes))
    by_size = sorted(numbers, key=lambda i: (-aligned(lifetimes[i].nbytes), lifetimes[i].first, i))
    by_birth = sorted(numbers, key=lambda i: (lifetimes[i].first, -aligned(lifetimes[i].nbytes), i))
    return min([_placed(lifetimes, order) for order in (by_size, by_birth)], key=lambda plan: plan.nbytes)


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes that are alive at one step, padding included: no plan needs less."""
    changes = sorted([(t.first, aligned(t.nbytes)) for t in lifetimes] + [(t.last + 1, -aligned(t.nbytes)) for t in lifetimes])
    most = alive = 0
    for _, change in changes:
        alive += change
        most = max(most, alive)
    return most


def _placed(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> MemoryPlan:
    """Each tensor in turn into the smallest gap between those that are placed and live at the same time."""
    offsets = [0] * len(lifetimes)
    table = np.empty((len(lifetimes), 4), np.int64)  # first, last, start and end of those that are placed
    whole = 0
    for count, i in enumerate(order):
        size, first, last = aligned(lifetimes[i].nbytes), lifetimes[i].first, lifetimes[i].last
        placed = table[:count]
        rivals = placed[(placed[:, 0] <= last) & (placed[:, 1] >= first)]
        offsets[i] = _gap(sorted(map(tuple, rivals[:, 2:].tolist())), size)
        table[count] = first, last, offsets[i], offsets[i] + size
        whole = max(whole, offsets[i] + size)
    return MemoryPlan(tuple(offsets), whole)


def _gap(taken: Sequence[tuple[int, ...]], size: int) -> int:
    """The offset of the smallest gap that holds `size` bytes; behind all if there is none."""
    best, room = -1, -1
    end = 0
    for start, stop in taken:
        if start - end >= size and (best < 0 or start - end < room):
            best, room = end, start - end
        end = max(end, stop)
    return end if best < 0 else best
