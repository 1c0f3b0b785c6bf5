"""The analytic cost behind the contract of learned models: the column that holds it is the score."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.model import CostModel, Features, Scores, check_training_data
from tunesmith.support.errors import RecordError, UserError

COLUMN = "analytic.seconds"


class AnalyticScore(CostModel):
    """Prefers programs whose predicted time is low.  Learns nothing.

    Args:
        names: the columns of the vectors it will score: `FeatureProgram(..., target=...).program_names`.
    Raises:
        UserError: the vectors do not hold the analytic cost.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        if COLUMN not in self.names:
            raise UserError(f"the vectors have no column {COLUMN!r}: make the feature program with target=...")
        self._column = self.names.index(COLUMN)

    def score(self, features: Features) -> Scores:
        if features.ndim != 2 or features.shape[1] != len(self.names):
            raise UserError(f"rows of {len(self.names)} features are needed, got an array of shape {list(features.shape)}")
        return -features[:, self._column].astype(np.float64)

    def update(self, features: Features, seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer]) -> None:
        check_training_data(features, seconds, groups)

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(json.dumps({"model": "analytic", "names": self.names}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["model"] != "analytic":
                raise ValueError(f"it holds a model {data['model']!r}")
            return cls([str(n) for n in data["names"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{os.fspath(path)} is no model that AnalyticScore.save wrote: {error}") from None
