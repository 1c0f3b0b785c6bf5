"""Tune: records are logged, resuming repeats nothing, failures are reported, interrupts keep measurements."""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tunesmith
from tunesmith import te
from tunesmith.display.progress import ProgressView, clock, line, seconds_left
from tunesmith.display.report import LEGEND, Report, TaskReport, noise_notes
from tunesmith.driver import search_run
from tunesmith.driver.show import show_workload
from tunesmith.driver.tune_options import Search, default_batch, grouped
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.local_runner import InProcessRunner
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.measure.records.log import RecordLog
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.random_sampler import RandomSampler
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.space.rules import contraction
from tunesmith.search.space.rules_table import SketchWarning, generate
from tunesmith.search.space.sketch import Space
from tunesmith.search.tuner import Progress, Tuning
from tunesmith.support.errors import InternalError, RecordError, RunError, UserError

MATMUL = "matmul(m=64,n=64,k=64)"
TARGET = Target("llvm")
TUNE = importlib.import_module("tunesmith.driver.tune")
QUICK: dict[str, Any] = {
    "sampler": "random",
    "workers": 0,
    "leaders": 0,
    "progress": False,
    "policy": MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0),
}


def test_tuning_writes_a_log_and_resuming_repeats_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=4, log=log, **QUICK))
    assert report.ok and not report.interrupted
    (task,) = report.tasks
    assert (task.workload, task.trials, task.resumed) == (MATMUL, 4, 0)
    assert report.best is not None and report.best.verified and len(report.curve) == 4
    contents = RecordLog(log).load()
    assert len(contents.records) == 4
    assert next(iter(contents.workloads.values())).name == MATMUL
    before = log.read_text()
    again = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=4, log=log, **QUICK))
    assert log.read_text() == before
    assert (again.tasks[0].trials, again.tasks[0].resumed) == (4, 4)
    assert again.best == report.best
    more = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=6, log=log, **QUICK))
    records = RecordLog(log).load().records
    assert len(records) == 6 == len({r.candidate for r in records}) and more.tasks[0].resumed == 4
    assert tunesmith.compile(MATMUL, TARGET, log, strict=True).coverage[0].status == "used"


def beside_noise(report: Report) -> list[str]:
    """The notes of a report, but for that of a machine that was busy during the test."""
    return [note for note in report.notes if "disturbed by other load" not in note]


def test_equal_programs_are_measured_once(tmp_path: Path) -> None:
    log, func, shown = tmp_path / "log.jsonl", workload("relu(shape=64)").func, list[Progress]()
    given: list[Any] = [func, MATMUL, "relu(shape=64)"]
    report = tunesmith.tune(
        given, **grouped(target=TARGET, trials=2, log=log, weights={"relu": 3}, callbacks=[shown.append], batch=1, **QUICK)
    )
    assert [t.workload for t in report.tasks] == ["relu", MATMUL, "relu(shape=64)"] and report.ok
    assert report["relu"].best == report["relu(shape=64)"].best is not None
    assert report["relu"].flops == report["relu(shape=64)"].flops == 64
    assert len(RecordLog(log).load().records) == 4
    assert beside_noise(report) == ["relu is the same program as relu(shape=64), and has its result"]
    assert {p.task.name: p.task.weight for p in shown} == {"relu(shape=64)": 4, MATMUL: 1}, "the weights are added"


def test_numbers_of_numpy_are_numbers() -> None:
    search = Search(batch=np.int64(2), leaders=np.int64(0), seed=np.int64(1))
    report = tunesmith.tune(MATMUL, TARGET, None, budget=np.int64(2), search=search, workers=np.int64(0), progress=False)
    assert report.tasks[0].trials == 2


@pytest.mark.parametrize("budget", [True, 0, 1.5, "9", [3]])
def test_a_budget_is_a_budget_or_a_number_of_trials(budget: Any) -> None:
    with pytest.raises(UserError, match=re.escape(f"budget={budget!r}: expected Budget(")):
        tunesmith.tune(MATMUL, TARGET, None, budget=budget)


def test_several_workloads_take_turns_and_have_separate_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune([MATMUL, "softmax(m=16,n=40)"], **grouped(target=TARGET, trials=4, log=log, batch=2, **QUICK))
    assert [t.workload for t in report.tasks] == [MATMUL, "softmax(m=16,n=40)"]
    order = [r.workload for r in RecordLog(log).load().records]
    first, second = (t.digest for t in report.tasks)
    assert order == [first, first, second, second, first, first, second, second]
    assert report[MATMUL].digest == first
    with pytest.raises(UserError, match="2 workloads"):
        _ = report.best
    with pytest.raises(UserError, match="was not tuned"):
        _ = report["relu(shape=3)"]


