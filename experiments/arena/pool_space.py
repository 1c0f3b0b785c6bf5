"""Restrict a search space to the configurations of a tabular benchmark.

Mutation and crossover act in the real space, where steps are meaningful, and their children are replaced by the nearest configurations
of the pool.  A sampler that uses the methods of its space therefore searches a table exactly as it searches a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tunesmith.search.space.nearest_rows import NearestRows
from tunesmith.search.space.param_space import ParamSpace, Rows
from tunesmith.search.space.sketch import Sketch, Space
from tunesmith.search.task import Task
from tunesmith.support.array_types import BoolArray, Int64Array

Indices = Int64Array


class PoolSpace(ParamSpace):
    """The configurations of a pool as a space with one group of columns, whose table is the pool.

    Its methods do not modify it, so searches may share it.

    Args:
        real: the original space of the configurations; `mutate` and `crossover` act in it.
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
        """The pool's configurations, [N, P]."""
        return self.tables[0]

    @cached_property
    def _near(self) -> list[NearestRows]:
        return [NearestRows(self.rows)]

    def indices(self, rows: Rows) -> Indices:
        """The index of each row in the pool; -1 for rows outside it, including rows with fractions."""
        whole = np.ascontiguousarray(rows, np.int64)
        out = np.array([self._at.get(r.tobytes(), -1) for r in whole], np.int64)
        out[(whole != rows).any(axis=1)] = -1
        return out

    def snap(self, rows: Rows, other_than: Indices | None = None) -> Indices:
        """The index of the pool's row nearest to each row, see `NearestRows`; a row of the pool maps to itself.

        Args:
            rows: [M, P], any numbers.
            other_than: [M], an index to exclude, or -1; ignored if the pool has no other row.
        """
        out = self.indices(rows)
        avoid = np.full(len(rows), -1, np.int64) if other_than is None else other_than
        todo = np.flatnonzero((out < 0) | (out == avoid))
        near = self._near[0].find(rows[todo], 1 if other_than is None else 2)
        out[todo] = np.where(near[:, 0] == avoid[todo], near[:, -1], near[:, 0])
        return out

    def admissible(self, rows: Rows) -> BoolArray:
        """Which rows are in the pool."""
        return self.indices(rows) >= 0

    def nearest(self, rows: Rows, rng: np.random.Generator) -> Rows:
        """The nearest row of the pool for each row, see `snap`; deterministic."""
        return np.asarray(self.rows[self.snap(rows)])

    def mutate(self, rows: Rows, rng: np.random.Generator, tries: int = 4) -> Rows:
        """Mutants of the real space, each replaced by the nearest row of the pool other than its parent.

        If the parent were allowed, most mutants in a sparse pool would map back to it.
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
    """A sketch restricted to the configurations of a pool.

    Attributes:
        real: its unrestricted space.
        rows: configurations of the pool, see `PoolSpace`.
    """

    real: ParamSpace = field(repr=False, compare=False)
    rows: Rows = field(repr=False, compare=False)

    @cached_property
    def space(self) -> ParamSpace:
        """The space of the measured configurations."""
        return PoolSpace(self.real, self.rows)


@dataclass(frozen=True)
class PoolTask(Task):
    """A task whose candidates are those of a pool.  It holds no measured times."""

    sketches: Sequence[PoolSketch] = ()

    @cached_property
    def space(self) -> Space:
        """The space of the sketches with measured configurations."""
        return Space(tuple(self.sketches))
