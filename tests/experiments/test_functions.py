"""The functions against torch on small sizes, and the harness and the table that measure them."""

from __future__ import annotations

import dataclasses
import io
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.search.task import Task
from tunesmith.support import json_lines

torch = pytest.importorskip("torch")

from tunesmith.experiments.functions import law, registry, run, table  # noqa: E402  it imports torch
from tunesmith.experiments.functions.function import Function  # noqa: E402

PAIRS = Path(registry.__file__).parent / "torch_pairs"


def line(name: str, mode: str = "untuned", **microseconds: float) -> run.Line:
    times = {system: {"least": 0.5 * t, "median": t} for system, t in microseconds.items()}
    return {"name": name, "mode": mode, "errors": {}, "us": times, "clean": True, "sketches": 3, "fallback": False}


def test_there_are_sixty_functions_with_unique_names() -> None:
    assert set(registry.FAMILIES) == {path.stem for path in PAIRS.glob("*.py")} - {"__init__"}
    modules = [import_module(f"tunesmith.experiments.functions.torch_pairs.{family}") for family in registry.FAMILIES]
    defined = [f for m in modules for f in vars(m).values() if isinstance(f, Function)]
    assert len(defined) == len(registry.FUNCTIONS) == 60
    assert all(f.name == name and f.family in registry.FAMILIES for name, f in registry.FUNCTIONS.items())


