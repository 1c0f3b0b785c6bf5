"""Wrap the analytic cost as a cost model: the score is its feature column."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from tunesmith.costmodel.features.feature_program import ANALYTIC, vector_names
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.models.model import CostModel, Features, Scores, check_training_data
from tunesmith.costmodel.models.saved_model import not_saved, read_json, write_json
from tunesmith.support.array_types import FloatArray, IntArray
from tunesmith.support.errors import UserError

COLUMN = f"{ANALYTIC}seconds"


class AnalyticScore(CostModel):
    """Scores programs by their analytic time, lower times higher.  It is not trained.

    Args:
        names: the columns of the feature vectors: `FeatureProgram(..., target=...).program_names`; by default those of searches.
    Raises:
        UserError: the vectors do not contain the analytic cost.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = vector_names() if names is None else tuple(names)
        if COLUMN not in self.names:
            raise UserError(f"the vectors have no column {COLUMN!r}: make the feature program with target=...")
        self._column = self.names.index(COLUMN)

    @property
    def ready(self) -> bool:
        return True

    def score(self, features: Features) -> Scores:
        if features.ndim != 2 or features.shape[1] != len(self.names):
            raise UserError(f"rows of {len(self.names)} features are needed, got an array of shape {list(features.shape)}")
        return -features[:, self._column].astype(np.float64)

    def update(self, features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray | None = None) -> None:
        check_training_data(features, seconds, groups, weights=weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_json(path, {"model": "analytic", "schema": SCHEMA_VERSION, "names": self.names})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        data = read_json(path, "analytic", cls)
        try:
            return cls([str(n) for n in data["names"]])
        except (KeyError, TypeError, UserError) as error:
            raise not_saved(path, cls, error) from None