def test_the_report_is_data_and_text(tmp_path: Path) -> None:
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=3, log=None, **{**QUICK, "batch": 2}))
    (entry,) = report.to_json()["tasks"]  # type: ignore[misc]
    found = ["workload", "digest", "trials", "errors", "examples", "best_us", "best_clean", "measured", "noisy", "retaken", "gflops"]
    assert list(entry) == [*found, "drafted", "scored", "seconds"]
    assert list(entry["seconds"]) == ["total", "draft", "verify", "build", "measure", "train"]
    assert entry["best_us"] == pytest.approx(report.best.seconds * 1e6)  # type: ignore[union-attr]
    assert entry["gflops"] == pytest.approx(2 * 64**3 / report.best.seconds / 1e9)  # type: ignore[union-attr]
    for part in (MATMUL, "best us", "GFLOP/s", "Seconds", "none", *LEGEND):
        assert part in str(report)
    assert report.to_json()["notes"] == list(report.notes) and not beside_noise(report)


@pytest.mark.parametrize("budget", [{"trials": 2}, {"trials": None, "total_trials": 3}])
def test_a_batch_as_large_as_the_budget_is_noted(budget: dict[str, int | None]) -> None:
    report = tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, log=None, **{**QUICK, "batch": 3, **budget}))
    (note,) = beside_noise(report)
    assert f"batch 3 >= trials {budget['trials'] or 3}: a sampler is asked once and learns nothing" in note and note in str(report)
    assert report.ok, "it is not a failure"


def test_a_failed_search_does_not_repeat_the_note() -> None:
    settings = {**QUICK, "batch": 3, "trials": 2, "rules": [lambda func, target: []]}
    report = tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, log=None, **settings))
    assert "makes no schedule for relu" in report.tasks[0].failure and not beside_noise(report)


@pytest.mark.parametrize(("trials", "batch"), [(None, 32), (1000, 32), (128, 32), (127, 31), (32, 8), (5, 1), (2, 1)])
def test_a_short_search_has_at_least_four_turns(trials: int | None, batch: int) -> None:
    assert default_batch(trials) == batch


@pytest.mark.parametrize("budget", [{"trials": 8}, {"total_trials": 8}])
def test_the_default_batch_follows_from_the_budget(budget: dict[str, int]) -> None:
    asked: list[int] = []

    class Asked(RandomSampler):
        def ask(self, n: int) -> list[Candidate]:
            asked.append(n)
            return super().ask(n)

    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, log=None, **{**QUICK, "sampler": Asked, **budget}))
    assert asked == [2, 2, 2, 2] and report.tasks[0].trials == 8


def test_missing_sketches_are_in_the_report() -> None:
    def rule(func: PrimFunc, target: Target) -> list[Any]:
        def never(s: tunesmith.Schedule) -> None:
            (loop,) = s.get_loops(s.get_block("Y"))
            s.sample_tile(loop, 2, "t", [[600]], waste=0.0, slack=0)

        return [("empty", never), ("refused", lambda s: s.get_block("Z")), ("plain", lambda s: None)]

    with pytest.warns(SketchWarning):
        report = tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, log=None, **{**QUICK, "trials": 1, "rules": [rule]}))
    dropped, refused = [n for n in report.notes if n.startswith("relu(shape=512): ")]
    assert "dropped, no admissible configuration: empty: " in dropped
    assert "has a schedule for relu that is refused, 'refused': get_block refused" in refused


def test_missing_sketches_of_built_in_rules_are_shown_but_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = generate

    def one_is_missing(*arguments: Any) -> Space:
        return replace(
            generated(*arguments), refused=("the rule tile has a schedule that is refused",), plain=("block Y keeps plain loops",)
        )

    monkeypatch.setattr("tunesmith.search.task.generate", one_is_missing)
    report = tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, log=None, **{**QUICK, "trials": 1}))
    assert not any("refused" in note for note in report.notes) and "block Y keeps plain loops" in report.notes
    assert "the rule tile has a schedule that is refused" in str(show_workload("relu(shape=512)", target=TARGET))


def test_remarks_are_printed_before_the_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []

    class Reading(RandomSampler):
        def ask(self, n: int) -> list[Candidate]:
            printed.append(capsys.readouterr().err)
            return []

    settings = {**QUICK, "sampler": Reading, "progress": True, "batch": 32}
    tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=None, **settings))
    assert printed[0].startswith("! batch 32 >= trials 2: a sampler is asked once and learns nothing")


