"""Score programs at random: the lower baseline of cost models."""

from __future__ import annotations

import os
from typing import Self

import numpy as np

from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.models.model import CostModel, Features, Scores, check_training_data
from tunesmith.costmodel.models.saved_model import not_saved, read_json, write_json
from tunesmith.support.array_types import FloatArray, IntArray
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import plain_seed, stream


class RandomModel(CostModel):
    """Random scores.  A score is a function of the seed and the features, so equal programs have equal scores.

    Args:
        seed: seed of the scores.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = plain_seed(seed)

    def score(self, features: Features) -> Scores:
        if features.ndim != 2:
            raise UserError(f"rows of features [N, F] are needed, got an array of shape {list(features.shape)}")
        rows = np.ascontiguousarray(features, np.float32)
        # A random projection modulo 1: equal rows have equal scores, all others independent ones.
        weights = stream(self.seed, "random model", rows.shape[1]).random(rows.shape[1]) * 1e4
        return np.asarray((rows.astype(np.float64) * weights).sum(axis=1) % 1.0)

    def update(self, features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray | None = None) -> None:
        check_training_data(features, seconds, groups, weights=weights)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_json(path, {"model": "random", "schema": SCHEMA_VERSION, "seed": self.seed})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        data = read_json(path, "random", cls)
        try:
            return cls(seed=int(data["seed"]))
        except (KeyError, TypeError, ValueError) as error:
            raise not_saved(path, cls, error) from None
