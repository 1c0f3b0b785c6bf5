"""Select the candidates of a tabular benchmark, covering both the whole space and its fast region.

Half are drawn at random from all sketches equally, to represent the space.  A quarter come from the upper part of the analytic ranking of
large draws, and a quarter are neighbours of the fastest measured so far, in two rounds, to represent the path of a search.  All draws are
seeded; the first two parts depend only on the seed and the task, the neighbours also on the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.support.seeds import stream

STAGES = (("random", 0.5), ("ranked", 0.75), ("near-1", 0.875), ("near-2", 1.0))
"""The parts in order, with the cumulative share of the pool.  A shortfall of one part is passed to the next, and the rest to `random`."""

_CHUNK = 64
"""Configurations per sketch in a draw of `random`."""
_DRAW = 16384
_UPPER = 1 / 16
"""Fraction of a draw, by analytic rank, that is used for `ranked`."""
_PARENTS = 1 / 16
"""Fraction of the measured candidates whose neighbours are drawn; at least eight candidates."""
_PATIENCE = 8
"""A part is exhausted after this number of consecutive draws without a new candidate."""


class PoolDraw:
    """Draws the candidates of one task by part, each in an order that is independent of the requested number.

    Args:
        task: task of the candidates.
        seed: seed of the draws.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.proposals = ProposalGenerator(task)

    def part(self, stage: str, known: Mapping[Candidate, float]) -> Iterator[Candidate]:
        """The candidates of a part, each once, until draws stop giving new ones.

        Args:
            stage: one of `STAGES`.
            known: measured candidates with their seconds, inf for failures; neighbours of the fastest are drawn.
        """
        seen: set[Candidate] = set()
        idle = chunk = 0
        while idle < _PATIENCE:
            new = [c for c in self._chunk(stage, chunk, known) if c not in seen]
            seen.update(new)
            yield from dict.fromkeys(new)
            idle = 0 if new else idle + 1
            chunk += 1

    def _chunk(self, stage: str, chunk: int, known: Mapping[Candidate, float]) -> list[Candidate]:
        rng = stream(self.seed, "dataset.pool", self.task.digest, stage, chunk)
        if stage == "random":
            return self._random(rng)
        return self._ranked(rng) if stage == "ranked" else self._near(rng, known)

    def _random(self, rng: np.random.Generator) -> list[Candidate]:
        """Random configurations, with the sketches in turn."""
        rows = [s.space.sample(_CHUNK, rng).tolist() for s in self.proposals.sketches]
        return [Candidate(k, tuple(rows[k][i])) for i in range(_CHUNK) for k in range(len(rows))]

    def _ranked(self, rng: np.random.Generator) -> list[Candidate]:
        """The upper part of a large draw, shuffled: its top alone would contain many near-duplicates."""
        drawn = self.proposals.draw(_DRAW, rng)
        upper = [c for _, c in drawn.best(max(8, int(len(drawn) * _UPPER)))]
        return [upper[i] for i in rng.permutation(len(upper))]

    def _near(self, rng: np.random.Generator, known: Mapping[Candidate, float]) -> list[Candidate]:
        """Mutations of the fastest candidates, each parent once per round."""
        ran = sorted((s, c) for c, s in known.items() if np.isfinite(s))
        parents = [c for _, c in ran[: max(8, int(len(ran) * _PARENTS))]]
        out: list[Candidate] = []
        for k in sorted({c.sketch for c in parents}):
            rows = np.array([c.row for c in parents if c.sketch == k], np.int64)
            out += [Candidate(k, tuple(r)) for r in self.proposals.sketches[k].space.mutate(rows, rng).tolist()]
        return [out[i] for i in rng.permutation(len(out))]


class PoolPlan:
    """The pool of one task during its construction: measured candidates and the next ones.

    Args:
        task: task of the pool.
        size: requested number of candidates.
        seed: seed of the draws.
        measured: seconds of earlier measurements, inf for failures, and the part each was drawn for; empty for records of other runs.
    """

    def __init__(self, task: Task, size: int, seed: int, measured: Mapping[Candidate, tuple[float, str]]) -> None:
        self.size = size
        self._draw = PoolDraw(task, seed)
        self._measured = dict(measured)
        self._chosen: dict[Candidate, None] = {}
        self._left = self._plan()

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        """The candidates of the pool so far, in order, including those measured before."""
        return tuple(self._chosen)

    def next(self, n: int) -> list[tuple[Candidate, str]]:
        """At most n candidates to measure, all of one part, each with its part; empty when the pool is complete.

        Earlier candidates must have been reported with `tell`: a part may depend on the times of the previous one.
        """
        out: list[tuple[Candidate, str]] = []
        while len(out) < n:
            try:
                one = next(self._left)
            except StopIteration:
                break
            if one is not None:
                out.append(one)
            elif out:  # the part has ended
                break
        return out

    def tell(self, candidate: Candidate, seconds: float, stage: str) -> None:
        """Report the measured seconds of a candidate; inf if it failed."""
        self._measured[candidate] = (seconds, stage)

    def _plan(self) -> Iterator[tuple[Candidate, str] | None]:
        """The missing candidates by part, with None at the end of each part."""
        for stage, share in (*STAGES, ("random", 1.0)):
            quota = round(self.size * share)
            known = {c: self._measured[c][0] for c in self._chosen}
            if stage.startswith("near"):  # drawn from the times known then, so a resumed run reuses them
                drawn = [c for c, (_, drawn_for) in self._measured.items() if drawn_for == stage and c not in self._chosen]
                self._chosen.update(dict.fromkeys(drawn[: max(0, quota - len(self._chosen))]))
            if len(self._chosen) < quota:
                yield from self._missing(stage, quota, known)
                yield None

    def _missing(self, stage: str, quota: int, known: Mapping[Candidate, float]) -> Iterator[tuple[Candidate, str]]:
        for c in self._draw.part(stage, known):
            if len(self._chosen) >= quota:
                return
            if c in self._chosen:
                continue
            self._chosen[c] = None
            if c not in self._measured:
                yield c, stage
