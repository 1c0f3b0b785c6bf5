"""The model that knows nothing: what every other model has to beat."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.model import CostModel, Features, Scores, check_training_data
from tunesmith.support.errors import RecordError
from tunesmith.support.seeds import stream


class RandomModel(CostModel):
    """Scores by chance.  A row's score depends on the seed and on what stands in the row, so that equal programs stay equal.

    Args:
        seed: another seed, another order.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def score(self, features: Features) -> Scores:
        rows = np.ascontiguousarray(features, np.float32)
        # A random projection, folded into [0, 1): equal rows fall on equal points, all others anywhere.
        weights = stream(self.seed, "random model", rows.shape[1]).random(rows.shape[1]) * 1e4
        return np.asarray((rows.astype(np.float64) * weights).sum(axis=1) % 1.0)

    def update(self, features: Features, seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer]) -> None:
        check_training_data(features, seconds, groups)

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(json.dumps({"model": "random", "seed": self.seed}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data["model"] != "random":
                raise ValueError(f"it holds a model {data['model']!r}")
            return cls(seed=int(data["seed"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{os.fspath(path)} is no model that RandomModel.save wrote: {error}") from None
