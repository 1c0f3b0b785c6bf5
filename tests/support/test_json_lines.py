"""The journal: whole lines from many writers; torn and hostile lines are returned as values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.support import json_lines
from tunesmith.support.errors import RecordError
from tunesmith.support.json_lines import MAX_DEPTH, BadLine, append, locked, open_journal, parse, read, spans, write

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _values(path: Path) -> list[object]:
    return [value for _, value in read(path)]


def _reason(line: bytes) -> str:
    value = parse(line)
    assert isinstance(value, BadLine), value
    return value.reason


def test_appended_lines_are_read_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    append(path, [{"a": 1}, [1.5, None, True]], sync=True)
    append(path, ["line\nbreak \u2028 \ud800"])
    append(path, [])
    assert list(read(path)) == [(1, {"a": 1}), (2, [1.5, None, True]), (3, "line\nbreak \u2028 \ud800")]
    assert path.read_bytes().startswith(b'{"a":1}\n[1.5,null,true]\n')


@given(JSON)
def test_json_data_round_trips(value: object) -> None:
    assert parse(json_lines._encode(Path("x"), 0, value).rstrip(b"\n")) == value


def test_objects_that_are_not_json_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for bad in (float("nan"), float("inf"), {1, 2}, b"bytes"):
        with pytest.raises(RecordError, match=r"object 1 for .*log.jsonl is not JSON data: .* Nothing was written"):
            append(path, [{"good": 1}, bad])
    assert not path.exists()


@pytest.mark.parametrize("keep", range(1, 12))
def test_only_a_torn_last_line_is_lost(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "log.jsonl"
    append(path, [{"n": 1}, {"n": 12345}])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(b'{"n":1}\n') + keep])  # the process died within the second line
    complete = keep >= len(b'{"n":12345}')
    second = _values(path)[1]
    assert second == {"n": 12345} if complete else isinstance(second, BadLine) and second.reason.startswith("torn: the file ends within it")
    append(path, [{"n": 3}])
    assert _values(path)[0] == {"n": 1}
    assert _values(path)[-1] == {"n": 3}
    assert isinstance(_values(path)[1], BadLine) != complete
    assert path.read_bytes().startswith(whole[: len(b'{"n":1}\n') + keep]), "a repair removes nothing"


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    append(path, [{"n": 1}])
    before = path.read_bytes()
    real = os.write

    def full_disk(descriptor: int, data: bytes) -> int:
        if len(data) > 5:
            return real(descriptor, bytes(data[:5]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(RecordError, match=r"cannot append to .*: No space left on device. Check"):
        append(path, [{"n": 2, "pad": "x" * 3}])
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_bad_paths_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot read .*absent.jsonl: No such file"):
        read(tmp_path / "absent.jsonl")
    with pytest.raises(RecordError, match="cannot append to .*: Is a directory"):
        append(tmp_path, [1])
    for bad in ("a\0", "\ud800"):
        for action in (read, lambda p: append(p, [1]), lambda p: write(p, [b"1"])):
            with pytest.raises(RecordError, match="null|surrogates"):
                action(bad)
    os.mkfifo(tmp_path / "pipe")
    for action in (lambda p: append(p, [1]), lambda p: write(p, [b"1"], replace=True), lambda p: locked(p).__enter__()):
        with pytest.raises(RecordError, match="pipe cannot be a log, because it is no regular file"):
            action(tmp_path / "pipe")
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_lock_that_stays_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with FileLock(f"{path}.lock"), pytest.raises(RecordError, match=r"another process has held .*log.jsonl.lock for 0.05 s"):
        append(path, [1], lock_seconds=0.05)


def test_writers_in_several_processes_never_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    program = (
        "import sys; from tunesmith.support.json_lines import append\n"
        "for i in range(40): append(sys.argv[1], [{'who': sys.argv[2], 'i': i, 'pad': 'x' * 3000}] * 2)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), str(who)]) for who in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    values = _values(path)
    assert len(values) == 240
    for who in "012":
        assert [v["i"] for v in values if v["who"] == who] == [i for i in range(40) for _ in range(2)]  # type: ignore[index]


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n1\r\n \t\n2")
    assert list(read(path)) == [(2, 1), (4, 2)]


def test_hostile_lines_become_values_and_good_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    hostile = [
        b"\xff\xfe{}",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"\x00" * 50,
        b"9" * 5000,
        b"1e999",
        b"{'a': 1}",
        b"__import__('os').system('true')",
        b'{"a": 1} trailing',
    ]
    path.write_bytes(b"".join(b'{"good":%d}\n%s\n' % (i, line) for i, line in enumerate(hostile)))
    values = _values(path)
    assert values[::2] == [{"good": i} for i in range(len(hostile))]
    assert all(isinstance(value, BadLine) for value in values[1::2])


def test_reasons_of_bad_lines() -> None:
    assert _reason(b"ab\xff") == "not UTF-8 at byte 2"
    assert _reason(b'{"a": -Infinity}') == "not plain data: -Infinity is not a JSON number"
    assert _reason(b"[1e999]") == "not plain data: 1e999 does not fit a float64"
    assert _reason(b"{") == "not JSON: Expecting property name enclosed in double quotes at column 2"
    assert _reason(b"[" * 101) == "nested deeper than 100"
    assert "4300 digits" in _reason(b"9" * 5000)


def test_excerpt_is_short_and_printable() -> None:
    value = parse(b"\xff" * 5000)
    assert isinstance(value, BadLine) and value.excerpt == "\\xff" * 80


@given(st.integers(0, 2 * MAX_DEPTH), st.text(alphabet='[]{}"\\ax', max_size=30), st.integers(0, 40))
def test_depth_counts_brackets_outside_of_strings_only(depth: int, text: str, width: int) -> None:
    value: object = text
    for level in range(depth):
        value = [value, text] if level % 2 else {text: value}
    value = [value] + [[text]] * (MAX_DEPTH + width)  # enough brackets for the depth check to run
    refused = isinstance(parse(json.dumps(value).encode()), BadLine)
    assert refused == (depth + 1 > MAX_DEPTH)


def test_long_lines_are_skipped_without_being_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with open(path, "wb") as file:
        file.write(b"1\n")
        file.seek(200 << 20, os.SEEK_CUR)  # a hole: no disk, but 200 MiB of one line
        file.write(b"\n2\n" + b'"' + b"x" * 98 + b'"\n' + b'"' + b"x" * 99 + b'"\n' + b'"' + b"x" * 200)
    values = [value for _, value in read(path, max_line_bytes=100)]
    assert values[0] == 1 and values[2] == 2 and values[3] == "x" * 98
    assert [v.reason for v in (values[1], values[4], values[5]) if isinstance(v, BadLine)] == ["longer than 100 bytes"] * 3


def test_spans_contain_the_offset_of_each_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'\n  {"a": 1}\r\n' + b"x" * 300 + b"\n[2]  \n" + b"y" * 50)
    found = list(spans(path, max_line_bytes=100))
    assert [number for number, *_ in found] == [2, 3, 4, 5]
    whole = path.read_bytes()
    for _, offset, text, _ in found:
        assert whole[offset : offset + len(text)] == text
    assert [text for _, _, text, _ in found] == [b'{"a": 1}', b"", b"[2]", b"y" * 50]
    assert [value for *_, value in found][::2] == [{"a": 1}, [2]]
    assert [isinstance(value, BadLine) for *_, value in found] == [False, True, False, True]


def test_offsets_are_correct_after_a_skipped_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x" * (3 << 20) + b"\n[1]\n")
    assert [(offset, text) for _, offset, text, _ in spans(path, max_line_bytes=100)] == [(0, b""), ((3 << 20) + 1, b"[1]")]


def test_another_decoder_gets_every_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{bad\n 2 \n")
    assert list(read(path, decode=bytes.upper)) == [(1, b"{BAD"), (2, b"2")]


def test_a_journal_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    def lines() -> Iterator[bytes]:
        yield b"1"
        assert not path.exists()
        yield b"[2]"

    write(path, lines())
    assert path.read_bytes() == b"1\n[2]\n" and [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]
    with pytest.raises(RecordError, match="cannot write .*log.jsonl: File exists"):
        write(path, [b"3"])
    assert path.read_bytes() == b"1\n[2]\n"
    with locked(path):
        write(path, [b"3"], replace=True)
    assert path.read_bytes() == b"3\n"

    def broken() -> Iterator[bytes]:
        yield b"4"
        raise RecordError("no more")

    with pytest.raises(RecordError, match="no more"):
        write(path, broken(), replace=True)
    assert path.read_bytes() == b"3\n" and not list(tmp_path.glob("*.partial"))
    with pytest.raises(RecordError, match="cannot write .*nowhere"):
        write(tmp_path / "nowhere" / "log.jsonl", [])


def test_a_lock_blocks_writers(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append(path, [1])
    program = "import sys; from tunesmith.support.json_lines import append; print('ready', flush=True); append(sys.argv[1], [2])"
    with locked(path):
        writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.3)
        write(path, [b"0"], replace=True)
    assert writer.wait(60) == 0
    writer.stdout.close()
    assert _values(path) == [0, 2]  # the later append is in the new file
    with locked(path), pytest.raises(RecordError, match="another process has held"), locked(path, lock_seconds=0.05):
        pass
    with pytest.raises(RecordError, match="cannot lock"), locked(path / "log.jsonl"):
        pass
    with pytest.raises(RecordError, match="cannot read .*absent"):
        open_journal(tmp_path / "absent")


@pytest.mark.parametrize("text", ["", "]", "]" * 300, '"]', "\\", "\\]", '["', "{}"])
def test_brackets_in_strings_neither_hide_depth_nor_make_it(text: str) -> None:
    deep: list[object] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    for value in ({"x": text, "y": deep}, {"y": deep, "x": text}, [text, text, deep, text]):
        assert _reason(json.dumps(value).encode()) == f"nested deeper than {MAX_DEPTH}"
    flat = [text, [text], {text: text}] * MAX_DEPTH
    assert parse(json.dumps(flat).encode()) == flat


def test_an_invalid_file_name(tmp_path: Path) -> None:
    assert json_lines.exists(tmp_path) and not json_lines.exists(tmp_path / "none")
    with pytest.raises(RecordError, match="cannot be a log: File name too long"):
        json_lines.exists(tmp_path / ("x" * 300))


def test_a_lock_that_cannot_be_created_fails_immediately(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot lock .*No such file or directory"), locked(tmp_path / "none" / "log.jsonl"):
        pass
