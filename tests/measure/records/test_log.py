"""Test the log: all written lines are loaded, regardless of other contents of the file."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tunesmith.measure.records.log import MAX_BAD_LINES, RecordLog, load
from tunesmith.measure.records.record import ErrorInfo, Record, WorkloadLine
from tunesmith.support.errors import RecordError

Make = Callable[..., Record]

HOSTILE = [
    b"not json",
    b"\xff\xfe",
    b"[]",
    b"1e999",
    b"null",
    b'{"v": 1}',
    b'{"v": 1, "kind": "record", "workload": {"__reduce__": ["os.system", "x"]}}',
    b'{"v": NaN, "kind": "record"}',
    b'{"v": 99999999999999999999999999, "kind": "record"}',
    b"[" * 200_000,
    b'{"v": ' + b"1" * 100_000 + b"}",
    b'{"v": 1, "kind": "record", "' + b"x" * 1_000_000 + b'": 1}',
]


def test_missing_log_is_empty(tmp_path: Path) -> None:
    contents = RecordLog(tmp_path / "log.jsonl").load()
    assert (contents.records, contents.workloads, contents.report.bad_count) == ([], {}, 0)


def test_append_and_load(tmp_path: Path, make_record: Make) -> None:
    log = RecordLog(tmp_path / "runs" / "log.jsonl")
    workload, first, second = WorkloadLine("w0", "matmul", "script"), make_record(seed=1), make_record(seed=2)
    log.append(workload, first)
    log.append(workload, second, sync=True)  # a resumed run writes the workload again
    contents = log.load()
    assert contents.records == [first, second]
    assert contents.workloads == {"w0": workload}
    assert str(contents.report) == "2 records, 1 workloads, 1 duplicates, 0 bad lines"


def test_append_is_atomic_if_a_line_is_invalid(tmp_path: Path, make_record: Make) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    with pytest.raises(RecordError, match="at least one sample"):
        log.append(make_record(), make_record(samples=()))
    assert log.load().records == []


def test_torn_last_line_loses_only_itself(tmp_path: Path, make_record: Make) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    records = [make_record(seed=seed) for seed in range(3)]
    log.append(*records[:2])
    data = log.path.read_bytes()
    log.path.write_bytes(data[:-10])
    assert log.load().records == records[:1]
    log.append(records[2])
    contents = log.load()
    assert contents.records == [records[0], records[2]]
    assert [entry.line for entry in contents.report.bad] == [2]


def test_hostile_lines_are_counted_by_number(tmp_path: Path, make_record: Make) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    log.append(make_record(seed=1))
    with log.path.open("ab") as file:
        file.write(b"\n".join(HOSTILE) + b"\n\n")
    log.append(make_record(seed=2))
    contents = log.load()
    assert [record.seed for record in contents.records] == [1, 2]
    assert [entry.line for entry in contents.report.bad] == list(range(2, len(HOSTILE) + 2))
    assert all(entry.reason and len(entry.reason) < 500 for entry in contents.report.bad)
    assert f"{log.path}:2: not JSON" in str(contents.report)


def test_bad_lines_are_counted_and_the_first_stored(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("x\n" * (MAX_BAD_LINES + 50))
    report = load([path]).report
    assert (report.bad_count, len(report.bad)) == (MAX_BAD_LINES + 50, MAX_BAD_LINES)
    assert str(report).endswith("... and 140 more")


def test_two_scripts_for_one_digest_are_reported(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "log.jsonl")
    log.append(WorkloadLine("w0", "matmul", "one"), WorkloadLine("w0", "matmul", "two"))
    contents = log.load()
    assert contents.workloads["w0"].script == "one"
    assert contents.report.bad[0].line == 2
    assert "workload w0 is already defined with another script" in contents.report.bad[0].reason


def test_missing_and_unreadable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read .*nowhere.jsonl"):
        load([tmp_path / "nowhere.jsonl"])
    with pytest.raises(RecordError, match="cannot read"):
        RecordLog(tmp_path).load()


def test_record_table_is_rejected_as_a_log(tmp_path: Path) -> None:
    for start, why in ((b"\x93\x81", "is not a parquet file, or damaged"), (b"PAR1", "is a record table, but a log is expected")):
        (tmp_path / "bad.parquet").write_bytes(start + bytes(range(256)))
        with pytest.raises(RecordError, match=f"bad.parquet: it {why}"):
            load([tmp_path / "bad.parquet"])


def test_highest_status_rank_of_a_measurement_counts(tmp_path: Path, make_record: Make) -> None:
    plain = make_record(verified=False)
    verified = dataclasses.replace(plain, verified=True)
    wrong = dataclasses.replace(plain, error=ErrorInfo("wrong_result", "off"))
    for order in ([plain, verified, wrong], [wrong, verified, plain], [verified, wrong, plain]):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        RecordLog(path).append(*order)
        contents = load([path])
        assert contents.records == [wrong]
        assert contents.report.duplicates == 2
    RecordLog(tmp_path / "v.jsonl").append(plain, verified)
    assert load([tmp_path / "v.jsonl"]).records == [verified]


_APPEND = """
import dataclasses, json, sys
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.log import RecordLog
path, record, first = sys.argv[1], Record.from_json(json.loads(sys.argv[2])), int(sys.argv[3])
for seed in range(first, first + 50):
    RecordLog(path).append(dataclasses.replace(record, seed=seed))
"""


def test_many_processes_append_concurrently(tmp_path: Path, make_record: Make) -> None:
    path = tmp_path / "log.jsonl"
    record = json.dumps(make_record().to_json())
    processes = [subprocess.Popen([sys.executable, "-c", _APPEND, str(path), record, str(first)]) for first in (0, 50)]
    for process in processes:
        assert process.wait(60) == 0
    contents = RecordLog(path).load()
    assert sorted(record.seed for record in contents.records) == list(range(100))
    assert contents.report.bad_count == 0


def test_load_scales_to_large_logs(tmp_path: Path, make_record: Make) -> None:
    """Load 10,000 records of typical 2 KB; the time is printed (under a second on an idle machine), not asserted."""
    step = {"kind": "split", "inputs": ["l1"], "attrs": {"factors": ["v0", "v1", "v2"]}, "outputs": ["l7", "l8", "l9"]}
    base = make_record(trace=[step] * 18).to_json()
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({**base, "seed": seed}) + "\n" for seed in range(10_000)))
    start = time.perf_counter()
    contents = load([path])
    print(f"{path.stat().st_size / 1e4:.0f} bytes a record, {time.perf_counter() - start:.2f} s")
    assert len(contents.records) == 10_000
