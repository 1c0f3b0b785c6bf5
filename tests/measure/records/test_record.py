"""Test records: round trips, and rejection of invalid lines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.ir.target.detect import detect_host
from tunesmith.measure.records.environment import environment
from tunesmith.measure.records.fields import MAX_MESSAGE, MAX_ROW, MAX_SAMPLES, NewerRecordError, ValuePool
from tunesmith.measure.records.record import ERROR_KINDS, ErrorInfo, Record, WorkloadLine, parse_line, target_key
from tunesmith.support.errors import RecordError

Make = Callable[..., Record]


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_record_round_trip_through_text(make_record: Make) -> None:
    record = make_record(unknown={"energy": 1.5})
    line = json.loads(json.dumps(record.to_json()))
    again = Record.from_json(line)
    assert again == record
    assert again.identity == record.identity
    assert again.to_json() == line
    assert (line["v"], line["kind"], line["energy"]) == (1, "record", 1.5)


def test_workload_round_trip_keeps_unknown_fields() -> None:
    line = {"v": 1, "kind": "workload", "digest": "w0", "name": "matmul(m=4)", "script": "@T.prim_func\n", "family": "gemm"}
    workload = parse_line(line)
    assert workload == WorkloadLine("w0", "matmul(m=4)", "@T.prim_func\n", {"family": "gemm"})
    assert workload.to_json() == line


def test_numpy_numbers_are_converted(make_record: Make) -> None:
    record = make_record(row=np.array([4, 8]), samples=np.array([2e-6], np.float32), extra={"cycles": np.int64(5), "pair": (1, 2)})
    line = record.to_json()
    assert line["row"] == [4, 8] and line["extra"] == {"cycles": 5, "pair": [1, 2]}
    json.dumps(line)
    assert record.candidate == ("tile-3", (4, 8))


def test_seconds_is_the_median(make_record: Make) -> None:
    assert make_record().seconds == 2e-6
    assert make_record(samples=(1.0, 2.0, 4.0, 8.0)).seconds == 3.0
    assert make_record(samples=(), verified=False, error=ErrorInfo("crash", "")).seconds == math.inf


def test_identity_does_not_depend_on_the_status(make_record: Make) -> None:
    record = make_record()
    amended = dataclasses.replace(record, verified=False, error=ErrorInfo("wrong_result", "off by 1"), extra={}, host={})
    assert amended.identity == record.identity
    changes: list[dict[str, object]] = [
        {"workload": "w1"},
        {"target": {"kind": "c"}},
        {"sketch": "", "trace": []},
        {"sketch": "", "trace": [1]},
        {"sketch": "s"},
        {"trace": []},
        {"row": (1,)},
        {"samples": (1.0,)},
        {"seed": 8},
        {"timestamp": 1.0},
    ]
    assert len({dataclasses.replace(record, **change).identity for change in changes} | {record.identity}) == 11  # type: ignore[arg-type]


def test_candidate_without_a_sketch_is_identified_by_its_trace(make_record: Make) -> None:
    by_hand, other = make_record(sketch="", row=()), make_record(sketch="", row=(), trace=["other"])
    assert by_hand.candidate == make_record(sketch="", row=(), seed=1).candidate != other.candidate


def test_target_key_ignores_the_order_of_attributes() -> None:
    assert target_key({"kind": "llvm", "cores": 2}) == target_key({"cores": 2, "kind": "llvm"})
    assert target_key({"kind": "llvm", "cores": 2}) != target_key({"kind": "llvm", "cores": 4})
    with pytest.raises(RecordError, match="field `target`: expected plain JSON"):
        target_key({"cores": {1, 2}})


REFUSED: list[tuple[str, object, str]] = [
    ("v", 0, "`v`: expected a version number"),
    ("v", True, "`v`: expected a version number"),
    ("v", "1", "`v`: expected a version number"),
    ("kind", "model", "`kind`: expected 'record', got 'model'"),
    ("kind", ["record"], "`kind`: expected 'record'"),
    ("workload", "../etc/passwd", "`workload`: expected a digest"),
    ("workload", "", "`workload`: expected a digest"),
    ("workload", 3, "`workload`: expected a digest of 1 to 128 letters, digits or _.:-, got 3"),
    ("target", "llvm", "`target`: expected a JSON object, got 'llvm'"),
    ("target", {"flops": math.inf}, "expected plain JSON data with finite numbers"),
    ("trace", {}, "`trace`: expected a JSON array"),
    ("trace", [[math.nan]], "expected plain JSON data with finite numbers"),
    ("trace", _deep(100_000), "expected plain JSON data"),
    ("trace", [10**5000], "expected plain JSON data"),
    ("sketch", None, "`sketch`: expected a string of at most 256 characters, got None"),
    ("sketch", "x" * 257, "`sketch`: expected a string of at most 256"),
    ("row", "12", "`row`: expected an array of at most 4096 64-bit integers, got '12'"),
    ("row", [1.0], "`row`: expected an array of at most 4096 64-bit integers, got 1.0"),
    ("row", [True], "`row`:"),
    ("row", [1 << 63], "`row`:"),
    ("row", [10**5000], "int too large to show"),
    ("row", [0] * (MAX_ROW + 1), "`row`:"),
    ("samples", 1.0, "`samples`: expected an array"),
    ("samples", [], "`samples`: expected at least one sample"),
    ("samples", [math.nan], "`samples`: expected an array of at most 100000 finite seconds above 0, got nan"),
    ("samples", [1.0, math.inf], "`samples`:"),
    ("samples", [0.0], "`samples`:"),
    ("samples", [-1.0], "`samples`:"),
    ("samples", [True], "`samples`:"),
    ("samples", ["1"], "`samples`:"),
    ("samples", [10**400], "`samples`:"),
    ("samples", [1.0] * (MAX_SAMPLES + 1), "`samples`:"),
    ("clean", 1, "`clean`: expected true or false, got 1"),
    ("verified", None, "`verified`: expected true or false"),
    ("error", "crash", '`error`: expected null or {"kind": ..., "message": ...}'),
    ("error", {"kind": "crash"}, "`error`: expected null or"),
    ("error", {"kind": "oops", "message": ""}, "`error.kind`: expected one of build_error, timeout, crash"),
    ("error", {"kind": [], "message": ""}, "`error.kind`:"),
    ("error", {"kind": "crash", "message": 1}, "`error.message`: expected a string"),
    ("error", {"kind": "crash", "message": "x" * (MAX_MESSAGE + 1)}, "`error.message`:"),
    ("error", {"kind": "crash", "message": ""}, "`verified`: expected false, as `error` is set"),
    ("host", [], "`host`: expected a JSON object"),
    ("versions", "1", "`versions`: expected a JSON object"),
    ("seed", 1.0, "`seed`: expected a 64-bit integer, got 1.0"),
    ("seed", 1 << 64, "`seed`: expected a 64-bit integer"),
    ("timestamp", "now", "`timestamp`: expected seconds since 1970, before the year 10000, got 'now'"),
    ("timestamp", -1.0, "`timestamp`:"),
    ("timestamp", math.inf, "`timestamp`:"),
    ("timestamp", False, "`timestamp`:"),
    ("policy", None, "`policy`: expected a JSON object"),
    ("extra", {"a": math.nan}, "expected plain JSON data with finite numbers"),
    ("surprise", math.nan, "expected plain JSON data with finite numbers"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED, ids=[f"{i}-{r[0]}" for i, r in enumerate(REFUSED)])
def test_invalid_lines_are_rejected(make_record: Make, name: str, value: object, message: str) -> None:
    line = {**make_record().to_json(), name: value}
    with pytest.raises(RecordError) as caught:
        parse_line(line)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "name", sorted(f.name for f in dataclasses.fields(Record) if f.name not in ("unknown", "sizes", "passes", "_identity"))
)
def test_missing_fields_are_named(make_record: Make, name: str) -> None:
    line = make_record().to_json()
    del line[name]
    with pytest.raises(RecordError, match=f"record line: field `{name}` is missing: expected"):
        Record.from_json(line)


@pytest.mark.parametrize("line", [None, 3, "record", [], {}, {"kind": "workload"}])
def test_values_that_are_not_lines_are_rejected(line: object) -> None:
    with pytest.raises(RecordError, match="expected a JSON object|field `v` is missing"):
        parse_line(line)


@pytest.mark.parametrize(
    ("name", "value"), [("digest", "a b"), ("digest", None), ("name", "x" * 257), ("script", 1), ("script", "x" * (4 << 20) + "x")]
)
def test_invalid_workloads_are_rejected(name: str, value: object) -> None:
    line = {**WorkloadLine("w0", "n", "s").to_json(), name: value}
    with pytest.raises(RecordError, match=f"workload line: field `{name}`: expected"):
        parse_line(line)


def test_newer_version_is_distinguished_from_a_bad_line(make_record: Make) -> None:
    with pytest.raises(NewerRecordError, match="format version 2 is newer than the supported version 1. Upgrade tunesmith"):
        Record.from_json({**make_record().to_json(), "v": 2})
    with pytest.raises(NewerRecordError):
        parse_line({"v": 3, "kind": "workload"})


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_failures_are_records(make_record: Make, kind: str) -> None:
    record = make_record(error=ErrorInfo(kind, "why"), verified=False, samples=())
    assert Record.from_json(record.to_json()).error == ErrorInfo(kind, "why")


def test_long_messages_are_cut_in_the_middle(make_record: Make) -> None:
    record = make_record(error=ErrorInfo("build_error", "first" + "x" * 10**6 + "last"), verified=False)
    again = Record.from_json(record.to_json())
    assert again.error is not None and len(again.error.message) <= MAX_MESSAGE
    assert again.error.message.startswith("first") and again.error.message.endswith("last")
    assert "characters left out" in again.error.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": {"a": [object()]}}, "field `extra.a[0]`: expected plain JSON data, got <object"),
        ({"host": {1: 2}}, "field `host`: expected string keys, got 1"),
        ({"policy": {"a": math.nan}}, "field `policy.a`: expected a finite number, got nan"),
        ({"trace": _deep(100_000)}, "field `trace`: nested too deeply to write"),
        ({"unknown": {"seed": 3}}, "`unknown` holds seed, which this version defines"),
        ({"samples": ()}, "`samples`: expected at least one sample"),
        ({"workload": "a/b"}, "`workload`: expected a digest"),
    ],
)
def test_records_that_cannot_be_read_back_are_not_written(make_record: Make, change: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError) as caught:
        make_record(**change).to_json()
    assert message in str(caught.value)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SOUND = Record("w", {}, [], "", (), (1.0,), True, None, True, {}, {}, 0, 0.0, {}).to_json()


@given(name=st.sampled_from(sorted(SOUND)), value=ANY)
def test_any_value_in_any_field_is_read_or_rejected(name: str, value: object) -> None:
    try:
        entry = parse_line({**SOUND, name: value})
    except RecordError as error:
        assert str(error)
    else:
        assert parse_line(entry.to_json()) == entry


def test_environment_describes_machine_and_versions() -> None:
    host, versions = environment()
    assert host["cpu"] == detect_host().model_name
    assert host["cpu"] and isinstance(host["cores"], int) and host["cores"] >= 1 and host["kernel"]
    assert versions["numpy"] == np.__version__
    assert set(versions) == {"tunesmith", "llvmlite", "numpy", "python"}
    host["cpu"] = "changed"
    assert environment().host["cpu"] != "changed"


def test_line_with_a_changed_schedule_is_rejected(make_record: Make) -> None:
    line = json.loads(json.dumps(make_record().to_json()))
    assert line["schedule"] == make_record().schedule
    for changes in ({"trace": []}, {"row": [1]}, {"sketch": "other"}, {"workload": "w1"}, {"trace": [], "row": [], "sketch": ""}):
        for pool in (None, ValuePool()):
            with pytest.raises(RecordError, match="`schedule`: expected .*, which were changed after the line was written"):
                Record.from_json({**line, **changes}, pool)
    with pytest.raises(RecordError, match="`schedule`"):
        Record.from_json({**line, "schedule": 3})
    amended = Record.from_json({**line, "verified": False, "samples": [1.0], "extra": {}})
    assert amended.schedule == make_record().schedule and amended.to_json()["schedule"] == line["schedule"]
    old = {name: value for name, value in line.items() if name != "schedule"}  # a line of an earlier version
    assert Record.from_json(old) == make_record() and Record.from_json(old).identity == make_record().identity
    assert Record.from_json({**old, "trace": []}).identity != make_record().identity


def test_schedule_digest_does_not_depend_on_the_reader(make_record: Make) -> None:
    trace = [["split", {"b": [1, 2.0, None], "a": "\u00e4"}, ["l0"]], ("as", {"tuple": (1,)}), 1, "x"]
    record = make_record(trace=trace)
    line = json.loads(json.dumps(record.to_json()))
    line["trace"][0][1] = dict(reversed(line["trace"][0][1].items()))
    pool = ValuePool()
    assert {Record.from_json(line, p).schedule for p in (None, pool, pool)} == {record.schedule}
    assert make_record(trace=[["split", {"b": [1, 2, None], "a": "\u00e4"}, ["l0"]], *trace[1:]]).schedule != record.schedule


def test_timestamps_after_the_year_9999_are_rejected(make_record: Make) -> None:
    for late in (1e300, 253402300800):
        with pytest.raises(RecordError, match="`timestamp`: expected seconds since 1970, before the year 10000"):
            Record.from_json({**make_record().to_json(), "timestamp": late})
    assert make_record(timestamp=1000).to_json()["timestamp"] == 1000.0


CHANGES = {"without": ["simplify"], "options": {"version_loops": {"most": 2}}}


def test_changes_of_passes_are_a_field_of_their_own(make_record: Make) -> None:
    plain, changed = make_record(), make_record(passes=CHANGES)
    assert "passes" not in plain.to_json() and Record.from_json(plain.to_json()).passes == {}
    line = changed.to_json()
    assert line["passes"] == CHANGES and Record.from_json(json.loads(json.dumps(line))) == changed
    assert changed.schedule != plain.schedule and changed.identity != plain.identity
    with pytest.raises(RecordError, match="field `schedule`: expected .* which were changed after the line was written"):
        Record.from_json({k: v for k, v in line.items() if k != "passes"})


@pytest.mark.parametrize(
    "value",
    [
        *(3, {}, [], {"other": []}, {"without": "simplify"}, {"without": [3]}, {"without": [""]}, {"options": []}, {"options": {"p": 3}}),
        *({"options": {"p": {"o": [1]}}}, {"options": {"p": {"o": None}}}, {"without": ["p"] * 100}),
    ],
)
def test_wrong_changes_of_passes_are_refused(make_record: Make, value: object) -> None:
    line = {**make_record().to_json(), "passes": value}
    line.pop("schedule")
    with pytest.raises(RecordError, match="field `passes`: expected "):
        Record.from_json(line)
