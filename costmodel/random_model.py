"""random: scores without sense, the control that every model must beat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.model import CostModel, Features, Scores
from tunesmith.support.seeds import stream


class RandomModel(CostModel):
    """Uniform scores from a seeded stream."""

    def __init__(self, seed: int = 0) -> None:
        self._stream = stream(seed, "random_model")

    def score(self, features: Features) -> Scores:
        return self._stream.random(len(features), dtype=np.float32)

    def update(self, features: Features, seconds: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> None:
        return None

    def save(self, path: Path) -> None:
        path.write_text('{"model": "random"}\n', encoding="utf-8")

    def load(self, path: Path) -> None:
        return None
