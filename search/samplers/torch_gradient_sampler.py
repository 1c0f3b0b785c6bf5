"""Propose candidates by gradient descent on the analytic cost over relaxed tile sizes, rounded to admissible rows.

The method of Felix (Zhao et al., "Felix: Optimizing Tensor Programs with Gradient Descent", ASPLOS 2024): the cost of a sketch is a
formula over its Params, so it has a gradient.  Params are continuous on a logarithmic scale, y = log2(1 + value).  Step functions in the
formula get the derivatives of smooth approximations (costmodel/formulas/torch_program.py).  Constraint violations are added to the
logarithm of the cost as penalties.  Many starts, half of them near the best measured candidates, take a few dozen steps of Adam in
parallel.  The visited points are replaced by the nearest admissible rows, which the learned model ranks, or the analytic model until
there is data.

With exact derivatives the descent is harmful: on matrix products and a convolution the median start became two to three times slower in
30 steps; with relaxed derivatives it became two to three times faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tunesmith.costmodel.formulas.expr_graph import Dag
from tunesmith.costmodel.formulas.torch_program import TorchProgram, import_torch
from tunesmith.costmodel.models.model import CostModel
from tunesmith.ir.target.target import Target
from tunesmith.search.samplers.diverse_batch import by_turns, pick
from tunesmith.search.samplers.drafting_sampler import DraftingSampler
from tunesmith.search.samplers.proposal_generator import Population
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.param_space import Rows
from tunesmith.search.space.sketch import Sketch
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """Parameters of one round.

    Attributes:
        starts: number of start points, divided among the sketches of the round.
        sketches: number of sketches in a round: those measured best, and the others in turn.
        steps: steps of Adam.
        rate: learning rate of Adam, in doublings of a tile size.
        penalty: penalty for violating a constraint by its typical size, in logarithms of seconds.
        every: interval in steps at which the points are rounded and added to the candidates.
        draft: candidates drawn over all sketches; those with the lowest analytic cost are start points and candidates.
        random_share: share of the batch drawn at random.
    """

    starts: int = 128
    sketches: int = 3
    steps: int = 24
    rate: float = 0.3
    penalty: float = 1.0
    every: int = 4
    draft: int = 4096
    random_share: float = 0.06

    def __post_init__(self) -> None:
        if min(self.starts, self.sketches, self.steps, self.every, self.draft) < 1 or self.rate <= 0 or self.penalty < 0:
            raise UserError(f"the gradient sampler needs counts >= 1, rate > 0 and penalty >= 0, got {self}")
        if not 0 <= self.random_share <= 1:
            raise UserError(f"random_share must be between 0 and 1, got {self.random_share}")


class Descent:
    """Gradient descent on the cost and constraints of one sketch.

    Args:
        sketch: the sketch.
        target: target of the analytic cost.
    Raises:
        MissingExtraError: torch is not installed.
    """

    def __init__(self, sketch: Sketch, target: Target) -> None:
        self._torch = import_torch("the sampler `gradient`")
        model = sketch.analytic(target)
        self._cost = TorchProgram(model.analysis.dag, [model.cost.seconds], relaxed=True)
        dag = Dag(sketch.params)
        constraints = [c for c in sketch.constraints if c.expr.vars]
        self._violations = TorchProgram(dag, [dag.poly(c.expr) for c in constraints], relaxed=True) if constraints else None
        self._equal = self._torch.tensor([c.kind == "eq0" for c in constraints])[:, None]
        ends = np.array([[p.domain[0], p.domain[-1]] for p in sketch.params], np.float64).reshape(-1, 2)
        self._low, self._high = self._torch.tensor(np.log2(1.0 + ends)).T

    def run(self, rows: Rows, settings: GradientSettings) -> list[Rows]:
        """Descend from rows [N, P]; the points after every `settings.every` steps, rounded to integers, usually not admissible."""
        torch = self._torch
        y = torch.tensor(np.log2(1.0 + rows), dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([y], lr=settings.rate)
        scale = self._scale(y)
        out: list[Rows] = []
        for step in range(1, settings.steps + 1):
            adam.zero_grad()
            # The loss of a point depends on this point alone, so one backward pass computes all gradients.
            loss = self._loss(y, scale, settings.penalty).sum()
            if not loss.requires_grad:
                return []  # the cost is constant
            loss.backward()
            y.grad.nan_to_num_(0.0, 0.0, 0.0)
            adam.step()
            with torch.no_grad():
                y.copy_(torch.minimum(torch.maximum(y, self._low), self._high))
            if step % settings.every == 0 or step == settings.steps:
                out.append(np.rint(np.exp2(y.detach().numpy()) - 1.0).astype(np.int64))
        return out

    def _loss(self, y: Any, scale: Any, penalty: float) -> Any:
        torch = self._torch
        values = torch.exp2(y) - 1.0
        loss = torch.log(self._cost(values)[0])
        if self._violations is not None:
            amount = self._violations(values) / scale
            loss = loss + penalty * torch.where(self._equal, amount.abs(), torch.relu(amount)).sum(dim=0)
        return torch.where(torch.isfinite(loss), loss, 0.0)

    def _scale(self, y: Any) -> Any:
        """Mean magnitude of each constraint's expression over the starts, which makes elements, bytes and counts comparable."""
        if self._violations is None:
            return None
        with self._torch.no_grad():
            return self._violations(self._torch.exp2(y) - 1.0).abs().mean(dim=1, keepdim=True) + 1.0


