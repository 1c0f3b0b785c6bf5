"""Run folders are read back as written, and malformed files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.experiments.study.results import Arm, Cell, CellResult, load_run, read_json, write_json
from tunesmith.search.tuner import PHASES
from tunesmith.support.errors import RecordError

TIMES = {("relu(shape=8)", "random"): [1e-6, 2e-6]}


@pytest.fixture
def run(make_run: Callable[..., Path]) -> Path:
    return make_run("study", TIMES)


def test_a_folder_is_read_back(run: Path) -> None:
    index = load_run(run)
    assert index.ok and index.name == "study" and [a.name for a in index.arms] == ["random"]
    assert [r.best_s for r in index.of("relu(shape=8)", index.arms[0])] == [1e-6, 2e-6]
    assert index.results[0].gflops == pytest.approx(2e6 / 1e-6 / 1e9)
    assert CellResult.from_json(index.results[0].to_json(), "here") == index.results[0]
    assert json.loads((run / "index.json").read_text())["done"] == 2


def test_cells_have_unique_names_that_are_safe_for_folders() -> None:
    hostile = Cell("../../etc/passwd\0" * 50, Arm("a/b", "<c>", "d"), -3)
    assert "/" not in hostile.id and "." not in hostile.id and "\0" not in hostile.id and len(hostile.id) < 110
    assert hostile.id != Cell("etc-passwd", Arm("a/b", "<c>", "d"), -3).id
    assert Cell("w", Arm("a", "b", ""), 0).id != Cell("w", Arm("a", "", "b"), 0).id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 2}, "version 2"),
        ({"kind": "log"}, "'kind' must be 'experiment'"),
        ({"cells": 3}, "'cells' must be a list"),
        ({"cells": [{}]}, "cell 0: 'sampler' must be a text"),
        ({"spaces": [{"workload": "x"}]}, "space 0: 'imperfect_tiles'"),
        ({"interrupted": 1}, "'interrupted' must be true or false"),
        ({"settings": []}, "'settings' must be an object"),
        ({"settings": {}}, "settings: 'trials' must be an integer, at least 1"),
        ({"settings": {"trials": "many"}}, "settings: 'trials' must be an integer, at least 1"),
        ({"settings": {"trials": 1, "batch": 1, "leaders": 0, "target": 3}}, "settings: 'target' must be a text or null"),
        ({"spaces": [{"workload": "x", "imperfect_tiles": True, "sketches": 10**400}]}, "'sketches' must be an integer, .*200 digits"),
    ],
)
def test_a_malformed_index_is_refused(run: Path, change: dict[str, Any], message: str) -> None:
    data = json.loads((run / "index.json").read_text())
    write_json(run / "index.json", data | change)
    with pytest.raises(RecordError, match=message):
        load_run(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "great"}, "'state' must be one of done"),
        ({"best_s": -1.0}, "'best_s' must be seconds or null"),
        ({"best_s": True}, "'best_s' must be seconds or null"),
        ({"trials": -1}, "'trials' must be an integer, at least 0"),
        ({"curve": [0.0]}, "'curve' must be a list of seconds"),
        ({"errors": {"crash": 0.5}}, "'errors' must be counts"),
        ({"seconds": {"total": 1.0}}, "'seconds' must be seconds of total, draft"),
        ({"seed": 7}, "is the result of"),
        ({"failure": None}, "'failure' must be a text"),
        ({"state": ["done"]}, "'state' must be one of done"),
        ({"best_s": 10**400}, "'best_s' must be seconds or null"),
        ({"best_s": 1e-320}, "'best_s' must be seconds or null"),
        ({"flops": 10**400}, "'flops' must be an integer"),
        ({"errors": {"crash": 10**400}}, "'errors' must be counts"),
        ({"seconds": dict.fromkeys(("total", *PHASES), 10**400)}, "'seconds' must be seconds by phase"),
        ({"curve": []}, "'curve' must be a list with the trial that found the best program"),
    ],
)
def test_a_malformed_result_is_refused(run: Path, change: dict[str, Any], message: str) -> None:
    path = sorted((run / "cells").glob("*/result.json"))[0]
    write_json(path, json.loads(path.read_text()) | change)
    with pytest.raises(RecordError, match=message):
        load_run(run)


def test_files_are_plain_data(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for text in ("NaN", "[Infinity]", "{", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(RecordError, match="cannot read"):
            read_json(file)
    with pytest.raises(RecordError, match="Is .* the folder of a run"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, float("nan"))
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write"):
        write_json(tmp_path / "file" / "x.json", 1)
    write_json(file, {"a": 1})
    assert read_json(file) == {"a": 1} and not list(tmp_path.glob("*.partial"))
