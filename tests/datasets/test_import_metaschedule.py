"""Test the import of MetaSchedule databases: records with workloads and decisions, and damaged lines."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tunesmith.datasets.import_metaschedule import RECORDS, WORKLOADS, load, parse
from tunesmith.support.errors import RecordError

INSTRUCTIONS = [
    ["GetBlock", [], ["C", "main"], ["b0"]],
    ["GetLoops", ["b0"], [], ["l1", "l2"]],
    ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
    ["Split", ["l1", "v3", "v4"], [1], ["l5", "l6"]],
    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v7"]],
    ["EnterPostproc", [], [], []],
]
DECISIONS = [[2, [8, 16]], [4, 1]]
TARGET = {"kind": "llvm", "keys": ["cpu"], "num-cores": 2}


def record(index: Any = 0, seconds: Any = (1e-3, 3e-3, 2e-3), trace: Any = None, target: Any = TARGET) -> list[Any]:
    seconds = list(seconds) if isinstance(seconds, tuple) else seconds
    return [index, [[INSTRUCTIONS, DECISIONS] if trace is None else trace, seconds, target, [["TENSOR", "float32", [128, 128]]]]]


def write(folder: Path, records: list[Any], workloads: list[Any], prefix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in ((RECORDS, records), (WORKLOADS, workloads)):
        (folder / (prefix + name)).write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return folder


MODULE = ["1234567890", base64.b64encode(b'{"root": 1}').decode()]


def test_a_database(tmp_path: Path) -> None:
    table = load(
        write(
            tmp_path,
            [record(), record(1, [1e-3]), record(0, [1e10]), record(0, None, [INSTRUCTIONS, []])],
            [MODULE, ["77", "bm90IGpzb24="]],
        )
    )
    frame = table.frame
    assert frame["workload"].tolist() == ["1234567890", "77", "1234567890", "1234567890"]
    assert frame["seconds"].tolist() == [2e-3, 1e-3, math.inf, math.inf] and frame["error"].tolist()[2:] == ["run_error"] * 2
    assert frame["decisions"][0] == (8, 16, 1) and frame["timestamp"].isna().all()
    assert json.loads(frame["target"][0]) == TARGET
    assert table.tokens(0)[2] == ("SamplePerfectTile", ("l1", "v3", "v4"), (2, 64, 8, 16))
    assert (table.report.records, table.report.workloads, table.report.bad_count) == (4, 2, 0)


def test_several_databases_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "a", [record()], [MODULE])
    write(tmp_path / "b", [record(), record(seconds=[5.0])], [["88", ""]], prefix="net_")
    table = load(tmp_path)
    assert table.frame["workload"].tolist() == ["1234567890", "88", "88"] and table.frame["file"][2] == f"b/net_{RECORDS}"
    assert len(load(tmp_path / "b", limit=1)) == 1


HOSTILE = [
    [],
    {},
    [0],
    record("0"),
    record(True),
    record(-1),
    record(5),
    record(1),  # the line of its workload is damaged
    record(seconds=[0.0]),
    record(seconds=["x"]),
    record(seconds=3),
    record(trace=[]),
    record(trace=[INSTRUCTIONS]),
    record(trace=[[["Split"]], []]),
    record(trace=[[[7, [], [], []]], []]),
    record(trace=[INSTRUCTIONS, [[99, 1]]]),
    record(trace=[INSTRUCTIONS, [[-1, 1]]]),
    record(trace=[INSTRUCTIONS, [[2, [1]], [2, [1]]]]),
    record(trace=[INSTRUCTIONS, [3]]),
    record(target="x" * 100_000),
    b"[0, [",
    b"[" * 50_000,
]


def test_invalid_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    workloads: list[Any] = [MODULE, b'["torn', ["9", ""]]
    table = load(write(tmp_path, [*HOSTILE, record(2)], workloads))
    assert table.frame["workload"].tolist() == ["9"], "a damaged line keeps its index"
    assert table.report.bad_count == len(HOSTILE) + 1
    with pytest.raises(RecordError, match="the workload index is 5, but the database has 1"):
        parse(record(5), ["a"])


def test_record_file_requires_its_workload_file(tmp_path: Path) -> None:
    write(tmp_path, [record()], [MODULE])
    assert len(load(tmp_path / RECORDS)) == 1
    with pytest.raises(RecordError, match="cannot read .*: a database consists of records in"):
        load(tmp_path / WORKLOADS)
    (tmp_path / WORKLOADS).unlink()
    with pytest.raises(RecordError, match="does not exist: a database consists of records in"):
        load(tmp_path)
