"""Test the prediction of what more trials save."""

from __future__ import annotations

import math

import pytest

from tunesmith.search.power_law import LEFT, SLOPE, Slope, expected_gain, mean_slope, slope

LN2 = math.log(2.0)


def test_the_slope_is_measured_over_the_last_three_quarters() -> None:
    """From trial 4 to trial 16 the time halves; earlier trials do not count."""
    assert slope([80.0] * 3 + [8.0] * 4 + [4.0] * 9) == Slope(pytest.approx(LN2), pytest.approx(2 * LN2))
    assert slope([8.0, 4.0]) == Slope(pytest.approx(LN2), pytest.approx(LN2))


def test_the_slope_begins_at_the_first_success() -> None:
    assert slope([None] * 7 + [8.0] * 9) == Slope(0.0, pytest.approx(LN2))


@pytest.mark.parametrize("curve", [[], [1.0], [None] * 8, [None, None, 1.0]])
def test_a_search_without_two_successes_has_no_slope(curve: list[float | None]) -> None:
    assert slope(curve) is None


def test_the_mean_slope_counts_each_search_by_its_span() -> None:
    steep, flat = [8.0] * 4 + [4.0] * 12, [5.0] * 16
    assert mean_slope([]) == mean_slope([[1.0]]) == pytest.approx(SLOPE)
    assert mean_slope([steep]) == pytest.approx((0.15 + 1) / (1 + 2))
    assert mean_slope([steep, flat]) == pytest.approx((0.15 + 1 + 0) / (1 + 2 + 2))


def test_the_expected_gain_follows_the_formula() -> None:
    curve = [8.0] * 4 + [4.0] * 12
    found = (0.1 + 1) / (1 + 2)  # its slope of 1/2 over a span of 2 ln 2, and the mean of 0.1 with a weight of ln 2
    assert expected_gain(curve, 16, 0.1, 4.0, 3.0) == pytest.approx((1 - 3.0 / 3 / 4.0) * (1 - 2**-found))
    assert expected_gain(curve, 48, 0.1, 4.0, 3.0) == pytest.approx((1 - 3.0 / 3 / 4.0) * (1 - 4**-found))
    assert expected_gain(curve, 16, 0.1, 4.0) == pytest.approx(1 - 2**-found)
    assert expected_gain(curve, 16, 0.1, 4.0, 1000.0) == pytest.approx(LEFT * (1 - 2**-found))
    assert expected_gain([], 7, 0.1, 4.0, 3.0) == pytest.approx(0.75 * (1 - 8**-0.1))


def test_a_flat_curve_is_expected_to_gain_ever_less() -> None:
    gains = [expected_gain([1.0] * n, n, mean_slope([[1.0] * n]), 1.0) for n in (1, 2, 4, 64)]
    assert gains == sorted(gains, reverse=True) and gains[-1] < 0.02
