"""Find the nearest rows of a table of tile sizes in batches, by exact distances on a logarithmic scale.

The distance from 8 to 16 equals that from 32 to 64.  Codes are integers, so distances are exact in float64 for any BLAS library, and ties
are broken by the position in the table.
"""

from __future__ import annotations

import numpy as np

from tunesmith.support.array_types import Float64Array, Int64Array

Rows = Int64Array

STEPS = 1024
"""Codes per doubling."""
_MAX_DISTANCES = 1 << 21
"""Maximum number of distances in memory."""


def codes(rows: Rows) -> Float64Array:
    """Values on a logarithmic scale as integers: sign(value) * log2(1 + abs(value)) * `STEPS`, rounded."""
    return np.asarray(np.rint(np.sign(rows) * np.log2(1.0 + np.abs(rows)) * STEPS), np.float64)


class NearestRows:
    """Nearest-neighbour search in a table.

    Args:
        table: [T, C], distinct rows.
    """

    def __init__(self, table: Rows) -> None:
        self.codes = codes(table)
        self._norms = (self.codes**2).sum(axis=1)

    def find(self, lines: Rows, k: int = 1) -> Rows:
        """Positions of the k nearest rows of the table, nearest first, [N, min(k, T)], for rows [N, C] of any integers.

        The distance is Euclidean over the codes; ties are ordered by position.
        """
        k = min(k, len(self.codes))
        out = np.empty((len(lines), k), np.int64)
        step = max(_MAX_DISTANCES // len(self.codes), 1)
        for low in range(0, len(lines), step):
            out[low : low + step] = self._find(codes(lines[low : low + step]), k)
        return out

    def _find(self, wanted: Float64Array, k: int) -> Rows:
        # The squared norm of the query is equal for all rows of the table and is omitted.
        distance = self._norms - 2.0 * (wanted @ self.codes.T)
        if k == 1:
            return np.asarray(distance.argmin(axis=1)[:, None], np.int64)
        # Positions break ties before the partition, which would select any of several equal distances; the values are integers below 2**53.
        ordered = distance * len(self.codes) + np.arange(len(self.codes))
        part = np.argpartition(ordered, k - 1, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(ordered, part, axis=1), axis=1)
        return np.asarray(np.take_along_axis(part, order, axis=1), np.int64)
