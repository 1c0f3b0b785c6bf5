"""Tune with shared budgets: allocation, run manifests, and concurrent runs on one log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.display.progress import ProgressView
from tunesmith.driver import search_run
from tunesmith.driver.logs.log_tools import verify
from tunesmith.driver.tune_options import grouped
from tunesmith.driver.workloads import find_subject
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.run_manifest import manifest_path, read_manifest
from tunesmith.search import task as task_module
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.rules_table import generate
from tunesmith.search.task_scheduler import Allocator, TaskState
from tunesmith.search.tuner import Progress
from tunesmith.support.errors import RunError, UserError

MATMUL, RELU, SOFTMAX = "matmul(m=64,n=64,k=64)", "relu(shape=64)", "softmax(m=16,n=40)"
TARGET = Target("llvm")
QUICK: dict[str, Any] = {
    "sampler": "random",
    "workers": 0,
    "leaders": 0,
    "progress": False,
    "policy": MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0),
}


class Listening(Allocator):
    """Records its arguments and prefers the last task."""

    def __init__(self) -> None:
        self.asked: list[list[TaskState]] = []

    def pick(self, states: Sequence[TaskState], open_: Sequence[int], batch: int) -> int:
        self.asked.append(list(states))
        return open_[-1]


def test_a_total_is_shared_and_resumed(tmp_path: Path) -> None:
    log, ears = tmp_path / "log.jsonl", Listening()
    names = [MATMUL, RELU, SOFTMAX]
    settings = {"batch": 2, "total_trials": 12, "allocation": ears, "weights": {RELU: 3.0}}
    report = tunesmith.tune(names, **grouped(target=TARGET, log=log, **settings, **QUICK))
    assert [t.trials for t in report.tasks] == [2, 2, 8] and report.ok
    states = ears.asked[-1]
    assert [s.weight for s in states] == [1.0, 3.0, 1.0] and [s.limit for s in states] == [None] * 3
    assert [s.trials for s in states] == [2, 2, 6] and all(s.best for s in states)
    assert states[0].group.startswith("matmul/") and states[0].flops == 2 * 64**3
    before = log.read_text()
    again = tunesmith.tune(names, **grouped(target=TARGET, log=log, **settings, **QUICK))
    assert log.read_text() == before and [t.resumed for t in again.tasks] == [2, 2, 8]
    more = tunesmith.tune(names, **grouped(target=TARGET, log=log, **{**settings, "total_trials": 15}, **QUICK))
    assert [t.trials for t in more.tasks] == [2, 2, 11]


def test_the_gain_is_the_default_of_a_shared_budget(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tunesmith.tune([RELU, MATMUL], **grouped(target=TARGET, log=log, total_trials=4, batch=2, **QUICK))
    tunesmith.tune([RELU, MATMUL], **grouped(target=TARGET, trials=2, log=log, **QUICK))
    tunesmith.tune([RELU, MATMUL], **grouped(target=TARGET, trials=2, log=log, allocation="gradient", **QUICK))
    used = [r["settings"]["allocation"] for r in read_manifest(manifest_path(log))]  # type: ignore[index]
    assert used == ["Gain", "RoundRobin", "Gradient"]


def test_a_note_lists_workloads_that_got_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is their space generated."""
    generated: list[str] = []
    monkeypatch.setattr(task_module, "generate", lambda func, *rest: generated.append(func.name) or generate(func, *rest))
    tiny = [f"relu(shape={n})" for n in (32, 48, 64, 80)]
    report = tunesmith.tune([*tiny, "matmul(m=128,n=128,k=128)"], **grouped(target=TARGET, log=None, total_trials=4, batch=4, **QUICK))
    assert [t.trials for t in report.tasks] == [0, 0, 0, 0, 4] and report.ok and generated == ["matmul"]
    expected = (
        "4 workloads got no trial before the budget was spent, because others were expected to gain more: relu(shape=32), relu(shape=48), "
        "relu(shape=64) and 1 more"
    )
    assert expected in report.notes
    even = tunesmith.tune(tiny[:2], **grouped(target=TARGET, log=None, total_trials=4, batch=2, allocation="round-robin", **QUICK))
    assert not any("got no trial" in note for note in even.notes)


def test_a_note_says_why_a_resumed_search_measured_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    given = {"target": TARGET, "log": log, **QUICK, "batch": 2}
    first = tunesmith.tune(RELU, **grouped(trials=3, **given))
    again = tunesmith.tune(RELU, **grouped(trials=3, **given))
    note = "no new candidate was measured: the log has 3 trials, which the budget counts. Raise it to search on"
    assert note in again.notes and not any("no new candidate" in n for n in first.notes)
    clock = iter([0.0, *[100.0] * 50])
    monkeypatch.setattr(search_run, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter))
    late = tunesmith.tune(RELU, **grouped(seconds=5.0, **given))
    assert any("the budget of 5 s ended before a new candidate was measured" in n for n in late.notes)


