"""The comparison with TVM MetaSchedule, as far as it runs without TVM: scripts, the worker's protocol, curves."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

import tunesmith
from tunesmith.experiments.metaschedule import report, run
from tunesmith.experiments.metaschedule.tvm_text import tvm_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.structural import difference
from tunesmith.ops.workload import workload
from tunesmith.support import json_lines


@pytest.mark.parametrize("text", run.WORKLOADS)
def test_programs_come_back_from_scripts_of_tvm(text: str) -> None:
    func = workload(text).func
    script = tvm_text(func)
    assert "T.block(" not in script and "T.select(" not in script
    again = parse(script)
    assert isinstance(again, PrimFunc)
    assert difference(func.with_(name="main"), again) is None


def test_failures_of_the_worker_are_reported() -> None:
    tvm = run.Tvm(sys.executable)
    try:
        with pytest.raises(RuntimeError, match="AttributeError"):
            tvm.ask("nothing")
        if importlib.util.find_spec("tvm") is None:
            with pytest.raises(RuntimeError, match="No module named 'tvm'"):
                tvm.ask("tune", threads=1)
    finally:
        tvm.close()


def test_prefixes_and_curves_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    search = tunesmith.Search("random", batch=4)
    tunesmith.tune("softmax(m=16,n=16)", "llvm -num-cores=1", log, budget=8, search=search, progress=False)
    curve = run._curve(log)
    assert len(curve) == 8 and all(b is not None and a is not None and b <= a for a, b in itertools.pairwise(curve))
    first = run._best(log, tmp_path / "first.jsonl", 4)
    kinds = [line["kind"] for _, line in json_lines.read(first) if isinstance(line, dict)]
    assert kinds.count("record") == 4 and "workload" in kinds
    best = tunesmith.Database.from_log(first)
    assert len(best) == 4


def test_ratios_are_those_of_the_times() -> None:
    line = {"workload": "w", "us": {"tvm 16": 30.0, "tunesmith 16": 10.0}, "search_s": {"tvm": 60.0, "tunesmith": 5.0}}
    assert run.shown(line) == "w: 16 trials 3.00 x; tvm 60 s, tunesmith 5 s"


def test_the_report_has_ratios_and_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [
        {"workload": "a(n=1)", "us": {"tvm 16": 30.0, "tunesmith 16": 10.0}, "search_s": {"tvm": 60.0, "tunesmith": 5.4}},
        {"workload": "b(n=2)", "us": {"tvm 16": 12.0, "tunesmith 16": 1.0}, "search_s": {"tunesmith": 5.0}, "failure": "no"},
    ]
    lines[0]["curve_us"] = {"tvm": [None, 40.0, 30.0], "tunesmith": [20.0, 12.0, 10.0]}
    json_lines.append(tmp_path / "out.jsonl", lines)
    assert report.table(lines).splitlines()[2:] == [
        "| `a(n=1)` | 3.00 | 5 | 60 |",
        "| `b(n=2)` | 12.00 | 5 |  |",
        "| geometric mean | 6.00 |  |  |",
    ]
    assert report.main([str(tmp_path / "out.jsonl"), str(tmp_path / "a.svg")]) == 0
    report.draw(lines, tmp_path / "b.svg")
    svg = (tmp_path / "a.svg").read_text()
    assert svg == (tmp_path / "b.svg").read_text() and "a(n=1)" in svg and "b(n=2)" not in svg
