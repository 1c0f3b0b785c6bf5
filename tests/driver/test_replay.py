"""Replay checks the program, record and output of every entry of a log."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tunesmith
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_context import PassContext
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import WorkloadLine
from tunesmith.ops.workload import workload
from tunesmith.runtime.timing import TimingPolicy
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import RecordError, UserError

REPLAY = importlib.import_module("tunesmith.driver.replay")


def test_a_valid_log_replays_to_the_compiled_program(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    report = tunesmith.replay(log)
    s = Schedule(hand.matmul())
    hand.tiled(s)
    digest = structural.digest(hand.matmul())
    assert report.ok
    assert report.to_json() == [
        {"workload": hand.MATMUL, "digest": digest, "ok": True, "ir_digest": structural.digest(s.func), "median_us": None}
    ]
    assert hand.MATMUL in str(report) and "10" in str(report) and "now us" not in str(report)
    noisy = hand.write_log(tmp_path / "noisy.jsonl", hand.record_of(hand.matmul(), clean=False))
    assert "10~" in str(tunesmith.replay(noisy)) and "(~ other processes used the machine)" in str(tunesmith.replay(noisy))


def test_outputs_are_compared_and_times_taken(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REPLAY, "_TIMING", TimingPolicy(repeats=2, window_s=0.01, quiet_fraction=float("inf")))
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    nameless = workload("exp(shape=40)").func
    hand.write_log(log, hand.record_of(nameless, lambda s: s.vectorize(s.get_loops(s.get_block("Y"))[0])), name="mine", func=nameless)
    report = tunesmith.replay(log, verify=True, time=True)
    assert report.ok, report
    assert [row.workload for row in report.rows] == [hand.MATMUL, "mine"]
    assert all(row.median is not None and row.median > 0 for row in report.rows) and "now us" in str(report)
    once = tunesmith.replay(log, verify=True)
    assert once.ok and [row.median for row in once.rows] == [None, None]


def test_a_wrong_output_is_detected(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()))
    wrong = workload("matmul(m=24,n=32,k=16)").func
    monkeypatch.setattr(REPLAY, "apply_record", lambda record, func: _doubled(wrong))
    (row,) = tunesmith.replay(log, verify=True).rows
    assert not row.ok and "wrong_result" in row.note


def _doubled(func: PrimFunc) -> PrimFunc:
    """A program with the same parameters that computes twice the result."""
    found = parse(script(func).replace("* B[v_k, v_j]", "* B[v_k, v_j] * T.float32(2.0)"))
    assert isinstance(found, PrimFunc)
    return found


def test_invalid_entries_are_reported(hand: ModuleType, tmp_path: Path) -> None:
    func, other = hand.matmul(), workload("relu(shape=8)").func
    log = tmp_path / "log.jsonl"
    stale = hand.record_of(func, trace=[["melt", {}, []]])
    unverified = hand.record_of(other, lambda s: None, verified=False)
    unknown = hand.record_of(func, workload="f" * 32)
    RecordLog(log).append(
        WorkloadLine(structural.digest(func), "stale", script(func)),
        WorkloadLine(structural.digest(other), "unverified", script(other)),
        stale,
        unverified,
        unknown,
    )
    wrong_text = hand.record_of(func, workload="e" * 32)
    RecordLog(log).append(WorkloadLine("e" * 32, "another program", script(func)), wrong_text)
    report = tunesmith.replay(log, verify=True)
    notes = {row.workload: row.note for row in report.rows}
    assert not report.ok and not any(row.ok for row in report.rows)
    assert "melt" in notes["stale"]
    assert "it has no verified record" in notes["unverified"]
    assert "no line with its program" in notes["f" * 32]
    assert "has the digest" in notes["another program"]
    assert all(entry["median_us"] is None and entry["ir_digest"] is None for entry in report.to_json())


def test_a_record_for_another_machine_is_replayed_but_cannot_be_run(hand: ModuleType) -> None:
    aarch64 = Target("llvm -mcpu=neoverse-n1 -num-cores=2 -mtriple=aarch64-linux-gnu")
    func = hand.matmul()
    line = WorkloadLine(structural.digest(func), hand.MATMUL, script(func))
    database = Database([hand.record_of(func, target=aarch64)], [line])
    assert tunesmith.replay(database).ok
    (row,) = tunesmith.replay(database, verify=True).rows
    assert not row.ok and "cannot run here" in row.note


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="none.jsonl"):
        tunesmith.replay(tmp_path / "none.jsonl")


@pytest.mark.parametrize("bad", [None, 3, b"a.jsonl", "a\0", "\ud800", ["a\0"], [3]])
def test_invalid_logs_are_refused(bad: Any) -> None:
    refused = (lambda: tunesmith.replay(bad), lambda: Database.from_log(bad), lambda: tunesmith.load_module(bad))
    for call in refused if bad is not None else (*refused, lambda: Schedule(bad), lambda: Database(bad), lambda: Database((), bad)):
        with pytest.raises(UserError):
            call()
    if bad is not None:
        with pytest.raises(RecordError):
            tunesmith.compile("relu(shape=4)", records=bad)


def test_several_logs(hand: ModuleType, tmp_path: Path) -> None:
    slow = hand.record_of(hand.matmul(), lambda s: hand.tiled(s, 8), seconds=1.0)
    one = hand.write_log(tmp_path / "a.jsonl", slow)
    two = hand.write_log(tmp_path / "b.jsonl", hand.record_of(hand.matmul()))
    for logs in ([one, two], (two, one)):
        made = tunesmith.compile(hand.MATMUL, hand.TARGET, records=logs)
        assert [c.status for c in made.coverage] == ["used"] and made.artifact.data == tunesmith.compile(
            hand.MATMUL, hand.TARGET, two
        ).artifact.data
        assert tunesmith.replay(logs).rows[0].recorded == 1e-5


def test_records_of_changed_passes_are_compiled_with_them(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    build = REPLAY.build

    def noted(func: Any, target: Target, **keywords: Any) -> Any:
        seen.append(sorted(PassContext.current().disabled))
        return build(func, target, **keywords)

    monkeypatch.setattr(REPLAY, "build", noted)
    func = hand.matmul()
    changed = [hand.record_of(func, passes={"without": [name]}) for name in ("version_loops", "gone_since")]
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(func), *changed)
    with PassContext(disabled=["simplify"]):
        report = tunesmith.replay(log, verify=True)
    assert seen == [[], ["version_loops"]] and [r.ok for r in report.rows] == [True, True, False]
    assert report.rows[1].target.endswith(', with changed passes {"without":["version_loops"]}')
    assert "there is no pass 'gone_since'" in report.rows[2].note
