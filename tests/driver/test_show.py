"""Show logs and workloads, as data and as text."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Group

from tunesmith import te
from tunesmith.display.tables import as_text, code, microseconds, plain_table, printable, rate, sparkline
from tunesmith.driver.logs.log_tools import stats
from tunesmith.driver.replay import replay
from tunesmith.driver.show import show_log, show_workload
from tunesmith.driver.workloads import find_subject
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.errors import RecordError, UserError


def test_a_log(hand: ModuleType, tmp_path: Path) -> None:
    func = hand.matmul()
    records = [
        hand.record_of(func, seconds=4e-5, timestamp=1.0),
        hand.record_of(func, samples=(), verified=False, error=ErrorInfo("crash", "died"), timestamp=2.0),
        hand.record_of(func, lambda s: hand.tiled(s, 8), seconds=2e-5, timestamp=3.0),
    ]
    log = hand.write_log(tmp_path / "log.jsonl", *records)
    shown = show_log(log)
    (entry,) = shown.data
    assert json.loads(json.dumps(shown.data)) == shown.data
    assert (entry["workload"], entry["records"], entry["errors"]) == (hand.MATMUL, 3, {"crash": 1})
    assert entry["best_us"] == pytest.approx(20) and entry["gflops"] == pytest.approx(2 * 24 * 32 * 16 / 2e-5 / 1e9)
    assert entry["curve"] == pytest.approx([40, 40, 20]) and entry["row"] == [8]
    assert "script" not in entry and "trace" not in entry
    for part in (hand.MATMUL, "crash 1", "██▁", str(hand.TARGET)):
        assert part in str(shown)
    deep = show_log(log, script=True, trace=True)
    assert "T.vectorized(8)" in deep.data[0]["script"] and "sch.decompose_reduction" in deep.data[0]["trace"]
    assert "T.vectorized(8)" in str(deep) and "decision=[8]" in str(deep)


def test_a_damaged_log(hand: ModuleType, tmp_path: Path) -> None:
    func = hand.matmul()
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(func, trace=[["melt", {}, []]]), name="my\x1b[31mprogram")
    with log.open("a") as file:
        file.write("not json\n")
    RecordLog(log).append(hand.record_of(func, workload="f" * 32))
    shown = show_log(log, script=True)
    assert "melt" in shown.data[0]["script"] and "no line with the program" in shown.data[1]["script"]
    assert shown.data[0]["gflops"] == pytest.approx(2 * 24 * 32 * 16 / 1e-5 / 1e9) and shown.data[1]["gflops"] is None
    text = str(shown)
    assert "1 bad line" in text and "\x1b" not in text and "my?[31mprogram" in text
    odd = hand.write_log(tmp_path / "odd.jsonl", hand.record_of(func, trace=[{"kind": "split"}]))
    assert "holds no schedule" in show_log(odd, trace=True).data[0]["trace"]
    (tmp_path / "empty.jsonl").touch()
    assert "holds no record" in str(show_log(tmp_path / "empty.jsonl"))
    with pytest.raises(RecordError):
        show_log(tmp_path / "none.jsonl")


@pytest.mark.parametrize("name", ["net.onnx", "net.onnx/op_relu", "mine.py:f"])
def test_names_in_a_log_are_not_paths(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("net.onnx", "mine.py"):
        Path(file).write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.setattr("tunesmith.driver.workloads.from_onnx", lambda path: pytest.fail(f"{path} was read"))
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul()), name=name)
    (entry,) = show_log(log).data
    assert entry["workload"] == name and entry["gflops"] is not None
    assert [row.ok for row in replay(log).rows] == [True]


def test_a_workload(hand: ModuleType) -> None:
    shown = show_workload(hand.MATMUL, target=hand.TARGET, script=True, trace=True)
    assert json.loads(json.dumps(shown.data)) == shown.data
    assert shown.data["flops"] == 2 * 24 * 32 * 16
    assert shown.data["size"] == sum(s["size"] for s in shown.data["sketches"]) > 0
    sketch = shown.data["sketches"][0]
    assert {"name", "size", "acceptance", "params", "constraints", "trace"} == set(sketch)
    assert all(p["domain"] for p in sketch["params"]) and "sch.split" in sketch["trace"]
    assert "T.block" in shown.data["script"] and sketch["name"] in str(shown)
    short = show_workload("relu(shape=8)", space=False).data
    assert "  8 operations" in str(show_workload(find_subject("relu(shape=8)").func, space=False))
    x = te.placeholder(8, name="X")
    assert "no arithmetic operations" in str(show_workload([x, te.compute(8, lambda i: x[i], "Y")], space=False))
    assert "sketches" not in short and "script" not in short
    with pytest.raises(UserError, match="unknown operator"):
        show_workload("nothing(m=1)")


def test_a_tile_structure_without_effect_is_named() -> None:
    target = "llvm -mcpu=x86-64-v3 -num-cores=2 -tile-structure=SSRSRS"
    assert "! -tile-structure=SSRSRS changes no sketch" in str(show_workload("softmax(m=16,n=100)", target=target))
    assert "changes no sketch" not in str(show_workload("matmul(m=16,n=100,k=300)", target=target))
    assert "changes no sketch" not in str(show_workload("softmax(m=16,n=100)", target=target.replace("SSRSRS", "SSSRS")))


def test_numbers_and_curves() -> None:
    assert [microseconds(s) for s in (None, float("inf"), 1.23456e-6, 123.456e-6, 0.0123456)] == ["-", "-", "1.235", "123.5", "12346"]
    assert [rate(g) for g in (None, 0.0, 1.234, 123.4)] == ["-", "-", "1.23", "123"]
    assert sparkline([None, 8.0, 4.0, 1.0]) == "·█▆▁"
    assert sparkline([float("inf"), 8.0, 1.0]) == "·█▁" and sparkline([float("inf")] * 2) == "··", "1e308 s are infinite as microseconds"
    assert sparkline([]) == "" and sparkline([3.0, 3.0]) == "▁▁"
    assert len(sparkline(list(range(100, 0, -1)))) == 32 and sparkline([float(x) for x in range(100, 0, -1)])[-1] == "▁"
    assert printable("a[b]\x07\n").plain == "a[b]?\n"


def test_a_best_time_that_other_load_disturbed_is_marked(hand: ModuleType, tmp_path: Path) -> None:
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(hand.matmul(), seconds=3e-5, clean=False))
    shown = show_log(log)
    assert "30~" in str(shown) and "(~ other processes used the machine)" in str(shown)
    assert (shown.data[0]["best_clean"], shown.data[0]["noisy"]) == (False, 1)
    quiet = hand.write_log(tmp_path / "quiet.jsonl", hand.record_of(hand.matmul(), seconds=3e-5))
    assert "~" not in str(show_log(quiet))


def test_text_with_programs_is_python(hand: ModuleType, tmp_path: Path) -> None:
    func = hand.matmul()
    name = "evil\nimport os  # " + "x" * 200
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(func, target=hand.TARGET), name=name)
    RecordLog(log).append(hand.record_of(func, workload="f" * 32))
    with log.open("a") as file:
        file.write("not json\n")
    text = str(show_log(log, script=True))
    (program,) = ast.parse(text).body
    assert isinstance(program, ast.FunctionDef) and program.name == "matmul" and "1 bad line" in text
    assert len(ast.parse(str(show_log(log, script=True, trace=True))).body) > 2
    assert str(show_log(log)).startswith(str(hand.TARGET)), "tables without programs are no comments"
    (program,) = ast.parse(str(show_workload(hand.MATMUL, target=hand.TARGET, script=True))).body
    assert isinstance(program, ast.FunctionDef)
    assert ast.parse(str(show_workload(hand.MATMUL, target=hand.TARGET, trace=True))).body


def test_long_lines_of_programs_are_not_wrapped() -> None:
    line = "x = " + " + ".join(["1"] * 200)
    assert as_text(Group(code(line), plain_table("t", ["a"], [["1"]]))).splitlines()[0] == line


def test_records_of_changed_passes_are_shown_apart(hand: ModuleType, tmp_path: Path) -> None:
    func, changes = hand.matmul(), {"without": ["simplify"]}
    log = hand.write_log(tmp_path / "log.jsonl", hand.record_of(func, seconds=4e-5), hand.record_of(func, seconds=1e-5, passes=changes))
    plain, changed = show_log(log).data
    assert plain["best_us"] == pytest.approx(40) and changed["best_us"] == pytest.approx(10)
    assert changed["target"] == plain["target"] + ', with changed passes {"without":["simplify"]}'
    first, second = stats([log]).data["tasks"]
    assert second["passes"] == changes and "passes" not in first and first["records"] == second["records"] == 1
