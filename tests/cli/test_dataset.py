"""`tunesmith dataset`: output, files and exit statuses of the commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from tunesmith.cli.main import main
from tunesmith.datasets import suites
from tunesmith.datasets.foreign_table import ForeignTable
from tunesmith.datasets.record_table import RecordTable
from tunesmith.driver.workloads import find_subject, find_subjects
from tunesmith.measure.records.record import ErrorInfo
from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry

ANSOR = {
    "i": [['["gemm", 8]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], [["SP", 2, 0, 8, [2], 1]]]],
    "r": [[0.5], 0, 1.0, 5],
    "v": "v0.6",
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dataset", *[str(a) for a in arguments]])


@pytest.fixture
def log(hand: ModuleType, tmp_path: Path) -> Path:
    records = [hand.record_of(hand.matmul(), lambda s, n=n: hand.tiled(s, n), seconds=n * 1e-6, timestamp=float(n)) for n in (4, 8, 16)]
    failed = hand.record_of(hand.matmul(), samples=(), error=ErrorInfo("crash", ""), verified=False, timestamp=2.0)
    path: Path = hand.write_log(tmp_path / "log.jsonl", *records, failed)
    return path


def test_build(tmp_path: Path) -> None:
    out, log, data = tmp_path / "p.parquet", tmp_path / "p.jsonl", tmp_path / "out.json"
    result = run("build", "relu(shape=64)", "--per-task", 4, "--workers", 0, "--out", out, "--log", log, "--json", data)
    assert result.exit_code == 0, result.output
    assert "4/4" in result.stdout and "relu(shape=64)" in result.stderr, "progress goes to standard error"
    (task,) = json.loads(data.read_text())["tasks"]
    assert (task["workload"], task["candidates"], task["resumed"]) == ("relu(shape=64)", 4, 0)
    assert len(RecordTable.load(out)) == 4 == len(RecordTable.from_log(log))


def test_build_lists_suites_and_requires_a_workload() -> None:
    listed = run("build", "--suites", "--json", "-")
    assert listed.exit_code == 0 and "suite:tiny" in listed.stderr and "suite:tiny" not in listed.stdout
    assert "matmul(m=64,n=64,k=64)" in json.loads(listed.stdout)["tiny"]
    nothing = run("build")
    assert nothing.exit_code == 2 and "--suites lists the suites" in nothing.stderr
    unknown = run("build", "suite:tinny", "--workers", 0)
    assert unknown.exit_code == 2 and "Did you mean 'tiny'" in unknown.stderr


def test_merge(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.parquet"
    result = run("merge", log, log, "--out", out, "--json", "-")
    assert result.exit_code == 0 and json.loads(result.stdout)["records"] == 4 and "4 records of 8" in result.stderr
    assert run("merge", out, log, "--out", out, "--representatives").exit_code == 0
    earlier = run("merge", out, log, "--out", out, "--standing")
    assert earlier.exit_code == 0 and "! --standing is an earlier name of --representatives" in earlier.stderr
    assert len(RecordTable.load(out)) == 3, "a crashed measurement does not represent its candidate"
    missing = run("merge", tmp_path / "none", "--out", out)
    assert missing.exit_code == 2 and "cannot read" in missing.stderr


def test_bad_lines_are_reported(log: Path, tmp_path: Path) -> None:
    with open(log, "ab") as file:
        file.write(b"{torn")
    result = run("merge", log, "--out", tmp_path / "m.parquet")
    assert result.exit_code == 0 and "1 bad lines" in result.stderr


def test_stats(log: Path, tmp_path: Path, hand: ModuleType) -> None:
    result = run("stats", log, "--json", tmp_path / "s.json")
    assert result.exit_code == 0 and hand.MATMUL in result.stdout and "cores" in result.stdout
    data = json.loads((tmp_path / "s.json").read_text())
    assert (data["records"], data["errors"], list(data["targets"].values())) == (4, {"crash": 1}, [4])
    assert data["tasks"][0]["best_us"] == pytest.approx(4.0)


def test_stats_plots(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = run("stats", log, "--plots", tmp_path / "plots", "--format", "png")
    assert result.exit_code == 0 and "wrote" in result.stderr
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == ["noise.png", "outcomes.png", "slowdown.png"]


def test_split(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    result = run("split", log, "--train", 0.34, "--valid", 0.33, "--seed", 3, "--out", folder, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    parts = [RecordTable.load(folder / f"{name}.parquet") for name in ("train", "valid", "test")]
    assert [data[n]["records"] for n in ("train", "valid", "test")] == [len(p) for p in parts] and sum(map(len, parts)) == 4
    assert parts[0].notes["split"]["part"] == "train"  # type: ignore[index]
    assert run("split", log, "--out", tmp_path / "two").exit_code == 0 and not (tmp_path / "two" / "valid.parquet").exists()
    assert "removed" not in result.stderr
    again = run("split", log, "--out", folder)
    assert again.exit_code == 0 and not (folder / "valid.parquet").exists(), "it shares programs with the new parts"
    assert f"{folder / 'valid.parquet'} removed: it was of an earlier split, and this one has no such part" in again.stderr
    one = run("split", log, "--by", "task", "--out", folder)
    assert one.exit_code == 2 and "cannot split by task: the table has 1 group(s)" in one.stderr


def test_export(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "e.parquet"
    result = run("export", log, "--out", out, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["records"] == 4 and not data["without"] and "feature.analytic.seconds" in data["features"]
    assert set(data["features"]) <= set(RecordTable.load(out).frame.columns)


def test_import_and_stats_of_imported_tables(tmp_path: Path) -> None:
    log, out = tmp_path / "ansor.json", tmp_path / "f.parquet"
    log.write_text(json.dumps(ANSOR) + "\n{bad\n")
    result = run("import", "ansor", log, "--out", out, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert (data["records"], data["bad_lines"]) == (1, 1) and f"skipped {log}:2" in result.stderr
    assert len(ForeignTable.load(out)) == 1
    shown = run("stats", out, "--json", "-")
    assert shown.exit_code == 0 and json.loads(shown.stdout)["tasks"][0]["best_us"] == pytest.approx(5e5)
    assert run("stats", out, "--plots", tmp_path).exit_code == 2
    assert run("import", "ansor", tmp_path / "none", "--out", out).exit_code == 2
    assert run("import", "halide", log, "--out", out).exit_code == 2


def test_a_suite_with_a_defect_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"lab": "no_such_package:SUITE", "here": "tests_of_suites:HERE"}
    monkeypatch.setitem(sys.modules, "tests_of_suites", SimpleNamespace(HERE=suites.Suite("here", ("relu(shape=8)",))))
    monkeypatch.setattr(suites, "SUITES", Registry("suite", names))
    listed = run("build", "--suites")
    assert listed.exit_code == 0 and "suite:here" in listed.stdout and "suite:lab" not in listed.stdout
    assert "cannot import the suite 'lab'" in listed.stderr


def test_suites_are_accepted_as_workloads() -> None:
    tiny = find_subjects("suite:tiny")
    assert len(tiny) == 6 and {s.name for s in find_subjects(["suite:tiny", "matmul(m=64,n=64,k=64)"])} == {s.name for s in tiny}
    with pytest.raises(UserError, match="expected one function, but suite:tiny has matmul"):
        find_subject("suite:tiny")
    with pytest.raises(UserError, match="unknown suite 'tinny'"):
        find_subjects("suite:tinny")
    shown = CliRunner().invoke(main, ["show", "suite:tinny"])
    assert shown.exit_code == 2 and "unknown suite" in shown.stderr
