"""Near lines of a table of tile sizes, many at a time: what is near is decided on a logarithmic scale, exactly, the same everywhere.

A tile of 8 is as far from one of 16 as 32 is from 64.  Codes are integers, so that distances are exact in float64 whatever
library multiplies, and equal ones are ordered by their place in the table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STEPS = 1024
"""Codes to a doubling."""
_HELD = 1 << 21
"""Distances that are held in memory at once."""


def codes(rows: Rows) -> Floats:
    """Values on a logarithmic scale, log2(1 + value), as whole numbers; negative values lie on the other side of 0."""
    return np.asarray(np.rint(np.sign(rows) * np.log2(1.0 + np.abs(rows)) * STEPS), np.float64)


class NearestLines:
    """A table that is asked for the lines that are nearest to others.

    Args:
        table: [T, C], distinct lines.
    """

    def __init__(self, table: Rows) -> None:
        self.codes = codes(table)
        self._norms = (self.codes**2).sum(axis=1)

    def find(self, lines: Rows, k: int = 1) -> Rows:
        """Places of the k nearest lines, nearest first, [N, min(k, T)], for lines [N, C] of any integers.

        The distance is the Euclidean one of the codes; of lines equally far the first in the table comes first.
        """
        k = min(k, len(self.codes))
        out = np.empty((len(lines), k), np.int64)
        step = max(_HELD // len(self.codes), 1)
        for low in range(0, len(lines), step):
            out[low : low + step] = self._find(codes(lines[low : low + step]), k)
        return out

    def _find(self, wanted: Floats, k: int) -> Rows:
        # The square of the line itself is the same for every line of the table and is left out.
        distance = self._norms - 2.0 * (wanted @ self.codes.T)
        if k == 1:
            return np.asarray(distance.argmin(axis=1)[:, None], np.int64)
        # Places break ties before the partition, which would keep any of those that are equally far: whole numbers below 2**53.
        ordered = distance * len(self.codes) + np.arange(len(self.codes))
        part = np.argpartition(ordered, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(ordered, part, axis=1), axis=1)
        return np.asarray(np.take_along_axis(part, order, axis=1), np.int64)
