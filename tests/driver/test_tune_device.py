"""End-to-end tuning on a device: sketches, population, build, measurement, log, replay, compiled function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.device.host import detect_device
from tunesmith.driver.bench.bench import BenchPolicy
from tunesmith.driver.tune_options import grouped
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.log import RecordLog
from tunesmith.runtime.device.device import DEVICES
from tunesmith.support.errors import BuildError

pytestmark = pytest.mark.skipif(not DEVICES.get("opencl").count(), reason="no OpenCL device here: pip install 'tunesmith[opencl]'")

MATMUL = "matmul(m=48,n=40,k=32)"
QUICK = MeasurePolicy(race=RacePolicy(min_repeat_ms=0.2, repeats=2, patience_s=0.0), retake=0.0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of two workloads on an OpenCL device."""
    path = tmp_path_factory.mktemp("device") / "log.jsonl"
    report = tunesmith.tune(
        [MATMUL, "softmax(m=12,n=60)"],
        **grouped(target="opencl", trials=8, batch=4, log=path, workers=1, policy=QUICK, leaders=2, progress=False),
    )
    assert [t.trials for t in report.tasks] == [8, 8] and all(t.best_us for t in report.tasks)
    return path


def test_records_hold_their_device(log: Path) -> None:
    records = RecordLog(log).load().records
    assert len({r.workload for r in records}) == 2
    for r in records:
        assert r.target["kind"] == "opencl" and r.host["device"] and "lower_s" in r.extra
        assert r.sketch.startswith("gpu ")


def test_a_search_resumes_from_its_log(log: Path) -> None:
    before = len(RecordLog(log).load().records)
    report = tunesmith.tune(
        MATMUL, **grouped(target="opencl", trials=8, batch=4, log=log, workers=1, policy=QUICK, leaders=0, progress=False)
    )
    assert report.tasks[0].resumed == 8 and len(RecordLog(log).load().records) == before


def test_replay_verifies_and_times(log: Path) -> None:
    report = tunesmith.replay(log, time=True)
    assert report.ok and len(report.rows) == 2 and all(r.median for r in report.rows)


def test_compiled_with_the_log(log: Path) -> None:
    module = tunesmith.compile(MATMUL, "opencl", records=log, strict=True)
    again = tunesmith.compile(MATMUL, "opencl", records=log, strict=True)
    assert module.artifact.data == again.artifact.data  # type: ignore[union-attr]
    a, b = np.random.default_rng(0).random((48, 32), np.float32), np.random.default_rng(1).random((32, 40), np.float32)
    c = np.full((48, 40), np.nan, np.float32)
    module["matmul"](a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_bench_times_the_replayed_record(log: Path) -> None:
    policy = BenchPolicy(starts=1, rounds=1, window_s=0.02, patience_s=0.0)
    report = tunesmith.bench(MATMUL, log, against=("openblas",), target="opencl", policy=policy)
    rows = {r.system: r for r in report.rows}
    assert rows["tunesmith"].ok and rows["openblas"].ok and rows["tunesmith"].median > 0


def test_a_missing_device_is_refused_before_any_measurement(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="there is no cuda device"):
        tunesmith.tune(MATMUL, **grouped(target="nvidia/h200", trials=2, log=tmp_path / "log.jsonl", progress=False))
    assert not (tmp_path / "log.jsonl").exists()


def test_the_kind_alone_is_the_first_device(log: Path) -> None:
    (record, *_) = RecordLog(log).load().records
    assert json.dumps(record.target, sort_keys=True) == json.dumps(detect_device("opencl").to_json(), sort_keys=True)
