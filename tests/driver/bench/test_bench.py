"""Benchmark systems run in separate processes, are checked before timing, and take turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.bench.bench import BenchPolicy, _InterleavedRun, _start_systems, _SystemProcess, _Timing
from tunesmith.driver.bench.entry import find_entries
from tunesmith.driver.bench.ratio import Ratio
from tunesmith.driver.bench.report import BenchReport, BenchRow
from tunesmith.driver.bench.setting import Data, Setting
from tunesmith.driver.bench.worker import BaselineSystem, CompiledSystem, Prepared, Ready, System, Window
from tunesmith.ir.target.target import Target
from tunesmith.measure.baselines.registry import create_baseline
from tunesmith.measure.records.database import Database
from tunesmith.support.errors import RecordError, RunError, UserError
from tunesmith.support.worker_pool import JobResult

SHORT = BenchPolicy(starts=1, rounds=2, window_s=0.01, patience_s=0.0)


def test_tunesmith_and_baselines_are_timed_on_the_same_inputs(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tvm.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.syspath_prepend(tmp_path)  # of the systems' processes too, so that TVM is unavailable on every machine
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    said: list[str] = []
    report = tunesmith.bench([hand.MATMUL, "softmax(m=3,n=5)", "abs(shape=4)"], log, ["openblas", "tvm"], policy=SHORT, say=said.append)
    rows = {(r.workload, r.system): r for r in report.rows}
    for system in ("tunesmith", "openblas"):
        row = rows[hand.MATMUL, system]
        assert row.ok and row.minimum and row.median and row.p90 and 0 < row.minimum <= row.median <= row.p90 and row.runs >= 6
        assert row.gflops == pytest.approx(2 * 24 * 32 * 16 / row.median / 1e9)
    assert rows[hand.MATMUL, "tunesmith"].note == "replayed record" and report.ok and len(rows) == 2
    lines = [
        line
        for w in ("softmax(m=3,n=5)", "abs(shape=4)")
        for line in (
            f"openblas has no {w}",
            f"{w} is not timed: no other system computes it, and there is nothing to compare. Name other systems in --against",
        )
    ]
    assert list(report.absent) == lines and [text for text in said if text in lines] == lines
    assert list(report.skipped) == ["tvm"] and "a broken installation" in report.skipped["tvm"]
    assert any("tvm is skipped" in text for text in said)
    found = report.ratio(hand.MATMUL)
    assert found is not None and found.value > 0 and found.low is None and found.verdict.startswith("not decided")
    assert rows[hand.MATMUL, "openblas"].ratio == found and rows[hand.MATMUL, "tunesmith"].ratio is None
    assert report.ratio("softmax(m=3,n=5)") is None
    data: Any = report.to_json()
    assert data["best"] == {hand.MATMUL: found.to_json()} and data["absent"] == lines and "a broken installation" in data["skipped"]["tvm"]
    entry = data["rows"][0]
    assert list(entry) == [
        "workload",
        "system",
        "ok",
        "note",
        "median_us",
        "min_us",
        "p90_us",
        "runs",
        "gflops",
        "precision",
        "error",
        "clean",
        "ratio",
    ]
    assert entry["precision"] == "f32" and isinstance(entry["error"], float) and 0 <= entry["error"] < 1e-6
    for part in ("best baseline / ours", "openblas", "replayed record", "skipped: softmax(m=3,n=5) is not timed", found.advice):
        assert part in str(report)


def test_refusals(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    with pytest.raises(UserError, match="unknown baseline 'openblass'. Did you mean 'openblas'"):
        tunesmith.bench(hand.MATMUL, log, ["openblass"])
    (tmp_path / "fn.py").write_text("def g(a, b):\n    return a @ b\n")
    with pytest.raises(UserError, match="is a file and no baseline: name the object in it: .*fn.py:g"):
        tunesmith.bench(hand.MATMUL, log, [f"{tmp_path}/fn.py"])
    (tmp_path / "exits.py").write_text("import os\nos._exit(5)\n")
    with pytest.raises(UserError, match=r"exits.py:f cannot be loaded: it crashed: the worker process died \(exit status 5\)"):
        tunesmith.bench(hand.MATMUL, log, [f"{tmp_path}/exits.py:f"])
    with pytest.raises(RecordError, match="none.jsonl"):
        tunesmith.bench(hand.MATMUL, tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="bench policy out of range"):
        BenchPolicy(rounds=0)
    with pytest.raises(UserError, match="starts and rounds are at least 1"):
        BenchPolicy(starts=0)


def setting(w: str, folder: Path, **changes: Any) -> Setting:
    (entry,) = find_entries(w)
    return replace(entry.save(folder, "w", 0), **changes)


def test_own_functions_are_loaded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def request(self: _SystemProcess, method: str) -> str:
        asked.append(self.name)
        return ""

    monkeypatch.setattr(_SystemProcess, "request", request)
    with ExitStack() as stack:
        systems = _start_systems(stack, ["openblas", "mine.py:f"], Target.detect())
    assert asked == ["mine.py:f", "tunesmith", "openblas"] and [s.name for s in systems] == ["tunesmith", "openblas", "mine.py:f"]


@pytest.mark.parametrize("kind", ["opencl", "cuda -arch=sm_80"])
def test_baselines_of_a_device_have_the_threads_of_this_machine(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    started: list[tuple[str, str]] = []

    class Pool:
        def __init__(self, factory: str, workers: int, arguments: tuple[object, ...], env: dict[str, str]) -> None:
            started.append((str(arguments[-1]), env["OMP_NUM_THREADS"]))

        def run(self, jobs: object, timeout: float) -> list[JobResult]:
            return [JobResult(0, "", None, "", "", "", 0.0)]

        def close(self) -> None: ...

    monkeypatch.setattr("tunesmith.driver.bench.bench.WorkerPool", Pool)
    here = str(Target.detect().num_cores)
    with ExitStack() as stack:
        _start_systems(stack, ["openblas"], Target(f"{kind} -num-cores=1234"))
    assert [threads for _, threads in started] == [here, here] and started[1][0] == here


def test_a_system_is_checked_before_it_is_timed(tmp_path: Path) -> None:
    w = "relu(shape=5x7)"
    right, wrong = tunesmith.compile("relu(shape=5x7)"), tunesmith.compile("abs(shape=5x7)")
    child = CompiledSystem()
    good = child(("prepare", (setting(w, tmp_path, code=right.artifact.code()),)))
    assert good.offered and not good.wrong  # type: ignore[attr-defined]
    window = child.window(0.001)
    assert len(window.seconds) >= 1 and window.number > 100 and min(window.seconds) > 0
    bad = child.prepare(setting(w, tmp_path, code=wrong.artifact.code()))
    assert "elements are wrong" in bad.wrong
    baseline = BaselineSystem(create_baseline("openblas", 1))
    assert baseline.available() == ""
    assert baseline.prepare(setting(w, tmp_path)).variant.startswith("numpy")
    assert not baseline.prepare(setting("exp(shape=3)", tmp_path)).offered


class Wrong(System):
    """Omits an element of the output."""

    def ready(self, setting: Setting, data: Data) -> Any:
        out = data.reference[0].copy()
        out[-1] += 1
        return Ready("wrong", lambda: None, [out])


def test_a_wrong_baseline_is_detected(tmp_path: Path) -> None:
    assert "1 of 4 elements" in Wrong().prepare(setting("relu(shape=4)", tmp_path)).wrong


class Rounded(System):
    """Rounds the factors of a product to bfloat16, and may omit the last term."""

    def __init__(self, precision: str, omitted: int = 0) -> None:
        super().__init__()
        self.precision, self.omitted = precision, omitted

    def ready(self, setting: Setting, data: Data) -> Ready:
        a, b = [_in_bfloat16(x) for x in data.inputs]
        k = b.shape[0] - self.omitted
        return Ready("rounded", lambda: None, [a[:, :k] @ b[:k]], self.precision)


def _in_bfloat16(x: np.ndarray) -> np.ndarray:
    """The nearest numbers with 8 bits of precision, as float32."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def test_a_precision_sets_the_tolerance_and_is_reported_with_its_error(tmp_path: Path) -> None:
    case = setting("matmul(m=128,n=128,k=256)", tmp_path)
    found = Rounded("bf16").prepare(case)
    assert (found.wrong, found.precision) == ("", "bf16") and found.error is not None and 5e-4 < found.error < 5e-3
    assert "elements are wrong" in Rounded("").prepare(case).wrong  # the same result of a float32 system
    assert "elements are wrong" in Rounded("tf32").prepare(case).wrong
    assert "elements are wrong" in Rounded("bf16", omitted=1).prepare(case).wrong


