"""Memory pool: offsets in one block for tensors that come and go one after the other.

Free room is kept as gaps; a tensor takes the smallest gap that it fits (Knuth's best fit), else the block grows.  Neighbouring
gaps are joined.  Nothing is allocated here: whoever knows all tensors of a run asks for the block afterwards.
"""

from __future__ import annotations

from tunesmith.runtime.arrays import aligned


class MemoryPool:
    """Offsets, all multiples of `arrays.ALIGNMENT`.

    Attributes:
        nbytes: how large the block must be for everything so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._gaps: list[tuple[int, int]] = []
        """Start and end, in order; no two touch."""

    def take(self, size: int) -> int:
        """The offset of room for `size` bytes."""
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
            start = last[0]  # the last gap becomes larger
            self._gaps.pop()
        self.nbytes = start + size
        return start

    def give(self, offset: int, size: int) -> None:
        """Room that `take` gave is free again."""
        start, end = offset, offset + aligned(size)
        if start == end:
            return
        kept = []
        for gap in self._gaps:
            if gap[1] == start:
                start = gap[0]
            elif gap[0] == end:
                end = gap[1]
            else:
                kept.append(gap)
        self._gaps = sorted([*kept, (start, end)])
