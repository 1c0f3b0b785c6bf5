"""Test manifests: facts and outcome of every run; git is queried without side effects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunesmith.ir.target.target import Target
from tunesmith.measure.records.run_manifest import git_state, manifest_path, read_manifest, recorded_run, write_manifest
from tunesmith.support.errors import RecordError, UserError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


def test_facts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tunesmith", "tune", "x"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HOME_SECRET", "no")
    path = manifest_path("log.jsonl")
    assert path == Path("log.jsonl.runs")
    line = write_manifest(path, seed=7, target=TARGET, config=Path("a/b.toml"), settings={"target": TARGET, "sizes": (1, 2)})
    (run,) = read_manifest(path)
    assert run == line
    assert run["command"] == ["tunesmith", "tune", "x"] and run["folder"] == str(tmp_path) and run["seed"] == 7
    assert run["config"] == "a/b.toml" and run["settings"] == {"target": TARGET.to_json(facts=True), "sizes": [1, 2]}
    assert run["target"]["l2_bytes"] == TARGET.l2_bytes  # type: ignore[index]  # facts, too
    assert run["versions"]["numpy"] and run["host"]["cpu"] and run["host"]["processors"] == os.cpu_count()  # type: ignore[index]
    assert run["environment"]["OMP_NUM_THREADS"] == "3" and "HOME_SECRET" not in run["environment"]  # type: ignore[index,operator]
    assert str(run["started"]).endswith("+00:00") and "load" in run and "git" in run
    assert [json.loads(text)["kind"] for text in path.read_text().splitlines()] == ["run"]


def test_start_and_end_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "m.runs"
    with recorded_run(path, seed=1) as noted:
        (begun,) = read_manifest(path)  # a run killed at this point has no end
        assert begun["ended"] is None and "outcome" not in begun
        noted["trials"] = 4
    with pytest.raises(RecordError, match="broken"), recorded_run(path, seed=2):
        raise RecordError("broken")
    with pytest.raises(KeyboardInterrupt), recorded_run(path, seed=3):
        raise KeyboardInterrupt
    with recorded_run(path, seed=4) as noted:
        noted["outcome"] = "early"
    runs = read_manifest(path)
    assert [(r["seed"], r["outcome"]) for r in runs] == [(1, "done"), (2, "RecordError: broken"), (3, "interrupted"), (4, "early")]
    assert runs[0]["trials"] == 4 and str(runs[0]["ended"]) >= str(runs[0]["started"]) and "load_at_end" in runs[0]
    assert len({r["run"] for r in runs}) == 4


def test_facts_can_be_added_to_a_run(tmp_path: Path) -> None:
    path = tmp_path / "m.runs"
    first = write_manifest(path, seed=1)
    write_manifest(path, seed=2)
    assert write_manifest(path, run=first["run"], report="report.html") == {
        "v": 1,
        "kind": "run",
        "run": first["run"],
        "report": "report.html",
    }
    assert [(r["seed"], r.get("report")) for r in read_manifest(path)] == [(1, "report.html"), (2, None)]


def test_nothing_is_recorded_without_a_path() -> None:
    with recorded_run(None, seed=1) as noted:
        noted["x"] = 1


def test_untrusted_manifest_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.runs"
    path.write_text('junk\n[1]\n{"kind":"run"}\n{"kind":"run","run":[]}\n{"kind":"run","run":"a","x":1}\n{"kind":"run","ru')
    assert read_manifest(path) == [{"kind": "run", "run": "a", "x": 1}]
    write_manifest(path, seed=5)
    assert [r.get("seed") for r in read_manifest(path)] == [None, 5]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot read .*absent"):
        read_manifest(tmp_path / "absent")
    with pytest.raises(UserError, match=r"field `settings.model`: expected plain JSON data, got <object"):
        write_manifest(tmp_path / "m", settings={"model": object()})
    with pytest.raises(UserError, match="field `rate`: expected a finite number, got nan"):
        write_manifest(tmp_path / "m", rate=float("nan"))
    assert not (tmp_path / "m").exists()
    with pytest.raises(RecordError, match="cannot append to"):
        write_manifest(tmp_path, seed=1)


def _git(folder: Path, *arguments: str) -> str:
    settings = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    names = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *names, *arguments], cwd=folder, env=settings, check=True, capture_output=True, text=True).stdout.strip()


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert git_state(folder) is None
    assert git_state(tmp_path / "absent") is None
    try:
        _git(folder, "init", "-q")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    (folder / "a").write_text("1")
    assert git_state(folder) is None  # no commit yet
    _git(folder, "add", "a")
    _git(folder, "commit", "-q", "-m", "one")
    commit = _git(folder, "rev-parse", "HEAD")
    assert git_state(folder) == {"commit": commit, "dirty": False}
    (folder / "a").write_text("2")
    assert git_state(folder) == {"commit": commit, "dirty": True}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(folder) is None
