"""bench: contestants in processes of their own, checked before they are timed, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.bench.bench import BenchPolicy, _Contestant, _Match, _Score
from tunesmith.driver.bench.report import BenchReport, BenchRow
from tunesmith.driver.bench.worker import Contestant, OneBaseline, Ours, Setting, Window
from tunesmith.measure.baselines.registry import create_baseline
from tunesmith.measure.evaluator.correctness import save_reference, tolerance_of
from tunesmith.ops.workload import Workload, workload
from tunesmith.support.errors import RecordError, RunError, UserError

SHORT = BenchPolicy(rounds=2, window_s=0.01, patience_s=0.0)


def test_ours_and_peers_are_timed_on_the_same_inputs(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    said: list[str] = []
    report = tunesmith.bench([hand.MATMUL, "softmax(m=3,n=5)"], log, ["openblas", "tvm"], policy=SHORT, say=said.append)
    rows = {(r.workload, r.system): r for r in report.rows}
    for system in ("tunesmith", "openblas"):
        row = rows[hand.MATMUL, system]
        assert row.ok and row.minimum and row.median and row.p90 and 0 < row.minimum <= row.median <= row.p90 and row.runs >= 6
        assert row.gflops == pytest.approx(2 * 24 * 32 * 16 / row.median / 1e9)
    softmax = rows["softmax(m=3,n=5)", "tunesmith"]
    assert not softmax.ok and "no record of this workload" in softmax.note and not report.ok
    assert report.absent == ("openblas has no softmax(m=3,n=5)",)
    if "tvm" in report.skipped:
        assert any("tvm is left out" in text for text in said)
    assert report.ratio(hand.MATMUL) == pytest.approx(rows[hand.MATMUL, "openblas"].median / rows[hand.MATMUL, "tunesmith"].median)
    assert report.ratio("softmax(m=3,n=5)") is None
    entry = report.to_json()[0]
    assert list(entry) == ["workload", "system", "ok", "median_us", "min_us", "p90_us", "runs", "gflops"]
    for part in ("best peer / ours", "openblas", "replayed record", "softmax(m=3,n=5): tunesmith"):
        assert part in str(report)


def test_refusals(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    with pytest.raises(UserError, match="unknown peer 'openblass'. Did you mean 'openblas'"):
        tunesmith.bench(hand.MATMUL, log, ["openblass"])
    with pytest.raises(UserError, match="matmul is none"):
        tunesmith.bench(hand.matmul(), log)
    with pytest.raises(RecordError, match="none.jsonl"):
        tunesmith.bench(hand.MATMUL, tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="bench policy out of range"):
        BenchPolicy(rounds=0)


def setting(w: Workload, folder: Path, **changes: Any) -> Setting:
    path = folder / "reference.npz"
    save_reference(path, w.reference(w.random_inputs(0)))
    return Setting(w.text, 0, str(path), tolerance_of(w.func), **changes)


def test_a_contestant_is_checked_before_it_is_timed(tmp_path: Path) -> None:
    w = workload("relu(shape=5x7)")
    right, wrong = tunesmith.compile("relu(shape=5x7)"), tunesmith.compile("abs(shape=5x7)")
    child = Ours()
    good = child(("prepare", (setting(w, tmp_path, code=right.artifact.code()),)))
    assert good.offered and not good.wrong  # type: ignore[attr-defined]
    window = child.window(0.001)
    assert len(window.seconds) >= 1 and window.number > 100 and min(window.seconds) > 0
    bad = child.prepare(setting(w, tmp_path, code=wrong.artifact.code()))
    assert "elements are wrong" in bad.wrong
    peer = OneBaseline(create_baseline("openblas", 1))
    assert peer.available() == ""
    assert peer.prepare(setting(w, tmp_path)).variant.startswith("numpy")
    assert not peer.prepare(setting(workload("exp(shape=3)"), tmp_path)).offered


class Wrong(Contestant):
    """Forgets an element."""

    def ready(self, w: Workload, inputs: Sequence[np.ndarray], reference: Sequence[np.ndarray], setting: Setting) -> Any:
        out = reference[0].copy()
        out[-1] += 1
        return "wrong", lambda: None, [out]


def test_a_wrong_peer_is_found(tmp_path: Path) -> None:
    assert "1 of 4 elements" in Wrong().prepare(setting(workload("relu(shape=4)"), tmp_path)).wrong


class ScriptedContestant(_Contestant):
    """Answers with windows of given foreign load, then fails."""

    def __init__(self, name: str, foreign: Sequence[float]) -> None:
        self.name, self.missing, self.left, self.turns = name, "", list(foreign), TURNS

    def ask(self, method: str, *arguments: object, timeout: float = 0.0) -> object:
        self.turns.append(self.name)
        if not self.left:
            raise RunError("it died")
        load = self.left.pop(0)
        return Window((1e-3 + load,), 2, load)


TURNS: list[str] = []


def play(contestants: Sequence[_Contestant], tmp_path: Path, **policy: Any) -> list[_Score]:
    TURNS.clear()
    scores = [_Score(c, "x") for c in contestants]
    _Match(contestants, BenchPolicy(window_s=0.001, **policy), tmp_path, lambda text: None)._time(scores)
    return scores


def test_turns_go_round_and_the_first_moves_on(tmp_path: Path) -> None:
    scores = play([ScriptedContestant(name, [0.0] * 3) for name in "abc"], tmp_path, rounds=3)
    assert TURNS == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert all(len(s.windows) == 3 for s in scores)


def test_a_disturbed_window_is_taken_again_and_the_quietest_counts(tmp_path: Path) -> None:
    (score,) = play([ScriptedContestant("a", [0.5, 0.01, 0.9, 0.3, 0.7])], tmp_path, rounds=2)
    assert [w.foreign for w in score.windows] == [0.01, 0.3] and len(TURNS) == 5
    (score,) = play([ScriptedContestant("a", [0.5, 0.5])], tmp_path, rounds=2, patience_s=0.0)
    assert len(TURNS) == len(score.windows) == 2


def test_windows_without_a_good_sample_do_not_count_if_there_are_others(tmp_path: Path) -> None:
    w = workload("relu(shape=4)")
    match = _Match([], BenchPolicy(), tmp_path, lambda text: None)
    score = _Score(ScriptedContestant("a", []), "x", [Window((9.0,), 1, 0.0, True), Window((1.0, 3.0), 5, 0.0), Window((2.0,), 5, 0.0)])
    row = match._row(w, score)
    assert (row.median, row.minimum, row.runs, row.clean) == (2.0, 1.0, 15, True)
    assert not match._row(w, _Score(score.contestant, "x", [*score.windows, Window((2.0,), 5, 0.9)])).clean
    starved = match._row(w, _Score(score.contestant, "x", score.windows[:1]))
    assert (starved.median, starved.p90, starved.clean) == (9.0, 9.0, False)


def test_a_contestant_that_dies_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    dying, well = play([ScriptedContestant("a", [0.0]), ScriptedContestant("b", [0.0] * 3)], tmp_path, rounds=3)
    assert dying.fault == "it died" and len(well.windows) == 3
    assert TURNS.count("a") == 2


def test_the_table_names_noise_and_failures() -> None:
    rows = (
        BenchRow("w", "tunesmith", True, 1e-5, 9e-6, 1.1e-5, 100, 3.0, "replayed record"),
        BenchRow("w", "torch", True, 2e-5, 1.9e-5, 2.2e-5, 50, 1.5, "eager", clean=False),
        BenchRow.failed("w", "jax", "wrong result"),
    )
    report = BenchReport(rows, {"tvm": "not installed"}, ())
    text = str(report)
    assert not report.ok and report.ratio("w") == pytest.approx(2)
    for part in ("best peer / ours = 2.00", "~ others used the machine", "20~", "w: jax: wrong result", "left out: tvm: not installed"):
        assert part in text
    assert text.index("tunesmith") < text.index("torch")
    assert report.to_json()[2] == {
        "workload": "w", "system": "jax", "ok": False, "median_us": None, "min_us": None, "p90_us": None, "runs": 0, "gflops": None,
    }  # fmt: skip
