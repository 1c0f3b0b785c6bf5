"""`tunesmith log`: faults by line, counts, and the exit status."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from tunesmith.cli.main import main
from tunesmith.driver.logs import log_tools
from tunesmith.driver.logs.log_tools import stats, verify
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, WorkloadLine
from tunesmith.measure.records.run_manifest import manifest_path, write_manifest
from tunesmith.support.errors import RecordError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, arguments)])


@pytest.fixture
def log(hand: ModuleType, tmp_path: Path) -> Path:
    """A valid log: a program and three records, two of one sketch, including a failed one whose row does not match."""
    first = hand.record_of(hand.matmul(), sketch="tile", row=(16,), extra={"build_s": 0.5, "run_s": 0.25})
    second = hand.record_of(hand.matmul(), seconds=2e-5, verified=False, timestamp=1003.0, extra={"build_s": 0.5, "run_s": "?"})
    died = dataclasses.replace(first, samples=(), error=ErrorInfo("crash", "died"), verified=False, row=(3,), timestamp=1001.0)
    path: Path = hand.write_log(tmp_path / "log.jsonl", first, died, second)
    return path


def test_a_valid_log(log: Path, tmp_path: Path) -> None:
    verdict = verify(log)
    assert verdict.ok and (verdict.records, verdict.workloads, verdict.duplicates) == (3, 1, 0)
    assert "no fault" in str(verdict)
    result = run("verify", log, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out.json").read_text())["ok"] is True


def test_every_kind_of_fault_is_reported_by_line(hand: ModuleType, log: Path) -> None:
    record = hand.record_of(hand.matmul())
    with log.open("a") as file:
        for line in ("junk", '{"v": 1, "kind": "record"}', '{"v": 7, "kind": "record"}', "[" * 500):
            file.write(line + "\n")
    digest = record.workload
    RecordLog(log).append(
        WorkloadLine("other", "n", "not a program"),  # 9
        WorkloadLine("deadbeef", "n", RecordLog(log).load().workloads[digest].script),  # 10
        WorkloadLine(digest, "n", "another"),  # 11
        dataclasses.replace(record, workload="nowhere"),  # 12
        dataclasses.replace(record, target={"kind": "abacus"}),  # 13
        dataclasses.replace(record, trace=[["split"]]),  # 14
        dataclasses.replace(record, trace=[["melt", {}, []]]),  # 15
        dataclasses.replace(record, sketch="tile", row=(8,)),  # 16
        dataclasses.replace(record, sketch="tile", trace=[["sample_tile", {}, ["v0"]]], row=(8,)),  # 17
        record,  # 18
        record,  # 19
    )
    verdict = verify(log)
    named = [(f.line, f.kind) for f in verdict.faults]
    assert named == [
        *[(line, "line") for line in (5, 6, 7, 8)],
        (9, "digest"),
        (10, "digest"),
        (11, "conflict"),
        (11, "digest"),
        (12, "workload"),
        (13, "target"),
        (14, "trace"),
        (15, "trace"),
        (16, "row"),
        (17, "row"),
    ]
    reasons = {(f.line, f.kind): f.reason for f in verdict.faults}
    assert "not JSON" in reasons[5, "line"] and "`workload` is missing" in reasons[6, "line"] and "version 7" in reasons[7, "line"]
    assert "is not a program" in reasons[9, "digest"] and f"has the digest {digest}" in reasons[10, "digest"]
    assert "before with another script" in reasons[11, "conflict"] and "no line with the program nowhere" in reasons[12, "workload"]
    assert "abacus" in reasons[13, "target"] and "'melt'" in reasons[15, "trace"]
    assert reasons[16, "row"] == "the trace decides [16], the row is [8]" and "no decisions" in reasons[17, "row"]
    assert verdict.counts == {"line": 4, "digest": 3, "conflict": 1, "workload": 1, "target": 1, "trace": 2, "row": 2}
    assert verdict.duplicates == 2  # lines 11 and 19; 16 and 17 differ in the trace
    result = run("verify", log)
    assert result.exit_code == 1 and f"{log}:16: row: the trace decides" in result.stdout.replace("\n", " ").replace("  ", " ")


def test_faults_are_all_counted_and_the_first_shown(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tools, "MAX_FAULTS", 3)
    with log.open("a") as file:
        file.write("x\x1b[31m\n" * 10)
    verdict = verify(log)
    assert verdict.counts == {"line": 10} and len(verdict.faults) == 3
    assert str(verdict).endswith("... and 7 more") and "\x1b" not in str(verdict)


def test_a_missing_log(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        verify(tmp_path / "absent")
    for command in (["verify"], ["stats"], ["prune", "-o", "x"], ["merge", "-o", tmp_path / "x"]):
        result = run(*command, tmp_path / "absent")
        assert result.exit_code == 2 and "cannot read" in result.stderr, result.output


def test_stats(hand: ModuleType, log: Path) -> None:
    write_manifest(manifest_path(log), seed=3, ended=None)
    with log.open("a") as file:
        file.write("junk\n")
    found = stats([log])
    (task,) = found.data["tasks"]
    assert (task["workload"], task["trials"], task["records"], task["errors"]) == (hand.MATMUL, 3, 3, {"crash": 1})
    assert task["best_us"] == pytest.approx(10.0) and task["sketch"] == "tile"
    assert task["curve"] == pytest.approx([10.0, 10.0, 10.0])
    assert task["sketches"] == {
        "": {"trials": 1, "fastest_us": pytest.approx(20.0), "fastest_clean": True, "errors": {}},
        "tile": {"trials": 2, "fastest_us": pytest.approx(10.0), "fastest_clean": True, "errors": {"crash": 1}},
    }
    assert task["seconds"] == {"build": 1.5, "run": 0.5, "span": 3.0}
    assert (found.data["records"], found.data["bad_lines"]) == (3, 1)
    assert found.data["runs"][0]["seed"] == 3 and found.data["runs"][0]["ended"] is None
    for part in (hand.MATMUL, "crash 1", "Sketches", "Runs", "1 bad lines"):
        assert part in str(found)
    result = run("stats", log, log, "--json", "-")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["tasks"][0]["trials"] == 3 and data["duplicates"] == 4  # passed twice, counted once


def test_second_records_of_leaders_are_not_trials(hand: ModuleType, tmp_path: Path) -> None:
    first = hand.record_of(hand.matmul(), sketch="tile", row=(16,), seconds=1e-6)
    log = hand.write_log(tmp_path / "l", first, dataclasses.replace(first, samples=(3e-6,), timestamp=2000.0))
    (task,) = stats([log]).data["tasks"]
    assert (task["trials"], task["records"]) == (1, 2)
    assert task["best_us"] == pytest.approx(3.0) and task["curve"] == [pytest.approx(1.0)]


def test_prune_and_merge(hand: ModuleType, log: Path, tmp_path: Path) -> None:
    small, both = tmp_path / "small.jsonl", tmp_path / "both.jsonl"
    pruned = run("prune", log, "--keep", 1, "-o", small, "--json", "-")
    assert pruned.exit_code == 0, pruned.output
    assert (json.loads(pruned.stdout)["kept"], json.loads(pruned.stdout)["dropped"]) == (1, 2)
    assert "1 records kept, 2 dropped" in pruned.stderr
    assert run("verify", small).exit_code == 0
    failed = hand.write_log(tmp_path / "f.jsonl", hand.record_of(hand.matmul(), samples=(), error=ErrorInfo("crash", ""), verified=False))
    empty = run("prune", failed, "-o", failed)
    assert empty.exit_code == 0 and "has no verified record" in empty.stdout
    merged = run("merge", small, log, "-o", both, "--json", tmp_path / "m.json")
    assert merged.exit_code == 0 and json.loads((tmp_path / "m.json").read_text())["records"] == 3
    assert "3 records, 1 workloads, 2 duplicates" in merged.stdout
    again = run("merge", small, "-o", both)
    assert again.exit_code == 2 and "it exists" in again.stderr
    for wrong in (["prune", log, "--keep", 0, "-o", small], ["prune", log, "-o", both], ["merge", "-o", both], ["prune", log]):
        assert run(*wrong).exit_code == 2


@pytest.mark.parametrize("seconds", [10**400, 1.7e308, -(10**400), True, float("1e12")])
def test_out_of_range_times_do_not_stop_the_counting(hand: ModuleType, tmp_path: Path, seconds: float) -> None:
    record = hand.record_of(hand.matmul(), extra={"build_s": 0.5})
    lines = [record.to_json(), *[dataclasses.replace(record, timestamp=2000.0 + k).to_json() for k in range(2)]]
    for line in lines[1:]:
        line["extra"] = {"build_s": seconds}
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (task,) = stats([log]).data["tasks"]
    assert task["records"] == 3 and 0.5 <= task["seconds"]["build"] <= 0.5 + 2e12


def test_times_that_other_load_disturbed_are_marked(hand: ModuleType, tmp_path: Path) -> None:
    func = hand.matmul()
    path = hand.write_log(tmp_path / "noisy.jsonl", hand.record_of(func, seconds=3e-5, clean=False))
    text = str(stats([path]))
    assert text.count("30~") == 2 and "(~ other processes used the machine)" in text
    RecordLog(path).append(hand.record_of(func, seconds=4e-5, timestamp=2000.0))
    found = stats([path])
    assert found.data["tasks"][0]["best_clean"] and found.data["tasks"][0]["noisy"] == 1 and "40~" not in str(found)
