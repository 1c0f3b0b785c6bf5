"""Test weights of samples: disturbed measurements count less, and models without weights are updated as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.features.feature_program import vector_names
from tunesmith.costmodel.metrics import spearman
from tunesmith.costmodel.models.model import weighted_rows
from tunesmith.costmodel.models.registry import make_model
from tunesmith.costmodel.models.sample_weights import DISTURBED_WEIGHT, sample_weights, takes_weights, update_model
from tunesmith.costmodel.models.xgb_model import XGBModel
from tunesmith.support.seeds import stream


def three(self: Any, features: Any, seconds: Any, groups: Any) -> None:
    self.got = None


def four(self: Any, features: Any, seconds: Any, groups: Any, weights: Any = None) -> None:
    self.got = weights.tolist()


def keyword(self: Any, features: Any, seconds: Any, groups: Any, *, weights: Any = None) -> None:
    self.got = weights.tolist()


def keywords(self: Any, features: Any, seconds: Any, groups: Any, **others: Any) -> None:
    self.got = others["weights"].tolist()


def positional(self: Any, *data: Any) -> None:
    assert len(data) == 3
    self.got = None


@pytest.mark.parametrize(
    ("update", "takes"), [(three, False), (four, True), (keyword, True), (keywords, True), (positional, False)], ids=lambda x: str(x)[:20]
)
def test_models_get_weights_if_they_have_the_parameter(update: Callable[..., None], takes: bool) -> None:
    model: Any = type("Mine", (), {"update": update})()
    assert takes_weights(model) is takes
    update_model(model, np.zeros((2, 1)), np.ones(2), np.zeros(2, np.int64), np.array([1.0, 0.5]))
    assert model.got == ([1.0, 0.5] if takes else None)


@pytest.mark.parametrize(("name", "takes"), [("xgb", True), ("random", True), ("analytic", True)])
def test_registered_models_have_the_parameter(name: str, takes: bool) -> None:
    assert takes_weights(make_model(name)) is takes


def test_disturbed_samples_weigh_less() -> None:
    assert sample_weights(np.array([True, False, True])).tolist() == [1.0, DISTURBED_WEIGHT, 1.0]


def test_rows_of_weight_0_are_removed_and_the_mean_is_1() -> None:
    features, seconds, groups = np.arange(8.0).reshape(4, 2), np.arange(1.0, 5), np.arange(4)
    assert weighted_rows(features, seconds, groups, None)[3] is None
    assert weighted_rows(features, seconds, groups, np.full(4, 0.3))[3] is None
    kept = weighted_rows(features, seconds, groups, np.array([1.0, 0.0, 0.5, 0.0]))
    assert [np.asarray(x).tolist() for x in kept] == [[[0, 1], [4, 5]], [1, 3], [0, 2], [4 / 3, 2 / 3]]
    assert weighted_rows(features, seconds, groups, np.array([0.0, 2.0, 0.0, 2.0]))[3] is None
    assert len(weighted_rows(features, seconds, groups, np.zeros(4))[1]) == 0


def test_samples_of_weight_0_change_no_score_of_trees() -> None:
    x, seconds, groups = noisy(0)[:3]
    kept = np.arange(len(x)) % 3 > 0
    some, weighted = XGBModel(rounds=10), XGBModel(rounds=10)
    some.update(x[kept], seconds[kept], groups[kept])
    weighted.update(x, seconds, groups, np.where(kept, 1.0, 0.0))
    np.testing.assert_array_equal(weighted.score(x), some.score(x))
    weighted.update(x, seconds, groups, np.zeros(len(x)))
    assert not weighted.ready


def test_weights_improve_trees_trained_on_disturbed_times() -> None:
    found = []
    for seed in range(3):
        x, seconds, groups, clean, truth = noisy(seed)
        for weights in (np.ones(500), sample_weights(clean)):
            m = XGBModel(rounds=40)
            m.update(x[:300], seconds[:300], groups[:300], weights[:300])
            found.append(spearman(truth[300:], m.score(x[300:]), groups[300:]))
    assert np.mean(found[1::2]) > np.mean(found[::2]) + 0.005


def noisy(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, times of which half are up to three times too long, groups, which times are clean, and the true times."""
    rng = stream(seed, "noisy")
    x = rng.random((500, len(vector_names()))).astype(np.float32)
    truth = np.exp(x[:, 1] + np.sin(6 * x[:, 2]))
    clean = rng.random(500) < 0.5
    return x, np.where(clean, truth, truth * np.exp(rng.uniform(0, np.log(3), 500))), np.zeros(500, np.int64), clean, truth
