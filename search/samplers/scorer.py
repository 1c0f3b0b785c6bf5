"""Judges candidates that were not measured: by the learned model once it knows anything, by the analytic one until then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.features.feature_program import gather
from tunesmith.costmodel.models.checked_scores import checked_scores
from tunesmith.costmodel.models.model import CostModel
from tunesmith.search.samplers.drafter import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.param_space import Rows

Floats = npt.NDArray[np.float64]

ENOUGH = 8
"""Measurements from which a model learns something."""


class Scorer:
    """The energy of candidates of one task: lower is better, and the scale is the model's own.

    Args:
        drafter: knows the sketches, their features and analytic times.
        model: learns; one that is pretrained is followed from the start.

    Attributes:
        trained: whether energies are the learned model's.
    """

    def __init__(self, drafter: ProposalGenerator, model: CostModel) -> None:
        self.drafter, self.model = drafter, model
        self.trained = model.ready

    def learn(self, measured: Mapping[Candidate, float]) -> None:
        """Learn from all that was measured so far, in seconds; too few teach nothing."""
        if len(measured) < ENOUGH:
            return
        seconds = np.array(list(measured.values()))
        features = self.drafter.features_of(list(measured), self.model.inputs)
        self.model.update(features, seconds, np.zeros(len(seconds), np.int64))
        self.trained = True

    def predicted_costs(self, groups: Mapping[int, Rows]) -> dict[int, Floats]:
        """Energies of rows, for each sketch [N]; they compare across the sketches.  All rows are scored at once."""
        if not self.trained:
            return {k: np.log(self.drafter.estimate(k, rows)) for k, rows in groups.items()}
        ends = np.cumsum([len(rows) for rows in groups.values()])
        places = [np.arange(end - len(rows), end) for end, rows in zip(ends, groups.values(), strict=True)]
        features = gather([self.drafter.features(k, rows, self.model.inputs) for k, rows in groups.items()], places)
        scores = checked_scores(self.model, features, int(ends[-1]) if len(ends) else 0)
        self.drafter.scored += len(scores)
        return {k: -scores[p] for k, p in zip(groups, places, strict=True)}
