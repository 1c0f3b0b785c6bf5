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
    assert interval([2.0, 8.0]) == Interval(pytest.approx(4.0), None, None, 2), (
        "one degree of freedom: the interval would be 0.0006 to 26,000"
    )  # type: ignore[arg-type]
    same = interval([3.0, 3.0, 3.0])
    assert same.low == pytest.approx(3.0) == same.high


def test_units_and_rates() -> None:
    i = Interval(2.0, 1.0, 4.0, 3)
    assert i.scaled(10) == Interval(20.0, 10.0, 40.0, 3)
    assert i.inverse(8) == Interval(4.0, 2.0, 8.0, 3)
    assert Interval(90.0, 70.0, 120.0, 3).at_most(100.0) == Interval(90.0, 70.0, 100.0, 3)
    assert Interval(100.1, None, None, 1).at_most(100.0) == Interval(100.0, None, None, 1)
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
    assert ratio([0.1] * 5, [0.1] * 7) == Ratio(1.0, 1.0, 1.0, 1.0, 10)
    assert [verdict(0.5, p) for p in (None, 0.06, 0.04)] == ["too few seeds to tell", "no difference shown", "faster"]
    assert verdict(1.5, 0.04) == "slower"


def test_adjusted_numbers_are_those_of_holm_and_bonferroni() -> None:
    """The intervals are scipy's at 1 - 0.05 / 2: the ratio without a test is not counted."""
    a, b = {0: 1.0, 1: 5.2, 2: 9.1, 3: 2.0, 5: 3.0}, {0: 1.1, 1: 5.6, 2: 9.9, 3: 2.3, 5: 3.1}
    x, y = [1.0, 1.2, 0.9, 1.1, 0.95], [2.0, 2.5, 1.7, 2.2, 2.1, 1.9]
    paired, welch = paired_ratio(a, b), ratio(x, y)
    assert paired is not None and paired.p is not None and welch.p is not None and welch.p < paired.p
    first, alone, second = adjusted([paired, Ratio(0.5), welch])
    assert (first.p_adjusted, second.p_adjusted) == (pytest.approx(paired.p), pytest.approx(2 * welch.p)) and alone == Ratio(0.5)
    tests = stats.ttest_rel(*[np.log(list(t.values())) for t in (a, b)]), stats.ttest_ind(np.log(x), np.log(y), equal_var=False)
    for r, test in zip((first, second), tests, strict=True):
        assert (r.low_adjusted, r.high_adjusted) == pytest.approx(tuple(np.exp(test.confidence_interval(0.975))), rel=1e-9)
        assert r.low is not None and r.low_adjusted is not None and r.low_adjusted < r.low
    (only,) = adjusted([paired])
    assert (only.low_adjusted, only.high_adjusted, only.p_adjusted) == pytest.approx((paired.low, paired.high, paired.p))
    (same,) = adjusted([ratio([1.0] * 5, [2.0] * 5)])
    assert (same.low_adjusted, same.high_adjusted, same.p_adjusted) == (0.5, 0.5, 0.0)
    assert adjusted([]) == []


def _families(families: int, true: list[float], seeds: int) -> list[list[Ratio]]:
    """Adjusted tables of simulated runs: `true` has the logarithms of the ratios of the arms to the first one."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(families):
        base = {s: float(np.exp(rng.normal())) for s in range(seeds)}
        arms = [{s: x * float(np.exp(t + 0.1 * rng.normal())) for s, x in base.items()} for t in true]
        out.append(adjusted([r for arm in arms if (r := paired_ratio(arm, base)) is not None]))
    return out


def test_adjusted_intervals_contain_all_ratios_of_a_table_at_once() -> None:
    """95 % of 400 tables, less three standard errors; the intervals of single lines contain all of their table much more rarely."""
    true = [-0.2, -0.1, 0.0, 0.0, 0.1, 0.3]
    tables = _families(400, true, 6)

    def coverage(low: str, high: str) -> float:
        return float(
            np.mean([all(getattr(r, low) <= math.exp(t) <= getattr(r, high) for r, t in zip(x, true, strict=True)) for x in tables])
        )

    assert coverage("low_adjusted", "high_adjusted") > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)
    assert coverage("low", "high") < 0.85


def test_an_adjusted_interval_excludes_1_exactly_if_bonferronis_p_is_significant_and_then_holms_is() -> None:
    """Holm's method rejects in some tables where the interval contains 1, and never the other way around."""
    more = 0
    for table in _families(100, [-0.12, -0.06, 0.0, 0.08, 0.15], 6):
        for r in table:
            assert r.p is not None and r.p_adjusted is not None and r.low_adjusted is not None and r.high_adjusted is not None
            excludes = not r.low_adjusted <= 1 <= r.high_adjusted
            assert excludes == (5 * r.p < 0.05) and (not excludes or r.p_adjusted < 0.05)
            more += r.p_adjusted < 0.05 and not excludes
    assert more > 0
