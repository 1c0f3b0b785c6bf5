"""Comparison of two runs: ratios, verdicts and caveats."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunesmith.experiments.study.compare import compare_runs
from tunesmith.experiments.study.results import write_json
from tunesmith.support.errors import RecordError, UserError

A, B = "matmul(m=8,n=8,k=8)", "relu(shape=8)"
Make = Callable[..., Path]


def test_ratios_and_verdicts(make_run: Make) -> None:
    was = [2e-6, 2.1e-6, 2.05e-6, 2.05e-6, 2.05e-6]
    before = make_run("before", {(A, "x"): was, (B, "x"): [1e-6, 1.2e-6, 1.1e-6, 1.1e-6, 1.1e-6]})
    after = make_run("after", {(A, "x"): [1e-6, 1.05e-6, *[1.02e-6] * 3], (B, "x"): [1.1e-6, 1.15e-6, 1.05e-6, 1.1e-6, 1.1e-6]})
    found = compare_runs(before, after)
    assert [(x.workload, x.verdict) for x in found.lines] == [(A, "faster"), (B, "no difference shown"), ("", "faster")]
    first, _, mean = found.lines
    assert first.ratio.ratio == pytest.approx((1 * 1.05 * 1.02**3 / (2 * 2.1 * 2.05**3)) ** (1 / 5))
    assert first.ratio.low is not None and first.ratio.high is not None and first.ratio.low < first.ratio.ratio < first.ratio.high < 1
    assert first.ratio.low_adjusted is not None and first.ratio.low_adjusted < first.ratio.low
    assert mean.ratio.ratio == pytest.approx(math.sqrt(first.ratio.ratio * found.lines[1].ratio.ratio))
    assert first.trials_a == {"median": None, "reached": 0, "of": 5} and first.trials_b == {"median": 4.0, "reached": 5, "of": 5}
    backwards = compare_runs(after, before).lines[0]
    assert backwards.verdict == "slower" and backwards.ratio.ratio == pytest.approx(1 / first.ratio.ratio)
    text = str(found)
    for part in (f"before in {before}", "all workloads", "no difference shown", "4 (5/5)", "- (0/5)", "5, 5", "adjusted", "p (Holm)"):
        assert part in text, part
    data: Any = json.loads(json.dumps(found.to_json()))
    assert data["lines"][2]["workload"] is None and data["lines"][0]["a"]["each"] == was
    assert data["lines"][0]["b"]["trials_to_95"] == first.trials_b and data["notes"] == []


def test_one_seed_gives_no_verdict(make_run: Make) -> None:
    found = compare_runs(make_run("a", {(A, "x"): [2e-6]}), make_run("b", {(A, "x"): [1e-6]}))
    assert [x.verdict for x in found.lines] == ["too few seeds to tell"] and found.lines[0].ratio.low is None
    assert "0.500" in str(found)


def test_differences_are_reported(make_run: Make) -> None:
    a = make_run("a", {(A, "x"): [1e-6, 1e-6], (B, "x"): [1e-6, None], (A, "y"): [1e-6]})
    b = make_run("b", {(A, "x"): [1e-6, 1e-6], ("gelu(shape=8)", "x"): [1e-6]})
    index = json.loads((b / "index.json").read_text())
    index["settings"]["trials"] = 64
    index["variants"]["default"]["racing"] = False
    write_json(b / "index.json", index)
    for folder, cpu, commit in ((a, "Old", "c1"), (b, "New", "c2")):
        line = {"v": 1, "kind": "run", "run": "r", "host": {"cpu": cpu, "cores": 2}, "git": {"commit": commit}, "versions": {"numpy": "2"}}
        (folder / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    found = compare_runs(a, b)
    assert [x.workload for x in found.lines] == [A] and found.lines[0].ratio.ratio == 1.0
    assert found.notes == (
        "the setting trials differs: 128 in A, 64 in B",
        "the variant default differs: {'racing': True, 'draft_model': True, 'imperfect_tiles': True} in A, "
        "{'racing': False, 'draft_model': True, 'imperfect_tiles': True} in B",
        f"only in A: {B}, y",
        "A is not finished: 1 of 5 cells are not done",
        "only in B: gelu(shape=8)",
        "the machine differs: cpu Old in A, New in B",
        "the source differs: commit c1 in A, c2 in B",
    )


def test_clean_measurements_are_noted(make_run: Make) -> None:
    a, b = make_run("a", {(A, "x"): [1e-6]}), make_run("b", {(A, "x"): [1e-6]})
    for folder, noisy in ((a, 3), (b, 7)):
        (path,) = (folder / "cells").glob("*/result.json")
        write_json(path, json.loads(path.read_text()) | {"measured": 8, "noisy": noisy})
    assert compare_runs(a, b).notes == (
        "A: 5 of 8 measurements are clean (62%)",
        "B: 1 of 8 measurements are clean (12%): the others were disturbed by other processes. "
        "Run it again in another folder on a quiet machine",
    )


def test_runs_without_common_cells_are_refused(make_run: Make, tmp_path: Path) -> None:
    a, b = make_run("a", {(A, "x"): [1e-6]}), make_run("b", {(A, "y"): [1e-6], (A, "x"): [None]})
    with pytest.raises(UserError, match="nothing is done in both runs. a has matmul.* by x; b has matmul.* by y"):
        compare_runs(a, b)
    with pytest.raises(RecordError, match="the folder of a run"):
        compare_runs(a, tmp_path)
