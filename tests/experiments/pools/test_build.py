"""`dataset build`: comparable measurements of every workload, resumed from the log, written as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.datasets.record_table import RecordTable
from tunesmith.driver.workloads import find_subject
from tunesmith.experiments.pools.build import PART, POOL_POLICY, build, fair_records
from tunesmith.ir.target.target import Target
from tunesmith.measure.measurer import Measurer
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import RecordLog
from tunesmith.measure.records.record import ErrorInfo, Record
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.support.errors import RunError, UserError

MATMUL = "matmul(m=64,n=64,k=64)"
TARGET = Target("llvm")
QUICK: dict[str, Any] = {
    "target": TARGET,
    "workers": 0,
    "progress": False,
    "policy": MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, give_up=math.inf, quiet_fraction=1e9), verify="always"),
}


def synthetic_record(task: Any, candidate: tuple[int, tuple[int, ...]], **changes: Any) -> Record:
    sketch = task.sketches[candidate[0]]
    fields: dict[str, Any] = {
        "workload": task.digest,
        "target": TARGET.to_json(),
        "trace": sketch.trace.with_configuration(candidate[1]).to_json(),
        "sketch": sketch.name,
        "row": candidate[1],
        "samples": (1e-6 * (1 + sum(candidate[1])),) * 3,
        "clean": True,
        "error": None,
        "verified": True,
        "host": {},
        "versions": {},
        "seed": 0,
        "timestamp": 1000.0,
        "policy": {"kind": "race", "give_up": None, "repeats": 3},
        "extra": {"run_s": 0.25},
    }
    return Record(**{**fields, **changes})


class FakeStream:
    """Replaces `Measurer.stream`: synthetic times, logged like real ones; `noisy` and `stop_after` configure it."""

    def __init__(self, noisy: bool = False, stop_after: int | None = None) -> None:
        self.noisy, self.stop_after, self.count = noisy, stop_after, 0
        self.measured: list[Any] = []

    def __call__(self, measurer: Measurer, task: Any, candidates: Any, *, seed: int = 0, extra: Any = None) -> Iterator[Record]:
        measurer._setup(task)  # writes the workload's line
        for c in candidates:
            if self.count == self.stop_after:
                raise KeyboardInterrupt
            self.count += 1
            self.measured.append(c)
            time = 1000.0 + self.count
            record = synthetic_record(task, c, seed=seed, clean=not self.noisy, timestamp=time, extra={**(extra or {}), "run_s": 0.1})
            assert measurer.log is not None
            measurer.log.append(record)
            yield record


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    fake = FakeStream()
    monkeypatch.setattr(Measurer, "stream", lambda self, *a, **k: fake(self, *a, **k))
    return fake


@pytest.fixture(scope="module")
def task() -> Task:
    return find_subject(MATMUL).task(TARGET)


def test_a_pool_is_measured_logged_and_written(tmp_path: Path) -> None:
    out, log = tmp_path / "pool.parquet", tmp_path / "pool.jsonl"
    report = build([MATMUL, "relu(shape=64)"], 8, out, log, **QUICK)
    assert report.ok and [p.progress.trials for p in report.pools] == [8, 8]
    table = RecordTable.load(out)
    assert table.records() == report.table.records() and len(RecordLog(log).load().records) == len(table) == 16
    frame = table.frame
    assert frame["verified"].all() and not frame["censored"].any() and set(frame["name"]) == {MATMUL, "relu(shape=64)"}
    assert [r.extra[PART] for r in table.records()][:8] == ["random"] * 4 + ["ranked"] * 2 + ["near-1", "near-2"]
    assert "l1_bytes" in table.targets[TARGET.key] and table.notes["per_task"] == 8
    assert "8/8" in str(report) and report.to_json()["records"] == 16
    before = log.read_text()
    again = build([MATMUL, "relu(shape=64)"], 8, out, log, **QUICK)
    assert log.read_text() == before and [p.progress.resumed for p in again.pools] == [8, 8]
    assert RecordTable.load(out).records() == table.records()


def test_early_stopping_is_refused() -> None:
    assert POOL_POLICY.race.give_up == math.inf and POOL_POLICY.verify == "always"
    with pytest.raises(UserError, match="a pool needs comparable times: give_up must be inf in its policy, but is 1.5"):
        build(MATMUL, 4, policy=MeasurePolicy(), progress=False)


def test_an_interrupted_run_keeps_all_measurements_and_resumes(tmp_path: Path, made: FakeStream) -> None:
    made.stop_after = 21
    out, log = tmp_path / "p.parquet", tmp_path / "p.jsonl"
    first = build([MATMUL, "softmax(m=16,n=40)"], 16, out, log, batch=8, **QUICK)
    assert first.interrupted and first.ok and len(RecordTable.load(out)) == 21
    assert "run again to resume" in str(first)
    made.stop_after = None
    second = build([MATMUL, "softmax(m=16,n=40)"], 16, out, log, batch=8, **QUICK)
    assert not second.interrupted and len(RecordTable.load(out)) == 32 == len(set(map(str, made.measured))) == len(made.measured)
    assert sum(p.progress.resumed for p in second.pools) == 21


def test_more_candidates_and_workloads_extend_the_pools(tmp_path: Path, made: FakeStream) -> None:
    out, log = tmp_path / "p.parquet", tmp_path / "p.jsonl"
    build(MATMUL, 16, out, log, **QUICK)
    build([MATMUL, "relu(shape=4096)"], 24, out, log, **QUICK)
    assert len(RecordTable.load(out)) == 48 == made.count
    build(MATMUL, 8, out, log, **QUICK)
    assert len(RecordTable.load(out)) == 8 and made.count == 48, "the table has the requested candidates, the log all"


def test_disturbed_times_are_measured_again_on_request(tmp_path: Path, made: FakeStream) -> None:
    out, log = tmp_path / "p.parquet", tmp_path / "p.jsonl"
    made.noisy = True
    build(MATMUL, 8, out, log, **QUICK)
    assert not RecordTable.load(out).frame["clean"].any()
    build(MATMUL, 8, out, log, **QUICK)
    assert made.count == 8
    made.noisy = False
    report = build(MATMUL, 8, out, log, retake=True, **QUICK)
    frame = RecordTable.load(out).frame
    assert made.count == 16 and len(frame) == 8 and frame["clean"].all() and report.pools[0].progress.trials == 8
    build(MATMUL, 8, out, log, retake=True, **QUICK)
    assert made.count == 16


def test_a_small_space_is_measured_completely_and_is_not_a_failure(tmp_path: Path, made: FakeStream) -> None:
    report = build("relu(shape=8)", 500, tmp_path / "p.parquet", tmp_path / "p.jsonl", **QUICK)
    (pool,) = report.pools
    assert report.ok and pool.exhausted and pool.progress.trials == len(report.table) == made.count < 500
    assert "(all)" in str(report)


def test_a_workload_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: FakeStream) -> None:
    def fails(self: Measurer, task: Any, candidates: Any, **more: Any) -> Iterator[Record]:
        if task.name == MATMUL:
            raise RunError("no core left")
        return made(self, task, candidates, **more)

    monkeypatch.setattr(Measurer, "stream", fails)
    report = build([MATMUL, "relu(shape=4096)"], 8, tmp_path / "p.parquet", tmp_path / "p.jsonl", **QUICK)
    assert not report.ok and [p.failure for p in report.pools] == ["no core left", ""] and len(report.table) == 8
    assert "! matmul(m=64,n=64,k=64): no core left" in str(report)


def test_representative_records(task: Task) -> None:
    m = task.measured
    rng = np.random.default_rng(0)
    a, b, c, d = [(k, tuple(s.space.sample(1, rng)[0].tolist())) for k, s in enumerate(task.space.sketches)][:4]
    wrong = ErrorInfo("wrong_result", "off")
    fine, noisy = synthetic_record(m, a), synthetic_record(m, a, clean=False, timestamp=2000.0)
    records = [
        fine,
        noisy,  # later, but disturbed
        synthetic_record(m, b, timestamp=1.0),
        synthetic_record(m, b, error=wrong, verified=False, timestamp=0.5),  # earlier, but wrong
        synthetic_record(m, c, policy={"kind": "race", "give_up": 1.5, "repeats": 5}),  # stopped early
        synthetic_record(m, d, target=Target("llvm -mcpu=znver4 -num-cores=4").to_json()),
        synthetic_record(m, d, workload="other"),
        synthetic_record(m, d, sketch="unknown"),
        synthetic_record(m, d, trace=[["get_block", {}, ["b0"]]]),  # the same name, other steps
        synthetic_record(m, d, row=d[1][:-1]),
    ]
    found = fair_records(task, records)
    assert found == {Candidate(*a): fine, Candidate(*b): records[3]}


@pytest.mark.parametrize("arguments", [{"per_task": 0}, {"batch": 0}, {"workers": -1}])
def test_refusals(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must be at least 1"):
        build(MATMUL, **{"out": tmp_path / "p", "log": tmp_path / "l", "progress": False, **arguments})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
