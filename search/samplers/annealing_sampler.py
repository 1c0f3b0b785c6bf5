"""annealing: many chains walk the space under a falling temperature; the best states they saw are proposed.

The sampler of AutoTVM (Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018, section 5.3), on populations of rows: all
chains take their step together, a step is `ParamSpace.mutate`, and the energy of a state is the learned model's, or the analytic
one's until there is data.  Chains go on from round to round, as AutoTVM's do, except for those that start again at the measured
best, and those that start anywhere.  The batch is the best of all states that were judged, without near-copies, and a random share
that keeps the model honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.models.model import CostModel
from tunesmith.search.samplers.diverse_batch import by_turns, pick
from tunesmith.search.samplers.drafter import Population, ProposalGenerator
from tunesmith.search.samplers.history import History
from tunesmith.search.samplers.sampler import Candidate, Result, Sampler
from tunesmith.search.samplers.scorer import Scorer
from tunesmith.search.space.param_space import Rows
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

Floats = npt.NDArray[np.float64]
Sketches = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AnnealingSettings:
    """Sizes of one round.

    Attributes:
        chains: walked at the same time.
        steps: of each chain.
        hot, cold: temperature at the first and the last step, which falls geometrically, in standard deviations of the energy at the
            start: models differ in their scales.
        restart: share of the chains that begin a round at the measured best.
        fresh: share that begins it anywhere.
        jump: share of the proposals that are a random row of a random sketch: `mutate` never leaves its sketch.
        random_share: of the batch, drawn by chance.
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
            raise UserError(f"annealing wants chains and steps from 1 and hot >= cold > 0, got {self}")
        shares = (self.restart, self.fresh, self.jump, self.random_share)
        if min(shares) < 0 or max(shares) > 1 or self.restart + self.fresh > 1:
            raise UserError(f"annealing wants shares between 0 and 1, and restart + fresh <= 1, got {self}")


@dataclass(slots=True)
class _Chains:
    """States of all chains: sketches [C], and rows [C, most columns of a sketch], of which each uses as many as its sketch has."""

    sketch: Sketches
    rows: Rows

    def group(self, k: int, width: int) -> Rows:
        """The rows of sketch k."""
        return self.rows[self.sketch == k, :width]


class AnnealingSampler(Sampler):
    """See the module's text."""

    def __init__(self, task: Task, model: CostModel, seed: int = 0, settings: AnnealingSettings | None = None) -> None:
        self.task, self.seed = task, seed
        self.settings = settings or AnnealingSettings()
        self.drafter = ProposalGenerator(task)
        self._spaces = [s.space for s in task.space.sketches]
        self._widths = [len(s.params) for s in self._spaces]
        self._history = History(task)
        self._scorer = Scorer(self.drafter, model)
        self._chains: _Chains | None = None
        self._round = 0

    def tell(self, results: Sequence[Result]) -> None:
        self._history.tell(results)
        self._scorer.learn(self._history.measured)

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
        """Let all chains walk for a round; every state that was judged, with its energy."""
        s = self.settings
        now = self._begin(rng)
        energy = self._energies(now)
        judged = [(now, energy)]
        spread = float(energy.std())
        for step in range(s.steps):
            temperature = spread * s.hot * (s.cold / s.hot) ** (step / max(s.steps - 1, 1))
            new = self._propose(now, rng)
            new_energy = self._energies(new)
            judged.append((new, new_energy))
            chance = rng.random(s.chains)
            # Written so that equal energies are accepted at a temperature of 0, which a model without an opinion gives.
            accept = new_energy - energy <= -temperature * np.log(np.maximum(chance, 1e-300))
            now = _Chains(np.where(accept, new.sketch, now.sketch), np.where(accept[:, None], new.rows, now.rows))
            energy = np.where(accept, new_energy, energy)
        self._chains = now
        return self._population(judged)

    def _begin(self, rng: np.random.Generator) -> _Chains:
        """Where the chains start: where they ended, at the measured best, anywhere."""
        s = self.settings
        sketch = rng.integers(len(self._spaces), size=s.chains)
        chains = _Chains(sketch, np.zeros((s.chains, max(self._widths)), np.int64))
        self._draw(chains, np.ones(s.chains, bool), rng)
        if self._chains is not None:
            kept = np.arange(s.chains) >= round(s.chains * s.fresh)
            chains = _Chains(np.where(kept, self._chains.sketch, chains.sketch), np.where(kept[:, None], self._chains.rows, chains.rows))
        elite = self._history.elite(round(s.chains * s.restart))
        for i in range(round(s.chains * s.restart) if elite else 0):
            best = elite[i % len(elite)]
            at = s.chains - 1 - i
            chains.sketch[at] = best.sketch
            chains.rows[at] = 0
            chains.rows[at, : len(best.row)] = best.row
        return chains

    def _propose(self, now: _Chains, rng: np.random.Generator) -> _Chains:
        """One step of every chain."""
        jumps = rng.random(len(now.sketch)) < self.settings.jump
        new = _Chains(np.where(jumps, rng.integers(len(self._spaces), size=len(jumps)), now.sketch), now.rows.copy())
        for k in np.unique(new.sketch[~jumps]).tolist():
            mine = np.flatnonzero((new.sketch == k) & ~jumps)
            new.rows[mine, : self._widths[k]] = self._spaces[k].mutate(now.rows[mine, : self._widths[k]], rng)
        self._draw(new, jumps, rng)
        return new

    def _draw(self, chains: _Chains, where: npt.NDArray[np.bool_], rng: np.random.Generator) -> None:
        """Give these chains a random row of their sketch."""
        for k in np.unique(chains.sketch[where]).tolist():
            mine = np.flatnonzero((chains.sketch == k) & where)
            chains.rows[mine] = 0
            chains.rows[mine, : self._widths[k]] = self._spaces[k].sample(len(mine), rng)

    def _energies(self, chains: _Chains) -> Floats:
        found = self._scorer.predicted_costs({k: chains.group(k, self._widths[k]) for k in np.unique(chains.sketch).tolist()})
        out = np.empty(len(chains.sketch))
        for k, predicted_costs in found.items():
            out[chains.sketch == k] = predicted_costs
        return out

    def _population(self, judged: list[tuple[_Chains, Floats]]) -> Population:
        """All states that were judged, each once."""
        rows: dict[int, Rows] = {}
        values: dict[int, Floats] = {}
        for k in np.unique(np.concatenate([c.sketch for c, _ in judged])).tolist():
            every = np.concatenate([c.group(k, self._widths[k]) for c, _ in judged])
            predicted_costs = np.concatenate([e[c.sketch == k] for c, e in judged])
            rows[k], first = np.unique(every, axis=0, return_index=True)
            values[k] = predicted_costs[first]
        return Population(rows, values)