class ScriptedSystem(_SystemProcess):
    """Returns windows of the given foreign load, then fails."""

    def __init__(self, name: str, foreign: Sequence[float]) -> None:
        self.name, self.missing, self.left, self.turns = name, "", list(foreign), TURNS

    def request(self, method: str, *arguments: object, timeout: float = 0.0) -> object:
        if method == "changed":
            return ""
        self.turns.append(self.name)
        if not self.left:
            raise RunError("it died")
        load = self.left.pop(0)
        return Window((1e-3 + load,), 2, load)


TURNS: list[str] = []


def play(systems: Sequence[_SystemProcess], tmp_path: Path, said: list[str] | None = None, **policy: Any) -> list[_Timing]:
    TURNS.clear()
    say = (lambda text: None) if said is None else said.append
    timings = [_Timing(s.name, [[]], [Prepared(True, "x")]) for s in systems]
    _InterleavedRun(BenchPolicy(window_s=0.001, **policy), tmp_path, say)._time(list(zip(systems, timings, strict=True)))
    return timings


def test_the_order_of_systems_rotates_each_round(tmp_path: Path) -> None:
    timings = play([ScriptedSystem(name, [0.0] * 3) for name in "abc"], tmp_path, rounds=3)
    assert TURNS == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert all(len(s.windows) == 3 for s in timings)


