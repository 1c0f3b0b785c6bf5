"""Test merged and pruned logs: distinct measurements, independence of order, and concurrent writers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog, load
from tunesmith.measure.records.record import ErrorInfo, Record, WorkloadLine
from tunesmith.measure.records.rewrite import merge, prune
from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError, UserError

Make = Callable[..., Record]


def _write(path: Path, *lines: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_merge_keeps_each_measurement_once(tmp_path: Path, make_record: Make) -> None:
    shared = make_record(verified=False)
    newer = {"v": 2, "kind": "record", "shape": "unknown"}
    a = _write(
        tmp_path / "a", WorkloadLine("w0", "n", "s").to_json(), shared.to_json(), newer, make_record(seed=1, unknown={"new": 1}).to_json()
    )
    b = _write(
        tmp_path / "b",
        newer,
        WorkloadLine("w0", "n", "s").to_json(),
        dataclasses.replace(shared, verified=True).to_json(),
        make_record(seed=2).to_json(),
    )
    with b.open("a") as file:
        file.write("{torn")
    for order in ([a, b], [b, a], [a, b, a]):
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        report = merge(order, out)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(lines) == 5
        assert lines.count(newer) == 1
        contents = load([out])
        assert sorted((r.seed, r.verified) for r in contents.records) == [(1, True), (2, True), (7, True)]
        assert next(r for r in contents.records if r.seed == 1).unknown == {"new": 1}
        assert (report.records, report.workloads) == (3, 1)
        assert any("torn" in entry.reason and entry.path == str(b) and entry.line == 5 for entry in report.bad)
        assert any("The line was preserved" in entry.reason for entry in report.bad)
    assert not list(tmp_path.glob("*.partial*"))


def test_merge_never_replaces_a_log(tmp_path: Path, make_record: Make) -> None:
    a = _write(tmp_path / "a", make_record().to_json())
    with pytest.raises(RecordError, match="it exists. Name a new file"):
        merge([a], a)
    with pytest.raises(RecordError, match="cannot read"):
        merge([tmp_path / "b"], tmp_path / "c")
    assert not (tmp_path / "c").exists()
    empty = _write(tmp_path / "empty")
    assert merge([empty], tmp_path / "out").records == 0
    assert load([tmp_path / "out"]).records == []


def test_merge_does_not_depend_on_the_order_of_logs(tmp_path: Path, make_record: Make) -> None:
    base = make_record(seed=1)
    lines = [
        [WorkloadLine("w0", "name", "one").to_json(), base.to_json(), make_record(seed=2, timestamp=3.0).to_json()],
        [dataclasses.replace(base, error=ErrorInfo("wrong_result", "off"), verified=False).to_json(), {"v": 3, "kind": "new"}],
        [WorkloadLine("w0", "name", "two").to_json(), dataclasses.replace(base, extra={"tag": "y"}).to_json()],
        [{"v": 3, "kind": "other"}, make_record(seed=2, timestamp=2.0).to_json(), WorkloadLine("a", "x", "y").to_json()],
    ]
    paths = [_write(tmp_path / f"{i}.jsonl", *some) for i, some in enumerate(lines)]
    with paths[2].open("a") as file:
        file.write("junk\n")
    seen = set()
    for n, order in enumerate(itertools.permutations(paths)):
        report = merge(order, tmp_path / f"out{n}")
        seen.add((tmp_path / f"out{n}").read_bytes())
        assert (report.records, report.workloads, report.duplicates, report.bad_count) == (3, 2, 3, 4)
    assert len(seen) == 1
    kept = [json.loads(line) for line in seen.pop().splitlines()]
    assert [line.get("digest") for line in kept[:2]] == ["a", "w0"]
    assert [line["timestamp"] for line in kept[2:5]] == [2.0, 1000.5, 3.0]  # the order of each log is kept, regardless of timestamps
    assert kept[3]["error"]["kind"] == "wrong_result"  # the highest status rank
    assert {line["kind"] for line in kept[5:]} == {"new", "other"}


def test_lines_are_copied_byte_by_byte(tmp_path: Path, make_record: Make) -> None:
    text = json.dumps(make_record().to_json(), indent=None, separators=(" , ", " : "))
    (tmp_path / "a").write_text(f"  {text}\t\r\n")
    merge([tmp_path / "a"], tmp_path / "out")
    assert (tmp_path / "out").read_text() == text + "\n"


def test_log_rewritten_during_a_merge_is_detected(tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "a", make_record().to_json(), make_record(seed=2).to_json())
    opened = json_lines.open_journal
    calls = []

    def rewrite_before_copy(name: Path) -> object:
        calls.append(name)
        if len(calls) == 2:  # the second call is for the copy
            path.write_text("x" * path.stat().st_size)
        return opened(name)

    monkeypatch.setattr(json_lines, "open_journal", rewrite_before_copy)
    with pytest.raises(RecordError, match="cannot copy line 1 of .*: it was changed concurrently"):
        merge([path], tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("*.partial"))


@pytest.fixture
def measured(tmp_path: Path, make_record: Make) -> Path:
    """Two tasks and one without success; a best candidate with a slower second measurement, failures, an unverified record, a bad line."""
    times = {1: 5e-6, 2: 1e-6, 3: 3e-6, 4: 4e-6}
    lines: list[Record | WorkloadLine] = [WorkloadLine(w, w, f"script of {w}") for w in ("w0", "w1", "w2", "unused")]
    lines += [make_record(workload=w, row=(i,), samples=(t,), timestamp=float(i)) for w in ("w0", "w1") for i, t in times.items()]
    lines += [make_record(row=(2,), samples=(2e-6,), timestamp=50.0)]
    lines += [make_record(row=(7,), samples=(1e-9,), verified=False), make_record(row=(8,), samples=(1e-9,), timestamp=1.0)]
    failed = ErrorInfo("wrong_result", "off")
    lines += [make_record(row=(8,), samples=(), error=failed, verified=False, timestamp=2.0)]
    lines += [make_record(workload="w2", samples=(), error=ErrorInfo("crash", "died"), verified=False)]
    path = tmp_path / "log.jsonl"
    RecordLog(path).append(*lines)
    with path.open("a") as file:
        file.write('{"v": 9, "kind": "record"}\nbad\n')
    return path


def test_prune_keeps_the_best_by_status(tmp_path: Path, measured: Path) -> None:
    before = measured.read_bytes()
    report = prune(measured, tmp_path / "small.jsonl", 2)
    assert measured.read_bytes() == before
    whole, small = Database.from_log(measured), Database.from_log(tmp_path / "small.jsonl")
    target = whole.tasks()[0][1]
    for workload in ("w0", "w1"):
        assert small.top(workload, target, 5) == whole.top(workload, target, 2)
        assert small.best(workload, target) == whole.best(workload, target)
    assert [r.seconds for r in small.top("w0", target, 5)] == [2e-6, 3e-6]  # the later measurement of row 2 counts
    assert set(small.workloads()) == {"w0", "w1"}
    assert (report.kept, report.dropped, report.empty) == (5, 8, ("unused", "w2"))
    assert report.log.bad_count == 2
    assert json.loads((tmp_path / "small.jsonl").read_text().splitlines()[-1]) == {"v": 9, "kind": "record"}
    assert set((tmp_path / "small.jsonl").read_bytes().splitlines()) < set(before.splitlines())


def test_prune_in_place_only_if_requested(tmp_path: Path, measured: Path) -> None:
    best = Database.from_log(measured).best("w0", load([measured]).records[0].target)
    (tmp_path / "link").symlink_to(measured)
    assert prune(measured, tmp_path / "link", 1).kept == 3  # two of the best candidate, which was measured again
    assert (tmp_path / "link").is_symlink() and best in load([measured]).records
    assert prune(tmp_path / "link", measured, 1).dropped == 0
    assert not list(tmp_path.glob("*.partial"))


def test_errors_of_prune(tmp_path: Path, measured: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("mine\n")
    with pytest.raises(RecordError, match="cannot prune into .*other.jsonl: it exists. Name a new file, or the log itself"):
        prune(measured, other, 1)
    assert other.read_text() == "mine\n"
    with pytest.raises(UserError, match="at least 1 candidate of each workload, not 0"):
        prune(measured, measured, 0)
    with pytest.raises(RecordError, match="cannot read .*absent"):
        prune(tmp_path / "absent", tmp_path / "new", 1)
    assert not (tmp_path / "new").exists()


_APPEND = """
import dataclasses, json, sys
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.log import RecordLog
path, record = sys.argv[1], Record.from_json(json.loads(sys.argv[2]))
print("ready", flush=True)
for seed in range(20):
    RecordLog(path).append(dataclasses.replace(record, seed=seed, row=(100 + seed, 1)))
"""


def test_prune_in_place_loses_no_line_of_a_concurrent_writer(measured: Path, make_record: Make) -> None:
    record = json.dumps(make_record().to_json())
    writer = subprocess.Popen([sys.executable, "-c", _APPEND, str(measured), record], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    rounds = 0
    while writer.poll() is None or rounds < 2:
        prune(measured, measured, 1000)
        rounds += 1
    writer.stdout.close()
    assert writer.returncode == 0
    contents = load([measured])
    assert {r.seed for r in contents.records if r.row[-1:] == (1,)} == set(range(20))
    assert contents.report.bad_count == 1  # the line of a newer version


def test_records_of_changed_passes_are_pruned_on_their_own(make_record: Make, tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    changes = {"without": ["simplify"]}
    log.append(*[make_record(row=(k,), samples=(float(k),), passes=p) for k in (1, 2, 3) for p in ({}, changes)])
    prune(log.path, tmp_path / "small.jsonl", 1)
    left = Database.from_log(tmp_path / "small.jsonl")
    assert [[r.row for r in view.records()] for view in left.views()] == [[(1,)], [(1,)]]
