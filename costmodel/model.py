"""The contract of learned cost models: batched scores from feature vectors, higher is better."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float32]


class CostModel(ABC):
    """Ranks candidates.  Deterministic: the same updates in the same order give the same scores, on any number of threads."""

    @abstractmethod
    def score(self, features: Features) -> Scores:
        """One score for each line of features [N, F]; only the order within a task means something."""

    @abstractmethod
    def update(self, features: Features, seconds: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> None:
        """Learn from all measurements so far.

        Args:
            features: [N, F].
            seconds: measured, [N]; infinite for candidates that failed.
            groups: the task of each line, [N]; times are only compared within a task.
        """

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write the model as data: JSON or safetensors, never pickle."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Read what `save` wrote; RecordError when it is not a model of this kind."""