def test_without_an_allocator_that_leaves_workloads_out_one_without_a_trial_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends after the first turn; the default allocator would have left the others out, with a note."""
    clock = iter([0.0, 0.0, *[100.0] * 50])
    monkeypatch.setattr(search_run, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter))
    given = grouped(target=TARGET, log=None, seconds=5.0, batch=2, allocation="round-robin", **QUICK)
    report = tunesmith.tune([RELU, MATMUL], **given)
    assert [(bool(t.trials), t.failure) for t in report.tasks] == [(True, ""), (False, "the budget ended before its first trial")]
    assert not report.ok and not any("got no trial" in note for note in report.notes)


class Broken(RandomSampler):
    """Fails for one workload."""

    def ask(self, n: int) -> list[Candidate]:
        if self.task.name == RELU:
            raise RunError("the device is gone")
        return super().ask(n)


def test_the_budget_of_a_failed_workload_goes_to_the_others() -> None:
    report = tunesmith.tune(
        [RELU, MATMUL], **grouped(target=TARGET, log=None, total_trials=8, batch=2, allocation="gradient", **{**QUICK, "sampler": Broken})
    )
    assert [t.trials for t in report.tasks] == [0, 8] and report[RELU].failure == "the device is gone"


def test_a_run_in_which_all_tasks_fail_is_not_done(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for workloads in ([RELU], [RELU, MATMUL]):
        tunesmith.tune(workloads, **grouped(target=TARGET, trials=2, log=log, **{**QUICK, "sampler": Broken}))
    all_failed, one_failed = read_manifest(manifest_path(log))
    assert all_failed["outcome"] == "failed: the device is gone" and one_failed["outcome"] == "done"
    assert [t.get("failure") for t in one_failed["tasks"]] == ["the device is gone", None]  # type: ignore[attr-defined]


def test_a_sampler_or_model_that_exits_fails_its_task_only(tmp_path: Path) -> None:
    class Exiting(RandomSampler):
        def ask(self, n: int) -> list[Candidate]:
            if self.task.name == RELU:
                raise SystemExit(3)
            return super().ask(n)

    report = tunesmith.tune([RELU, MATMUL], **grouped(target=TARGET, trials=2, log=None, **{**QUICK, "sampler": Exiting}))
    assert [t.trials for t in report.tasks] == [0, 2]
    assert re.match(r"SystemExit: 3 at .*test_tune_budgets.py:\d+ in ask", report[RELU].failure)
    (tmp_path / "quits.py").write_text("raise SystemExit(4)")
    with pytest.raises(UserError, match="quits.py failed with SystemExit: 4"):
        tunesmith.tune(RELU, **grouped(target=TARGET, trials=2, log=None, **{**QUICK, "sampler": f"{tmp_path / 'quits.py'}:Sampler"}))


def test_time_and_early_stopping_end_a_search() -> None:
    late = tunesmith.tune([RELU, MATMUL], **grouped(target=TARGET, log=None, seconds=1e-9, **QUICK))
    assert [t.trials for t in late.tasks] == [0, 0] and not late.ok
    stuck = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=60, log=None, batch=1, early_stop=3, **QUICK))
    assert 3 < stuck.tasks[0].trials < 60 and stuck.ok
    flat = tunesmith.tune(MATMUL, **grouped(target=TARGET, log=None, min_gain=0.5, **QUICK))
    assert flat.ok and 32 <= flat.tasks[0].trials <= 64  # no other bound: by default it has no number of trials then
    both = tunesmith.tune(RELU, **grouped(target=TARGET, log=None, seconds=1000.0, total_trials=3, **QUICK))
    assert both.tasks[0].trials == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_trials": 1, "allocation": "gradient"}, "1 trials for 2 tasks: some would not be measured at all. Give at least 2"),
        ({"total_trials": 0}, "at least 1 trial, not 0"),
        ({"seconds": -1.0}, "positive number of seconds, not -1.0"),
        ({"early_stop": 0}, "at least 1 trial, not 0"),
        ({"min_gain": 1.0}, "min_gain=1.0: .*above 0 and below 1"),
        ({"allocation": "gradeint"}, "Did you mean 'gradient'"),
        ({"weights": {"softmax": 2.0}}, "the weight 'softmax' matches no tuned workload"),
        ({"weights": {RELU: 0.0}}, r"the weight of relu\(shape=64\) is 0.0"),
        ({"trials": 0, "total_trials": 9}, "trials=0"),
    ],
)
def test_invalid_budgets_measure_nothing(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with pytest.raises(UserError, match=message):
        tunesmith.tune([RELU, MATMUL], **grouped(target=TARGET, log=log, **{**QUICK, **arguments}))
    assert not list(tmp_path.iterdir())


def test_a_manifest_is_written_beside_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tunesmith.tune(RELU, **grouped(target=TARGET, trials=2, log=log, seed=5, **QUICK))

    class Stopping(RandomSampler):
        def ask(self, n: int) -> list[Candidate]:
            raise KeyboardInterrupt

    tunesmith.tune(RELU, **grouped(target=TARGET, trials=4, log=log, **{**QUICK, "sampler": Stopping}))
    done, stopped = read_manifest(manifest_path(log))
    assert (done["seed"], done["outcome"], stopped["outcome"]) == (5, "done", "interrupted")
    assert done["workloads"] == [RELU] and done["target"] == TARGET.to_json(facts=True)
    assert done["settings"]["trials"] == 2 and done["settings"]["sampler"] == "random"  # type: ignore[index]
    assert done["code"] == {} and [Path(p).name for p in stopped["code"]] == ["test_tune_budgets.py"]  # type: ignore[attr-defined]
    assert done["tasks"][0]["trials"] == 2 and stopped["tasks"][0]["resumed"] == 2  # type: ignore[index]


def test_callbacks_and_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    seen: list[int] = []
    tunesmith.tune(
        RELU,
        **grouped(
            target=TARGET, trials=4, log=None, batch=2, callbacks=[lambda p: seen.append(p.trials)], tensorboard=tmp_path / "board", **QUICK
        ),
    )
    assert seen == [0, 2, 4] and [p.name.startswith("events") for p in (tmp_path / "board").iterdir()] == [True]


def test_the_view_of_a_shared_budget() -> None:
    task = find_subject(RELU).task(TARGET)
    p = Progress(task, None, trials=4, resumed=2)
    p.seconds["total"] = 10.0
    view = ProgressView(total=10)
    view._tasks = {"a": p, "b": Progress(task, None, trials=2, resumed=2)}
    assert str(view.table().title) == "2 tasks, 6 of 10 trials, about 20 s left"
    view._tasks.pop("a")
    assert str(view.table().title) == "1 task, 2 of 10 trials"


def test_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    common = ["tune", RELU, MATMUL, "--target", "llvm", "--sampler", "random", "--workers", "0", "--log", str(log), "--batch", "2"]
    result = CliRunner().invoke(
        main,
        [*common, "--total-trials", "6", "--allocate", "round-robin", "--seconds", "500", "--early-stop", "50", "--weight", f"{RELU}=2"],
    )
    assert result.exit_code == 0, result.output
    (run,) = read_manifest(manifest_path(log))
    assert [t["trials"] for t in run["tasks"]] == [4, 2]  # type: ignore[attr-defined]
    assert run["settings"]["early_stop"] == 50 and run["settings"]["seconds"] == 500  # type: ignore[index]
    for wrong, message in (
        (["--weight", "relu"], "expected WORKLOAD=X"),
        (["--weight", "x=1"], "no tuned workload"),
        (["--allocate", "x"], "gradient"),
    ):
        refused = CliRunner().invoke(main, [*common, *wrong])
        assert refused.exit_code == 2 and message in refused.stderr, refused.output


_TUNE = """
import json, sys
import tunesmith
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
policy = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
print("ready", flush=True)
sys.stdin.readline()
report = tunesmith.tune(
    ["relu(shape=640)", "matmul(m=64,n=64,k=64)"], Target("llvm"), sys.argv[1], budget=4,
    search=tunesmith.Search("random", seed=int(sys.argv[2]), leaders=0, batch=2), workers=0, progress=False, policy=policy,
)
print(json.dumps([t.trials - t.resumed for t in report.tasks]))
"""


def test_two_runs_write_one_log_at_once(tmp_path: Path) -> None:
    """The runs are independent: both measure, all records are in the log, and no line is truncated."""
    log = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", _TUNE, str(log)]
    runs = [subprocess.Popen([*command, str(s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for s in (1, 2)]
    for process in runs:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    printed = []
    for process in runs:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in runs:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        printed.append(json.loads(out))
    verdict = verify(log)
    assert verdict.ok, verdict
    contents = RecordLog(log).load()
    assert len(contents.records) == sum(map(sum, printed))
    assert 8 <= len(contents.records) <= 16  # a run that starts late resumes from records of the other
    assert {r.seed for r in contents.records} == {1, 2}
    assert sorted(str(r["seed"]) + str(r["outcome"]) for r in read_manifest(manifest_path(log))) == ["1done", "2done"]