def test_a_disturbed_window_is_repeated_and_the_quietest_is_used(tmp_path: Path) -> None:
    (timing,) = play([ScriptedSystem("a", [0.5, 0.01, 0.9, 0.3, 0.7])], tmp_path, rounds=2)
    assert [w.foreign for w in timing.windows] == [0.01, 0.3] and len(TURNS) == 5
    (timing,) = play([ScriptedSystem("a", [0.5, 0.5])], tmp_path, rounds=2, patience_s=0.0)
    assert len(TURNS) == len(timing.windows) == 2


def test_starved_windows_are_ignored_if_there_are_others(tmp_path: Path) -> None:
    (w,) = find_entries("relu(shape=4)")
    run = _InterleavedRun(BenchPolicy(), tmp_path, lambda text: None)
    prepared = [Prepared(True, "x", "", "bf16", 2e-3), Prepared(True, "y", "", "bf16", 1e-3), Prepared(True, "x", "", "bf16", 2e-3)]
    windows = [Window((9.0,), 1, 0.0, True), Window((1.0, 3.0), 5, 0.0), Window((2.0,), 5, 0.0)]
    row = run._row(w, _Timing("a", [windows[:1], windows[1:]], prepared), None)
    assert (row.note, row.precision, row.error, row.ratio) == ("x | y", "bf16", 2e-3, None)
    assert (row.median, row.minimum, row.runs, row.clean) == (2.0, 1.0, 15, True)
    assert not run._row(w, _Timing("a", [[*windows, Window((2.0,), 5, 0.9)]], prepared), None).clean
    starved = run._row(w, _Timing("a", [windows[:1]], prepared), None)
    assert (starved.median, starved.p90, starved.clean) == (9.0, 9.0, False)


def test_a_crashed_system_is_a_row_and_the_others_continue(tmp_path: Path) -> None:
    said: list[str] = []
    dying, well = play([ScriptedSystem("a", [0.0]), ScriptedSystem("b", [0.0] * 3)], tmp_path, said, rounds=3)
    assert dying.fault == "it died" and len(well.windows) == 3 and said == ["! a failed while it was timed: it died"]
    assert TURNS.count("a") == 2


