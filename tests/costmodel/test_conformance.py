"""All registered cost models keep the contract; and the suite finds models that break it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from tunesmith.costmodel.model import CostModel, Features, Scores, check_training_data
from tunesmith.costmodel.registry import COST_MODELS, make_model
from tunesmith.support.errors import RecordError
from tunesmith.testing.cost_model_conformance import CostModelConformance


class TestRegistered(CostModelConformance):
    @pytest.fixture(params=COST_MODELS.names())
    def make(self, request: pytest.FixtureRequest) -> Callable[[], CostModel]:
        return partial(make_model, request.param)


class Forgetful(CostModel):
    """Breaks what the suite must find: scores depend on the programs beside, updates pile up, files are not checked."""

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
def test_the_suite_finds_a_model_that_breaks_the_contract(test: str) -> None:
    with pytest.raises(AssertionError):
        getattr(CostModelConformance(), test)(Forgetful)


@pytest.mark.parametrize("test", ["test_what_is_saved_scores_the_same", "test_files_that_it_did_not_write_are_refused"])
def test_the_suite_finds_files_that_are_not_checked(test: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(CostModelConformance(), test)(Forgetful, tmp_path)
