"""The space of a measured pool: the methods of a ParamSpace, but no row exists that was not measured.

Mutation and crossover act in the real space, where a step means something, and their children are replaced by the nearest
rows of the pool.  So a sampler that reaches candidates through its space's methods searches a table exactly as it searches a
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tunesmith.search.space.param_space import ParamSpace, Rows
from tunesmith.search.space.sketch import Sketch, Space
from tunesmith.search.task import Task

Indices = npt.NDArray[np.int64]


class PoolSpace(ParamSpace):
    """The rows of a pool as a space with one group of columns, whose table is the pool.

    It is never changed by its methods, so that searches may share it.

    Args:
        real: the space that the rows are from; `mutate` and `crossover` act in it.
        rows: [N, P], distinct, in lexicographic order.
    """

    def __init__(self, real: ParamSpace, rows: Rows) -> None:
        super().__init__(real.params, ())
        self.real = real
        self.groups = [tuple(range(len(self.params)))]
        self.tables = [rows]
        self._at = {r.tobytes(): i for i, r in enumerate(np.ascontiguousarray(rows))}

    @property
    def rows(self) -> Rows:
        """The pool's rows, [N, P]."""
        return self.tables[0]

    def indices(self, rows: Rows) -> Indices:
        """Where each row stands in the pool; -1 where it does not, as rows of broken numbers never do."""
        whole = np.ascontiguousarray(rows, np.int64)
        out = np.array([self._at.get(r.tobytes(), -1) for r in whole], np.int64)
        out[(whole != rows).any(axis=1)] = -1
        return out

    def snap(self, rows: Rows, other_than: Indices | None = None) -> Indices:
        """The index of the pool's row that is nearest to each row, see `NearestLines`; a row of the pool is its own.

        Args:
            rows: [M, P], any numbers.
            other_than: [M], an index that is not to be the answer, or -1; ignored where the pool has no other row.
        """
        out = self.indices(rows)
        avoid = np.full(len(rows), -1, np.int64) if other_than is None else other_than
        todo = np.flatnonzero((out < 0) | (out == avoid))
        near = self._near[0].find(rows[todo], 1 if other_than is None else 2)
        out[todo] = np.where(near[:, 0] == avoid[todo], near[:, -1], near[:, 0])
        return out

    def admissible(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows were measured."""
        return self.indices(rows) >= 0

    def nearest(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """For each row of numbers the nearest one of the pool, see `snap`; nothing is drawn."""
        return np.asarray(self.rows[self.snap(rows)])

    def mutate(self, rows: Rows, rng: np.random.Generator, tries: int = 4) -> Rows:
        """Mutants of the real space, each replaced by the nearest row of the pool that is not its parent.

        With the parent among the answers, most mutants in a thin pool would fall back on it.
        """
        out = self.nearest(rows, rng)
        mutants = self.real.mutate(rows, rng, tries)
        moved = (mutants != rows).any(axis=1)
        out[moved] = self.rows[self.snap(mutants[moved], self.indices(rows[moved]))]
        return out

    def crossover(self, a: Rows, b: Rows, rng: np.random.Generator) -> Rows:
        """Children of the real space, each replaced by the nearest row of the pool."""
        return self.nearest(self.real.crossover(a, b, rng), rng)


@dataclass(frozen=True)
class PoolSketch(Sketch):
    """A sketch of which only the rows of a pool exist.

    Attributes:
        real: its space before that.
        rows: of the pool, see `PoolSpace`.
    """

    real: ParamSpace = field(repr=False, compare=False)
    rows: Rows = field(repr=False, compare=False)

    @cached_property
    def space(self) -> ParamSpace:
        """The measured rows."""
        return PoolSpace(self.real, self.rows)


@dataclass(frozen=True)
class PoolTask(Task):
    """A task whose candidates are those of a pool.  It knows no measured time."""

    sketches: Sequence[PoolSketch] = ()

    @cached_property
    def space(self) -> Space:
        """The sketches that have measured rows."""
        return Space(tuple(self.sketches))
