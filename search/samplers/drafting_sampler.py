"""Share the state of samplers that draft candidates and rank them by an analytic or a learned model."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.costmodel.models.model import CostModel
from tunesmith.search.samplers.history import History
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Result, Sampler, SamplerStatistics
from tunesmith.search.samplers.scorer import Scorer
from tunesmith.search.task import Task


class DraftingSampler(Sampler):
    """A sampler with a proposal generator, a history and a scorer; derived classes define `ask`.

    Attributes:
        generator: the proposal generator, see `make_generator`.
    """

    def __init__(self, task: Task, model: CostModel, seed: int) -> None:
        self.task, self.model, self.seed = task, model, seed
        self.generator = self.make_generator()
        self._history = History(task)
        self._scorer = Scorer(self.generator, model)
        self._round = 0

    def make_generator(self) -> ProposalGenerator:
        """Construct the proposal generator from `task` and `seed`; a derived class overrides it to rank drafts in another way."""
        return ProposalGenerator(self.task)

    def tell(self, results: Sequence[Result]) -> None:
        self._history.tell(results)
        self._scorer.learn(self._history.measured, self._history.disturbed)

    def statistics(self) -> SamplerStatistics:
        g = self.generator
        return SamplerStatistics(g.drafted, g.scored, g.draft_seconds)
