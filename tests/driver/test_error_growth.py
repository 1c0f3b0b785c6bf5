"""Limit the rounding errors of schedules: in a search, of records, and of functions without records."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import tunesmith
from tunesmith.driver.tune_options import Search
from tunesmith.ir.target.target import Target
from tunesmith.measure.policies import MeasurePolicy
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import workload
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.support.errors import RecordError, UserError

WORKLOAD = "dense(m=16,n=96,k=64)"
VERIFIED = MeasurePolicy(verify="always")


def tuned(log: Path, rules: dict[str, int]) -> None:
    for rule, budget in rules.items():
        search = Search("random", seed=1, rules=[rule], leaders=0)
        report = tunesmith.tune(WORKLOAD, log=log, search=search, budget=budget, workers=0, policy=VERIFIED, progress=False)
        assert report.ok


def test_the_next_record_within_the_limit_is_used(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tuned(log, {"strassen": 2})
    (only,) = tunesmith.compile(WORKLOAD, records=log).coverage
    assert (
        only.status == "used"
        and only.sketch.startswith("strassen")
        and f"({only.sketch}, errors 1.9 times those of direct sums, measured time" in str(only)
    )
    (refused,) = tunesmith.compile(WORKLOAD, records=log, error_growth=1).coverage
    assert refused.status == "refused" and "1.9 times those of direct sums, more than error_growth=1" in refused.reason
    assert "Tune it with Search(error_growth=1), or tunesmith tune --error-growth 1" in refused.reason
    with pytest.raises(RecordError, match="more than error_growth=1"):
        tunesmith.compile(WORKLOAD, records=log, strict=True, error_growth=1)
    tuned(log, {"contraction": 4})
    (used,) = tunesmith.compile(WORKLOAD, records=log, error_growth=1).coverage
    assert used.status == "used" and not used.sketch.startswith("strassen")


def test_a_search_leaves_out_sketches_beyond_the_limit(tmp_path: Path) -> None:
    search = Search("random", seed=1, rules=["strassen"], leaders=0, error_growth=1)
    report = tunesmith.tune(WORKLOAD, log=None, search=search, budget=2, workers=0, progress=False)
    assert not report.ok and "its errors are 1.9 times those of direct sums" in str(report)


def test_functions_without_records_keep_the_limit() -> None:
    func, target = workload("dense(m=128,n=768,k=768)").func, Target("llvm -mcpu=x86-64-v4 -vector-bits=512 -num-cores=2")
    assert "A_sums" in str(analytic_schedule(func, target, math.inf))
    assert "A_sums" not in str(analytic_schedule(func, target, 1))


@pytest.mark.parametrize("growth", [0.5, -1, math.nan, "3", None, True])
def test_invalid_limits(growth: object) -> None:
    with pytest.raises(UserError, match="error_growth"):
        tunesmith.compile(WORKLOAD, error_growth=growth)  # type: ignore[call-overload]
    with pytest.raises(UserError, match="error_growth"):
        tunesmith.tune(WORKLOAD, log=None, search=Search(error_growth=growth), budget=2)  # type: ignore[arg-type]


def test_the_coverage_names_the_algorithm_of_a_function_without_a_record() -> None:
    conv = "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1)"
    (c,) = tunesmith.compile(conv, records=Database()).coverage
    assert c.status == "missing" and c.sketch.startswith("winograd F(") and c.error_growth is not None and c.error_growth > 1
    assert str(c).endswith(f"its schedule without a record: {c.sketch}, errors {c.error_growth:.2g} times those of direct sums")
    (direct,) = tunesmith.compile(conv, records=Database(), error_growth=1).coverage
    assert direct.error_growth == 1 and "errors" not in str(direct)
