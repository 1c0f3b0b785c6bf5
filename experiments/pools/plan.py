"""The pool of a task: which candidates a data set measures, so that it shows both the whole space and its fast corner.

Half are drawn at random, from all sketches alike: what a model must know of the space.  A quarter come from the upper part of the analytic
ranking of large draws, and a quarter are neighbours of the fastest measured so far, in two rounds: what a search meets on its way.  All
draws are seeded; the first two parts depend on nothing but the seed and the task, the neighbours also on what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.support.seeds import stream

STAGES = (("random", 0.5), ("ranked", 0.75), ("near-1", 0.875), ("near-2", 1.0))
"""The parts in order, and the share of the pool that is measured when each is done; what one cannot fill is left to the next, and the rest
to `random` again."""

_CHUNK = 64
"""Rows of each sketch in a draw of `random`."""
_DRAW = 16384
_UPPER = 1 / 16
"""Part of a draw whose analytic rank is good enough for `ranked`."""
_PARENTS = 1 / 16
"""Of the measured candidates, how many have neighbours; eight at least."""
_PATIENCE = 8
"""After so many draws in a row without anything new, a part is exhausted."""


class PoolDraw:
    """Draws the candidates of one task, part by part, each in an order that does not depend on how many are wanted.

    Args:
        task: whose candidates.
        seed: of the draws.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.drafter = ProposalGenerator(task)

    def part(self, stage: str, known: Mapping[Candidate, float]) -> Iterator[Candidate]:
        """The candidates of a part, each once, until there is nothing new for a while.

        Args:
            stage: one of `STAGES`.
            known: measured candidates with their seconds, inf for failures; those near the fastest are the neighbours.
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
        """Rows of all sketches in turn."""
        rows = [s.space.sample(_CHUNK, rng).tolist() for s in self.drafter.sketches]
        return [Candidate(k, tuple(rows[k][i])) for i in range(_CHUNK) for k in range(len(rows))]

    def _ranked(self, rng: np.random.Generator) -> list[Candidate]:
        """The upper part of a large draw, in any order: its very top would be many copies of one idea."""
        drawn = self.drafter.draw(_DRAW, rng)
        upper = [c for _, c in drawn.best(max(8, int(len(drawn) * _UPPER)))]
        return [upper[i] for i in rng.permutation(len(upper))]

    def _near(self, rng: np.random.Generator, known: Mapping[Candidate, float]) -> list[Candidate]:
        """Mutations of the fastest, each parent once in a round."""
        ran = sorted((s, c) for c, s in known.items() if np.isfinite(s))
        parents = [c for _, c in ran[: max(8, int(len(ran) * _PARENTS))]]
        out: list[Candidate] = []
        for k in sorted({c.sketch for c in parents}):
            rows = np.array([c.row for c in parents if c.sketch == k], np.int64)
            out += [Candidate(k, tuple(r)) for r in self.drafter.sketches[k].space.mutate(rows, rng).tolist()]
        return [out[i] for i in rng.permutation(len(out))]


class PoolPlan:
    """The pool of one task as it grows: what is measured already, and what comes next.

    Args:
        task: whose pool.
        size: candidates wanted.
        seed: of the draws.
        measured: seconds of candidates measured before, inf for failures, and the part that each was drawn for; empty for others' records.
    """

    def __init__(self, task: Task, size: int, seed: int, measured: Mapping[Candidate, tuple[float, str]]) -> None:
        self.size = size
        self._draw = PoolDraw(task, seed)
        self._measured = dict(measured)
        self._chosen: dict[Candidate, None] = {}
        self._left = self._plan()

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        """The candidates of the pool so far, in order, those measured before included."""
        return tuple(self._chosen)

    def next(self, n: int) -> list[tuple[Candidate, str]]:
        """At most n candidates that must be measured, each with its part; all of one part.  None are left when it is empty.

        Those given before must have been told: a part may depend on the times of the one before.
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
        """A candidate was measured; inf if it failed."""
        self._measured[candidate] = (seconds, stage)

    def _plan(self) -> Iterator[tuple[Candidate, str] | None]:
        """What is missing, part after part, None at the end of each."""
        for stage, share in (*STAGES, ("random", 1.0)):
            quota = round(self.size * share)
            known = {c: self._measured[c][0] for c in self._chosen}
            if stage.startswith("near"):  # they depended on what was known when they were drawn: a later run takes them as they are
                mine = [c for c, (_, drawn_for) in self._measured.items() if drawn_for == stage and c not in self._chosen]
                self._chosen.update(dict.fromkeys(mine[: max(0, quota - len(self._chosen))]))
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
