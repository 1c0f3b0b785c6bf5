"""The contract of cost models, for each of them; and that trees learn, repeat, save and refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tunesmith.costmodel.analytic_score import AnalyticScore
from tunesmith.costmodel.metrics import spearman
from tunesmith.costmodel.model import CostModel, log_throughput
from tunesmith.costmodel.random_model import RandomModel
from tunesmith.costmodel.xgb_model import FLOOR, XGBModel
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

NAMES = ("a", "analytic.seconds", "b", "c", "d")
MAKERS: dict[str, Callable[[], CostModel]] = {
    "xgb": lambda: XGBModel(rounds=40, eta=0.2),
    "random": lambda: RandomModel(seed=3),
    "analytic": lambda: AnalyticScore(NAMES),
}


def data(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two tasks; the second is a thousand times slower for the same features."""
    x = stream(seed, "data").random((n, 5)).astype(np.float32)
    groups = np.arange(n) % 2
    return x, np.exp(3 * x[:, 1] + np.sin(6 * x[:, 2])) * np.where(groups, 1e-3, 1e-6), groups


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[[], CostModel]:
    return MAKERS[request.param]


def test_scores_are_one_number_a_row_and_repeat(make: Callable[[], CostModel]) -> None:
    x, seconds, groups = data()
    first, second = make(), make()
    for m in (first, second):
        m.update(x, seconds, groups)
    scores = first.score(x)
    assert scores.shape == (200,) and scores.dtype == np.float64
    assert np.array_equal(scores, second.score(x)) and np.array_equal(scores, first.score(x))
    assert np.array_equal(scores[50:60], first.score(x[50:60])), "a row's score does not depend on the rows beside it"
    assert np.array_equal(first.score(np.asfortranarray(x.astype(np.float64))), scores)
    assert first.score(x[:0]).shape == (0,)


def test_what_is_saved_scores_the_same(make: Callable[[], CostModel], tmp_path: Path) -> None:
    x, seconds, groups = data()
    m = make()
    m.update(x, seconds, groups)
    m.save(tmp_path / "model.json")
    json.loads((tmp_path / "model.json").read_text())
    again = type(m).load(tmp_path / "model.json")
    assert np.array_equal(again.score(x), m.score(x))
    again.update(x[:50], seconds[:50], groups[:50])
    m.update(x[:50], seconds[:50], groups[:50])
    assert np.array_equal(again.score(x), m.score(x)), "settings are saved, too"


def test_data_that_does_not_fit_is_refused(make: Callable[[], CostModel]) -> None:
    x, seconds, groups = data(10)
    with pytest.raises(UserError, match=r"got shapes \[10, 5\], \[9\] and \[10\]"):
        make().update(x, seconds[:9], groups)
    with pytest.raises(UserError, match=r"seconds must be positive \(inf for a program that failed\); row 4 has nan"):
        make().update(x, np.where(np.arange(10) == 4, np.nan, seconds), groups)
    with pytest.raises(UserError, match=r"row 2 has 0\.0"):
        make().update(x, np.where(np.arange(10) == 2, 0.0, seconds), groups)


def test_files_of_others_are_refused(make: Callable[[], CostModel], tmp_path: Path) -> None:
    m = make()
    name = type(m).__name__
    for text in ("", "{}", "[1, 2", '{"model": "other"}'):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(RecordError, match=f"m.json is no model that {name}.save wrote"):
            type(m).load(tmp_path / "m.json")
    with pytest.raises(RecordError, match=f"none.json is no model that {name}.save wrote"):
        type(m).load(tmp_path / "none.json")


def test_trees_learn_the_order_within_tasks() -> None:
    x, seconds, groups = data(400)
    m = XGBModel()
    m.update(x[:200], seconds[:200], groups[:200])
    held_out = spearman(seconds[200:], m.score(x[200:]), groups[200:])
    assert held_out > 0.93
    coin = RandomModel()
    coin.update(x, seconds, groups)
    assert abs(spearman(seconds[200:], coin.score(x[200:]), groups[200:])) < 0.3


def test_update_forgets_what_was_before() -> None:
    x, seconds, groups = data()
    a, b = XGBModel(rounds=10), XGBModel(rounds=10)
    a.update(x, 1 / seconds, groups)
    a.update(x, seconds, groups)
    b.update(x, seconds, groups)
    assert np.array_equal(a.score(x), b.score(x))
    a.update(x[:0], seconds[:0], groups[:0])
    assert not a.score(x).any(), "a model that has learned nothing has no preference"


def test_failures_count_as_the_slowest() -> None:
    x, seconds, groups = data()
    failed = x[:, 3] > 0.5
    m = XGBModel(rounds=60, eta=0.3)
    m.update(x, np.where(failed, np.inf, seconds), groups)
    scores = m.score(x)
    assert scores[failed].max() < scores[~failed].min()


def test_log_throughput_by_hand() -> None:
    seconds = np.array([2.0, 1.0, np.inf, 8e3, 4e3, np.inf])
    groups = np.array([0, 0, 0, 5, 5, 7])
    assert np.allclose(log_throughput(seconds, groups, FLOOR), [-np.log(2), 0, FLOOR, -np.log(2), 0, FLOOR])
    assert log_throughput(np.array([1.0, 1e9]), np.zeros(2, int), FLOOR).tolist() == [0, FLOOR]


def test_trees_refuse_other_widths_and_versions(tmp_path: Path) -> None:
    x, seconds, groups = data()
    m = XGBModel(rounds=3)
    with pytest.raises(UserError, match="has not been updated with measurements yet"):
        m.save(tmp_path / "m.json")
    m.update(x, seconds, groups)
    with pytest.raises(UserError, match=r"learned from rows of 5 features, and is asked to score an array of shape \[200, 4\]"):
        m.score(x[:, :4])
    m.save(tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    (tmp_path / "old.json").write_text(text.replace('"schema": 2', '"schema": 1'))
    with pytest.raises(RecordError, match=r"has learned from features of version 1; this is version 2\. Train it again"):
        XGBModel.load(tmp_path / "old.json")
    (tmp_path / "edited.json").write_text(text.replace('"num_nodes": "', '"num_nodes": "1'))
    with pytest.raises(RecordError, match=r"edited\.json is no model that XGBModel\.save wrote: its trees have been changed"):
        XGBModel.load(tmp_path / "edited.json")


def test_seeds_matter() -> None:
    x, seconds, groups = data()
    a, b = XGBModel(rounds=5, seed=1), XGBModel(rounds=5, seed=2)
    for m in (a, b):
        m.update(x, seconds, groups)
    assert not np.array_equal(a.score(x), b.score(x))
    assert not np.array_equal(RandomModel(seed=1).score(x), RandomModel(seed=2).score(x))


def test_the_analytic_score_is_its_column() -> None:
    x, _, _ = data()
    assert np.array_equal(AnalyticScore(NAMES).score(x), -x[:, 1].astype(np.float64))
    with pytest.raises(UserError, match=r"no column 'analytic.seconds': make the feature program with target="):
        AnalyticScore(["a"])
    with pytest.raises(UserError, match=r"rows of 5 features are needed, got an array of shape \[200, 3\]"):
        AnalyticScore(NAMES).score(x[:, :3])


def test_xgboost_is_loaded_by_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = "tunesmith.costmodel.xgb_model, tunesmith.costmodel.feature_program"
    code = f"import sys, {modules}; sys.exit('xgboost' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(UserError, match="pip install xgboost-cpu"):
        XGBModel()
