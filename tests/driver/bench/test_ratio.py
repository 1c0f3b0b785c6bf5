"""Ratios of times have intervals over starts of the processes, which contain the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.driver.bench.ratio import CONFIDENCE, Ratio, ratio


def test_the_median_of_the_rounds_and_the_mean_of_the_starts() -> None:
    found = ratio([[2.0, 2.0, 50.0], [8.0], [4.0, 4.0]])
    assert found.value == pytest.approx(4) and found.low is not None and found.high is not None
    assert found.low * found.high == pytest.approx(16) and found.low < 1
    half = 4.302652729911275 * math.log(2) / math.sqrt(3)  # the 97.5 % point of Student's t with two degrees of freedom, from a table
    assert found.high == pytest.approx(4 * math.exp(half))


def test_verdicts() -> None:
    assert ratio([[1.2], [1.21], [1.19]]).verdict == "faster"
    assert ratio([[0.8], [0.81], [0.79]]).verdict == "slower"
    assert ratio([[1.2], [0.9], [1.0]]).verdict == "not decided"
    assert ratio([[1.2], [1.2]]).verdict == "not decided: fewer than 3 starts" and str(ratio([[1.2]])) == "1.20"
    assert str(ratio([[1.2], [1.3]] * 2, 0.3)) == "1.25"  # what the interval would not show is the effect of the other load
    assert ratio([[1.2]] * 4, 0.3).verdict == "not decided: 30% of the windows are clean"
    assert ratio([[1.0]] * 3).verdict == "not decided"


def test_a_refused_verdict_comes_with_advice() -> None:
    assert ratio([[1.2], [1.21], [1.19]]).advice == "" and ratio([[0.8], [0.81], [0.79]]).advice == ""
    assert "--starts 5" in ratio([[1.2], [1.2]]).advice
    assert "again on a quiet machine" in ratio([[1.2]] * 4, 0.3).advice
    assert "more --starts" in ratio([[1.2], [0.9], [1.0]]).advice


def test_intervals_contain_the_truth_as_often_as_they_say() -> None:
    """Starts differ by 3 %, rounds by 1 %."""
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(1000):
        logs = rng.normal(0.1, 0.03, (5, 1)) + rng.normal(0, 0.01, (5, 2))
        found = ratio(np.exp(logs).tolist())
        assert found.low is not None and found.high is not None
        inside += found.low <= math.exp(0.1) <= found.high
    assert abs(inside / 1000 - CONFIDENCE) < 0.025


def test_data_and_text() -> None:
    found = Ratio(1.25, 1.1, 1.4, 0.9)
    assert str(found) == "1.25 [1.10, 1.40]"
    assert found.to_json() == {"value": 1.25, "low": 1.1, "high": 1.4, "clean": 0.9, "verdict": "faster"}
