"""xgb: gradient boosted trees on program vectors, trained to rank within a task.

The target is throughput relative to the best of the task, best / seconds in (0, 1], as TVM and Ansor use it: errors among the fast
count, errors among the hopeless do not.  (Chen and Guestrin, KDD 2016; Zheng et al., OSDI 2020.)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tunesmith.costmodel.model import CostModel, Features, Scores
from tunesmith.support.errors import RecordError, UserError


@cache
def _xgboost() -> Any:
    import xgboost  # a second to import: only when a model is made

    return xgboost


class XgbModel(CostModel):
    """See the module's text.

    Args:
        seed: of column and row sampling.
        rounds: trees.
        threads: 1 keeps scores equal on every machine; histograms summed by several threads round differently.
    """

    def __init__(self, seed: int = 0, rounds: int = 200, threads: int = 1) -> None:
        _xgboost()
        self.rounds = rounds
        self._settings = {
            "max_depth": 7,
            "eta": 0.12,
            "min_child_weight": 0.5,
            "subsample": 0.85,
            "colsample_bytree": 0.6,
            "gamma": 0.0002,
            "tree_method": "hist",
            "objective": "reg:squarederror",
            "nthread": threads,
            "seed": seed,
            "verbosity": 0,
        }
        self._booster: Any = None

    def score(self, features: Features) -> Scores:
        if self._booster is None:
            return np.zeros(len(features), np.float32)
        return np.asarray(self._booster.inplace_predict(features), np.float32)

    def update(self, features: Features, seconds: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> None:
        if not len(features) == len(seconds) == len(groups):
            raise UserError(f"features, seconds and groups must have one length, got {len(features)}, {len(seconds)}, {len(groups)}")
        if not np.isfinite(seconds).any():
            return
        rates = np.zeros(len(seconds))
        for g in np.unique(groups):
            mine = (groups == g) & np.isfinite(seconds)
            if mine.any():
                rates[mine] = seconds[mine].min() / seconds[mine]
        data = _xgboost().DMatrix(features, label=rates, weight=np.maximum(rates, 0.05))
        self._booster = _xgboost().train(self._settings, data, num_boost_round=self.rounds)

    def save(self, path: Path) -> None:
        if self._booster is None:
            raise UserError("the model has learned nothing yet: call update first")
        path.write_bytes(bytes(self._booster.save_raw("json")))

    def load(self, path: Path) -> None:
        booster = _xgboost().Booster()
        try:
            booster.load_model(bytearray(path.read_bytes()))
        except (OSError, _xgboost().core.XGBoostError) as error:
            raise RecordError(f"{path} is not a model that XgbModel saved: {error}") from None
        booster.set_param({"nthread": self._settings["nthread"]})
        self._booster = booster
