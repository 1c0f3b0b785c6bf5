"""`tunesmith arena` and docs/arena.md: commands, files, tables and messages."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tunesmith.cli.main import main
from tunesmith.experiments.arena.pool import Pool
from tunesmith.experiments.arena.run import _interval, arena
from tunesmith.experiments.arena.statistics import Interval
from tunesmith.ir import structural
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, WorkloadLine
from tunesmith.ops.workload import workload
from tunesmith.search.task import Task
from tunesmith.support.errors import MissingExtraError, UserError
from tunesmith.testing.synthetic_pool import synthetic_pool

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "arena.md"
SAMPLERS = DOCUMENT.with_name("samplers.md")
NAME = "matmul(m=64,n=48,k=80)"


def made(hand: ModuleType) -> Pool:
    w = workload(NAME)
    return synthetic_pool(Task(w.text, w.func, hand.TARGET), 30)


@pytest.fixture
def log(hand: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log in the working folder, in the form that a tuner writes."""
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


def test_the_command_writes_tables_plots_and_a_journal(hand: ModuleType, log: Path, tmp_path: Path) -> None:
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
    for text in (
        NAME,
        "to 95%",
        "random order",
        "ranking over 1 pool by",
        "p-values concern this pool only; 6",
        "few seeds (2)",
        *labels,
    ):
        assert text in result.stdout
    assert "6 of 6 replays" in result.stderr
    good = [g["candidates"] for g in data["standings"][0]["goals"]]
    assert re.search(rf"candidates of the goal\) +│ +{good[0]} │ +{good[1]} │ +{good[2]} │", result.stdout)
    best = data["pools"][0]["best_us"] * 1e-6
    assert good == [int((made(hand).seconds <= best / share).sum()) for share in (0.90, 0.95, 0.99)]
    assert (tmp_path / "study" / "report.txt").read_text() == result.stdout and "report.txt" in result.stderr
    names = sorted(p.name for p in (tmp_path / "study").iterdir() if p.suffix != ".lock")
    tables = ["arena.json", "curves-0-matmul-m-64-n-48-k-80.svg", "curves.csv", "pairs.csv", "ranking.csv", "ranking.svg"]
    assert names == sorted([*tables, "replays.jsonl", "report.txt", "standings.csv"])
    with (tmp_path / "study" / "standings.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["entrant"] for line in lines] == labels
    assert float(lines[0]["slowdown_end"]) == data["standings"][0]["slowdown"][0]
    journal = (tmp_path / "study" / "replays.jsonl").read_text()
    more = run(*common, "--seeds", 3, "-o", tmp_path / "study", "--json", "-")
    assert more.exit_code == 0 and json.loads(more.stdout)["settings"]["seeds"] == 3
    assert (tmp_path / "study" / "replays.jsonl").read_text().startswith(journal)
    assert len((tmp_path / "study" / "replays.jsonl").read_text().splitlines()) == 9


def test_failures_and_misuse(log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from tunesmith.search.samplers.sampler import Candidate, Sampler\n\n\nclass Bad(Sampler):\n"
        "    def ask(self, n):\n        return [Candidate(0, (1, 2, 3))]\n\n    def tell(self, results):\n        pass\n"
    )
    failed = run(log, "--samplers", f"random,{bad}:Bad", "--seeds", 1, "--trials", 8, "--workers", 0)
    assert failed.exit_code == 1
    assert "bad.py:Bad on matmul" in failed.stdout and "not in the pool of" in failed.stdout and "Traceback" in failed.stderr
    bad.write_text(bad.read_text().replace("return [Candidate(0, (1, 2, 3))]", "return self.none"))
    own = run(log, "--samplers", f"random,{bad}:Bad", "--seeds", 1, "--trials", 8, "--workers", 0, "-o", tmp_path / "study")
    unwrapped = re.sub(r"[│\s]+", " ", own.stdout)  # a long path wraps within its cell
    assert "line 6, in ask" in unwrapped and "return self.none" in unwrapped
    assert "Traceback" not in own.stderr + own.stdout and "failures.txt" in own.stderr
    assert "Traceback" in (tmp_path / "study" / "failures.txt").read_text()
    for arguments, what in [
        ([log, "--samplers", "guess"], "unknown sampler 'guess'"),
        ([log, "--seeds", 0], "at least 1 seed"),
        ([log, "--trials", 0], "at least 1 trial"),
        ([log, "--workload", "conv"], f"no pool of 'conv' in {log}; available: {NAME} (digest "),
        ([tmp_path / "none.jsonl"], "none.jsonl"),
        ([], "Missing argument 'POOL...'"),
    ]:
        wrong = run(*arguments, "--workers", 0)
        assert wrong.exit_code == 2 and what in wrong.stderr


def test_a_pool_can_be_selected_by_its_digest_in_the_report(hand: ModuleType, log: Path) -> None:
    pool = made(hand)
    common = [log, "--samplers", "random", "--seeds", 1, "--trials", 8, "--workers", 0, "--json", "-"]
    plain = json.loads(run(*common).stdout)["pools"]
    for name in (NAME, plain[0]["workload"], plain[0]["digest"]):
        found = run(*common, "--workload", name)
        assert found.exit_code == 0 and json.loads(found.stdout)["pools"] == plain, found.stderr
    assert plain[0]["workload"] == pool.workload != plain[0]["digest"]


def test_notes_pairs_and_seconds(hand: ModuleType, tmp_path: Path) -> None:
    """All pairs are displayed with their verdict; the seconds of replays only on the screen and in the journal."""
    report = arena(
        [made(hand)],
        ["random", "evolutionary(draft=64,keep=16)"],
        ["analytic", "none"],
        10,
        16,
        batch=16,
        workers=0,
        folder=tmp_path,
        progress=False,
    )
    data: Any = report.to_json()
    assert data["notes"] == ["batch 16 >= trials 16: a sampler is asked once and learns nothing. Take a smaller batch, or more trials"]
    text = str(report)
    assert "too few" not in text
    for part in (
        "all pairs; the verdict uses p",
        "slowdown A/B",
        "p (Holm)",
        "s per replay",
        "mean slowdown",
        "median slowdown at the end",
    ):
        assert part in text, part
    for pair in data["pairs"]:
        shown = pair["p_holm"] <= 0.05
        assert pair["better"] == (None if not shown else pair["first"] if pair["ratio"][0] < 1 else pair["second"])
    assert {p["better"] for p in data["pairs"]} >= {None}, "the two methods with equal drafts propose the same"
    assert text.count("is better") + text.count("no difference shown") == 3
    taken = [json.loads(line)["seconds"] for line in (tmp_path / "replays.jsonl").read_text().splitlines()]
    assert len(taken) == 30 and min(taken) > 0 and "seconds" not in json.dumps(data)
    again = arena(
        [made(hand)],
        ["random", "evolutionary(draft=64,keep=16)"],
        ["analytic", "none"],
        10,
        16,
        batch=16,
        workers=0,
        folder=tmp_path,
        progress=False,
    )
    assert again.summary.run.seconds == {job: pytest.approx(s, abs=1e-3) for job, s in report.summary.run.seconds.items()}
    assert again.to_json() == data


def test_too_few_replays_have_no_interval_and_no_verdict(hand: ModuleType) -> None:
    """With 2 seeds, no difference can be shown."""
    report = arena([made(hand)], ["random", "evolutionary(draft=64,keep=16)"], ["analytic"], 2, 16, batch=8, workers=0, progress=False)
    (pair,) = report.summary.pairs
    assert pair.too_few and report.to_json()["pairs"][0]["ratio"][1] is None  # type: ignore[index]
    (line,) = [line for line in str(report).splitlines() if "too few to tell" in line]
    assert f" {pair.ratio.value:.3f} " in line and " - " in line and "inf" not in str(report) and "0.000.." not in str(report)
    assert "! 2 replays of each method are too few for an interval of a pair at 95%: a difference could not be shown" in str(report)
    assert any(note.startswith("2 replays of each method are too few") for note in report.summary.notes)


def test_an_interval_that_ends_at_1_and_excludes_it() -> None:
    """8 equal and 8 better pairs: the test, which drops the equal ones, rejects equality; all ratios above 1 are accepted."""
    assert _interval(Interval(1.2, 1.0, 1.49), excludes_1=True) == "1.200 (>1.000..1.490)"
    assert _interval(Interval(0.8, 0.7, 1.0), excludes_1=True) == "0.800 (0.700..<1.000)"
    assert _interval(Interval(1.2, 1.0, 1.49)) == "1.200 (1.000..1.490)" and _interval(Interval(1.2, 0.0, math.inf)) == "1.200"


def test_plots_need_an_extra(hand: ModuleType, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = arena([made(hand)], ["random"], seeds=1, trials=8, workers=0, progress=False)
    with pytest.raises(MissingExtraError, match=r"plotting an arena needs .*matplotlib.*pip install 'tunesmith\[plot\]'"):
        report.plot(tmp_path)
    result = run(log, "--samplers", "random", "--seeds", 1, "--trials", 8, "--workers", 0, "-o", tmp_path / "study")
    assert result.exit_code == 0 and "tunesmith[plot]" in result.stderr and (tmp_path / "study" / "curves.csv").exists()


def test_plots_contain_no_control_characters(hand: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = arena([made(hand).renamed("a\x1b[31m\x00b")], ["random"], seeds=1, trials=8, workers=0, progress=False)
    for file in report.plot(tmp_path):
        ElementTree.parse(file)
        assert "\x1b" not in file.read_text()


def test_a_report_that_cannot_be_written_is_an_error(hand: ModuleType, tmp_path: Path) -> None:
    report = arena([made(hand)], ["random"], seeds=1, trials=8, workers=0, progress=False)
    assert report.ok and "slowdown" in str(report)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write into .*file"):
        report.write(tmp_path / "file")
    with pytest.raises(UserError, match="there are no measurements in no file"):
        arena([], ["random"], seeds=1, workers=0, progress=False)


def test_the_document_runs(log: Path, tmp_path: Path) -> None:
    """Python blocks in order, with the climber of docs/samplers.md available; then the arena's command, with fewer seeds."""
    (climber,) = re.findall(r"^```python\n(# climber\.py\n.*?)^```\n", SAMPLERS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "climber.py").write_text(climber, encoding="utf-8")
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for source, output in blocks:
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


def test_the_command_line_imports_no_heavy_package() -> None:
    code = (
        "import sys, tunesmith.cli.main; print([m for m in ('matplotlib', 'xgboost', 'pandas', 'llvmlite', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
