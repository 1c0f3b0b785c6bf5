"""Propose candidates by evolutionary search: an analytically ranked draft evolves under the learned model.

Each round draws a large population and keeps the part with the lowest analytic cost; the best measured candidates join it as parents.
Rows are mutated and crossed within their sketch for a few generations, ranked by the learned model.  The best unmeasured candidates
without near-duplicates are proposed, with a random share that gives the model unbiased data (source: Ansor, Zheng et al., OSDI 2020, on
populations of integer rows instead of programs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.costmodel.models.model import CostModel
from tunesmith.search.samplers.diverse_batch import by_turns, pick
from tunesmith.search.samplers.drafting_sampler import DraftingSampler
from tunesmith.search.samplers.history import candidate_of
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.space.param_space import Rows
from tunesmith.search.task import Task
from tunesmith.support.array_types import Float64Array
from tunesmith.support.seeds import stream


@dataclass(frozen=True, slots=True)
class EvolutionSettings:
    """Parameters of one round.

    Attributes:
        draft: candidates drawn and ranked analytically.
        keep: candidates of the draft that start the evolution.
        generations: number of generations.
        parents: measured candidates that join as parents.
        random_share: share of the proposals drawn at random from the draft.
        drafting: False replaces the analytic ranking of the draft by a random order, for ablations.
        learning: False disables the learned model and with it the evolution, and proposes from the draft alone, for ablations.
    """

    draft: int = 32768
    keep: int = 2048
    generations: int = 4
    parents: int = 64
    random_share: float = 0.06
    drafting: bool = True
    learning: bool = True


class EvolutionarySampler(DraftingSampler):
    """Evolutionary search (registered as `evolutionary`), see the module docstring."""

    def __init__(self, task: Task, model: CostModel, seed: int = 0, settings: EvolutionSettings | None = None) -> None:
        super().__init__(task, model, seed)
        self.settings = settings or EvolutionSettings()

    def tell(self, results: Sequence[Result]) -> None:
        self._history.tell(results)
        if self.settings.learning:
            self._scorer.learn(self._history.measured, self._history.disturbed)

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "evolutionary", self.task.digest, self._round)
        self._round += 1
        s = self.settings
        learned = self._scorer.trained and s.learning
        pool = self.generator.draw(s.draft, rng)
        if not s.drafting:
            pool.values = {k: rng.random(len(rows)) for k, rows in pool.rows.items()}
        drafted = [c for _, c in pool.best(s.keep, per_sketch=32)]
        ranked = self._evolve(drafted, rng) if learned else by_turns(drafted, n)
        randoms = max(round(n * s.random_share), 1) if learned and n > 1 else 0
        batch: list[Candidate] = []
        for c in pick(ranked, n - randoms, self._history.seen):
            self._history.take(c, batch)
        # The random share comes from the better half of the draft: measurements are too expensive for clearly bad candidates.
        half = drafted[: len(drafted) // 2 + 1]
        for i in rng.permutation(len(half))[: 4 * randoms].tolist():
            if len(batch) < n:
                self._history.take(half[i], batch)
        for c in pick(ranked, n - len(batch), self._history.seen):
            self._history.take(c, batch)
        self._history.fill(batch, n, rng)
        return batch

    def _evolve(self, start: list[Candidate], rng: np.random.Generator) -> list[Candidate]:
        s = self.settings
        elite = self._history.elite(s.parents)
        groups: dict[int, Rows] = {}
        for k in sorted({c.sketch for c in (*elite, *start)}):
            groups[k] = np.array([c.row for c in (*elite, *start) if c.sketch == k], np.int64)
        best: dict[Candidate, float] = {}
        for generation in range(s.generations + 1):
            predicted_costs = self._scorer.predicted_costs(groups)
            for k, rows in groups.items():
                for i in np.argsort(predicted_costs[k], kind="stable")[:256]:
                    best[candidate_of(k, rows[i])] = float(predicted_costs[k][i])
            if generation < s.generations:
                groups = self._renew(groups, predicted_costs, rng)
        return sorted(best, key=lambda c: (best[c], c))

    def _renew(self, groups: dict[int, Rows], predicted_costs: dict[int, Float64Array], rng: np.random.Generator) -> dict[int, Rows]:
        """The next generation: parents are drawn by the rank of their predicted cost over all sketches."""
        every = np.concatenate([predicted_costs[k] for k in groups])
        sketch = np.concatenate([np.full(len(predicted_costs[k]), k) for k in groups])
        position = np.concatenate([np.arange(len(predicted_costs[k])) for k in groups])
        order = np.argsort(every, kind="stable")
        weight = 1.0 / (10.0 + np.arange(len(order)))
        picks = order[rng.choice(len(order), size=self.settings.keep, p=weight / weight.sum())]
        out: dict[int, Rows] = {}
        for k in sorted(set(sketch[picks].tolist())):
            parents = groups[k][position[picks[sketch[picks] == k]]]
            space = self.generator.sketches[k].space
            mates = parents[rng.permutation(len(parents))]
            cross = space.crossover(parents, mates, rng)
            child = np.where((rng.random(len(parents)) < 0.3)[:, None], cross, parents)
            mutated = space.mutate(child, rng)
            keep_same = rng.random(len(parents)) < 0.15
            mutated[keep_same] = parents[keep_same]
            out[k] = np.unique(mutated, axis=0)
        return out