class NoisyRunner(InProcessRunner):
    """Every measurement is disturbed."""

    def run(self, requests: Any) -> Any:
        return [replace(r, clean=False) for r in super().run(requests)]


def test_a_noisy_best_is_marked_and_its_leaders_are_timed_again_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(TUNE, "InProcessRunner", NoisyRunner)
        report = tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, trials=3, log=log, **{**QUICK, "batch": 2}))
    assert report.best is not None and not report.best.clean and report.tasks[0].noisy == 3
    assert report.notes == (
        "0 of 3 measurements are clean (0%): the others were disturbed by other processes; the best time is from such measurements. "
        f"Compare with `tunesmith replay {log} --time`",
    )
    assert f"{report.best.seconds * 1e6:.4g}~" in str(report) and "(~ other processes used the machine)" in str(report)
    ranked: list[str] = []
    monkeypatch.setattr(Tuning, "rank", lambda tuning, leaders: ranked.append(tuning.task.name))
    again = tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, trials=3, log=log, **{**QUICK, "batch": 2, "leaders": 2}))
    assert ranked == ["relu(shape=512)"], "no trial is left, and a noisy best is timed again"
    assert "Run the same command again on a quiet machine, or compare with" in again.notes[0]


def test_a_clean_best_among_noisy_measurements_is_noted(hand: ModuleType) -> None:
    task = tunesmith.driver.workloads.find_subject(MATMUL).task(TARGET)
    best = hand.record_of(hand.matmul())
    noisy = hand.record_of(hand.matmul(), clean=False)
    one = TaskReport.of(Progress(task, 3), best, records=[best, noisy, noisy])
    assert noise_notes([one], "log.jsonl", True) == noise_notes([one], None, True)
    assert noise_notes([one], None, True) == [
        "1 of 3 measurements are clean (33%): the others were disturbed by other processes. The best times are clean, and faster "
        "candidates may have been missed: search with more trials on a quiet machine"
    ]
    assert noise_notes([TaskReport.of(Progress(task, 2), best, records=[best, noisy])], None, True) == []
    other = TaskReport.of(Progress(task, 1), noisy, records=[noisy])
    assert "; 1 of 2 best times are from such measurements. Search again" in noise_notes([one, other], None, True)[0]


def test_a_best_that_was_measured_once_is_timed_again(tmp_path: Path) -> None:
    """Even if no trial is left."""
    log = tmp_path / "log.jsonl"
    given = {**QUICK, "target": TARGET, "log": log, "trials": 3, "batch": 2}
    tunesmith.tune("relu(shape=512)", **grouped(**{**given, "leaders": 0}))
    assert len(RecordLog(log).load().records) == 3
    report = tunesmith.tune("relu(shape=512)", **grouped(**{**given, "leaders": 2}))
    assert [t.trials for t in report.tasks] == [3]
    assert len(RecordLog(log).load().records) >= 5


def test_leaders_are_timed_again_after_a_last_turn_that_ended_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 0.0, *[7.0 + 0.01 * n for n in range(50)]])  # the turn takes 7 s of a budget of 5
    monkeypatch.setattr(search_run, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter))
    ranked: list[str] = []
    monkeypatch.setattr(Tuning, "rank", lambda tuning, leaders: ranked.append(tuning.task.name))
    tunesmith.tune("relu(shape=512)", **grouped(**{**QUICK, "target": TARGET, "log": None, "seconds": 5.0, "batch": 2, "leaders": 2}))
    assert ranked == ["relu(shape=512)"]


def test_the_last_line_of_progress_reports_leaders_timed_again(hand: ModuleType) -> None:
    task = tunesmith.driver.workloads.find_subject(MATMUL).task(TARGET)
    first, second = hand.record_of(hand.matmul(), seconds=568.6e-6), hand.record_of(hand.matmul(), seconds=2227e-6, clean=False)
    p = Progress(task, 24, trials=24, best=second, timed_again=4, best_before=first)
    assert "24/24 trials, 4 leaders timed again: best 2227~ us (was 568.6 us)" in line(p)
    same = line(replace(p, best=first, timed_again=1))
    assert "1 leader timed again: best 568.6 us" in same and "was" not in same


def test_a_program_without_a_reference_is_compared_with_itself_unscheduled(tmp_path: Path) -> None:
    func = workload("gelu(shape=30x50)").func
    report = tunesmith.tune(func, **grouped(target=TARGET, trials=2, log=tmp_path / "log.jsonl", **QUICK))
    assert report.ok and report.tasks[0].workload == "gelu" and report.tasks[0].flops == 5 * 30 * 50


