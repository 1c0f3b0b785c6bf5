"""What a sampler has to remember: which candidates were proposed or told, and what they measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.task import Task

_DRAWS = 8
"""Times that `fill` draws as many candidates as are wanted."""
_SMALL = 1 << 14
"""Rows of a sketch that is still emptied by drawing all its rows again and again; larger ones are never used up."""
_COVER = 16
"""Draws for each row of a small sketch: one row is missed with a probability of exp(-16)."""


class History:
    """Keeps a sampler's promise: no candidate twice, and none that was told before.

    Attributes:
        seen: all candidates that were proposed or told.
        measured: seconds of those that ran.
        failed: those that did not.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen: set[Candidate] = set()
        self.measured: dict[Candidate, float] = {}
        self.failed: set[Candidate] = set()

    def tell(self, results: Sequence[Result]) -> None:
        """Enter results; their order matters for nothing but the order of `measured`."""
        for r in results:
            self.seen.add(r.candidate)
            if r.seconds is None:
                self.failed.add(r.candidate)
            else:
                self.measured[r.candidate] = r.seconds

    def take(self, candidate: Candidate, batch: list[Candidate]) -> bool:
        """Append a candidate to the batch unless it was seen; whether it was appended."""
        if candidate in self.seen:
            return False
        self.seen.add(candidate)
        batch.append(candidate)
        return True

    def elite(self, n: int) -> list[Candidate]:
        """The n fastest that were measured, fastest first."""
        return sorted(self.measured, key=lambda c: (self.measured[c], c))[:n]

    def fill(self, batch: list[Candidate], n: int, rng: np.random.Generator) -> None:
        """Append random unseen candidates, uniform over sketches and then over rows, until the batch has n.

        It ends in any case; a batch that stays short means that all small sketches are used up.
        """
        sketches = self.task.space.sketches
        for _ in range(_DRAWS):
            if len(batch) >= n:
                return
            which = rng.integers(len(sketches), size=n)
            drawn = {k: iter(s.space.sample(int((which == k).sum()), rng)) for k, s in enumerate(sketches) if (which == k).any()}
            for k in which.tolist():
                candidate = Candidate(k, tuple(next(drawn[k]).tolist()))
                if len(batch) < n:
                    self.take(candidate, batch)
        for k in rng.permutation(len(sketches)).tolist():
            if len(batch) < n:
                self._empty(k, batch, n, rng)

    def _empty(self, k: int, batch: list[Candidate], n: int, rng: np.random.Generator) -> None:
        """Take what is left of a small sketch."""
        space = self.task.space.sketches[k].space
        if space.size() > _SMALL:
            return
        rows = np.unique(space.sample(_COVER * space.size(), rng), axis=0)
        for row in rng.permutation(rows).tolist():
            if len(batch) >= n:
                return
            self.take(Candidate(k, tuple(row)), batch)


def candidate_of(k: int, row: np.ndarray) -> Candidate:
    """The candidate of a row of an array, with Python's integers."""
    return Candidate(int(k), tuple(row.tolist()))
