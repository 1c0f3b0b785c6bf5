"""Test what the conformance suite does not cover: quality and transfer of trees, labels, files, error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tunesmith.costmodel.features.feature_program import vector_names
from tunesmith.costmodel.features.store_features import SCHEMA_VERSION
from tunesmith.costmodel.metrics import pairwise_accuracy, spearman
from tunesmith.costmodel.models.analytic_score import AnalyticScore
from tunesmith.costmodel.models.model import CostModel, log_throughput
from tunesmith.costmodel.models.random_model import RandomModel
from tunesmith.costmodel.models.registry import find_model, make_model
from tunesmith.costmodel.models.xgb_model import FLOOR, XGBModel
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

NAMES = ("a", "analytic.seconds", "b", "c", "d")


def data(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two tasks; the second is a thousand times slower for the same features."""
    x = stream(seed, "data").random((n, 5)).astype(np.float32)
    groups = np.arange(n) % 2
    return x, np.exp(3 * x[:, 1] + np.sin(6 * x[:, 2])) * np.where(groups, 1e-3, 1e-6), groups


MODELS: dict[str, Callable[[], CostModel]] = {
    "xgb": lambda: XGBModel(rounds=40, eta=0.2),
    "random": lambda: RandomModel(seed=3),
    "analytic": lambda: AnalyticScore(NAMES),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_error_messages_name_the_problem(name: str, tmp_path: Path) -> None:
    m = MODELS[name]()
    x, seconds, groups = data(10)
    with pytest.raises(UserError, match=r"is trained on features \[N, F\].*got shapes \[10, 5\], \[9\] and \[10\]"):
        m.update(x, seconds[:9], groups)
    with pytest.raises(UserError, match=r"seconds must be positive \(inf for a program that failed\); row 4 has nan"):
        m.update(x, np.where(np.arange(10) == 4, np.nan, seconds), groups)
    kind = type(m).__name__
    for text, why in (
        ("", "Expecting value"),
        ("{}", "not a JSON object with a field"),
        ('{"model": "other"}', "contains a model 'other'"),
    ):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(RecordError, match=f"m.json is not a model written by {kind}.save: .*{why}"):
            type(m).load(tmp_path / "m.json")
    with pytest.raises(RecordError, match=f"none.json is not a model written by {kind}.save: No such file"):
        type(m).load(tmp_path / "none.json")
    m.update(x, seconds, groups)
    with pytest.raises(UserError, match=r"m\.txt: files of this model have names that end with \.json"):
        m.save(tmp_path / "m.txt")
    m.save(tmp_path / "m.json")
    saved = json.loads((tmp_path / "m.json").read_text())
    for schema, error in (
        (SCHEMA_VERSION - 1, rf"version {SCHEMA_VERSION - 1}; this is version {SCHEMA_VERSION}\. Train it again"),
        (None, "version None"),
    ):
        (tmp_path / "m.json").write_text(json.dumps({**saved, "schema": schema}))
        with pytest.raises(RecordError, match=error):
            type(m).load(tmp_path / "m.json")


def test_trees_learn_the_order_within_tasks() -> None:
    x, seconds, groups = data(400)
    m = XGBModel()
    m.update(x[:200], seconds[:200], groups[:200])
    held_out = spearman(seconds[200:], m.score(x[200:]), groups[200:])
    assert held_out > 0.93
    control = RandomModel()
    control.update(x, seconds, groups)
    assert abs(spearman(seconds[200:], control.score(x[200:]), groups[200:])) < 0.3


def test_pretrained_trees_are_weighted_by_their_agreement() -> None:
    """The weight of pretrained trees follows the new measurements; eight noisy ones do not outweigh hundreds."""
    x, seconds, groups = data(600)
    base = XGBModel()
    base.update(x[:400], seconds[:400], groups[:400])
    base.keep()
    before = spearman(seconds[400:], base.score(x[400:]), groups[400:])
    noise = np.exp(stream(5, "noise").normal(0, 0.5, 8))
    base.update(x[400:408], seconds[400:408] * noise, groups[400:408])
    assert base._parts[0][0] > 0.5
    assert spearman(seconds[400:], base.score(x[400:]), groups[400:]) > before - 0.1
    fresh = XGBModel()
    fresh.update(x[400:408], seconds[400:408] * noise, groups[400:408])
    assert spearman(seconds[400:], fresh.score(x[400:]), groups[400:]) < before - 0.2
    base.update(x[:200], 1 / seconds[:200], groups[:200])
    assert base._parts[0][0] < 0.05, "the weight of contradicted trees is near 0"
    assert spearman(1 / seconds[400:], base.score(x[400:]), groups[400:]) > 0.8


def test_pretrained_trees_reject_other_features() -> None:
    x, seconds, groups = data()
    m = XGBModel(rounds=3)
    m.update(x, seconds, groups)
    m.keep()
    with pytest.raises(UserError, match=r"trained on rows of 5 features, got an array of shape \[200, 4\]"):
        m.update(x[:, :4], seconds, groups)


def test_failed_programs_are_ranked_last() -> None:
    x, seconds, groups = data()
    failed = x[:, 3] > 0.5
    m = XGBModel(rounds=60, eta=0.3)
    m.update(x, np.where(failed, np.inf, seconds), groups)
    scores = m.score(x)
    assert scores[failed].max() < scores[~failed].min()


def test_log_throughput() -> None:
    seconds = np.array([2.0, 1.0, np.inf, 8e3, 4e3, np.inf])
    groups = np.array([0, 0, 0, 5, 5, 7])
    assert np.allclose(log_throughput(seconds, groups, FLOOR), [-np.log(2), 0, FLOOR, -np.log(2), 0, FLOOR])
    assert log_throughput(np.array([1.0, 1e9]), np.zeros(2, int), FLOOR).tolist() == [0, FLOOR]


def test_trees_reject_other_widths_and_changed_files(tmp_path: Path) -> None:
    x, seconds, groups = data()
    m = XGBModel(rounds=3)
    with pytest.raises(UserError, match="the model is untrained"):
        m.save(tmp_path / "m.json")
    m.update(x, seconds, groups)
    with pytest.raises(UserError, match=r"trained on rows of 5 features, got an array of shape \[200, 4\]"):
        m.score(x[:, :4])
    m.save(tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    assert '"num_nodes": "' in text
    (tmp_path / "edited.json").write_text(text.replace('"num_nodes": "', '"num_nodes": "1'))
    with pytest.raises(RecordError, match=r"edited\.json is not a model written by XGBModel\.save: its trees do not match their digest"):
        XGBModel.load(tmp_path / "edited.json")


def test_seeds_change_the_scores() -> None:
    x, seconds, groups = data()
    a, b = XGBModel(rounds=5, seed=1), XGBModel(rounds=5, seed=2)
    for m in (a, b):
        m.update(x, seconds, groups)
    assert not np.array_equal(a.score(x), b.score(x))
    assert not np.array_equal(RandomModel(seed=1).score(x), RandomModel(seed=2).score(x))


def test_the_analytic_score_is_the_analytic_column() -> None:
    x, _, _ = data()
    assert np.array_equal(AnalyticScore(NAMES).score(x), -x[:, 1].astype(np.float64))
    with pytest.raises(UserError, match=r"no column 'analytic.seconds': make the feature program with target="):
        AnalyticScore(["a"])
    with pytest.raises(UserError, match=r"rows of 5 features are needed, got an array of shape \[200, 3\]"):
        AnalyticScore(NAMES).score(x[:, :3])


def test_the_registered_analytic_model_scores_the_vectors_of_searches() -> None:
    m = make_model("analytic")
    assert isinstance(m, AnalyticScore) and m.ready and m.names == vector_names() and m.names[m._column] == "analytic.seconds"


def test_optional_packages_are_imported_only_by_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch is blocked because TVM-FFI imports it if available; an import by tunesmith would fail.
    modules = "tunesmith.costmodel.models.xgb_model, tunesmith.costmodel.features.feature_program, tunesmith.costmodel.models.registry"
    code = f"import sys; sys.modules['torch'] = None; import {modules}; sys.exit('xgboost' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(UserError, match="pip install xgboost-cpu"):
        XGBModel()


def test_a_file_identifies_its_model(tmp_path: Path) -> None:
    x, seconds, groups = data()
    for m in (XGBModel(rounds=3, seed=5), RandomModel(seed=3), AnalyticScore(NAMES)):
        m.update(x, seconds, groups)
        file = tmp_path / "m.json"
        m.save(file)
        make = find_model(str(file))
        first, second = make(), make_model(make, seed=9)
        assert type(first) is type(m) and first is not second, "each task has its own model"
        assert np.array_equal(first.score(x), m.score(x)) and np.array_equal(second.score(x), m.score(x))


def test_files_without_a_model_are_rejected_when_named(tmp_path: Path) -> None:
    cases = {
        "a.json": (b"[]", RecordError, "a.json is not a saved cost model: it contains no model metadata"),
        "b.json": (b"{}", RecordError, 'b.json is not a saved cost model: it has no field "model"'),
        "c.json": (b'{"model": "xbg"}', UserError, "unknown cost model 'xbg'. Did you mean 'xgb'"),
        "d.safetensors": (b"\xff" * 20, RecordError, "d.safetensors is not a saved cost model: its header has"),
        "e.safetensors": ((2).to_bytes(8, "little") + b"{}", RecordError, "contains no model metadata"),
        "f.safetensors": (b"", RecordError, "f.safetensors is not a saved cost model"),
    }
    for name, (content, kind, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(kind, match=message):
            find_model(str(tmp_path / name))
    with pytest.raises(RecordError, match="none.json is not a saved cost model: No such file"):
        find_model(str(tmp_path / "none.json"))


def test_trees_learn_the_residuals_of_the_analytic_cost(tmp_path: Path) -> None:
    """With the vectors of searches, a few measurements do not replace the analytic cost."""
    rng = stream(0, "prior")
    names = vector_names()
    features = rng.standard_normal((400, len(names))).astype(np.float32)
    log_seconds = features[:, names.index("analytic.seconds")].astype(np.float64)
    seconds, groups = np.exp2(log_seconds), np.zeros(400, np.int64)
    few = XGBModel(rounds=20)
    few.update(features[:8], seconds[:8], groups[:8])
    assert pairwise_accuracy(seconds[8:], few.score(features[8:]), groups[8:]) > 0.9
    few.save(tmp_path / "few.json")
    np.testing.assert_array_equal(XGBModel.load(tmp_path / "few.json").score(features), few.score(features))
    blind = XGBModel(rounds=20)
    blind.update(features[:8, :9], seconds[:8], groups[:8])  # other vectors, without the analytic cost
    assert pairwise_accuracy(seconds[8:], blind.score(features[8:, :9]), groups[8:]) < 0.8
    wrong = XGBModel(rounds=20)
    wrong.update(features[:300], 1 / seconds[:300], groups[:300])  # many contradicting measurements outweigh the analytic cost
    assert pairwise_accuracy(1 / seconds[300:], wrong.score(features[300:]), groups[300:]) > 0.7