def test_leaders_are_measured_again(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tunesmith.tune("relu(shape=512)", **grouped(target=TARGET, trials=2, log=log, **{**QUICK, "leaders": 2}))
    kinds = [r.policy["kind"] for r in RecordLog(log).load().records]
    assert kinds == ["race", "race", "interleaved", "interleaved"]


class Stopping(RandomSampler):
    """Raises KeyboardInterrupt in the second round."""

    def ask(self, n: int) -> list[Candidate]:
        if self._round == 1:
            raise KeyboardInterrupt
        return super().ask(n)


class Empty(RandomSampler):
    def ask(self, n: int) -> list[Candidate]:
        return []


class Uncounted(RandomSampler):
    def statistics(self) -> Any:
        return 3


class Failing(RandomSampler):
    """Fails for one workload."""

    def ask(self, n: int) -> list[Candidate]:
        if self.task.name.startswith("relu"):
            raise RunError("the device is gone")
        return super().ask(n)


def test_an_interrupt_keeps_the_measurements(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=6, log=log, batch=3, **{**QUICK, "sampler": Stopping}))
    assert report.interrupted and not report.ok
    assert report.tasks[0].trials == len(Database.from_log(log)) == 3
    assert "interrupted" in str(report)


def test_a_failing_workload_is_reported_and_stops_no_other(tmp_path: Path) -> None:
    report = tunesmith.tune(["relu(shape=64)", MATMUL], **grouped(target=TARGET, trials=2, log=None, **{**QUICK, "sampler": Failing}))
    bad, good = report.tasks
    assert not report.ok and bad.failure == "the device is gone" and bad.best is None and good.trials == 2 and not good.failure
    assert "relu(shape=64): the device is gone" in str(report)


@pytest.mark.parametrize("error", [IndexError("list index"), InternalError("two buffers in one place"), OSError("no space left")])
def test_a_task_with_a_failing_space_is_reported_and_the_others_continue(error: Exception) -> None:
    def broken(func: PrimFunc, target: Target) -> list[Any]:
        if len(func.params) == 2:
            raise error
        return contraction.sketches(func, target)

    report = tunesmith.tune(["relu(shape=64)", MATMUL], **grouped(target=TARGET, trials=2, log=None, rules=[broken], **QUICK))
    bad, good = report.tasks
    assert not report.ok and str(error) in bad.failure and ("This is a bug" in bad.failure) == isinstance(error, InternalError)
    assert bad.workload == "relu(shape=64)" and good.trials == 2 and not good.failure
    if not isinstance(error, InternalError):
        assert f"{type(error).__name__}: " in bad.failure and "in broken" in bad.failure