@pytest.mark.parametrize("name", registry.FUNCTIONS)
def test_the_program_agrees_with_torch(name: str) -> None:
    f = registry.FUNCTIONS[name]
    func = f.build(*f.small)
    inputs, outputs = f.arguments(func, np.random.default_rng(1))
    tunesmith.build(func)[name](*inputs, *outputs)
    expected = f.torch(*[torch.from_numpy(x) for x in inputs])
    expected = [x.numpy() for x in (expected if isinstance(expected, tuple) else (expected,))]
    assert f.difference(outputs, expected) <= f.tolerance


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_sketches_keep_the_law_and_compute_what_torch_computes(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ",".join([name for name, f in registry.FUNCTIONS.items() if f.family == family])
    command = [str(tmp_path / "law.jsonl"), "--small", "--rows", "1", "--sketches", "1", "--only", names]
    assert law.main(command) == 0, capsys.readouterr().out


def test_a_wrong_program_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = registry.FUNCTIONS["global_mean"]
    monkeypatch.setitem(law.FUNCTIONS, "global_mean", dataclasses.replace(right, torch=lambda x: right.torch(x) + 1))
    command = [str(tmp_path / "law.jsonl"), "--small", "--rows", "1", "--only", "global_mean"]
    assert law.main(command) == 1 and "differs from torch" in capsys.readouterr().out
    assert law.main(command) == 1, "a repeated run reads the lines of the first"


def test_wrong_outputs_are_different() -> None:
    f, right = registry.FUNCTIONS["layer_norm"], np.array([1.0, -2.0])
    assert f.difference([right], [right]) == 0
    assert f.difference([np.array([1.0, -1.0])], [right]) == 0.5
    assert f.difference([np.array([1.0, np.nan])], [right]) == f.difference([np.ones(3)], [right]) == np.inf
    assert f.difference([np.zeros(2)], [np.zeros(2)]) == 0


def test_a_function_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "untuned.jsonl"
    command = ["untuned", str(out), "--small", "--no-inductor", "--limit", "0.2", "--only", "global_mean", "--threads", "1"]
    assert run.main(command) == 0
    (found,) = run.read(out)
    assert found["name"] == "global_mean" and found["errors"] == {} and found["sketches"] > 0
    assert set(found["us"]) == {"eager", "ours", "first"} and all(0 < t["least"] <= t["median"] for t in found["us"].values())
    assert max(found["differences"].values()) <= 1e-4
    assert "1 of 1: global_mean: eager" in capsys.readouterr().out
    assert run.main(command) == 0
    assert run.read(out) == [found] and capsys.readouterr().out == ""


def test_noisy_functions_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "untuned.jsonl"
    clean, noisy, new = line("rms_norm", ours=1.0), line("l2_normalize", ours=1.0) | {"clean": False}, line("l2_normalize", ours=2.0)
    json_lines.append(out, [clean, noisy])
    monkeypatch.setattr(run, "WorkerPool", lambda *_, **__: io.BytesIO())  # has the method close, as a pool
    monkeypatch.setattr(run, "measured", lambda *_: new)
    command = ["untuned", str(out), "--only", "rms_norm,l2_normalize"]
    assert run.main(command) == 0 and run.read(out) == [clean, noisy]
    assert run.main([*command, "--again"]) == 0 and run.read(out) == [clean, new]


def test_a_damaged_line_is_measured_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    json_lines.append(out, [line("global_mean")])
    with out.open("a") as file:
        file.write('{"name": "rms_no')
    assert [x["name"] for x in run.read(out)] == ["global_mean"]
    json_lines.append(out, [line("rms_norm")])
    assert [x["name"] for x in run.read(out)] == ["global_mean", "rms_norm"]


def test_unknown_functions_and_files_of_the_other_mode_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    json_lines.append(out, [line("global_mean")])
    with pytest.raises(SystemExit):
        run.main(["untuned", str(out), "--only", "global_mode"])
    assert "no function is called global_mode; known: mean_axis_0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["tuned", str(out)])
    assert "has the results of a run that was untuned; name another file" in capsys.readouterr().err
    for name in ("out", "folder.jsonl"):
        (tmp_path / "folder.jsonl").mkdir(exist_ok=True)
        with pytest.raises(SystemExit):
            run.main(["tuned", str(tmp_path / name)])
        assert "must be a file with a suffix" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        table.main([str(tmp_path / "missing.jsonl")])
    assert "missing.jsonl; run.py writes it" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        table.main([str(out)] * 3)
    assert "one file, or two" in capsys.readouterr().err


def test_a_function_without_a_space_is_an_entry() -> None:
    dynamic = tunesmith.te.placeholder((4,), name="x")
    func = tunesmith.te.create_prim_func([dynamic, tunesmith.te.compute((4,), lambda i: dynamic[i] * 2.0, "Y")], "double")
    found = run.space(Task("double", func, Target("llvm -mcpu=x86-64-v3 -num-cores=2"), rules=()))
    assert found["sketches"] == 0 and not found["fallback"] and "makes no schedule for" in found["space_error"]


def test_the_rank_correlation_is_that_of_the_log(hand: ModuleType) -> None:
    target = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
    task = Task("mean", registry.FUNCTIONS["mean_axis_0"].build(4, 30, 100), target)
    sketch = task.space.sketches[0]
    rows = np.unique(sketch.space.sample(40, np.random.default_rng(0)), axis=0)
    predicted = sketch.analytic(target).seconds(rows)
    record = hand.record_of(hand.matmul())

    def measured(factor: float, verified: int) -> Database:
        facts = {"workload": task.digest, "target": target.to_json(), "sketch": sketch.name}
        found = []
        for n, (row, seconds) in enumerate(zip(rows, predicted, strict=True)):
            key = tuple(row.tolist())
            times = {"row": key, "trace": sketch.trace_of(key).to_json(), "samples": (1e-3 + factor * seconds,), "verified": n < verified}
            found.append(dataclasses.replace(record, **facts, **times))
        return Database(found)

    n = len(rows)
    right = run.correlation(task, measured(2.0, n), target)
    assert right == {
        "candidates": n,
        "verified": n,
        "rank_correlation": pytest.approx(1, abs=1e-3),
        "rank_correlation_verified": pytest.approx(1, abs=1e-3),
    }
    assert run.correlation(task, measured(-2.0, 1), target) == {
        "candidates": n,
        "verified": 1,
        "rank_correlation": pytest.approx(-1, abs=1e-3),
    }
    assert run.correlation(task, Database(), target) == {"candidates": 0, "verified": 0}


def test_the_table_is_sorted_and_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = line("wrong", eager=1.0) | {"errors": {"ours": "wrong result\nwith details"}, "clean": False, "fallback": True}
    lines = [line("quick", ours=10.0, first=20.0, eager=40.0, inductor=10.0), line("slow", ours=60.0, first=5.0, eager=10.0), wrong]
    json_lines.append(tmp_path / "a.jsonl", lines)
    table.main([str(tmp_path / "a.jsonl")])
    shown = capsys.readouterr().out
    rows = [row.split("|")[1].strip() for row in shown.splitlines() if row.startswith("|")]
    assert rows[2:] == ["wrong", "slow", "quick"]
    for expected in (
        "3 functions, 1 of them noisy or without times",
        "eager / ours: geometric mean 0.816 of 2, least 0.167",
        "inductor / first: geometric mean 0.500 of 1",
        "ours: 1 over 2 x eager, 1 over 5 x eager; of the ratios 1 under 1.3, 1 under 0.8; of 2",
        "spaces: 1 of the fallback rule, 0 functions without a space",
        "! wrong: ours: wrong result\n",
    ):
        assert expected in shown, expected
    assert "rank correlation" not in shown and "first choice" not in shown


def test_two_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"sketch": "tile", "candidates": 20, "rank_correlation": 0.5}
    before = [line("a", ours=20.0, eager=10.0), line("b", ours=10.0, eager=10.0), line("c", eager=1.0)]
    after = [
        line("a", "tuned", ours=5.0, first=6.0, eager=10.0) | facts,
        line("b", "tuned", ours=20.0, eager=10.0) | facts | {"candidates": 2, "rank_correlation": -1.0},
        line("c", "tuned", ours=1.0, eager=1.0) | {"coverage": ["c (12ab): missing: no record of this workload. Tune it"]},
    ]
    for name, lines in (("before", before), ("after", after)):
        json_lines.append(tmp_path / name, lines)
    table.main([str(tmp_path / "before"), str(tmp_path / "after"), "--least"])
    shown = capsys.readouterr().out
    assert "rank correlation of the analytic model: median 0.50 of 1" in shown and "first choice / tuned: median 1.20 of 1" in shown
    assert [x.split() for x in shown.splitlines() if x.startswith(("| a ", "| b "))][-2:] == [
        ["|", "b", "|", "1", "|", "0.5", "|", "0.500", "|"],
        ["|", "a", "|", "0.5", "|", "2", "|", "4.000", "|"],
    ]
    assert "! c (12ab): missing: no record" in shown
    assert "change: geometric mean 1.414 of 2" in shown and "! c: no time before" in shown
