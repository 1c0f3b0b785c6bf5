"""Statistics of the arena match known values and complete enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tunesmith.experiments.arena import statistics as arena_statistics
from tunesmith.experiments.arena.statistics import (
    Interval,
    ahead,
    bootstrap_medians,
    chance_trials,
    holm,
    mean_interval,
    mean_ranks,
    median_interval,
    pseudomedian,
    signed_rank,
    trials_to,
)
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream


def test_signed_rank_of_darwins_plants() -> None:
    """Heights of crossed and self-fertilised maize (Darwin 1876); the p-value is scipy's documented example."""
    darwin = np.array([6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75])
    assert signed_rank(darwin) == pytest.approx(0.041259765625)
    assert signed_rank(-darwin) == pytest.approx(0.041259765625)
    assert signed_rank(np.concatenate([darwin, np.zeros(3)])) == pytest.approx(0.041259765625)


@pytest.mark.parametrize("differences", [[1, 1, -2, 3], [0.5, 0.5, 0.5, 0.5, -0.5], [1, 2, 3, 4, 5, 6], [-3.0]])
def test_signed_rank_enumerates_all_signs(differences: list[float]) -> None:
    d = np.array(differences)
    sizes = np.abs(d)
    ranks = np.array([(2 * (sizes < x).sum() + (sizes == x).sum() + 1) / 2 for x in sizes])
    observed = min(ranks[d > 0].sum(), ranks[d < 0].sum())
    sums = [ranks[np.array(signs) > 0].sum() for signs in itertools.product((-1, 1), repeat=len(d))]
    exact = min(1.0, 2 * float(np.mean([s <= observed for s in sums])))
    assert signed_rank(d) == pytest.approx(exact)


def test_signed_rank_of_many_pairs_is_nearly_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [np.round(stream(i, "test").normal(0.15, 1.0, 60), 1) for i in range(5)]  # with ties
    exact = [signed_rank(d) for d in several]
    monkeypatch.setattr(arena_statistics, "_EXACT", 0)
    assert [signed_rank(d) for d in several] == pytest.approx(exact, abs=0.005)
    assert max(exact) > 0.1
    many = stream(0, "test").normal(0.0, 1.0, 300)
    assert signed_rank(np.abs(many)) < 1e-30
    assert signed_rank(np.concatenate([many, -many])) == pytest.approx(1.0)


def test_signed_rank_matches_scipy_without_ties_and_for_many_pairs() -> None:
    for n in (2, 7, 30, 150, 200):
        d = stream(n, "test").normal(0.15, 1.0, n)
        assert signed_rank(d) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue, rel=1e-9)
    d = np.round(stream(0, "test").normal(0.15, 1.0, 260), 1)
    assert signed_rank(d) == pytest.approx(stats.wilcoxon(d, correction=True, method="asymptotic").pvalue)


def test_numbers_are_those_of_earlier_releases() -> None:
    """Literals computed with ranks, sums and quantiles written by hand instead of numpy's and scipy's."""
    expected = {
        7: (0.578125, 0.5625, -0.13892069484685415, -0.8985817738658878, 0.5969366414667131, -1),
        30: (0.0005054883658885956, 0.00046026334166526794, 0.7179757989887191, 0.37937713440073606, 1.0890881191163575, 1),
        150: (0.07432089028041595, 0.08110358898161972, 0.13898785281741016, -0.012229566909173095, 0.2894440236292539, 1),
        260: (0.0014817549636555775, 0.0017368067647890088, 0.19439344227132485, 0.07652750839625015, 0.31312771714681453, 1),
    }
    for n, numbers in expected.items():
        d = stream(n, "old").normal(0.15, 1.0, n)
        shift, tied = pseudomedian(d), np.round(d, 1)
        found = (signed_rank(d), signed_rank(tied), shift.value, shift.low, shift.high, ahead(d))
        assert found == pytest.approx(numbers, rel=1e-12) and ahead(tied) == ahead(d)
    curves = np.minimum.accumulate(stream(3, "old").exponential(1.0, (9, 6)), axis=1)
    curves[:6, :2] = np.inf
    value, low, high = bootstrap_medians(curves)
    assert value.tolist() == [math.inf, math.inf, 0.28205739863394924, *[0.1375806938337697] * 3]
    assert low.tolist() == [0.5277857038824134, 0.5277857038824134, 0.1375806938337697, *[0.05868136534807584] * 3]
    assert high.tolist() == [math.inf, math.inf, 0.7975758541768304, *[0.2879041488898322] * 3]
    assert mean_interval([curves[:, 3], curves[:4, 5]]) == Interval(0.21176925388670487, 0.13225859033637094, 0.30736201380719363)
    assert median_interval(curves[:, 5], 0.9, resamples=333) == Interval(0.1375806938337697, 0.10906222615480372, 0.28205739863394924)


def test_equal_pairs_have_p_value_one() -> None:
    assert signed_rank(np.zeros(5)) == 1.0


