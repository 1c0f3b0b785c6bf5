"""Plan offsets in one memory block for tensors with limited lifetimes, and buffers of devices.

Free ranges are kept as gaps; a tensor is placed in the smallest gap that it fits (Knuth's best fit), else the block grows.  Adjacent
gaps are merged.  No memory is allocated here: the caller allocates the block when all tensors of a run are placed.
"""

from __future__ import annotations

from tunesmith.runtime.arrays import aligned


class MemoryPool:
    """Allocator of offsets, which are multiples of `arrays.ALIGNMENT`.

    Attributes:
        nbytes: block size required so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._gaps: list[tuple[int, int]] = []
        """Start and end, sorted; no two gaps are adjacent."""

    def take(self, size: int) -> int:
        """Allocate `size` bytes and return their offset."""
        size = aligned(size)
        fitting = [(end - start, start) for start, end in self._gaps if end - start >= size]
        if fitting:
            _, start = min(fitting)
            i = next(i for i, gap in enumerate(self._gaps) if gap[0] == start)
            self._gaps[i : i + 1] = [(start + size, self._gaps[i][1])] if start + size < self._gaps[i][1] else []
            return start
        last = self._gaps[-1] if self._gaps else None
        start = self.nbytes
        if last is not None and last[1] == self.nbytes:
            start = last[0]  # extends the last gap
            self._gaps.pop()
        self.nbytes = start + size
        return start

    def give(self, offset: int, size: int) -> None:
        """Free a range allocated by `take`."""
        start, end = offset, offset + aligned(size)
        if start == end:
            return
        separate = []
        for gap in self._gaps:
            if gap[1] == start:
                start = gap[0]
            elif gap[0] == end:
                end = gap[1]
            else:
                separate.append(gap)
        self._gaps = sorted([*separate, (start, end)])


class BufferPool:
    """Allocator of whole buffers, for devices without addresses within an allocation.

    Attributes:
        sizes: size of each buffer in bytes.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._free: set[int] = set()

    def take(self, size: int) -> int:
        """The number of the smallest free buffer of at least `size` bytes, or of a new one."""
        fitting = [(self.sizes[n], n) for n in self._free if self.sizes[n] >= size]
        if not fitting:
            self.sizes.append(aligned(size))
            return len(self.sizes) - 1
        _, number = min(fitting)
        self._free.remove(number)
        return number

    def give(self, number: int) -> None:
        """Free a buffer."""
        self._free.add(number)
