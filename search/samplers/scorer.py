"""Predict the cost of unmeasured candidates by the learned model, or by the analytic one before training."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from tunesmith.costmodel.features.feature_program import gather
from tunesmith.costmodel.models.checked_scores import checked_scores
from tunesmith.costmodel.models.model import CostModel
from tunesmith.costmodel.models.sample_weights import sample_weights, update_model
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.param_space import Rows
from tunesmith.support.array_types import Float64Array

ENOUGH = 8
"""Minimum number of measurements to train a model."""


class Scorer:
    """The predicted cost of candidates of one task: lower is better; the scale depends on the model.

    Args:
        generator: provides features and analytic times of the sketches.
        model: the model to train; a pretrained one is used from the start.

    Attributes:
        trained: whether predicted costs come from the learned model.
    """

    def __init__(self, generator: ProposalGenerator, model: CostModel) -> None:
        self.generator, self.model = generator, model
        self.trained = model.ready

    def learn(self, measured: Mapping[Candidate, float], disturbed: Set[Candidate] = frozenset()) -> None:
        """Train the model on all measurements so far, in seconds; fewer than `ENOUGH` are ignored.

        Those that other processes disturbed have a smaller weight, see `sample_weights`.
        """
        if len(measured) < ENOUGH:
            return
        seconds = np.array(list(measured.values()))
        features = self.generator.features_of(list(measured), self.model.inputs)
        weights = sample_weights(np.array([c not in disturbed for c in measured]))
        update_model(self.model, features, seconds, np.zeros(len(seconds), np.int64), weights)
        self.trained = True

    def predicted_costs(self, groups: Mapping[int, Rows]) -> dict[int, Float64Array]:
        """Predicted costs of rows, [N] for each sketch, comparable across sketches.  All rows are scored in one call."""
        if not self.trained:
            return {k: np.log(self.generator.estimate(k, rows)) for k, rows in groups.items()}
        ends = np.cumsum([len(rows) for rows in groups.values()])
        slices = [np.arange(end - len(rows), end) for end, rows in zip(ends, groups.values(), strict=True)]
        features = gather([self.generator.features(k, rows, self.model.inputs) for k, rows in groups.items()], slices)
        scores = checked_scores(self.model, features, int(ends[-1]) if len(ends) else 0)
        self.generator.scored += len(scores)
        return {k: -scores[p] for k, p in zip(groups, slices, strict=True)}
