"""`tunesmith arena` and docs/arena.md: what a stranger types works, and says what it found."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tunesmith.arena import arena
from tunesmith.cli import main
from tunesmith.ir import structural
from tunesmith.measure.record import ErrorInfo, WorkloadLine
from tunesmith.measure.record_log import RecordLog
from tunesmith.ops.workload import workload
from tunesmith.search.pool import Pool
from tunesmith.search.synthetic_pool import synthetic_pool
from tunesmith.search.task import Task
from tunesmith.support.errors import MissingExtraError, UserError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "arena.md"
NAME = "matmul(m=64,n=48,k=80)"


def made(hand: ModuleType) -> Pool:
    w = workload(NAME)
    return synthetic_pool(Task(w.text, w.func, hand.TARGET), 30)


@pytest.fixture
def log(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log in the working folder, as a tuner would have written it."""
    monkeypatch.chdir(tmp_path)
    pool = made(hand)
    func = workload(NAME).func
    records = []
    for s, measured in zip(pool.task.space.sketches, pool.sketches, strict=True):
        for row, seconds in zip(measured.rows.tolist(), measured.seconds.tolist(), strict=True):
            failed = {"samples": (), "error": ErrorInfo("crash", "signal"), "verified": False} if seconds == float("inf") else {}
            fields = {"sketch": s.name, "row": tuple(row), "trace": s.trace_of(tuple(row)).to_json(), "seconds": seconds}
            records.append(hand.record_of(func, **fields, **failed))
    RecordLog(tmp_path / "pool.jsonl").append(WorkloadLine(structural.digest(func), NAME, pool.script), *records)
    return tmp_path / "pool.jsonl"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["arena", *[str(a) for a in arguments]])


def test_the_command_writes_tables_plots_and_a_journal(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = [log, "--samplers", "random,evolutionary(draft=64,keep=16)", "--models", "random,none", "--trials", 40, "--workers", 0]
    result = run(*common, "--seeds", 2, "-o", tmp_path / "study", "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out.json").read_text())
    assert data == json.loads((tmp_path / "study" / "arena.json").read_text())
    labels = ["random", "evolutionary(draft=64,keep=16) + random", "evolutionary(draft=64,keep=16) + none"]
    assert [e["label"] for e in data["entrants"]] == labels and {r["entrant"] for r in data["ranking"]} == set(labels)
    assert data["pools"][0]["name"] == NAME and data["pools"][0]["candidates"] == 120 and data["pools"][0]["budget"] == 40
    assert all(len(s["curve"]["trials"]) == len(s["curve"]["median_us"]) and s["runs"] == 2 for s in data["standings"])
    assert len(data["pairs"]) == 3 and data["failures"] == []
    for text in (NAME, "to 95%", "order by chance", "ranking over 1 pools", *labels):
        assert text in result.stdout
    assert "6 of 6 replays" in result.stderr
    names = sorted(p.name for p in (tmp_path / "study").iterdir() if p.suffix != ".lock")
    tables = ["arena.json", "curves-0-matmul-m-64-n-48-k-80.svg", "curves.csv", "pairs.csv", "ranking.csv", "ranking.svg"]
    assert names == sorted([*tables, "replays.jsonl", "standings.csv"])
    with (tmp_path / "study" / "standings.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["entrant"] for line in lines] == labels
    assert float(lines[0]["slowdown"]) == data["standings"][0]["slowdown"][0]
    journal = (tmp_path / "study" / "replays.jsonl").read_text()
    more = run(*common, "--seeds", 3, "-o", tmp_path / "study", "--json", "-")
    assert more.exit_code == 0 and json.loads(more.stdout)["settings"]["seeds"] == 3
    assert (tmp_path / "study" / "replays.jsonl").read_text().startswith(journal)
    assert len((tmp_path / "study" / "replays.jsonl").read_text().splitlines()) == 9


def test_failures_and_misuse_end_as_they_should(log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from tunesmith.search.sampler import Candidate, Sampler\n\n\nclass Bad(Sampler):\n"
        "    def ask(self, n):\n        return [Candidate(0, (1, 2, 3))]\n\n    def tell(self, results):\n        pass\n"
    )
    failed = run(log, "--samplers", f"random,{bad}:Bad", "--seeds", 1, "--trials", 8, "--workers", 0)
    assert failed.exit_code == 1
    assert "bad.py:Bad on matmul" in failed.stdout and "not in the pool of" in failed.stdout and "Traceback" in failed.stderr
    for arguments, what in [
        ([log, "--samplers", "guess"], "unknown sampler 'guess'"),
        ([log, "--seeds", 0], "at least 1 seed"),
        ([log, "--trials", 0], "at least 1 trial"),
        ([log, "--workload", "conv"], "no pool of 'conv'"),
        ([tmp_path / "none.jsonl"], "none.jsonl"),
        ([], "Missing argument 'POOL...'"),
    ]:
        wrong = run(*arguments, "--workers", 0)
        assert wrong.exit_code == 2 and what in wrong.stderr


def test_plots_are_an_extra(hand: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = arena([made(hand)], ["random"], seeds=1, trials=8, workers=0, progress=False)
    with pytest.raises(MissingExtraError, match=r"plotting an arena needs .*matplotlib.*pip install 'tunesmith\[plot\]'"):
        report.plot(tmp_path)
    result = run(log, "--samplers", "random", "--seeds", 1, "--trials", 8, "--workers", 0, "-o", tmp_path / "study")
    assert result.exit_code == 0 and "tunesmith[plot]" in result.stderr and (tmp_path / "study" / "curves.csv").exists()


def test_a_report_that_cannot_be_written_says_so(hand: ModuleType, tmp_path: Path) -> None:
    report = arena([made(hand)], ["random"], seeds=1, trials=8, workers=0, progress=False)
    assert report.ok and "slowdown" in str(report)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write into .*file"):
        report.write(tmp_path / "file")
    with pytest.raises(UserError, match="there are no measurements in no file"):
        arena([], ["random"], seeds=1, workers=0, progress=False)


def test_the_document_runs(log: Path, tmp_path: Path) -> None:
    """Python blocks in order, one that begins with a file's name as that file; then the arena's command, with fewer seeds."""
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for source, output in blocks:
        name = re.match(r"# (\w+\.py)\n", source)
        if name:
            (tmp_path / name[1]).write_text(source, encoding="utf-8")
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(DOCUMENT), "exec"), namespace)
        assert not output or printed.getvalue() == output
    (command,) = re.findall(r"^tunesmith (arena .*)$", text, re.MULTILINE)
    for dear, cheap in [
        ("--seeds 20 --trials 256", "--seeds 1 --trials 24 --workers 0"),
        ("evolutionary", "'evolutionary(draft=64,keep=16)'"),
    ]:
        assert dear in command
        command = command.replace(dear, cheap)
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert "climber.py:Climber" in result.stdout and (tmp_path / "study" / "ranking.csv").exists()


def test_nothing_heavy_is_imported_for_the_command_line() -> None:
    code = "import sys, tunesmith.cli; print([m for m in ('matplotlib', 'xgboost', 'pandas', 'llvmlite', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
