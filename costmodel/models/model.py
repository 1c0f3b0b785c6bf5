"""Define the interface of cost models: score programs by their features, train on measured times, save and load."""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from typing import ClassVar, Self

import numpy as np

from tunesmith.support.array_types import Float64Array, FloatArray, IntArray
from tunesmith.support.errors import UserError

Features = FloatArray
Scores = Float64Array

INPUTS = {"program": 2, "stores": 3}
"""Kinds of model input and their number of dimensions: `program` is [N, F], one vector per program (`FeatureProgram.program`); `stores` is
[N, S, F], one row per store (`FeatureProgram.features`), padded with rows of NaN."""


class CostModel(ABC):
    """Ranks programs of one or several tasks by their features.

    `score` does not change the model and may be called from several threads; `update` must be called from one thread at a time.  Equal
    models trained on equal data give equal scores in every run.

    A model may be *pretrained*: `load` returns a pretrained model, and `keep` makes a model pretrained.  Its state at that point is kept,
    and `update` trains on top of it.
    """

    inputs: ClassVar[str] = "program"
    """Kind of input of `score` and `update`: one of `INPUTS`."""
    suffix: ClassVar[str] = ".json"
    """Suffix of the files that `save` writes, which distinguishes saved models from registered names."""

    @property
    def ready(self) -> bool:
        """Whether the model gives meaningful scores now, so that a search can use it before any measurement."""
        return False

    @abstractmethod
    def score(self, features: Features) -> Scores:
        """A score for each program, float64 [N]; higher is better.

        A score depends only on the model and the features of its program, not on the other programs.  Scores are comparable within one
        task only.  An untrained model gives equal scores.

        Args:
            features: [N, F] or [N, S, F], see `inputs`.

        Raises:
            UserError: the number of features differs from the training data.
        """

    @abstractmethod
    def update(self, features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray | None = None) -> None:
        """Train on all measurements: the data of earlier updates is discarded, except for the state of a pretrained model.

        So a resumed search has the same model as an uninterrupted one.

        Args:
            features: [N, F] or [N, S, F], see `inputs`.
            seconds: [N], measured times; inf for programs that failed.
            groups: [N], the task of each row; times of different tasks are not compared.
            weights: [N], the weight of each row relative to the others: 1 for a clean measurement, less for one that other processes
                disturbed (`sample_weights`).  Rows of weight 0 have no influence; equal weights have none either.  By default all are
                equal.  A model that does not weigh samples may omit the parameter: it is then called without.
        Raises:
            UserError: the shapes do not match, a time is not positive, or a weight is negative or not finite.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model as data without code: JSON, or safetensors for large arrays, with the version of the features.

        A model for searches only need not define it.

        Raises:
            UserError: the model is untrained, the file cannot be written, or the class does not define `save`.
        """
        raise UserError(f"the cost model {type(self).__name__} cannot be saved: it defines no save(path). Define it, and load(path)")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model that `save` wrote, as a pretrained model.

        Raises:
            RecordError: the file is not such a model, was modified, or has another version.
            UserError: the class does not define `load`.
        """
        raise UserError(f"the cost model {cls.__name__} cannot be loaded: it defines no class method load(path). Define it, and save(path)")

    def keep(self) -> None:  # noqa: B027  most models have no state to keep
        """Make the model pretrained: its present state is kept, and later updates train on top of it."""


def check_training_data(
    features: Features, seconds: FloatArray, groups: IntArray, inputs: str = "program", weights: FloatArray | None = None
) -> None:
    """Check the arguments of `update`; `inputs` is the model's kind of input.

    Raises:
        UserError: see `CostModel.update`.
    """
    n = len(seconds)
    if features.ndim != INPUTS[inputs] or seconds.shape != (n,) or groups.shape != (n,) or len(features) != n:
        raise UserError(
            f"a cost model is trained on features [N, {'S, F' if inputs == 'stores' else 'F'}], seconds [N] and groups [N]; got shapes "
            f"{list(features.shape)}, {list(seconds.shape)} and {list(groups.shape)}"
        )
    if n and not (seconds > 0).all():  # also false for NaN
        bad = int(np.flatnonzero(~(seconds > 0))[0])
        raise UserError(f"seconds must be positive (inf for a program that failed); row {bad} has {float(seconds[bad])!r}")
    if weights is not None and (weights.shape != (n,) or not (np.isfinite(weights) & (weights >= 0)).all()):
        raise UserError(f"weights are finite numbers of at least 0, one for each of {n} rows; got an array {list(weights.shape)}")


def weighted_rows(
    features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray | None
) -> tuple[Features, FloatArray, IntArray, Float64Array | None]:
    """The arguments of `update` without rows of weight 0, and weights whose mean is 1, or None if all are equal."""
    if weights is None:
        return features, seconds, groups, None
    kept = weights > 0
    if not kept.all():
        features, seconds, groups, weights = features[kept], seconds[kept], groups[kept], weights[kept]
    if not len(weights) or weights.min() == weights.max():
        return features, seconds, groups, None
    return features, seconds, groups, np.asarray(weights / weights.mean(), np.float64)


def log_throughput(seconds: FloatArray, groups: IntArray, floor: float) -> Scores:
    """log(best time of the group / time), [N]: 0 for the best of each group, at least `floor`; `floor` for failures."""
    best = np.full(len(seconds), np.inf)
    for g in np.unique(groups):
        mine = groups == g
        best[mine] = seconds[mine].min()
    out = np.full(len(seconds), floor)
    ran = np.isfinite(seconds)
    out[ran] = np.maximum(np.log(best[ran] / seconds[ran]), floor)
    return out
