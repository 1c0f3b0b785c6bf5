"""Score programs by gradient-boosted trees (XGBoost) trained on log throughput, normalised per task.

Objective: among squared error on throughput, squared error on its logarithm, pairwise ranking and NDCG ranking, the logarithm ranked
held-out programs best: over five tasks and five seeds, Spearman 0.87, 0.90 and 0.93 after 32, 64 and 110 measurements; rank:pairwise, with
each task as one group, reached 0.88, 0.86 and 0.79.  The analytic cost as a column added 0.03, 0.02 and 0.01.  64 bins instead of 256
train four times faster and lose less than 0.01.

Prior predictors are fixed parts of the model: the analytic cost, if the features contain it, and pretrained trees.  Trees on the residuals
of the analytic cost order 79.1 % of the pairs of held-out tasks correctly (18 tasks of 128 programs; 81.0 % of 74 tasks of 32), trees
alone 72.8 %; within tasks, 83.9 instead of 83.4 %.  An update fits the weight of the prior parts, and new trees to their residuals, with
stronger regularisation.  The weight is the slope of the new measurements on the prior predictions, per task, as if `TRUST` additional
measurements had agreed with them.

Spearman on the rest of a task after 8, 32 and 64 new measurements (two seeds, six tasks of a search log): 0.40, 0.45 and 0.44 if the
pretrained trees had seen half of the task (0.50 before the update; 0.22, 0.37 and 0.46 without them), and 0.31, 0.49 and 0.51 if they had
seen only other tasks (0.06 before the update; 0.34, 0.47 and 0.49 without them).  Training on residuals without a weight kept useless
trees (0.32, 0.45, 0.47); the prior prediction as a column lost useful ones (0.22, 0.40, 0.48).
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import ModuleType
from typing import Any, Self, cast

import numpy as np

from tunesmith.costmodel.features.feature_program import vector_names
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.models.analytic_score import COLUMN
from tunesmith.costmodel.models.model import CostModel, Features, Scores, check_training_data, log_throughput, weighted_rows
from tunesmith.costmodel.models.saved_model import not_saved, read_json, write_json
from tunesmith.costmodel.models.xgb_trees import checked_trees
from tunesmith.support.array_types import FloatArray, IntArray
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import derive, plain_seed

FLOOR = -6.0
"""Lower bound of log throughput: 400 times slower than the best."""
BINS = 64
"""Histogram bins per feature."""
TRUST = 4
"""Weight of the prior predictions, in measurements that agree with them."""
ONLINE = {"reg_lambda": 10.0}
"""Parameters of trees added to prior parts: a few noisy measurements must not outweigh thousands of earlier ones."""
_COLUMNS, _ANALYTIC = len(vector_names()), vector_names().index(COLUMN)
"""Number of columns of the feature vectors in searches, and the index of the analytic cost."""
_MOST = {"threads": 1024, "max_depth": 64, "eta": 1.0, "colsample": 1.0, "subsample": 1.0}
"""Upper bounds of settings in a file; 2 ** 20 for the others."""
_SETTINGS = ("rounds", "max_depth", "eta", "colsample", "subsample", "seed", "threads")


_Part = tuple[float, Any]
"""A weight and a booster, or None for the analytic cost; a model is the weighted sum of its parts."""


def _xgboost() -> ModuleType:
    try:
        import xgboost
    except ImportError:
        raise UserError("the model `xgb` needs XGBoost, which is not installed. Install it with:  pip install xgboost-cpu") from None
    return xgboost


class XGBModel(CostModel):
    """Boosted regression trees; deterministic for a fixed number of threads.

    Args:
        rounds: number of trees.
        max_depth: maximum depth of a tree.
        eta: learning rate.
        colsample: share of the columns sampled for each tree.
        subsample: share of the rows sampled for each tree.
        seed: seed of the sampling.
        threads: number of threads for training and scoring.
    """

    def __init__(
        self,
        *,
        rounds: int = 100,
        max_depth: int = 6,
        eta: float = 0.1,
        colsample: float = 0.5,
        subsample: float = 0.8,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        self._xgb = _xgboost()
        self.rounds, self.max_depth, self.eta = rounds, max_depth, eta
        self.colsample, self.subsample, self.seed, self.threads = colsample, subsample, plain_seed(seed), threads
        self._parts: tuple[_Part, ...] = ()
        self._prior: tuple[_Part, ...] = ()

    @property
    def ready(self) -> bool:
        return bool(self._parts)

    def keep(self) -> None:
        self._prior = self._parts

    def score(self, features: Features) -> Scores:
        return self._predict(self._parts, features)

    def _predict(self, parts: Sequence[_Part], features: Features) -> Scores:
        out = np.zeros(len(features))
        for weight, booster in parts:
            columns = _COLUMNS if booster is None else booster.num_features()
            if features.ndim != 2 or features.shape[1] != columns:
                raise UserError(f"the model was trained on rows of {columns} features, got an array of shape {list(features.shape)}")
            if booster is None:
                out -= weight * features[:, _ANALYTIC].astype(np.float64)
            elif len(features):
                out += weight * booster.inplace_predict(np.ascontiguousarray(features, np.float32), validate_features=False)
        return out

    def update(self, features: Features, seconds: FloatArray, groups: IntArray, weights: FloatArray | None = None) -> None:
        check_training_data(features, seconds, groups, weights=weights)
        features, seconds, groups, weights = weighted_rows(features, seconds, groups, weights)
        self._parts = self._prior
        if not len(seconds):
            return
        labels = log_throughput(seconds, groups, FLOOR)
        settings = self._parameters()
        before = self._prior or (((1.0, None),) if features.shape[1] == _COLUMNS else ())
        if before:
            known = _centred(self._predict(before, features), groups, weights)
            labels = _centred(labels, groups, weights)
            slope = _slope(known, labels, weights)
            self._parts = tuple([(slope * w, b) for w, b in before])
            labels = labels - slope * known
            settings |= ONLINE
        data = self._xgb.DMatrix(np.ascontiguousarray(features, np.float32), label=labels, weight=weights, nthread=self.threads)
        self._parts = (*self._parts, (1.0, self._xgb.train(settings, data, num_boost_round=self.rounds)))

    def _parameters(self) -> dict[str, object]:
        return {
            "objective": "reg:squarederror",
            "base_score": 0.0,
            "tree_method": "hist",
            "max_bin": BINS,
            "max_depth": self.max_depth,
            "eta": self.eta,
            "colsample_bytree": self.colsample,
            "subsample": self.subsample,
            "seed": self.seed if 0 <= self.seed < 1 << 31 else derive(self.seed, "xgb", bits=31),
            "nthread": self.threads,
            "verbosity": 0,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write settings, feature version and the trees in XGBoost's JSON format.

        Raises:
            UserError: the model is untrained, or the file cannot be written.
        """
        if not self._parts:
            raise UserError(f"cannot save to {os.fspath(path)}: the model is untrained. Call update with measurements first")
        parts = [{"weight": w, "trees": b and json.loads(bytes(b.save_raw("json")))} for w, b in self._parts]
        settings = {name: getattr(self, name) for name in _SETTINGS}
        data = {"model": "xgb", "schema": SCHEMA_VERSION, "settings": settings, "digest": _digest(parts), "parts": parts}
        write_json(path, data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        data = read_json(path, "xgb", cls)
        try:
            if data["digest"] != _digest(data["parts"]):
                raise ValueError("its trees do not match their digest")
            out = cls(**_settings(data["settings"]))
            parts = [(_weight(p["weight"]), p["trees"] and _text(checked_trees(p["trees"]))) for p in data["parts"]]
            out._parts = tuple([(weight, trees and out._booster(trees)) for weight, trees in parts])
        except (ValueError, KeyError, TypeError) as error:  # XGBoostError is a ValueError
            raise not_saved(path, cls, error) from None
        out.keep()
        return out

    def _booster(self, trees: str) -> Any:
        out = self._xgb.Booster({"nthread": self.threads})
        out.load_model(bytearray(trees.encode()))
        return out


def _centred(values: Scores, groups: IntArray, weights: FloatArray | None) -> Scores:
    """The values minus the mean of their task, because only differences within a task matter."""
    out = values.copy()
    for g in np.unique(groups):
        mine = groups == g
        out[mine] -= _mean(values[mine], None if weights is None else weights[mine])
    return out


def _slope(known: Scores, labels: Scores, weights: FloatArray | None) -> float:
    """The weight of the prior predictions, from 0 to 1, by least squares; see the module docstring."""
    spread = _mean(known * known, weights)
    if spread == 0:
        return 1.0
    n = len(known)
    return float(np.clip((n * _mean(known * labels, weights) / spread + TRUST) / (n + TRUST), 0.0, 1.0))


def _mean(values: Scores, weights: FloatArray | None) -> float:
    return float(values.mean() if weights is None else np.average(values, weights=weights))


def _settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file, after a check of their types and ranges."""
    defaults = {name: p.default for name, p in inspect.signature(XGBModel).parameters.items()}
    out = {name: data[name] for name in _SETTINGS}
    for name, value in out.items():
        kinds = (int,) if type(defaults[name]) is int else (int, float)
        if type(value) not in kinds or not (name == "seed" or 0 <= value <= _MOST.get(name, 1 << 20)):
            raise ValueError(f"its setting {name} is {value!r:.40}")
    return out


def _weight(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(weight := float(cast(float, value))):
        raise ValueError(f"the weight of its trees is {value!r:.40}, not a finite number")
    return weight


def _text(trees: object) -> str:
    return json.dumps(trees, sort_keys=True, separators=(",", ":"))


def _digest(parts: object) -> str:
    return blake2b(_text(parts).encode(), digest_size=16).hexdigest()
