"""Record the candidates that a sampler proposed or that were reported to it, with their results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.task import Task

_DRAWS = 8
"""Number of times that `fill` draws n candidates."""
_SMALL = 1 << 14
"""Maximum rows of a sketch that is exhausted by repeated draws; larger sketches count as inexhaustible."""
_COVER = 16
"""Draws per row of a small sketch: a row is missed with probability exp(-16)."""


class History:
    """The candidates of a search so far, so that a sampler proposes no candidate twice and none that was reported before.

    Attributes:
        seen: all candidates that were proposed or reported.
        measured: seconds of the candidates that ran.
        disturbed: those of them whose measurement other processes disturbed.
        failed: candidates that failed.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen: set[Candidate] = set()
        self.measured: dict[Candidate, float] = {}
        self.disturbed: set[Candidate] = set()
        self.failed: set[Candidate] = set()

    def tell(self, results: Sequence[Result]) -> None:
        """Add results; their order affects only the order of `measured`."""
        for r in results:
            self.seen.add(r.candidate)
            if r.seconds is None:
                self.failed.add(r.candidate)
            else:
                self.measured[r.candidate] = r.seconds
                (self.disturbed.discard if r.clean else self.disturbed.add)(r.candidate)

    def take(self, candidate: Candidate, batch: list[Candidate]) -> bool:
        """Append a candidate to the batch unless it was seen before; True if it was appended."""
        if candidate in self.seen:
            return False
        self.seen.add(candidate)
        batch.append(candidate)
        return True

    def elite(self, n: int) -> list[Candidate]:
        """The n fastest measured candidates, fastest first."""
        return sorted(self.measured, key=lambda c: (self.measured[c], c))[:n]

    def fill(self, batch: list[Candidate], n: int, rng: np.random.Generator) -> None:
        """Append random unseen candidates, uniform over sketches and then over rows, until the batch has n.

        The number of draws is bounded; the batch stays shorter if all small sketches are exhausted.
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
                self._exhaust(k, batch, n, rng)

    def _exhaust(self, k: int, batch: list[Candidate], n: int, rng: np.random.Generator) -> None:
        """Append the remaining candidates of a small sketch."""
        space = self.task.space.sketches[k].space
        if space.size() > _SMALL:
            return
        rows = np.unique(space.sample(_COVER * space.size(), rng), axis=0)
        for row in rng.permutation(rows).tolist():
            if len(batch) >= n:
                return
            self.take(Candidate(k, tuple(row)), batch)


def candidate_of(k: int, row: np.ndarray) -> Candidate:
    """The candidate for a row of an array, with Python integers."""
    return Candidate(int(k), tuple(row.tolist()))
