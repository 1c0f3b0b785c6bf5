"""Run the conformance suite on all registered cost models, and check that it detects models that break the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from tunesmith.costmodel.metrics import spearman
from tunesmith.costmodel.models.model import CostModel, Features, Scores, check_training_data
from tunesmith.costmodel.models.registry import COST_MODELS, make_model
from tunesmith.support.errors import RecordError, UserError
from tunesmith.testing.cost_model_conformance import CostModelConformance, check_same_scores

FIXED = ("analytic", "random")
"""Models that do not learn."""


class TestRegistered(CostModelConformance):
    learns = True

    @pytest.fixture(params=[name for name in COST_MODELS.names() if name not in FIXED])
    def make(self, request: pytest.FixtureRequest) -> Callable[[], CostModel]:
        return partial(make_model, request.param)


class TestFixed(CostModelConformance):
    learns = False

    @pytest.fixture(params=FIXED)
    def make(self, request: pytest.FixtureRequest) -> Callable[[], CostModel]:
        return partial(make_model, request.param)


class SearchOnly(CostModel):
    """Defines what a search requires."""

    def score(self, features: Features) -> Scores:
        return -np.asarray(features[:, 0], np.float64)

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray) -> None:
        check_training_data(features, seconds, groups)


class TestSearchOnly(CostModelConformance):
    is_saved = False

    @pytest.fixture
    def make(self) -> Callable[[], CostModel]:
        return SearchOnly


class Forgetful(CostModel):
    """Breaks the contract: scores depend on the other programs, updates accumulate, files are not checked."""

    def __init__(self) -> None:
        self.seen = 0.0

    def score(self, features: Features) -> Scores:
        return np.asarray(features.mean() + features[:, 0] + self.seen, np.float64)

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray) -> None:
        check_training_data(features, seconds, groups)
        self.seen += len(seconds)

    def save(self, path: object) -> None:
        Path(str(path)).write_text(json.dumps({"model": "forgetful", "seen": self.seen}))

    @classmethod
    def load(cls, path: object) -> Self:
        try:
            Path(str(path)).read_text()
            return cls()
        except (OSError, UnicodeDecodeError):
            raise RecordError("unreadable") from None


@pytest.mark.parametrize(
    "test", ["test_a_score_is_the_programs_own", "test_updates_forget_earlier_ones", "test_learners_learn_the_order_within_tasks"]
)
def test_suite_detects_a_model_that_breaks_the_contract(test: str) -> None:
    with pytest.raises(AssertionError):
        getattr(CostModelConformance(), test)(Forgetful)


@pytest.mark.parametrize("test", ["test_what_is_saved_scores_the_same", "test_files_that_it_did_not_write_are_refused"])
def test_suite_detects_files_that_are_not_checked(test: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(CostModelConformance(), test)(Forgetful, tmp_path)


class Sorted(Forgetful):
    """Scores are in the order of their size."""

    def score(self, features: Features) -> Scores:
        return np.sort(np.asarray(features[:, 0], np.float64))


class Scales(Forgetful):
    """Scales the caller's features."""

    def score(self, features: Features) -> Scores:
        features *= np.float32(0.5)
        return np.asarray(features[:, 0], np.float64)


class Undefined(Forgetful):
    """Scores of programs with a small feature are NaN."""

    def score(self, features: Features) -> Scores:
        return np.where(features[:, 0] < 1, np.nan, features[:, 0]).astype(np.float64)


class Fixed(Forgetful):
    """Ignores updates, though it claims to learn."""

    def score(self, features: Features) -> Scores:
        return np.asarray(features[:, 0], np.float64)


class Reuses(Forgetful):
    """All results are in one array."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = np.zeros(1 << 16)

    def score(self, features: Features) -> Scores:
        found = self.scores[: len(features)]
        found[...] = features[:, 0]
        return found


class Borrows(Forgetful):
    """Keeps the caller's array instead of what was learned from it."""

    data: np.ndarray | None = None

    def score(self, features: Features) -> Scores:
        shift = 0.0 if self.data is None else float(np.sum(self.data))
        return np.asarray(features[:, 0] + shift, np.float64)

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray) -> None:
        check_training_data(features, seconds, groups)
        self.data = seconds