def test_holm() -> None:
    """R: p.adjust(c(.01, .04, .03, .005), "holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_mean_ranks() -> None:
    assert mean_ranks(np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 1.0]])).tolist() == [1.75, 2.25, 2.0]


@pytest.mark.parametrize(("size", "good"), [(20, 3), (10, 1), (10, 5), (12, 3), (10, 10), (1, 1), (200, 7)])
def test_chance_is_negative_hypergeometric(size: int, good: int) -> None:
    for quantile in (0.25, 0.5, 0.9):
        later = [math.comb(size - good, t) / math.comb(size, t) for t in range(size + 1)]
        assert chance_trials(size, good, quantile) == next(t for t in range(size + 1) if 1 - later[t] >= quantile - 1e-12)


def test_chance_needs_a_good_candidate() -> None:
    with pytest.raises(UserError, match="the number of good candidates in a pool of 5 must be 1 to 5, got 0"):
        chance_trials(5, 0)


def test_medians_handle_infinity() -> None:
    inf = np.inf
    assert bootstrap_medians(np.array([[3.0, 1.0], [1.0, inf], [2.0, inf]]))[0].tolist() == [2.0, inf]
    assert median_interval(np.array([1.0, inf])) == Interval(inf, 1.0, inf) and median_interval(np.array([2.0])) == Interval(2.0, 2.0, 2.0)
    assert median_interval(np.array([1.0, 2.0, 3.0, inf, inf])) == Interval(3.0, 1.0, inf)
    assert Interval(3.0, 1.0, inf).to_json() == [3.0, 1.0, None]


def test_intervals_have_their_nominal_coverage() -> None:
    truth, hits = math.log(2.0), 0
    for i in range(200):
        x = median_interval(stream(i, "coverage").exponential(1.0, 40), 0.9, resamples=400)
        assert x.low <= x.value <= x.high
        hits += x.low <= truth <= x.high
    assert 0.84 <= hits / 200 <= 0.96


def test_whole_curves_are_resampled() -> None:
    curves = np.minimum.accumulate(stream(1, "curves").exponential(1.0, (30, 50)), axis=1)
    value, low, high = bootstrap_medians(curves, resamples=300)
    assert value.shape == low.shape == high.shape == (50,)
    for ends in (low, value, high):  # never rising, like every resampled curve
        assert (np.diff(ends) <= 0).all()
    again = bootstrap_medians(curves, resamples=300)
    assert np.array_equal(again[1], low) and not np.array_equal(bootstrap_medians(curves, seed=1, resamples=300)[1], low)
    with pytest.raises(UserError, match="cannot compute a median of no runs"):
        bootstrap_medians(np.zeros((0, 3)))


def test_groups_have_equal_weight_in_the_mean() -> None:
    many, few = np.full(100, 1.0), np.array([3.0, 3.0])
    assert mean_interval([many, few]) == Interval(2.0, 2.0, 2.0)
    spread = mean_interval([np.array([0.0, 2.0] * 20), few])
    assert spread.low < spread.value == 2.0 < spread.high < 2.3


def test_trials_to_a_goal() -> None:
    curves = np.array([[5.0, 3.0, 3.0], [np.inf, 5.0, 4.0], [2.0, 2.0, 2.0]])
    assert trials_to(curves, 3.0).tolist() == [2.0, math.inf, 1.0]


def test_pseudomedian_of_darwins_plants() -> None:
    """Its interval contains the shifts that the test does not reject: for 15 pairs, rank sums up to 25 are rejected at 5 %."""
    darwin = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], np.float64)
    walsh = sorted((a + b) / 2 for i, a in enumerate(darwin) for b in darwin[i:])
    found = pseudomedian(darwin)
    assert found == Interval(float(np.median(walsh)), walsh[25], walsh[-26])
    assert signed_rank(darwin - (walsh[25] - 1e-9)) < 0.05 < signed_rank(darwin - (walsh[25] + 1e-9))


def test_interval_of_the_pseudomedian_for_few_and_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pseudomedian(np.arange(1.0, 6.0)) == Interval(3.0, -np.inf, np.inf)
    assert pseudomedian(np.arange(1.0, 7.0)) == Interval(3.5, 1.0, 6.0)
    d = np.random.default_rng(0).normal(0.3, 1.0, 120)
    exact = pseudomedian(d)
    monkeypatch.setattr(arena_statistics, "_EXACT", 0)
    assert pseudomedian(d).low == pytest.approx(exact.low, abs=0.01) and pseudomedian(d).high == pytest.approx(exact.high, abs=0.01)


def test_the_interval_contains_0_exactly_if_the_test_does_not_reject_it() -> None:
    """With ties, 0 is an end of the interval if the test rejects it."""
    better = np.concatenate([np.zeros(8), np.linspace(0.1, 0.4, 8)])
    found = pseudomedian(better)
    assert signed_rank(better) == pytest.approx(2 / 2**8) and found.low == 0.0 < found.value < found.high
    assert signed_rank(better - 1e-9) > 0.05 > signed_rank(better + 1e-9), "the shifts just above 0 are accepted"
    # Here 0 was inside, although it is rejected: equal sizes on both sides make the test at 0 differ from those beside it.
    sided = np.array([1, 5, -3, 0, 4, -3, 0, 4, 5, -1, 5, 4], np.float64)
    assert signed_rank(sided) <= 0.05 and pseudomedian(sided).low == 0.0
    assert signed_rank(-sided) <= 0.05 and pseudomedian(-sided).high == 0.0
    rng = np.random.default_rng(0)
    for _ in range(300):
        d = rng.integers(-3, 6, rng.integers(1, 25)).astype(float)
        found = pseudomedian(d)
        assert (signed_rank(d) <= 1.0 - 0.95) == (not found.low < 0.0 < found.high) or found.low == 0.0 or found.high == 0.0
        assert found.low <= 0.0 <= found.high or signed_rank(d) <= 0.05


def test_the_pseudomedian_has_the_sign_of_the_ranks() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        d = rng.standard_cauchy(rng.integers(1, 30)) + rng.normal()
        assert ahead(d) == np.sign(pseudomedian(d).value) or ahead(d) == 0
    assert ahead(np.zeros(4)) == 0 and pseudomedian(np.zeros(4)).value == 0.0