class GradientSampler(DraftingSampler):
    """Gradient descent on the analytic cost (registered as `gradient`), see the module docstring."""

    def __init__(self, task: Task, model: CostModel, seed: int = 0, settings: GradientSettings | None = None) -> None:
        import_torch("the sampler `gradient`")
        super().__init__(task, model, seed)
        self.settings = settings or GradientSettings()
        self._descents: dict[int, Descent] = {}
        self._next = 0

    def ask(self, n: int) -> list[Candidate]:
        rng = stream(self.seed, "gradient", self.task.digest, self._round)
        self._round += 1
        draft = self.generator.draw(self.settings.draft, rng)
        rows = {k: [r[np.argsort(draft.values[k], kind="stable")[:64]]] for k, r in draft.rows.items()}
        for k, starts in self._starts(draft, rng).items():
            rows[k] += [starts, *self._descend(k, starts, rng)]
        visited = {k: np.unique(np.concatenate(parts), axis=0) for k, parts in rows.items()}
        ranked = [c for _, c in Population(visited, self._scorer.predicted_costs(visited)).best(max(16 * n, 256), per_sketch=n)]
        randoms = max(round(n * self.settings.random_share), 1) if self._scorer.trained and n > 1 else 0
        batch: list[Candidate] = []
        for c in pick(ranked if self._scorer.trained else by_turns(ranked, n), n - randoms, self._history.seen):
            self._history.take(c, batch)
        self._history.fill(batch, n, rng)
        return batch

    def _starts(self, draft: Population, rng: np.random.Generator) -> dict[int, Rows]:
        """Start rows for each sketch of the round: mutants of the best measured candidates, and the best of the draft."""
        s = self.settings
        elite = self._history.elite(s.starts // 2)
        chosen = list(dict.fromkeys(c.sketch for c in elite))[: (s.sketches + 1) // 2]
        for _ in self.generator.sketches:
            if len(chosen) >= min(s.sketches, len(self.generator.sketches)):
                break
            if self._next not in chosen:
                chosen.append(self._next)
            self._next = (self._next + 1) % len(self.generator.sketches)
        each = max(s.starts // len(chosen), 1)
        out: dict[int, Rows] = {}
        for k in chosen:
            best = draft.rows[k][np.argsort(draft.values[k], kind="stable")]
            parents = [c.row for c in elite if c.sketch == k][: each // 2]
            near = self.generator.sketches[k].space.mutate(np.array(parents, np.int64).reshape(len(parents), best.shape[1]), rng)
            # Drawn from more than the best rows, which are close to each other.
            other = rng.choice(min(len(best), 8 * each), size=min(len(best), each - len(near)), replace=False)
            out[k] = np.concatenate([near, best[np.sort(other)]])
        return out

    def _descend(self, k: int, starts: Rows, rng: np.random.Generator) -> list[Rows]:
        sketch = self.generator.sketches[k]
        if k not in self._descents:
            self._descents[k] = Descent(sketch, self.task.target)
        return [sketch.space.nearest(rows, rng) for rows in self._descents[k].run(starts, self.settings)]
