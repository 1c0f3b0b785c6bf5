"""Tuning on Ray gives the same reports and logs, and killed processes neither lose nor repeat measurements."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

import tunesmith
from tunesmith.driver.tune_options import grouped
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import RecordLog
from tunesmith.support.errors import UserError

if TYPE_CHECKING:
    from tunesmith.measure.ray.ray_cluster import RayCluster

MATMUL = "matmul(m=64,n=48,k=32)"
TARGET = Target("llvm")
QUICK: dict[str, Any] = {
    "sampler": "random",
    "progress": False,
    "policy": MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0),
}


@pytest.fixture
def two_runners(ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster of the tests, of which a search uses two runners: it would start one for each of four, a second of work each."""
    count = type(ray_cluster).count
    monkeypatch.setattr(type(ray_cluster), "count", lambda self, resource: min(2, count(self, resource)))


@pytest.mark.usefixtures("two_runners")
def test_tuning_on_ray_is_tuning(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=6, log=log, batch=3, workers="ray:2", leaders=1, **QUICK))
    assert report.ok and report.tasks[0].trials == 6 and report.best is not None and report.best.verified
    records = RecordLog(log).load().records
    assert [r.policy["kind"] for r in records] == ["race"] * 6 + ["interleaved"]
    local = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=6, log=tmp_path / "local.jsonl", batch=3, workers=1, leaders=0, **QUICK))
    assert local.ok
    # A random search ignores times, so its candidates are the same on every runner.
    assert [r.candidate for r in RecordLog(tmp_path / "local.jsonl").load().records] == [r.candidate for r in records[:6]]
    again = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=6, log=log, workers=0, leaders=0, **QUICK))
    assert again.tasks[0].resumed == 6 and len(RecordLog(log).load().records) == 7


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("rya", 'workers is a number of processes, "ray" or "ray:N", got \'rya\''),
        ("ray:", "got 'ray:'"),
        ("ray:two", "got 'ray:two'"),
        ("ray:-1", "got 'ray:-1'"),
        ("4", "got '4'"),
        ("ray:0", "at least 1 worker"),
    ],
)
def test_invalid_workers(workers: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=tmp_path / "log.jsonl", workers=workers, **QUICK))
    assert not (tmp_path / "log.jsonl").exists()


@pytest.mark.usefixtures("two_runners")
def test_remote_runners_refuse_other_targets(tmp_path: Path) -> None:
    report = tunesmith.tune(
        MATMUL, **grouped(target="llvm -mcpu=neoverse-n1 -num-cores=2", trials=2, log=tmp_path / "log.jsonl", workers="ray:1", **QUICK)
    )
    assert not report.ok and "instead of neoverse-n1" in report.tasks[0].failure
    assert RecordLog(tmp_path / "log.jsonl").load().records == []


_TUNE = """
import sys
import tunesmith
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
settings = {"search": tunesmith.Search("random", batch=4, leaders=0), "workers": "ray:2", "progress": False}
settings["policy"] = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
tunesmith.tune("matmul(m=64,n=48,k=32)", Target("llvm"), sys.argv[1], budget=3000, **settings)
"""


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert what()


def workers_of(command_lines: dict[int, str]) -> dict[int, str]:
    """The workers without Ray's two agents, which search for their cluster's lost head for a minute before they exit."""
    return {pid: line for pid, line in command_lines.items() if not line.startswith(("ray::DashboardAgent", "ray::RuntimeEnvAgent"))}


@pytest.mark.usefixtures("two_runners")
def test_killed_processes_lose_and_repeat_no_measurement(tmp_path: Path, processes: Callable[[str], dict[int, str]]) -> None:
    log, mark = tmp_path / "log.jsonl", f"TUNESMITH_TEST_RAY={uuid4().hex}"
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # longer paths exceed the length limit of Ray's sockets
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | dict([mark.split("=")]) | {"TMPDIR": str(folder)}
    try:
        # More trials than the run reaches; the space has thousands of candidates.
        with open(tmp_path / "stdout", "w") as stdout:
            process = subprocess.Popen([sys.executable, "-c", _TUNE, str(log)], env=env, stdout=stdout, stderr=subprocess.DEVNULL)
        wait_for(lambda: lines(log) >= 8)
        for actor in ("_BuildActor", "_RunActor"):
            victim = next(pid for pid, line in sorted(processes(mark).items()) if line.startswith(f"ray::{actor}"))
            os.kill(victim, signal.SIGKILL)
            before = lines(log)
            wait_for(lambda before=before: lines(log) >= before + 8)  # type: ignore[misc]
        assert process.poll() is None
        process.kill()  # the driver only: its child processes must notice
        process.wait()
        wait_for(lambda: workers_of(processes(mark)) == {})
        assert (tmp_path / "stdout").read_text() == "", "standard output is reserved for data"
    finally:
        for pid in processes(mark):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder)
    first = RecordLog(log).load()
    assert first.report.bad_count <= 1, "a truncated line at the end"
    assert not [r.error for r in first.records if r.error], "a killed process is not a failure of its candidate"
    # Another Ray instance continues: that of the tests, as the end of an instance without kills is tested in test_ray_cluster.py.
    trials = len(first.records) + 5
    again = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=trials, log=log, batch=4, workers="ray:2", leaders=0, **QUICK))
    assert again.ok and again.tasks[0].resumed == len(first.records)
    after = RecordLog(log).load().records
    assert [r.identity for r in first.records] == [r.identity for r in after[:-5]]
    assert len({r.candidate for r in after}) == len(after) == trials
