"""Intervals, ratios and p-values match independent formulas and earlier releases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tunesmith.experiments.study.statistics import (
    Interval,
    Ratio,
    adjusted,
    interval,
    paired_ratio,
    ratio,
    verdict,
)


def test_numbers_are_those_of_earlier_releases() -> None:
    """Literals computed with a continued fraction of the incomplete beta function instead of scipy."""
    assert interval([1.0, 2.0, 4.5, 3.0]) == Interval(
        *[pytest.approx(x, rel=1e-12) for x in (2.2795070569547775, 0.8215334943518977)], pytest.approx(6.324942876255876, rel=1e-12), 4
    )
    several = ratio([1.0, 1.2, 0.9, 1.1, 0.95], [2.0, 2.5, 1.7, 2.2, 2.1, 1.9])
    constant = ratio([0.1] * 5, [0.1, 0.2, 0.1, 0.3, 0.1])  # scipy would warn of cancellation
    paired = paired_ratio({0: 1.0, 1: 5.2, 2: 9.1, 3: 2.0, 5: 3.0, 9: 7.0}, {0: 1.1, 1: 5.6, 2: 9.9, 3: 2.3, 4: 0.1, 5: 3.1})
    assert paired is not None
    for found, expected in (
        (several, (0.49931229341286026, 0.4219095164161807, 0.5909152475889706, 6.5560778178538305e-06)),
        (constant, (0.6988271187715793, 0.37042786631137425, 1.3183655614075263, 0.19207418719538882)),
        (paired, (0.9182863102765321, 0.8753473389317695, 0.9633315943706957, 0.007803741543920331)),
    ):
        assert (found.ratio, found.low, found.high, found.p) == pytest.approx(expected, rel=1e-12)


def test_an_interval_is_computed_on_logarithms() -> None:
    values = [1.0, 2.0, 4.5, 3.0]
    found = interval(values)
    low, high = stats.t.interval(0.95, 3, np.log(values).mean(), stats.sem(np.log(values)))
    assert found.mean == pytest.approx(stats.gmean(values)) and found.n == 4
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert interval([2.0]) == Interval(2.0, None, None, 1)
    same = interval([3.0, 3.0])
    assert same.low == pytest.approx(3.0) == same.high


def test_units_and_rates() -> None:
    i = Interval(2.0, 1.0, 4.0, 3)
    assert i.scaled(10) == Interval(20.0, 10.0, 40.0, 3)
    assert i.inverse(8) == Interval(4.0, 2.0, 8.0, 3)
    assert Interval(2.0, None, None, 1).inverse() == Interval(0.5, None, None, 1)


def test_a_ratio_matches_welchs_test() -> None:
    a, b = [1.0, 1.2, 0.9, 1.1, 0.95], [2.0, 2.5, 1.7, 2.2, 2.1, 1.9]
    found = ratio(a, b)
    expected = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    assert found.ratio == pytest.approx(stats.gmean(a) / stats.gmean(b)) and found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))


def test_a_paired_ratio_matches_students_test_of_the_common_seeds() -> None:
    a = {0: 1.0, 1: 5.2, 2: 9.1, 3: 2.0, 5: 3.0, 9: 7.0}
    b = {0: 1.1, 1: 5.6, 2: 9.9, 3: 2.3, 4: 0.1, 5: 3.1}
    both = [0, 1, 2, 3, 5]
    found = paired_ratio(a, b)
    assert found is not None
    logs = [np.log([x[s] for s in both]) for x in (a, b)]
    expected = stats.ttest_rel(*logs)
    assert found.ratio == pytest.approx(math.exp(np.mean(logs[0] - logs[1]))) and found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert found.p < 0.02 < 0.5 < ratio([a[s] for s in both], [b[s] for s in both]).p, "seeds differ far more than arms"  # type: ignore[operator]


def test_too_few_seeds_give_no_statistics() -> None:
    assert ratio([1.0], [2.0, 2.1]) == Ratio(pytest.approx(1 / math.sqrt(4.2)))
    # Two seeds may be close together by chance, so no test is applied.
    assert ratio([0.92, 0.921] * 2, [1.0, 1.001] * 3) == Ratio(pytest.approx(0.92, rel=1e-2))
    assert paired_ratio({0: 0.918, 1: 0.934}, {0: 1.0, 1: 1.0}) == Ratio(pytest.approx(0.926, rel=1e-3))
    assert paired_ratio({0: 1.0}, {1: 1.0}) is None
    assert ratio([1.0] * 5, [1.0] * 5).p == 1.0 == paired_ratio(dict.fromkeys(range(5), 2.0), dict.fromkeys(range(5), 2.0)).p  # type: ignore[union-attr]
    assert ratio([1.0] * 5, [2.0] * 5).p == 0.0
    assert ratio([0.1] * 5, [0.1] * 7) == Ratio(1.0, 1.0, 1.0, 1.0)
    assert adjusted([0.04, None, 0.01]) == [0.04, None, 0.02]
    assert adjusted([None]) == [None] and adjusted([]) == []
    assert [verdict(0.5, p) for p in (None, 0.06, 0.04)] == ["too few seeds to tell", "no difference shown", "faster"]
    assert verdict(1.5, 0.04) == "slower"
