"""Test the validation of tree files: invalid ones are rejected before XGBoost crashes, valid ones keep their scores."""

from __future__ import annotations

import copy
import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.models.registry import find_model
from tunesmith.costmodel.models.xgb_model import XGBModel, _digest
from tunesmith.costmodel.models.xgb_trees import checked_trees
from tunesmith.support.errors import RecordError, UserError
from tunesmith.support.seeds import stream

Tree = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = stream(0, "trees").random((80, 5)).astype(np.float32)
    m = XGBModel(rounds=3, max_depth=3)
    m.update(x, 1e-5 * (1 + x[:, 3].astype(np.float64)), np.zeros(80, np.int64))
    m.save(path := tmp_path_factory.mktemp("trees") / "m.json")
    return path


def trees_of(data: Any) -> list[Tree]:
    found = next(p for p in data["parts"] if p["trees"])["trees"]
    return list(found["learner"]["gradient_booster"]["model"]["trees"])


def with_all(name: str, change: Callable[[Any], Any], tree: int = 0) -> Callable[[Any], object]:
    """A function that changes all numbers of an array of a tree."""

    def apply(data: Any) -> None:
        found = trees_of(data)[tree]
        found[name] = [change(v) for v in found[name]]

    return apply


def loops(tree: Tree, left: list[int], right: list[int], parents: list[int]) -> None:
    """Replace a tree by three nodes with these children."""
    names = ("parents", "split_indices", "default_left", "split_type", "base_weights", "loss_changes", "split_conditions", "sum_hessian")
    tree |= {name: [0, 0, 0] for name in names} | {"left_children": left, "right_children": right, "parents": [0x7FFFFFFF, *parents]}
    tree["tree_param"]["num_nodes"] = "3"


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "children out of range": (with_all("left_children", lambda c: 2**30 if c >= 0 else c), "not the child of exactly one other"),
    "negative children": (with_all("left_children", lambda c: -5 if c >= 0 else c), "not the child of exactly one other"),
    "the root as a child": (with_all("left_children", lambda c: 0 if c >= 0 else c), "not the child of exactly one other"),
    "a cycle": (lambda d: loops(trees_of(d)[0], [-1, 2, -1], [-1, 1, -1], [1, 1]), "own ancestors"),
    "parents": (with_all("parents", lambda p: 1, 1), "tree 1: parents and children are inconsistent"),
    "features": (with_all("split_indices", lambda c: 5), "index of a split feature is not below 5"),
    "negative features": (with_all("split_indices", lambda c: -1), "index of a split feature is not below 5"),
    "categories": (with_all("split_type", lambda c: 1), "categorical splits are not supported"),
    "short arrays": (lambda d: trees_of(d)[0]["split_conditions"].pop(), "split_conditions is not .* finite numbers"),
    "many nodes": (lambda d: trees_of(d)[0]["tree_param"].update(num_nodes="1000000000"), "is not 1000000000"),
    "more features": (lambda d: trees_of(d)[0]["tree_param"].update(num_feature="9"), "num_feature is '9', not 5"),
    "huge numbers": (with_all("base_weights", lambda c: 1e300), "finite numbers"),
    "strings": (with_all("left_children", lambda c: "0"), "integers"),
    "a missing field": (lambda d: trees_of(d)[0].pop("parents"), "no field 'parents'"),
    "no trees": (lambda d: d["parts"][-1].update(trees=[1]), "trees: not an object"),
    "another booster": (lambda d: d["parts"][-1]["trees"]["learner"]["gradient_booster"].update(name="gblinear"), "not 'gbtree'"),
    "threads": (lambda d: d["settings"].update(threads=10**6), "its setting threads is 1000000"),
    "a negative depth": (lambda d: d["settings"].update(max_depth=-1), "its setting max_depth is -1"),
    "a seed that is a string": (lambda d: d["settings"].update(seed="1"), "its setting seed is '1'"),
    "a weight that is a string": (lambda d: d["parts"][-1].update(weight="1"), "the weight of its trees is '1'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_trees_that_crash_xgboost_are_rejected(what: str, saved: Path, tmp_path: Path) -> None:
    data = json.loads(saved.read_text())
    change, message = WRONG[what]
    change(data)
    data["digest"] = _digest(data["parts"])  # anyone can compute it
    (tmp_path / "m.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match=f"m.json is not a model written by XGBModel.save: .*{message}"):
        XGBModel.load(tmp_path / "m.json")


def test_unknown_fields_are_not_passed_to_xgboost(saved: Path) -> None:
    (part,) = [p for p in json.loads(saved.read_text())["parts"] if p["trees"]]
    changed = copy.deepcopy(part["trees"])
    changed["learner"]["attributes"] = {"best_iteration": "x"}
    changed["learner"]["gradient_booster"]["model"]["tree_info"] = [7, 7, 7]
    changed["learner"]["new"] = [1]
    assert checked_trees(changed) == checked_trees(part["trees"])


def test_loaded_trees_keep_their_scores_for_any_seed(tmp_path: Path) -> None:
    rng = stream(0, "many trees")
    for n, seed in ((1, -1), (3, 2**31), (40, 2**63), (200, np.int64(7))):
        x, seconds = rng.random((n, 5)).astype(np.float32), np.exp(rng.standard_normal(n))
        m = XGBModel(rounds=8, max_depth=9, seed=seed)
        for _ in range(2):
            m.update(x, seconds, np.zeros(n, np.int64))
            m.keep()
        m.save(tmp_path / "m.json")
        assert np.array_equal(XGBModel.load(tmp_path / "m.json").score(x), m.score(x))


def test_deep_and_long_files_are_rejected(tmp_path: Path) -> None:
    header = b'{"__metadata__":' + b"[" * 100_000
    files = {
        "a.json": b"[" * 200_000,
        "b.json": b'{"model": ' + b"1" * 5000 + b"}",
        "c.safetensors": len(header).to_bytes(8, "little") + header,
        "d.json": b'{"model": "xgb", "schema": ' + b"[" * 200_000,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RecordError, match=f"{name} is not a saved cost model: (nested deeper than 100|not plain data)"):
            find_model(str(tmp_path / name))


def test_a_full_disk_keeps_the_previous_file(saved: Path, tmp_path: Path) -> None:
    m = XGBModel.load(saved)
    m.save(tmp_path / "m.json")
    before = (tmp_path / "m.json").read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*m\.json: File too large"):
            m.save(tmp_path / "m.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "m.json").read_bytes() == before and os.listdir(tmp_path) == ["m.json"]
