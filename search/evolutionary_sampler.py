"""evolutionary: draft, evolve, verify.  The analytic model ranks a large population, the learned model its evolution.

Each round draws a large population and keeps what the analytic model likes; the measured best join it as parents; rows
are mutated and crossed within their sketch for a few generations under the learned model (the analytic one until there is
data); the best unmeasured candidates are proposed, with a share of random ones to keep the model honest (source: Ansor,
Zheng et al., OSDI 2020, on populations of integer rows instead of programs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.model import CostModel
from tunesmith.search.drafter import Drafter
from tunesmith.search.param_space import Rows
from tunesmith.search.sampler import Candidate, Result, Sampler
from tunesmith.search.task import Task
from tunesmith.support.seeds import stream

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvolutionSettings:
    """Sizes of one round.

    Attributes:
        draft: candidates drawn and ranked analytically.
        keep: of them, how many start the evolution.
        generations: times the population is renewed.
        parents: measured candidates that join as parents.
        random_share: of the proposals, drawn from the draft by chance.
    """

    draft: int = 32768
    keep: int = 2048
    generations: int = 4
    parents: int = 64
    random_share: float = 0.06


class EvolutionarySampler(Sampler):
    """See the module's text."""

    def __init__(self, task: Task, model: CostModel, seed: int = 0, settings: EvolutionSettings | None = None) -> None:
        self.task, self.model, self.seed = task, model, seed
        self.settings = settings or EvolutionSettings()
        self.drafter = Drafter(task)
        self._seen: set[Candidate] = set()
        self._measured: dict[Candidate, float] = {}
        self._told: list[Result] = []
        self._round = 0
        self._trained = False

    def tell(self, results: Sequence[Result]) -> None:
        self._seen.update(r.candidate for r in results)
        self._told.extend(results)
        for r in results:
            if r.seconds is not None:
                self._measured[r.candidate] = r.seconds
        if len(self._measured) >= 8:
            done = list(self._measured)
            seconds = np.array([self._measured[c] for c in done])
            self.model.update(self.drafter.features_of(done), seconds, np.zeros(len(done), np.int64))
            self._trained = True

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "evolutionary", self.task.digest, self._round)
        self._round += 1
        s = self.settings
        pool = self.drafter.draw(s.draft, rng)
        drafted = pool.best(s.keep, per_sketch=32)
        randoms = max(round(n * s.random_share), 1) if self._trained else 0
        ranked = self._evolve([c for _, c in drafted], rng) if self._trained else self._first(drafted, n)
        out: list[Candidate] = []
        for c in ranked:
            if len(out) >= n - randoms:
                break
            self._take(c, out)
        # The random share comes from the better half of the draft: a measurement is too dear for the hopeless.
        for i in rng.permutation(len(drafted) // 2 + 1)[: 4 * randoms]:
            if len(out) >= n:
                break
            self._take(drafted[min(int(i), len(drafted) - 1)][1], out)
        for c in ranked:
            if len(out) >= n:
                break
            self._take(c, out)
        return out

    def _take(self, c: Candidate, out: list[Candidate]) -> None:
        if c not in self._seen:
            self._seen.add(c)
            out.append(c)

    def _first(self, drafted: list[tuple[float, Candidate]], n: int) -> list[Candidate]:
        """Before there is data: the analytic ranking, sketch by sketch in turn, so that each structure is tried."""
        queues: dict[int, list[Candidate]] = {}
        for _, c in drafted:
            queues.setdefault(c.sketch, []).append(c)
        half = [c for _, c in drafted[: n // 2]]
        turn = [q[i] for i in range(max(len(q) for q in queues.values())) for q in queues.values() if i < len(q)]
        return [c for pair in zip(half, turn, strict=False) for c in pair] + turn

    def _evolve(self, start: list[Candidate], rng: np.random.Generator) -> list[Candidate]:
        s = self.settings
        elite = sorted(self._measured, key=lambda c: (self._measured[c], c))[: s.parents]
        groups: dict[int, Rows] = {}
        for k in sorted({c.sketch for c in (*elite, *start)}):
            groups[k] = np.array([c.row for c in (*elite, *start) if c.sketch == k], np.int64)
        best: dict[Candidate, float] = {}
        for generation in range(s.generations + 1):
            scores = {k: self._score(k, rows) for k, rows in groups.items()}
            for k, rows in groups.items():
                for i in np.argsort(-scores[k], kind="stable")[:256]:
                    best[Candidate(k, tuple(int(x) for x in rows[i]))] = float(scores[k][i])
            if generation < s.generations:
                groups = self._renew(groups, scores, rng)
        return sorted(best, key=lambda c: (-best[c], c))

    def _score(self, k: int, rows: Rows) -> Floats:
        x = self.drafter.features(k, rows)
        out = np.asarray(self.model.score(x), np.float64)
        self.drafter.scored += len(rows)
        return out

    def _renew(self, groups: dict[int, Rows], scores: dict[int, Floats], rng: np.random.Generator) -> dict[int, Rows]:
        """The next generation: sketches share it by the scores of their rows, parents are drawn by rank."""
        every = np.concatenate([scores[k] for k in groups])
        sketch = np.concatenate([np.full(len(scores[k]), k) for k in groups])
        place = np.concatenate([np.arange(len(scores[k])) for k in groups])
        order = np.argsort(-every, kind="stable")
        weight = 1.0 / (10.0 + np.arange(len(order)))
        picks = order[rng.choice(len(order), size=self.settings.keep, p=weight / weight.sum())]
        out: dict[int, Rows] = {}
        for k in sorted(set(sketch[picks].tolist())):
            mine = groups[k][place[picks[sketch[picks] == k]]]
            space = self.drafter.sketches[k].space
            mates = mine[rng.permutation(len(mine))]
            cross = space.crossover(mine, mates, rng)
            child = np.where((rng.random(len(mine)) < 0.3)[:, None], cross, mine)
            mutated = space.mutate(child, rng)
            keep_same = rng.random(len(mine)) < 0.15
            mutated[keep_same] = mine[keep_same]
            out[k] = np.unique(mutated, axis=0)
        return out
