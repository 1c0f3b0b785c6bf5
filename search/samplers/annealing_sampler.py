"""Propose candidates by simulated annealing: parallel chains under a falling temperature.

The sampler of AutoTVM (Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 5.3), vectorised over rows: all chains
step together, a step is `ParamSpace.mutate`, and the objective is the predicted cost, of the learned model or, before it has data, of
the analytic one.  Chains continue from round to round, as in AutoTVM, except for a share restarted at the best measured candidates and
a share restarted at random.  The batch consists of the best scored states without near-duplicates and a random share, which gives the
model unbiased data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tunesmith.costmodel.models.model import CostModel
from tunesmith.search.samplers.diverse_batch import by_turns, pick
from tunesmith.search.samplers.drafting_sampler import DraftingSampler
from tunesmith.search.samplers.proposal_generator import Population
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.param_space import Rows
from tunesmith.search.task import Task
from tunesmith.support.array_types import BoolArray, Float64Array, Int64Array
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

Sketches = Int64Array


@dataclass(frozen=True, slots=True)
class AnnealingSettings:
    """Parameters of one round.

    Attributes:
        chains: number of parallel chains.
        steps: steps of each chain.
        hot, cold: temperature at the first and the last step, with geometric decay, in standard deviations of the initial predicted
            costs, because the scales of models differ.
        restart: share of the chains that start a round at the best measured candidates.
        fresh: share of the chains that start a round at random.
        jump: share of the steps that draw a random row of a random sketch, because `mutate` never changes the sketch.
        random_share: share of the batch drawn at random.
    """

    chains: int = 256
    steps: int = 60
    hot: float = 1.0
    cold: float = 0.02
    restart: float = 0.3
    fresh: float = 0.2
    jump: float = 0.05
    random_share: float = 0.06

    def __post_init__(self) -> None:
        if self.chains < 1 or self.steps < 1 or not self.hot >= self.cold > 0:
            raise UserError(f"annealing needs chains >= 1, steps >= 1 and hot >= cold > 0, got {self}")
        shares = (self.restart, self.fresh, self.jump, self.random_share)
        if min(shares) < 0 or max(shares) > 1 or self.restart + self.fresh > 1:
            raise UserError(f"annealing needs shares between 0 and 1, and restart + fresh <= 1, got {self}")


@dataclass(slots=True)
class _Chains:
    """States of all chains: sketches [C] and rows [C, maximum width of a sketch]; columns beyond the width of the sketch are unused."""

    sketch: Sketches
    rows: Rows

    def group(self, k: int, width: int) -> Rows:
        """The rows of the chains at sketch k."""
        return self.rows[self.sketch == k, :width]


class AnnealingSampler(DraftingSampler):
    """Simulated annealing (registered as `annealing`), see the module docstring."""

    def __init__(self, task: Task, model: CostModel, seed: int = 0, settings: AnnealingSettings | None = None) -> None:
        super().__init__(task, model, seed)
        self.settings = settings or AnnealingSettings()
        self._spaces = [s.space for s in task.space.sketches]
        self._widths = [len(s.params) for s in self._spaces]
        self._chains: _Chains | None = None

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "annealing", self.task.digest, self._round)
        self._round += 1
        ranked = [c for _, c in self._walk(rng).best(max(16 * n, 256), per_sketch=n)]
        randoms = max(round(n * self.settings.random_share), 1) if self._scorer.trained and n > 1 else 0
        chosen = pick(ranked if self._scorer.trained else by_turns(ranked, n), n - randoms, self._history.seen)
        batch: list[Candidate] = []
        for c in chosen:
            self._history.take(c, batch)
        self._history.fill(batch, n, rng)
        return batch

    def _walk(self, rng: np.random.Generator) -> Population:
        """Run all chains for one round; all scored states with their predicted costs."""
        s = self.settings
        now = self._begin(rng)
        cost = self._predicted_costs(now)
        scored = [(now, cost)]
        spread = float(cost.std())
        for step in range(s.steps):
            temperature = spread * s.hot * (s.cold / s.hot) ** (step / max(s.steps - 1, 1))
            new = self._propose(now, rng)
            new_cost = self._predicted_costs(new)
            scored.append((new, new_cost))
            chance = rng.random(s.chains)
            # This form accepts equal costs at temperature 0, which a model with constant scores results in.
            accept = new_cost - cost <= -temperature * np.log(np.maximum(chance, 1e-300))
            now = _Chains(np.where(accept, new.sketch, now.sketch), np.where(accept[:, None], new.rows, now.rows))
            cost = np.where(accept, new_cost, cost)
        self._chains = now
        return self._population(scored)

    def _begin(self, rng: np.random.Generator) -> _Chains:
        """Start states of the chains: their last states, the best measured candidates, or random rows."""
        s = self.settings
        sketch = rng.integers(len(self._spaces), size=s.chains)
        chains = _Chains(sketch, np.zeros((s.chains, max(self._widths)), np.int64))
        self._draw(chains, np.ones(s.chains, bool), rng)
        if self._chains is not None:
            resumed = np.arange(s.chains) >= round(s.chains * s.fresh)
            rows = np.where(resumed[:, None], self._chains.rows, chains.rows)
            chains = _Chains(np.where(resumed, self._chains.sketch, chains.sketch), rows)
        elite = self._history.elite(round(s.chains * s.restart))
        for i in range(round(s.chains * s.restart) if elite else 0):
            best = elite[i % len(elite)]
            at = s.chains - 1 - i
            chains.sketch[at] = best.sketch
            chains.rows[at] = 0
            chains.rows[at, : len(best.row)] = best.row
        return chains

    def _propose(self, now: _Chains, rng: np.random.Generator) -> _Chains:
        """The proposed next state of every chain."""
        jumps = rng.random(len(now.sketch)) < self.settings.jump
        new = _Chains(np.where(jumps, rng.integers(len(self._spaces), size=len(jumps)), now.sketch), now.rows.copy())
        for k in np.unique(new.sketch[~jumps]).tolist():
            mine = np.flatnonzero((new.sketch == k) & ~jumps)
            new.rows[mine, : self._widths[k]] = self._spaces[k].mutate(now.rows[mine, : self._widths[k]], rng)
        self._draw(new, jumps, rng)
        return new

    def _draw(self, chains: _Chains, where: BoolArray, rng: np.random.Generator) -> None:
        """Set the selected chains to random rows of their sketches."""
        for k in np.unique(chains.sketch[where]).tolist():
            mine = np.flatnonzero((chains.sketch == k) & where)
            chains.rows[mine] = 0
            chains.rows[mine, : self._widths[k]] = self._spaces[k].sample(len(mine), rng)

    def _predicted_costs(self, chains: _Chains) -> Float64Array:
        found = self._scorer.predicted_costs({k: chains.group(k, self._widths[k]) for k in np.unique(chains.sketch).tolist()})
        out = np.empty(len(chains.sketch))
        for k, predicted_costs in found.items():
            out[chains.sketch == k] = predicted_costs
        return out

    def _population(self, scored: list[tuple[_Chains, Float64Array]]) -> Population:
        """All scored states without duplicates."""
        rows: dict[int, Rows] = {}
        values: dict[int, Float64Array] = {}
        for k in np.unique(np.concatenate([c.sketch for c, _ in scored])).tolist():
            every = np.concatenate([c.group(k, self._widths[k]) for c, _ in scored])
            predicted_costs = np.concatenate([e[c.sketch == k] for c, e in scored])
            rows[k], first = np.unique(every, axis=0, return_index=True)
            values[k] = predicted_costs[first]
        return Population(rows, values)
