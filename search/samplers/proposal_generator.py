"""Draw large populations of candidates and rank them by the analytic model, vectorised over arrays.

The draft stage of draft-then-verify search (Qiao et al., "Pruner", ASPLOS 2025).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tunesmith.costmodel.features.feature_program import gather
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.param_space import Rows
from tunesmith.search.task import Task
from tunesmith.support.array_types import Float32Array, Float64Array, Int64Array


@dataclass(slots=True)
class Population:
    """Candidates as arrays: the rows of each sketch and a value for each row.  Sketches without candidates are absent."""

    rows: dict[int, Rows]
    values: dict[int, Float64Array]

    def __len__(self) -> int:
        return sum(len(r) for r in self.rows.values())

    def best(self, n: int, per_sketch: int = 0) -> list[tuple[float, Candidate]]:
        """The n lowest values over all sketches and the `per_sketch` lowest of each sketch, sorted."""
        found: set[tuple[float, Candidate]] = set()
        every: list[tuple[float, int, int]] = []
        for k, v in self.values.items():
            order = np.argsort(v, kind="stable")[: max(n, per_sketch)]
            every += [(float(v[i]), k, int(i)) for i in order]
            found |= {(float(v[i]), self._candidate(k, int(i))) for i in order[:per_sketch]}
        every.sort()
        found |= {(x, self._candidate(k, i)) for x, k, i in every[:n]}
        return sorted(found)

    def _candidate(self, k: int, i: int) -> Candidate:
        return Candidate(k, tuple(int(x) for x in self.rows[k][i]))


class DraftModel(Protocol):
    """Predicts times of the configurations of one sketch without measurements, for example an `AnalyticModel`."""

    def seconds(self, rows: Rows) -> Float64Array:
        """Predicted time of each row, [N]; only the order of the times matters."""


class ProposalGenerator:
    """Draws candidates of one task and predicts their cost without running them.

    Args:
        task: the task.
        analytic: the draft models of the sketches, in order; the default is their analytic models.

    Attributes:
        drafted, scored: candidates scored by the analytic model and by the learned model, for reports.
        draft_seconds: time spent on drawing and analytic scoring.
    """

    def __init__(self, task: Task, analytic: Sequence[DraftModel] | None = None) -> None:
        self.task = task
        self.sketches = task.space.sketches
        self.analytic: Sequence[DraftModel] = [s.analytic(task.target) for s in self.sketches] if analytic is None else analytic
        self.drafted = 0
        self.scored = 0
        self.draft_seconds = 0.0

    def draw(self, n: int, rng: np.random.Generator) -> Population:
        """About n random candidates, divided evenly among the sketches, with their analytic seconds."""
        start = time.perf_counter()
        each = max(n // len(self.sketches), 1)
        rows = {k: s.space.sample(each, rng) for k, s in enumerate(self.sketches)}
        for k, s in enumerate(self.sketches):
            if s.space.size() <= 8 * each:  # in a small space most draws are duplicates, which would fill the ranking
                rows[k] = np.unique(rows[k], axis=0)
        out = Population(rows, {k: self.analytic[k].seconds(r) for k, r in rows.items()})
        self.drafted += len(out)
        self.draft_seconds += time.perf_counter() - start
        return out

    def estimate(self, k: int, rows: Rows) -> Float64Array:
        """Analytic seconds of rows of sketch k."""
        start = time.perf_counter()
        out = self.analytic[k].seconds(rows)
        self.drafted += len(rows)
        self.draft_seconds += time.perf_counter() - start
        return out

    def features(self, k: int, rows: Rows, inputs: str = "program") -> Float32Array:
        """Features of rows of sketch k for a model with these `inputs`: [N, F], or [N, S, F] for `stores`."""
        return self.sketches[k].features(self.task.target).inputs(rows, inputs)

    def features_of(self, candidates: list[Candidate], inputs: str = "program") -> Float32Array:
        """Features of candidates of any sketches, in order; see `features`."""
        places: list[Int64Array] = []
        parts: list[Float32Array] = []
        for k in sorted({c.sketch for c in candidates}):
            mine = [i for i, c in enumerate(candidates) if c.sketch == k]
            places.append(np.array(mine, np.int64))
            parts.append(self.features(k, np.array([candidates[i].row for i in mine], np.int64), inputs))
        return gather(parts, places)
