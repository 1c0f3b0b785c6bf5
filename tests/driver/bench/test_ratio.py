"""Ratios of times have intervals over starts of the processes, which contain the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.driver.bench.ratio import CONFIDENCE, Ratio, best_of, ratio


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
    assert ratio([[1.2]] * 4, 0.3).verdict == "not decided: 30% of the pairs of windows are clean"
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


def test_starved_starts_are_named() -> None:
    found = ratio([[1.2], [1.2]], 0.7, starved=1)
    assert found.verdict == "not decided: in 1 of 3 starts, each pair of windows lost a core" and "took cores" in found.advice
    assert ratio([[1.2], [1.21], [1.19]], 0.7, starved=2).verdict == "faster"
    assert ratio([[1.2]], starved=1).verdict == "not decided: fewer than 3 starts"


def test_the_best_of_baselines_that_are_as_fast_as_ours_is_rarely_slower_or_faster() -> None:
    """Starts of each system differ by 3 %, rounds by 1 %; the true ratio of the fastest baseline is 1."""
    rng = np.random.default_rng(1)
    runs, faster, slower = 2000, 0, 0
    for _ in range(runs):
        systems = [np.exp(rng.normal(0, 0.03, (5, 1)) + rng.normal(0, 0.01, (5, 2))) for _ in range(6)]
        found = best_of([ratio((x / systems[0]).tolist()) for x in systems[1:]])
        assert found is not None
        faster += found.verdict == "faster"
        slower += found.verdict == "slower"
    assert faster / runs < (1 - CONFIDENCE) / 2 and slower / runs < (1 - CONFIDENCE) / 2 + 0.007  # two standard deviations


def test_the_best_of_several_baselines() -> None:
    one = ratio([[1.2], [1.21], [1.19]])
    assert best_of([]) is None and best_of([one]) == one
    far = ratio([[2.0], [2.1], [1.9]])
    found = best_of([far, one])
    assert found is not None and (found.value, found.low) == (one.value, one.low) and found.verdict == "faster"
    half = 6.205346816571 * np.std(np.log([1.2, 1.21, 1.19]), ddof=1) / math.sqrt(3)  # the 98.75 % point with two degrees of freedom
    assert found.high == pytest.approx(one.value * math.exp(half))
    assert (slower := best_of([far, ratio([[0.8], [0.801], [0.799]])])) is not None and slower.verdict == "slower"
    wide = best_of([one, ratio([[2.0], [0.9], [2.0]])])  # it may be faster than ours
    assert wide is not None and wide.value == one.value and wide.verdict == "not decided"
    disturbed = best_of([one, ratio([[2.0]] * 3, 0.2)])  # other load may have slowed it down
    assert disturbed is not None and str(disturbed) == "1.20" and disturbed.verdict.startswith("not decided: 20%")


def test_data_and_text() -> None:
    found = Ratio(1.25, 1.1, 1.4, 0.9)
    assert str(found) == "1.25 [1.10, 1.40]"
    assert found.to_json() == {"value": 1.25, "low": 1.1, "high": 1.4, "clean": 0.9, "verdict": "faster"}
