"""Test the import of Ansor logs: valid lines are read, all others are counted."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tunesmith.datasets.foreign_table import ForeignTable
from tunesmith.datasets.import_ansor import ERRORS, load, parse
from tunesmith.datasets.record_table import RecordTable
from tunesmith.support.errors import RecordError, UserError

STEPS = [
    ["CHW", 2, "local"],
    ["SP", 2, 0, 128, [1, 16, 8], 1],
    ["SP", 2, 4, 64, [None, 2], 1],
    ["FSP", 3, 0, 1, 2],
    ["RE", 2, [0, 4, 1, 5]],
    ["CA", 2, 3, 3],
    ["FU", 3, [0, 1]],
    ["AN", 3, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$64"],
]
LINE: dict[str, Any] = {
    "i": [['["gemm", 128, 64, 32]', "llvm -keys=cpu -mcpu=core-avx2", [4, 32, 64, 0, 0, 0, 0, 0], "", 1, []], [[], STEPS]],
    "r": [[0.004, 0.001, 0.003], 0, 0.25, 1700000000],
    "v": "v0.6",
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(LINE), **changes}


def write(path: Path, *lines: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


def test_a_record() -> None:
    r = parse(LINE)
    assert (r.workload, r.target) == ('["gemm", 128, 64, 32]', "llvm -keys=cpu -mcpu=core-avx2")
    assert (r.seconds, r.samples, r.error, r.timestamp) == (0.003, (0.004, 0.001, 0.003), None, 1.7e9)
    assert json.loads(r.steps) == STEPS and json.loads(r.hardware) == [4, 32, 64, 0, 0, 0, 0, 0]
    assert r.decisions == (1, 16, 8, 2, 3, 3, 3, 64)


@pytest.mark.parametrize("number", sorted(ERRORS))
def test_failures_have_error_kinds_and_no_time(number: int) -> None:
    r = parse(changed(r=[[1e10], number, 1.0, 5]))
    assert (r.error, r.error_message) == ERRORS[number] and r.seconds == math.inf and r.samples == ()


def test_a_table_of_a_log(tmp_path: Path) -> None:
    failed = changed(r=[[1e10], 7, 1.0, 5])
    log = write(tmp_path / "log.json", LINE, b"# a comment", LINE, failed, changed(r=[[0.5], 0, 1.0, 6]))
    table = load(log)
    frame = table.frame
    assert frame["seconds"].tolist() == [0.003, math.inf, 0.5] and frame["line"].tolist() == [1, 4, 5]
    assert set(frame["file"]) == {"log.json"} and set(frame["source"]) == {"ansor"}
    r = table.report
    assert (r.records, r.workloads, r.duplicates, r.bad_count) == (3, 1, 1, 0)
    assert table.counts()[["records", "failed", "timeout"]].values.tolist() == [[3, 1, 1]]
    assert table.tokens(0)[1] == ("SP", (), (2, 0, 128, 1, 16, 8, 1))
    assert table.tokens(0)[-1] == ("PR", ("auto_unroll_max_step$64",), (2, 0))
    assert len(load([log, log])) == 3 == len(load(tmp_path))
    assert len(load(log, limit=2)) == 1, "a copy counts towards the limit, but is stored once"
    with pytest.raises(UserError, match="limit must be at least 1 record per task"):
        load(log, limit=0)


def test_table_file_round_trip(tmp_path: Path) -> None:
    table = load(write(tmp_path / "log.json", LINE, changed(r=[[1e10], 7, 1.0, 5])))
    table.save(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(ForeignTable.load(tmp_path / "t.parquet").frame, table.frame)
    with pytest.raises(RecordError, match="a table of 'foreign records', but a table of 'records' is expected"):
        RecordTable.load(tmp_path / "t.parquet")
    RecordTable.from_records([]).save(tmp_path / "r.parquet")
    with pytest.raises(RecordError, match="a table of 'foreign records' is expected"):
        ForeignTable.load(tmp_path / "r.parquet")


def test_empty_log(tmp_path: Path) -> None:
    table = load(write(tmp_path / "log.json"))
    table.save(tmp_path / "t.parquet")
    assert len(ForeignTable.load(tmp_path / "t.parquet")) == 0 == len(table.counts())


HOSTILE = [
    [],
    None,
    "text",
    {"i": 1},
    changed(v="v1.0"),
    changed(v=6),
    changed(i=[]),
    changed(i=[["key"], [[], []]]),
    changed(i=[[{"__reduce__": ["os.system", "x"]}, "llvm"], [[], []]]),
    changed(i=[["x" * 100_000, "llvm"], [[], []]]),
    changed(i=[["k", "llvm"], [[]]]),
    changed(i=[["k", "llvm"], [[], [7]]]),
    changed(i=[["k", "llvm"], [[], [[7]]]]),
    changed(i=[["k", "llvm"], [[], [[]]]]),
    changed(i=[["k", "llvm"], [[], {}]]),
    changed(r=[]),
    changed(r=[[0.1], 0, 0.1]),
    changed(r=[[], 0, 0.1, 1]),
    changed(r=[[0.0], 0, 0.1, 1]),
    changed(r=[[-1.0], 0, 0.1, 1]),
    changed(r=[["0.1"], 0, 0.1, 1]),
    changed(r=[[True], 0, 0.1, 1]),
    changed(r=[[10**400], 0, 0.1, 1]),
    changed(r=[[1e10], 0, 0.1, 1]),
    changed(r=[[0.1], 99, 0.1, 1]),
    changed(r=[[0.1], False, 0.1, 1]),
    changed(r=[[0.1], 0, 0.1, "now"]),
    changed(r=[[0.1], 0, 0.1, -5]),
    changed(r=[[0.1], 0, 0.1, 10**400]),
    b"not json",
    b"\xff\xfe",
    json.dumps(LINE).encode()[:100],
    b"[" * 50_000,
    b'{"i": NaN}',
]


def test_invalid_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    table = load(write(tmp_path / "log.json", *HOSTILE, LINE))
    assert len(table) == 1 and table.report.bad_count == len(HOSTILE)
    assert all(len(entry.reason) < 500 for entry in table.report.bad)
    for line in HOSTILE:
        if not isinstance(line, bytes):
            with pytest.raises(RecordError):
                parse(line)


def test_unusual_steps_are_stored_as_data() -> None:
    r = parse(changed(i=[["k", "llvm"], [[], [["SP"], ["PR", 1, 2, "x$99999999999"], ["AN", 0, 0, 2**70], ["NEW", {"a": [1.5, "b"]}]]]]))
    assert r.decisions == () and len(json.loads(r.steps)) == 4


def test_missing_paths_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not exist"):
        load(tmp_path / "none.json")
    with pytest.raises(RecordError, match="contains no file \\*.json\\*"):
        load(tmp_path)
