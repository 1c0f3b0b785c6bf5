"""Test the decoder of log lines: equal results to the JSON parser, with few parser calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.measure.records.log import RecordLog, load
from tunesmith.measure.records.record import Record
from tunesmith.measure.records.record_decoder import RecordDecoder
from tunesmith.support import json_lines
from tunesmith.support.json_lines import BadLine

Make = Callable[..., Record]
TRACE = [
    ["get_block", {"name": "C"}, ["b0"]],
    ["sample_tile", {"loop": {"rv": "l0"}, "n": 2}, ["v0"], [8]],
    ["split", {"factors": [None, {"rv": "v0"}]}, ["l1", "l2"]],
    ["vectorize", {"loop": {"rv": "l2"}}, []],
]


def line_of(record: Record) -> bytes:
    return json.dumps(record.to_json(), separators=(",", ":")).encode()


def same(line: bytes) -> bool:
    """True if decoder and parser agree; both reject NaN, so == suffices.  The text distinguishes 1 from 1.0."""
    quick, plain = RecordDecoder().read(line), json_lines.parse(line)
    return type(quick) is type(plain) and (isinstance(plain, BadLine) or json.dumps(quick) == json.dumps(plain))


@pytest.mark.parametrize(
    "trace", [[], TRACE[:1], TRACE[:2], TRACE, [["a", {"x": '],["'}, []], ["b", {}, []]], [1, "x", ["a", {}, []]], [[]]]
)
def test_lines_in_log_layout_decode_equally(make_record: Make, trace: list[object]) -> None:
    assert same(line_of(make_record(trace=trace)))


def test_steps_are_parsed_once_and_shared(make_record: Make) -> None:
    reader = RecordDecoder()
    lines = [line_of(make_record(trace=TRACE, seed=seed)) for seed in range(100)]
    read = [reader.read(line) for line in lines]
    assert read == [json.loads(line) for line in lines]
    assert reader.parsed == 100 + len(TRACE)  # the rest of each line, and each step once
    assert len({id(step) for line in read for step in line["trace"]}) == len(TRACE)  # type: ignore[call-overload,index]


def test_each_line_needs_one_short_parse(tmp_path: Path, make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load cost of large logs, as the number of JSON parser calls instead of seconds."""
    log = RecordLog(tmp_path / "log.jsonl")
    log.append(*[make_record(trace=[*TRACE * 10, ["sample_tile", {}, ["v1"], [i % 7]]], seed=i) for i in range(500)])
    seen: list[int] = []
    parse = json_lines.parse
    monkeypatch.setattr(json_lines, "parse", lambda text: seen.append(len(text)) or parse(text))
    contents = load([log.path])
    assert len(contents.records) == 500 and contents.records[3].trace[-1][3] == [3]  # type: ignore[index]
    assert 500 < len(seen) < 520  # each line without its trace, and each step once
    assert sum(seen) < log.path.stat().st_size / 3


HOSTILE = [
    (b'"trace":[', b'"trace":[ '),
    (b'],"sketch":', b'] ,"sketch":'),
    (b'],"sketch":', b']],"sketch":'),
    (b'],"sketch":', b',],"sketch":'),
    (b'"trace":[', b'"trace":[,'),
    (b'"trace":[', b'"trace":[["],["'),
    (b'"trace":[', b'"trace":[["a",{},[]],["'),
    (b'"sketch":"tile-3"', b'"sketch":"tile-3","trace":[1]'),
    (b'"sketch":"tile-3"', b'"sketch":"tile-3","tr\\u0061ce":[1]'),
    (b'"sketch":"tile-3"', b'"sketch":"\\"trace\\":[],\\"sketch\\":"'),
    (b'"kind":"llvm"', b'"kind":"llvm","trace":[],"sketch":"x"'),
    (b'"kind":"llvm"', b'"kind":"},\\"trace\\":["'),
    (b'"kind":"llvm"', b'"kind":"},"trace":["'),
    (b'"mcpu":"znver5"', b'"mcpu":{"a":[]}'),
    (b'"seed":7', b'"seed":1e999'),
    (b'"seed":7', b'"seed":NaN'),
    (b'"seed":7', b'"seed":' + b"[" * 101 + b"]" * 101),
    (b'"factors":[null', b'"factors":[' + b"[" * 97 + b"]" * 97 + b",null"),
    (b'"name":"C"', b'"name":"\xff"'),
    (b'{"v":1', b'{"v":2'),
    (b'{"v":1', b'[{"v":1'),
]


@pytest.mark.parametrize(("old", "new"), HOSTILE)
def test_modified_lines_decode_equally(make_record: Make, old: bytes, new: bytes) -> None:
    line = line_of(make_record(trace=TRACE))
    assert old in line
    assert same(line.replace(old, new, 1)) and same(line.replace(old, new))


PIECES = [b'"trace":[', b'],"sketch":', b'],["', b'"', b"\\", b"[", b"]", b"{", b"}", b",", b'"a"', b":", b"1", b"null", b" ", b"\\u005b"]
HEAD = b'{"v":1,"kind":"record","workload":"w","target":{'


@given(st.lists(st.sampled_from(PIECES), max_size=24), st.lists(st.sampled_from(PIECES), max_size=12))
def test_any_text_decodes_equally(inside: list[bytes], after: list[bytes]) -> None:
    text, tail = b"".join(inside), b"".join(after)
    assert same(HEAD + b'"k":1},"trace":[' + text + b'],"sketch":' + tail + b"}")
    assert same(HEAD + b'"k":1},"trace":[["a",{},[]],["' + text + b'"],["b",{},[]]],"sketch":"",' + tail + b'"z":0}')
    assert same(HEAD + text + b'},"trace":[["a"]],"sketch":"' + tail + b'"}')


@given(st.data())
def test_damaged_lines_decode_equally(data: st.DataObject) -> None:
    line = json.dumps({"v": 1, "kind": "record", "workload": "w", "target": {"kind": "llvm"}, "trace": TRACE, "sketch": "s", "row": [1]})
    text = line.replace(" ", "").encode()
    place = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 6))
    assert same(text[:place] + data.draw(st.sampled_from([b"", *PIECES])) + text[place + cut :])


def test_too_long_line_is_bad(make_record: Make) -> None:
    line = line_of(make_record(trace=TRACE)).replace(b'"tag":"x"', b'"tag":"' + b"x" * json_lines.MAX_LINE_BYTES + b'"')
    assert same(line) and isinstance(RecordDecoder().read(line), BadLine)
