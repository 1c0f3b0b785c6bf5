"""The contract of cost models: score vectors of programs, higher is better; learn from measured times; save and load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from typing import Self

import numpy as np
import numpy.typing as npt

from tunesmith.support.errors import UserError

Features = npt.NDArray[np.floating]
Scores = npt.NDArray[np.float64]


class CostModel(ABC):
    """Ranks programs of one task, or of several at once, by their vectors (`FeatureProgram.program`, `program_vector`).

    `score` does not change the model and may be called from several threads; `update` is for one thread at a time.  Equal models fed
    equal data give equal scores, on every run.
    """

    @abstractmethod
    def score(self, features: Features) -> Scores:
        """A number for each row, float64 [N], of features [N, F]; higher is better.

        Numbers compare within one task only.  A model that has learned nothing gives equal ones.

        Raises:
            UserError: rows of another width than it has learned from.
        """

    @abstractmethod
    def update(self, features: Features, seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer]) -> None:
        """Learn from these measurements, and from these alone: what was given before is forgotten, so pass all there are.

        Args:
            features: [N, F].
            seconds: [N], measured times; inf for programs that failed.
            groups: [N], the task of each row: times of different tasks are never compared.
        Raises:
            UserError: the arrays do not fit together, or a time is not positive.
        """

    @abstractmethod
    def save(self, path: str | PathLike[str]) -> None:
        """Write the model as JSON."""

    @classmethod
    @abstractmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model that `save` wrote.

        Raises:
            RecordError: the file is not one, or of another version.
        """


def check_training_data(features: Features, seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer]) -> None:
    """What every `update` demands of its arguments.

    Raises:
        UserError: see `CostModel.update`.
    """
    n = len(seconds)
    if features.ndim != 2 or seconds.shape != (n,) or groups.shape != (n,) or len(features) != n:
        raise UserError(
            "a cost model learns from features [N, F], seconds [N] and groups [N]; got shapes "
            f"{list(features.shape)}, {list(seconds.shape)} and {list(groups.shape)}"
        )
    if n and not (seconds > 0).all():  # also false for NaN
        bad = int(np.flatnonzero(~(seconds > 0))[0])
        raise UserError(f"seconds must be positive (inf for a program that failed); row {bad} has {float(seconds[bad])!r}")


def log_throughput(seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer], floor: float) -> Scores:
    """log(best time of the group / time), [N]: 0 for the best of each group, never below `floor`, which is also what failures get."""
    best = np.full(len(seconds), np.inf)
    for g in np.unique(groups):
        mine = groups == g
        best[mine] = seconds[mine].min()
    out = np.full(len(seconds), floor)
    ran = np.isfinite(seconds)
    out[ran] = np.maximum(np.log(best[ran] / seconds[ran]), floor)
    return out