class ForgetsFirst(Borrows):
    """Forgets what it learned before it refuses invalid data."""

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray) -> None:
        self.data = None
        check_training_data(features, seconds, groups)
        self.data = seconds.copy()


class Unweighted(CostModel):
    """Has the parameter `weights` and gives wrong samples of weight 0 an influence."""

    sign = 0.0

    def score(self, features: Features) -> Scores:
        return np.asarray(self.sign * features[:, 0], np.float64)

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None) -> None:
        check_training_data(features, seconds, groups, weights=weights)
        used = np.flatnonzero(np.ones(len(seconds)) if weights is None or weights.all() else weights == 0)
        x = np.asarray(features[:, 0], np.float64)
        self.sign = float(np.sign(spearman(seconds[used], x[used], groups[used]))) if len(used) else 0.0


class Scaling(Unweighted):
    """Scales its scores by the weights."""

    def update(self, features: Features, seconds: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None) -> None:
        self.sign = 1.0 if weights is None else float(weights.sum())


class Learning(CostModelConformance):
    learns = True


@pytest.mark.parametrize(
    ("test", "broken", "message"),
    [
        ("test_a_score_is_the_programs_own", Sorted, "programs are scored without the rest of their batch"),
        ("test_no_side_effects", Scales, "score changed the features"),
        ("test_one_finite_score_per_program", Undefined, r"\d+ of 160 scores are not finite"),
        ("test_learners_learn_the_order_within_tasks", Fixed, "the model learns, and an update changed no score"),
        ("test_results_are_the_callers", Reuses, "a later call changed the scores that an earlier one returned"),
        ("test_arrays_are_not_kept", Borrows, "arrays of an update were overwritten"),
        ("test_invalid_data_is_refused", ForgetsFirst, "an update was refused"),
        ("test_samples_of_weight_0_have_no_influence", Unweighted, "wrong samples of weight 0 change the correlation"),
        ("test_weights_are_relative", Scaling, "all samples have the weight 1"),
    ],
)
def test_broken_models_are_detected(test: str, broken: type[CostModel], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(Learning(), test)(broken)


class Projected(Forgetful):
    """A valid model: float32 sums in memory order, as in BLAS, differ in the last bits between layouts."""

    def score(self, features: Features) -> Scores:
        rows = features.astype(np.float32)  # preserves the memory layout
        return np.asarray(rows @ np.linspace(0.1, 1.0, rows.shape[1], dtype=np.float32), np.float64)


def test_rounding_is_accepted_and_messages_name_the_check() -> None:
    suite = CostModelConformance()
    suite.test_a_score_is_the_programs_own(Projected)
    message = r"without the rest of their batch, and scores may differ by .* of \d+ differ, program \d+ the most: got .*, expected"
    with pytest.raises(AssertionError, match=message):
        suite.test_a_score_is_the_programs_own(Forgetful)
    with pytest.raises(AssertionError, match="update must replace earlier ones.*must be equal bit by bit; 160 of 160 differ"):
        suite.test_updates_forget_earlier_ones(Forgetful)
    with pytest.raises(AssertionError, match=r"got an array of shape \[3\] where \[2\] is expected"):
        check_same_scores(np.zeros(3), np.zeros(2), "x")


def test_a_model_that_is_not_saved_is_detected_and_refuses(tmp_path: Path) -> None:
    for test in ("test_what_is_saved_scores_the_same", "test_loaded_models_are_pretrained"):
        with pytest.raises(UserError, match=r"the cost model SearchOnly cannot be saved: it defines no save\(path\)"):
            getattr(CostModelConformance(), test)(SearchOnly, tmp_path)
    with pytest.raises(UserError, match=r"the cost model SearchOnly cannot be loaded: it defines no class method load\(path\)"):
        CostModelConformance().test_files_that_it_did_not_write_are_refused(SearchOnly, tmp_path)
