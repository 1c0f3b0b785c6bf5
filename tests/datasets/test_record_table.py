"""Test record tables: round trips, rejection of damaged and newer files, and merging."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tunesmith.datasets import parquet_file
from tunesmith.datasets.record_columns import SCHEMA, gave_up
from tunesmith.datasets.record_table import KIND, VERSION, RecordTable, load_any, merge
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, Record, WorkloadLine
from tunesmith.measure.records.trace_template import template
from tunesmith.support.errors import RecordError, UserError

Make = Callable[..., Record]

ODD = {
    "seed": 2**64 - 1,
    "extra": {"deep": [{"x": [1, 2.5, None, True, "ü"]}]},
    "unknown": {"later": [1, 2]},
    "sketch": "",
    "row": (2**62, -1),
    "clean": False,
}


def test_records_round_trip(make_record: Make, tmp_path: Path) -> None:
    records = [
        make_record(),
        make_record(**ODD),
        make_record(seed=-(2**63), samples=(), error=ErrorInfo("timeout", "too ü slow"), verified=False),
        make_record(samples=(1e-3,), error=ErrorInfo("wrong_result", ""), verified=False, row=(), trace=[]),
    ]
    table = RecordTable.from_records(records, [WorkloadLine("w0", "matmul(m=8)", "the script\n")])
    assert table.records() == records
    table.notes = {"why": "a test"}
    table.save(tmp_path / "deep" / "t.parquet")
    loaded = RecordTable.load(tmp_path / "deep" / "t.parquet")
    assert loaded.records() == records
    assert [r.to_json() for r in loaded.records()] == [r.to_json() for r in records]
    pd.testing.assert_frame_equal(loaded.frame, table.frame)
    assert (loaded.workloads, loaded.targets, loaded.sketches) == (table.workloads, table.targets, table.sketches)
    assert loaded.workloads["w0"] == ("matmul(m=8)", "the script\n") and loaded.notes == {"why": "a test"}
    assert loaded.lines() == [WorkloadLine("w0", "matmul(m=8)", "the script\n")]
    assert loaded.identities == [r.identity for r in records]


def test_the_columns(make_record: Make) -> None:
    failed = make_record(samples=(1e-9,), error=ErrorInfo("crash", "SIGSEGV"), verified=False, workload="w1", row=(8,))
    table = RecordTable.from_records([make_record(), failed], [WorkloadLine("w0", "matmul(m=8)", "s")])
    frame = table.frame
    assert frame["seconds"].tolist() == [2e-6, math.inf]
    assert frame["name"].tolist() == ["matmul(m=8)", "w1"], "a workload without a program is named by its digest"
    assert frame["row"].tolist() == [(4,), (8,)] and type(frame["row"][0][0]) is int
    assert frame["error"].isna().tolist() == [True, False] and frame["error"][1] == "crash"
    assert json.loads(frame["trace"][1])[1][3] == [8]
    assert table.sketches["w1", "tile"][1] == ["sample_tile", {"loop": {"rv": "l0"}, "n": 2}, ["v0"]]
    assert set(table.workloads) == {"w0"} and set(frame["target"]) == set(table.targets)


def test_target_facts_are_stored(make_record: Make, tmp_path: Path) -> None:
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    table = RecordTable.from_records([make_record()], targets=[target])
    assert table.frame["target"][0] == target.key
    assert Target.from_json(table.targets[target.key]) == target and "l1_bytes" in table.targets[target.key]
    plain = RecordTable.from_records([make_record()])
    assert "l1_bytes" not in plain.targets[target.key]
    assert "l1_bytes" in merge([plain, table]).targets[target.key], "the entry with more facts is kept"


def test_empty_table(tmp_path: Path) -> None:
    RecordTable.from_records([]).save(tmp_path / "t.parquet")
    empty = RecordTable.load(tmp_path / "t.parquet")
    assert len(empty) == 0 and empty.records() == [] and len(empty.counts()) == 0 and len(empty.representatives()) == 0


def test_from_log_reports_bad_lines(make_record: Make, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    RecordLog(log).append(WorkloadLine("w0", "matmul(m=8)", "s"), make_record(), make_record())
    with open(log, "ab") as file:
        file.write(b'{"v": 1, "kind": "record"\n')
    table = RecordTable.from_log(log)
    assert (len(table), table.report.duplicates, table.report.bad_count) == (1, 1, 1)
    assert len(RecordTable.from_log([log, log])) == 1
    with pytest.raises(RecordError, match="cannot read"):
        RecordTable.from_log(tmp_path / "none")


def test_load_any_accepts_tables_and_logs(table: RecordTable, make_record: Make, tmp_path: Path) -> None:
    RecordLog(tmp_path / "a").append(make_record())
    table.save(tmp_path / "b")
    assert len(load_any(tmp_path / "a")) == 1 and len(load_any(tmp_path / "b")) == len(table)
    with pytest.raises(RecordError, match="Check the path"):
        load_any(tmp_path / "c")


def test_merge_drops_copies_and_keeps_the_highest_status_rank(table: RecordTable, make_record: Make) -> None:
    first, other = make_record(), make_record(timestamp=3.0)
    amended = dataclasses.replace(first, error=ErrorInfo("wrong_result", "y is off"), verified=False)
    a, b = RecordTable.from_records([first, other]), RecordTable.from_records([amended, other])
    for order in ([a, b], [b, a]):
        merged = merge(order)
        assert len(merged) == 2 and sorted(merged.frame["error"].fillna("")) == ["", "wrong_result"]
    assert merge([table, table]).records() == table.records()
    assert merge([table]).workloads == table.workloads
    with pytest.raises(UserError, match="nothing to merge"):
        merge([])


def test_merge_shares_programs_between_tables(make_record: Make) -> None:
    nameless = RecordTable.from_records([make_record()])
    named = RecordTable.from_records([make_record(timestamp=5.0)], [WorkloadLine("w0", "matmul(m=8)", "s")])
    merged = merge([nameless, named])
    assert set(merged.frame["name"]) == {"matmul(m=8)"} and merged.workloads["w0"].script == "s"


def test_standing_keeps_one_measurement_per_candidate(make_record: Make) -> None:
    records = [
        make_record(row=(1,), timestamp=1.0),
        make_record(row=(1,), timestamp=2.0, clean=False),  # later, but noisy
        make_record(row=(2,), timestamp=1.0),
        make_record(row=(2,), timestamp=2.0),  # later
        make_record(row=(3,), timestamp=1.0, samples=(), error=ErrorInfo("timeout", ""), verified=False),
        make_record(row=(3,), timestamp=2.0, samples=(), error=ErrorInfo("crash", ""), verified=False),
        make_record(row=(4,), timestamp=1.0, verified=False),
        make_record(row=(4,), timestamp=2.0, samples=(), error=ErrorInfo("timeout", ""), verified=False),
    ]
    assert RecordTable.from_records(records).representatives().records() == [
        records[i] for i in (0, 3, 5, 7)
    ]  # a noisy time that agrees replaces nothing


def test_counts(table: RecordTable) -> None:
    counts = table.counts()
    assert len(counts) == 6 and counts["records"].tolist() == [12] * 6 and counts["candidates"].tolist() == [11] * 6
    assert counts["crash"].tolist() == counts["failed"].tolist() == [1] * 6 and "timeout" not in counts.columns
    assert counts["best_us"].tolist() == pytest.approx([1.0] * 6) and counts["median_us"].tolist() == pytest.approx([5.0] * 6)


def test_take_keeps_required_metadata(table: RecordTable) -> None:
    part = table.take(table.frame["workload"] == "w1")
    assert set(part.workloads) == {"w1"} and set(part.sketches) == {("w1", "tile")} and len(part.targets) == 2
    assert part.frame.index.tolist() == list(range(24))
    assert len(table.take([])) == 0 and len(table.take([5])) == 1


def test_times_of_abandoned_races_are_marked(make_record: Make) -> None:
    race = {"kind": "race", "give_up": 1.5, "repeats": 5}
    assert gave_up(make_record(policy=race))
    assert not gave_up(make_record(policy={**race, "give_up": None}))
    assert not gave_up(make_record(policy={**race, "repeats": 3}))
    assert not gave_up(make_record(policy={**race, "kind": "interleaved"}))
    assert not gave_up(make_record(policy=race, samples=(), error=ErrorInfo("crash", ""), verified=False))
    assert RecordTable.from_records([make_record(policy=race)]).frame["censored"].tolist() == [True]


def test_a_template_has_no_decisions() -> None:
    steps = [["sample_tile", {}, ["v0"], [4]], ["split", {"factors": [4]}, ["l1"]]]
    assert template(steps) == [["sample_tile", {}, ["v0"]], ["split", {"factors": [4]}, ["l1"]]]


def test_feature_columns_round_trip(table: RecordTable, tmp_path: Path) -> None:
    frame = table.frame.assign(**{"feature.flops": np.arange(len(table), dtype=np.float32)})
    with_features = RecordTable(frame, table.workloads, table.targets, table.sketches)
    with_features.save(tmp_path / "t.parquet")
    loaded = RecordTable.load(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(loaded.frame, frame)
    assert "feature.flops" in merge([loaded, loaded]).frame and "feature.flops" not in merge([loaded, table]).frame


def test_damaged_files_are_rejected(table: RecordTable, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    table.save(good)
    data = good.read_bytes()
    for broken in (b"", b"PAR1", b"no parquet at all", data[: len(data) // 2], data[:-9], data[200:], data[:4] + bytes(60) + data[64:]):
        bad.write_bytes(broken)
        with pytest.raises(RecordError, match="bad.parquet"):
            RecordTable.load(bad)
    with pytest.raises(RecordError, match="does not exist"):
        RecordTable.load(tmp_path / "none.parquet")
    with pytest.raises(RecordError, match="does not exist"):
        RecordTable.load(tmp_path)
    step = max(1, len(data) // 60)
    for at in range(0, len(data), step):  # a flipped byte is detected or harmless
        bad.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            RecordTable.load(bad).records()
        except RecordError:
            continue


def rewritten(table: RecordTable, path: Path, metadata: object = None, columns: object = None) -> Path:
    """The table's file with other metadata or columns."""
    table.save(path)
    arrow = pq.read_table(path)
    text = arrow.schema.metadata[b"tunesmith"] if metadata is None else metadata
    arrow = arrow if columns is None else columns(arrow)  # type: ignore[operator]
    pq.write_table(arrow.replace_schema_metadata({b"tunesmith": text} if text else {}), path)
    return path


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"", "not written by tunesmith"),
        (b"{", "its metadata is damaged"),
        (b"[1]", "not a JSON object"),
        (b"[" * 200_000, "damaged"),
        (b'{"kind": "foreign records", "v": 1}', "a table of 'foreign records', but a table of 'records' is expected"),
        (b'{"kind": "records", "v": 2}', "is of version 2, but tables of records are supported up to version 1. Upgrade tunesmith"),
        (b'{"kind": "records", "v": "1"}', "its version is '1'"),
        (b'{"kind": "records", "v": 1}', "its metadata is damaged"),
        (b'{"kind": "records", "v": 1, "workloads": {"../x": ["n", "s"]}, "targets": {}, "sketches": []}', "digest"),
        (b'{"kind": "records", "v": 1, "workloads": {}, "targets": {}, "sketches": []}', "its metadata lacks the target"),
        (b'{"kind": "records", "v": 1, "workloads": {}, "targets": {"t": 3}, "sketches": []}', "its metadata is damaged"),
        (b'{"kind": "records", "v": 1, "workloads": {}, "targets": {"t": {}}, "sketches": []}', "the key 't' of a target is not the JSON"),
        (b'{"kind": "records", "v": 1, "workloads": {}, "targets": {"{ }": {}}, "sketches": []}', "key '{ }' of a target is not the JSON"),
    ],
)
def test_invalid_metadata_is_rejected(table: RecordTable, tmp_path: Path, metadata: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        RecordTable.load(rewritten(table, tmp_path / "t.parquet", metadata))


def without(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.drop_columns([name])


def replaced(name: str, values: object, kind: object = None) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.schema.get_field_index(name), name, pa.array(values, kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (without("seconds"), "0 columns named 'seconds'"),
        (replaced("seconds", [None]), "1 null cells"),
        (replaced("seconds", ["fast"]), "is string, not double"),
        (replaced("seconds", [0.0]), "line 0: seconds are"),
        (replaced("seconds", [math.nan]), "line 0: seconds are"),
        (replaced("seconds", [math.inf]), "line 0: seconds are"),
        (replaced("error", ["crash"]), "line 0: seconds are"),
        (replaced("seconds", [1e-9]), "line 0: seconds are 1e-09, but the median of its samples is 2e-06"),
        (replaced("row", [[None]], pa.list_(pa.int64())), "'row' has lists with null elements"),
        (replaced("samples", [[None]], pa.list_(pa.float64())), "'samples' has lists with null elements"),
    ],
)
def test_invalid_columns_are_rejected(make_record: Make, tmp_path: Path, columns: object, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        RecordTable.load(rewritten(RecordTable.from_records([make_record()]), tmp_path / "t.parquet", columns=columns))


def test_decompression_bombs_are_rejected(make_record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated texts are stored once, so the file size does not bound the memory of the rows."""
    table = RecordTable.from_records([make_record()])
    path = tmp_path / "t.parquet"
    rewritten(table, path, columns=lambda t: replaced("trace", ["x" * 20_000])(t).take(pa.array([0] * 3000)))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(parquet_file, "MAX_BYTES", 1 << 20)
    limits: list[tuple[int | None, str]] = [(None, r"needs at least \d+ MB uncompressed, but the limit is \d MB: for a file of \d+ KB")]
    limits += [(50 << 20, "the limit is 50 MB"), (1000, r"RecordTable.load\(path, max_bytes=...\)")]
    for limit, message in limits:
        with pytest.raises(RecordError, match=message):
            RecordTable.load(path, limit)
    assert len(RecordTable.load(path, 1 << 27)) == 3000
    with pytest.raises(RecordError, match="needs at least 3 MB uncompressed"):
        RecordTable.load(rewritten(table, path, columns=lambda t: t.take(pa.array([0] * 40_000))), 1 << 20)


def test_unknown_error_kind_is_rejected(make_record: Make, tmp_path: Path) -> None:
    failed = make_record(samples=(), error=ErrorInfo("crash", ""), verified=False)
    path = rewritten(RecordTable.from_records([failed]), tmp_path / "t.parquet", columns=replaced("error", ["boredom"]))
    with pytest.raises(RecordError, match="unknown error kind 'boredom'"):
        RecordTable.load(path)


@pytest.mark.parametrize(
    ("name", "text"), [("trace", "{"), ("trace", "{}"), ("host", "[]"), ("policy", '{"x": NaN}'), ("workload", "../x")]
)
def test_texts_are_validated_on_conversion_to_records(make_record: Make, tmp_path: Path, name: str, text: str) -> None:
    path = rewritten(RecordTable.from_records([make_record()]), tmp_path / "t.parquet", columns=replaced(name, [text]))
    with pytest.raises(RecordError, match="line 0 of the table"):
        RecordTable.load(path).records()


def test_file_is_replaced_atomically(table: RecordTable, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table.save(path)
    before = path.read_bytes()
    broken = RecordTable(table.frame.assign(bad=[object()] * len(table)), table.workloads, table.targets, table.sketches)
    with pytest.raises(RecordError, match="cannot write the table"):
        broken.save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
    with pytest.raises(RecordError, match="cannot write the table"):
        parquet_file.write(path, pa.table({"x": [1]}), KIND, VERSION, {"x": math.nan})
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="Check the path"):
        table.save(tmp_path / "file" / "t.parquet")


def test_file_opens_with_any_parquet_reader(table: RecordTable, tmp_path: Path) -> None:
    table.save(tmp_path / "t.parquet")
    arrow = pq.read_table(tmp_path / "t.parquet")
    assert arrow.schema.names == SCHEMA.names and arrow.num_rows == len(table)
    assert parquet_file.kind_of(tmp_path / "t.parquet") == KIND and parquet_file.kind_of(tmp_path / "none") == ""


def test_lone_surrogates_are_escaped(make_record: Make, tmp_path: Path) -> None:
    failed = make_record(samples=(), error=ErrorInfo("crash", "bad \ud800 text"), verified=False, extra={"t": "\udfff"})
    RecordTable.from_records([failed]).save(tmp_path / "t.parquet")
    (record,) = RecordTable.load(tmp_path / "t.parquet").records()
    assert record.error is not None and record.error.message == "bad \\ud800 text" and record.extra == {"t": "\udfff"}


def test_record_without_a_sketch_is_identified_by_its_trace(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()), hand.record_of(hand.matmul(), timestamp=2000.0))
    table = RecordTable.from_log(log)
    assert (len(table), len(table.representatives()), table.sketches) == (2, 1, {})
    assert table.counts()["candidates"].tolist() == [1]