def test_arithmetic_of_scalars_is_tuned() -> None:
    a = te.placeholder((), name="a")
    y = te.compute((), lambda: a[()] * 2.0, "Y")
    func = te.create_prim_func([a, te.compute((), lambda: y[()] + 1.0, "Z")], "scalar")
    report = tunesmith.tune([func, "relu(shape=64)"], **grouped(target=TARGET, trials=2, log=None, **QUICK))
    assert report.ok and [t.trials for t in report.tasks] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": 0}, "trials=0"),
        ({"allocation": ""}, "unknown allocator ''"),
        ({"batch": 0}, "batch=0"),
        ({"leaders": -1}, "leaders=-1"),
        ({"workers": -2}, "workers is a number of processes"),
        ({"trials": math.nan}, "trials=nan: expected an integer >= 1"),
        ({"trials": 1.5}, "trials=1.5"),
        ({"trials": True}, "trials=True"),
        ({"total_trials": "x"}, "total_trials='x'"),
        ({"total_trials": math.inf}, "total_trials=inf"),
        ({"early_stop": 1.5}, "early_stop=1.5"),
        ({"early_stop": "x"}, "early_stop='x'"),
        ({"seconds": "x"}, "seconds='x'"),
        ({"leaders": 1.5}, "leaders=1.5"),
        ({"leaders": "x"}, "leaders='x'"),
        ({"batch": True}, "batch=True"),
        ({"batch": "8"}, "batch='8'"),
        ({"workers": []}, r"workers=\[\]"),
        ({"weights": 1.5}, "weights=1.5: expected a mapping"),
        ({"weights": {MATMUL: "x"}}, "the weight of matmul.* is x; a weight is a positive number"),
        ({"callbacks": 1}, "callbacks=1: expected a list of functions"),
        ({"callbacks": [1]}, r"callbacks=\[1\]"),
        ({"callbacks": "zzz"}, "callbacks='zzz'"),
        ({"rules": 1}, "rules=1: pass a list of functions"),
        ({"rules": [1]}, r"rules=\[1\]"),
        ({"rules": "zzz"}, "rules='zzz'"),
        ({"tensorboard": 5}, "tensorboard=5: expected the path of a folder"),
        ({"policy": 5}, "policy=5: expected a MeasurePolicy"),
        ({"model": 5}, "model=5: pass a cost model"),
        ({"model": []}, r"model=\[\]: pass a cost model"),
        ({"model": Path("model.json")}, "model=.*model.json.*: pass a cost model"),
        ({"log": "a\0"}, r"'a\\x00' cannot be a log: .*null"),
        ({"log": "\ud800"}, "cannot be a log"),
        ({"log": 5}, "cannot be a log|expected"),
        ({"sampler": "rondom"}, "Did you mean 'random'"),
        ({"sampler": "evolutionary", "model": "xbg"}, "Did you mean 'xgb'"),
        ({"target": "llvm -mcpu=nocpu"}, "nocpu"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with pytest.raises(UserError, match=message):
        tunesmith.tune(MATMUL, **grouped(**{"target": TARGET, "trials": 2, "log": log, **QUICK, **arguments}))
    assert not log.exists()


@pytest.mark.parametrize(
    "name", ["trials", "total_trials", "seconds", "early_stop", "seed", "sampler", "model", "batch", "rules", "leaders"]
)
def test_keywords_of_version_0_1_are_refused_with_those_that_replaced_them(name: str) -> None:
    group = "search=Search" if name in ("seed", "sampler", "model", "batch", "rules", "leaders") else "budget=Budget"
    with pytest.raises(UserError, match=rf"tune has no argument '{name}': pass .*{group}\({name}="):
        tunesmith.tune(MATMUL, **{name: 1})


def test_a_rule_with_a_wrong_result_and_a_sampler_without_proposals_are_the_users(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def none(func, target):\n    return None\n")
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=None, rules=[f"{tmp_path / 'mine.py'}:none"], **QUICK))
    assert "none returned None; a rule returns a list of" in report.tasks[0].failure and "bug" not in report.tasks[0].failure
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=None, **{**QUICK, "sampler": Empty}))
    size = tunesmith.driver.workloads.find_subject(MATMUL).task(TARGET).space.size()
    assert report.tasks[0].failure == f"Empty proposed no candidates; the space has about {size:.2g}"
    report = tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=None, **{**QUICK, "sampler": Uncounted}))
    assert report.tasks[0].failure == "Uncounted.statistics() returned an int: it returns SamplerStatistics, or None"


def test_a_log_that_cannot_be_written_is_an_error_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    with pytest.raises(RecordError):
        tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=tmp_path / "dir", **QUICK))


def test_a_log_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    """Reading a device such as /dev/full would never end, and /dev/null would discard all records."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="pipe cannot be a log, because it is no regular file. Give the path of a file"):
        tunesmith.tune(MATMUL, **grouped(target=TARGET, trials=2, log=tmp_path / "pipe", **QUICK))
    assert os.listdir(tmp_path) == ["pipe"]


def test_progress_is_lines_when_piped_and_a_table_in_a_terminal() -> None:
    task = tunesmith.driver.workloads.find_subject(MATMUL).task(TARGET)
    p = Progress(task, 8, trials=4, errors={"crash": 1, "build_error": 2}, resumed=2)
    p.seconds |= {"total": 10.0, "build": 4.0, "measure": 5.0, "draft": 1.0}
    assert seconds_left(p) == 20.0
    text = line(p)
    for part in (MATMUL, "4/8 trials", "best - us", "build_error 2, crash 1", "search 10 %, build 40 %, measure 50 %", "20 s left"):
        assert part in text
    piped = io.StringIO()
    with ProgressView(Console(file=piped, width=40)) as view:
        view.show(Progress(task, 8))
        view.show(p)
    assert piped.getvalue() == text + "\n"
    terminal = io.StringIO()
    with ProgressView(Console(file=terminal, force_terminal=True, width=200)) as view:
        view.show(p)
    assert "about 20 s left" in terminal.getvalue()
    assert [clock(s) for s in (3.2, 75, 600, 7322, 100000)] == ["3 s", "1:15", "10:00", "2:02:02", "28 h"]
    done = replace(p, exhausted=True)
    assert seconds_left(done) == 0.0 and line(done).endswith(", no more candidates") and "left" not in line(done)
