"""The contract of cost models: score vectors of programs, higher is better; learn from measured times; save and load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from tunesmith.support.errors import UserError

Features = npt.NDArray[np.floating]
Scores = npt.NDArray[np.float64]

INPUTS = {"program": 2, "stores": 3}
"""What a model may take, and the dimensions of it: `program` is [N, F], one vector a program (`FeatureProgram.program`); `stores` is
[N, S, F], one row for each store (`FeatureProgram.features`), where the rows of stores that a program does not have are NaN."""


class CostModel(ABC):
    """Ranks programs of one task, or of several at once, by their features.

    `score` does not change the model and may be called from several threads; `update` is for one thread at a time.  Equal models fed
    equal data give equal scores, on every run.

    A model may be *pretrained*: `load` gives such a model, and `keep` makes one.  What it had learned by then stays; what `update` is
    given comes on top of it.
    """

    inputs: ClassVar[str] = "program"
    """What `score` and `update` take: one of `INPUTS`."""
    suffix: ClassVar[str] = ".json"
    """What names of files that `save` writes end with: how a saved model is told from a registered name."""

    @property
    def ready(self) -> bool:
        """Whether its scores mean something now, so that a search may follow them before anything was measured."""
        return False

    @abstractmethod
    def score(self, features: Features) -> Scores:
        """A number for each program, float64 [N]; higher is better.

        A program's number depends on the model and its own features alone, not on the programs beside it.  Numbers compare within one
        task only.  A model that has learned nothing gives equal ones.

        Args:
            features: [N, F] or [N, S, F], see `inputs`.

        Raises:
            UserError: rows of another width than it has learned from.
        """

    @abstractmethod
    def update(self, features: Features, seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer]) -> None:
        """Learn from these measurements: what earlier updates were given is forgotten, so pass all there are.

        Only what a pretrained model knew stays.  So a search that resumes has the model that an uninterrupted one would have.

        Args:
            features: [N, F] or [N, S, F], see `inputs`.
            seconds: [N], measured times; inf for programs that failed.
            groups: [N], the task of each row: times of different tasks are never compared.
        Raises:
            UserError: the arrays do not fit together, or a time is not positive.
        """

    @abstractmethod
    def save(self, path: str | PathLike[str]) -> None:
        """Write the model as data, never as code: JSON, or safetensors for large arrays, with the version of the features.

        Raises:
            UserError: there is nothing to save yet, or the file cannot be written.
        """

    @classmethod
    @abstractmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model that `save` wrote, pretrained with what it had learned.

        Raises:
            RecordError: the file is not one, was changed, or is of another version.
        """

    def keep(self) -> None:  # noqa: B027  most models learn nothing that could be kept
        """From now on the model is pretrained: what it knows stays, and updates come on top of it."""


def check_training_data(
    features: Features, seconds: npt.NDArray[np.floating], groups: npt.NDArray[np.integer], inputs: str = "program"
) -> None:
    """What every `update` demands of its arguments; `inputs` is the model's.

    Raises:
        UserError: see `CostModel.update`.
    """
    n = len(seconds)
    if features.ndim != INPUTS[inputs] or seconds.shape != (n,) or groups.shape != (n,) or len(features) != n:
        raise UserError(
            f"a cost model learns from features [N, {'S, F' if inputs == 'stores' else 'F'}], seconds [N] and groups [N]; got shapes "
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