def test_windows_of_a_round_are_paired_and_disturbed_pairs_left_out(tmp_path: Path) -> None:
    run = _InterleavedRun(BenchPolicy(), tmp_path, lambda text: None)
    own = _Timing("tunesmith", [[Window((1.0,), 1, 0.0), Window((2.0,), 1, 0.0)] for _ in range(3)])
    noise = [Window((9.0,), 1, 0.5), Window((9.0,), 1, 0.0, True)]
    other = _Timing(
        "torch", [[Window((1.5,), 1, 0.0), Window((3.0,), 1, 0.0)], [Window((1.5,), 1, 0.0), noise[0]], [noise[1], Window((3.0,), 1, 0.0)]]
    )
    found = run._ratio(other, own)
    assert found is not None and found.value == pytest.approx(1.5) and found.low == found.high and found.clean == pytest.approx(4 / 6)
    assert found.verdict == "faster"
    other.starts[2][1] = noise[0]  # a start without a quiet pair: the one that lost no core is used
    found = run._ratio(other, own)
    assert found is not None and found.value > 1.5 and found.verdict == "not decided"
    other.starts[2] = [noise[1]]  # no such pair either: two starts are left, without an interval
    found = run._ratio(other, own)
    assert found is not None and found.value == pytest.approx(1.5) and found.low is None
    assert found.verdict == "not decided: in 1 of 3 starts, each pair of windows lost a core"
    assert (starved := run._ratio(_Timing("torch", [[noise[1]]]), own)) is not None and starved.value == pytest.approx(9)
    assert run._ratio(_Timing("torch", [[]]), own) is None


class Processes:
    """Counts the starts: tvm is not installed, jax fails in the second start, and openblas has not the operator."""

    def __init__(self) -> None:
        self.count = 0

    def start(self, stack: ExitStack, against: Sequence[str], target: Target) -> list[_SystemProcess]:
        self.count += 1
        return [ScriptedProcess(name, self.count) for name in ("tunesmith", *against)]


class ScriptedProcess(_SystemProcess):
    def __init__(self, name: str, start: int) -> None:
        self.name, self.start, self.missing = name, start, "not installed" if name == "tvm" else ""

    def request(self, method: str, *arguments: object, timeout: float = 0.0) -> object:
        if method == "window":
            return Window((1e-3 * self.start * (2 if self.name == "torch" else 1),), 5, 0.0)
        if method == "changed":
            return "its outputs are wrong now" if self.name == "other.py:f" else ""
        if self.name == "jax" and self.start == 2:
            raise RunError("out of memory")
        wrong = "1 of 4 elements" if self.name == "mine.py:wrong" else ""
        return Prepared(self.name != "openblas", f"variant {self.start}", wrong, "f32", 1e-7)


def test_processes_are_started_several_times(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    processes = Processes()
    said: list[str] = []
    monkeypatch.setattr("tunesmith.driver.bench.bench._start_systems", processes.start)
    policy = BenchPolicy(starts=4, rounds=1, window_s=0.01)
    report = tunesmith.bench(hand.MATMUL, log, ["torch", "openblas", "tvm", "jax"], policy=policy, say=said.append)
    assert processes.count == 4 and said.count("tvm is skipped: not installed") == 1 and report.skipped == {"tvm": "not installed"}
    rows = {r.system: r for r in report.rows}
    assert list(rows) == ["jax", "tunesmith", "torch"] and report.absent == (f"openblas has no {hand.MATMUL}",)
    assert not rows["jax"].ok and rows["jax"].note == "out of memory"
    assert f"! {hand.MATMUL}: jax is left out: out of memory" in said
    assert said[0] == "start 1 of 4" and any(re.fullmatch(r"start 3 of 4: \d+ s elapsed, about \d+ s left", text) for text in said)
    found = rows["torch"].ratio
    assert found is not None and found.value == pytest.approx(2) and found.verdict == "faster"
    assert rows["torch"].note == "variant 1 | variant 2 | variant 3 | variant 4" and rows["torch"].runs == 20


def test_a_system_that_changed_while_it_was_timed_has_failed(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    said: list[str] = []
    monkeypatch.setattr("tunesmith.driver.bench.bench._start_systems", Processes().start)
    policy = BenchPolicy(starts=3, rounds=1, window_s=0.01)
    report = tunesmith.bench(hand.MATMUL, log, ["torch", "other.py:f"], policy=policy, say=said.append)
    failed = next(r for r in report.rows if r.system == "other.py:f")
    assert not failed.ok and failed.note == "its outputs are wrong now" and failed.median is None
    assert said.count("! other.py:f is left out: its outputs are wrong now") == 1 and report.ratio(hand.MATMUL) is not None


def test_an_operator_without_a_record_is_timed_untuned(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    report = tunesmith.bench("softmax(m=3,n=5)", tmp_path / "log.jsonl", [], policy=SHORT)
    (row,) = report.rows
    assert row.ok and row.median and row.note == "untuned: no record of this workload. Tune it" and report.ok


def test_a_refused_record_is_reported(hand: ModuleType, tmp_path: Path) -> None:
    (entry,) = find_entries(hand.MATMUL)
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul(), trace=[["melt", {}, []]]))
    made = entry.with_code(entry.save(tmp_path, "w", 0), hand.TARGET, Database.from_log(log))
    assert made.code is not None and re.match("untuned: its record does not apply: .*'melt'", made.note)


def test_what_is_left_out_is_said_before_the_first_window(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    processes = Processes()
    said: list[str] = []
    monkeypatch.setattr("tunesmith.driver.bench.bench._start_systems", processes.start)
    policy = BenchPolicy(starts=4, rounds=1, window_s=0.01)
    mine = "mine.py:wrong"
    report = tunesmith.bench(hand.MATMUL, log, [mine, "openblas"], policy=policy, say=said.append)
    hint = 'A function that computes in a narrower format says so by an attribute: f.precision = "bf16"'
    why = f"wrong result (variant 1): 1 of 4 elements. {hint}"
    only = f"{hand.MATMUL} is not timed: no other system computes it, and there is nothing to compare. Name other systems in --against"
    assert said == [
        "start 1 of 4",
        f"! {hand.MATMUL}: {mine} is left out: {why}",
        f"openblas has no {hand.MATMUL}",
        only,
    ]
    assert processes.count == 1 and not report.ok and [r.note for r in report.rows] == [why] and report.absent[-1] == only
    processes.count = 0
    report = tunesmith.bench(hand.MATMUL, log, ["tvm"], policy=policy)
    assert processes.count == 1 and not report.ok and report.rows == () and "no other system computes it" in report.absent[0]


def test_the_table_reports_noise_and_failures() -> None:
    rows = (
        BenchRow("w", "tunesmith", True, 1e-5, 9e-6, 1.1e-5, 100, 3.0, "replayed record", precision="f32", error=1e-6),
        BenchRow("w", "torch", True, 2e-5, 1.9e-5, 2.2e-5, 50, 1.5, "eager", False, "f32", 3.25e-7, Ratio(2.0, 1.9, 2.1)),
        BenchRow("w", "openvino_default", True, 5e-6, 5e-6, 5e-6, 50, 6.0, "one node", True, "bf16", 2e-3, Ratio(0.5, 0.4, 0.6)),
        BenchRow.failed("w", "jax", "wrong result"),
    )
    report = BenchReport(rows, {"tvm": "not installed"}, ())
    text = str(report)
    assert not report.ok and report.ratio("w") == Ratio(2.0, 1.9, 2.1)
    for part in (
        "best baseline / ours = 2.00 [1.90, 2.10], tunesmith is faster (of f32 baselines; openvino_default computes in bf16)",
        "min and p90 are those of samples: means of calls that take 2 ms together. error:",
        "~ other processes used the machine",
        "20~",
        "bf16",
        "2.0e-03",
        "0.50 [0.40, 0.60]",
        "w: jax: wrong result",
        "skipped: tvm: not installed",
    ):
        assert part in text
    assert text.index("tunesmith") < text.index("torch")
    narrow = BenchReport(rows[:1] + rows[2:], {})
    assert narrow.ratio("w") is None and "(no baseline computes in f32; openvino_default computes in bf16)" in str(narrow)
    both = BenchReport((*rows[:3], replace(rows[2], system="mine.py:f")), {})
    assert "(of f32 baselines; openvino_default and mine.py:f compute in bf16)" in " ".join(str(both).split())
    assert "computes in" not in str(BenchReport(rows[:2], {})) and "samples" not in str(BenchReport(rows[3:], {}))
    data: Any = report.to_json()
    assert data["best"]["w"]["verdict"] == "faster" and data["skipped"] == {"tvm": "not installed"} and data["absent"] == []
    assert data["rows"][3] == {
        "workload": "w", "system": "jax", "ok": False, "note": "wrong result", "median_us": None, "min_us": None,
        "p90_us": None, "runs": 0, "gflops": None, "precision": "", "error": None, "clean": True, "ratio": None,
    }  # fmt: skip
