"""Metrics compared with values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.costmodel.metrics import (
    best_k,
    fitted_throughput,
    ndcg,
    normalized_throughput,
    pairwise_accuracy,
    r_squared,
    ranks,
    recall_at_k,
    rmse,
    spearman,
    top_k_score,
)
from tunesmith.support.errors import UserError

# Task 0: times 1, 2, 4, 8, predicted order 2, 4, 1, 8.  Task 1: times 10, 20, predicted correctly.
SECONDS = np.array([1.0, 2.0, 4.0, 8.0, 10.0, 20.0])
SCORES = np.array([0.2, 0.9, 0.5, 0.1, 5.0, 4.0])
GROUPS = np.array([0, 0, 0, 0, 1, 1])


def test_top_k() -> None:
    # k = 1 finds 2 and 10, where 1 and 10 are best; k = 2 the same; k = 3 finds 1.
    assert top_k_score(SECONDS, SCORES, GROUPS, 1) == pytest.approx((1 + 10) / (2 + 10))
    assert top_k_score(SECONDS, SCORES, GROUPS, 2) == pytest.approx(11 / 12)
    assert top_k_score(SECONDS, SCORES, GROUPS, 3) == 1 == top_k_score(SECONDS, SCORES, GROUPS, 100)
    assert top_k_score(SECONDS, SCORES, GROUPS, 1, {0: 10.0, 1: 1.0}) == pytest.approx((10 * 1 + 10) / (10 * 2 + 10))


def test_equal_scores_gain_nothing_from_order() -> None:
    same = np.zeros(6)
    assert top_k_score(SECONDS, same, GROUPS, 1) == pytest.approx(11 / 28) == top_k_score(SECONDS[::-1], same, GROUPS[::-1], 1)
    assert recall_at_k(SECONDS, same, GROUPS, 1) == 0 and spearman(SECONDS, same, GROUPS) == 0
    assert pairwise_accuracy(SECONDS, same, GROUPS) == 0.5


def test_recall() -> None:
    # k = 1: 2 instead of 1, and 10: one half.  k = 2: {2, 4} instead of {1, 2}, and all: three quarters.
    assert recall_at_k(SECONDS, SCORES, GROUPS, 1) == 0.5
    assert recall_at_k(SECONDS, SCORES, GROUPS, 2) == 0.75
    assert recall_at_k(SECONDS, SCORES, GROUPS, 9) == 1
    assert recall_at_k(np.array([3.0, 3.0, 5.0]), np.array([0.0, 1.0, 2.0]), np.zeros(3, int), 1) == 0
    assert recall_at_k(np.array([3.0, 3.0, 5.0]), np.array([0.0, 1.0, -2.0]), np.zeros(3, int), 1) == 1, (
        "either of two equally fast programs"
    )


def test_pairwise_accuracy() -> None:
    # Of the six pairs of task 0, (1, 2) and (1, 4) are wrong; the pair of task 1 is correct.
    assert pairwise_accuracy(SECONDS, SCORES, GROUPS) == pytest.approx(5 / 7)
    # Pairs with equal times are ignored; pairs with equal scores count one half.
    assert pairwise_accuracy(np.array([1.0, 1.0, 2.0]), np.array([7.0, 3.0, 3.0]), np.zeros(3, int)) == pytest.approx(1.5 / 2)


def test_rank_correlation() -> None:
    # Task 0: ranks by speed 4 3 2 1, by score 2 4 3 1: 1 - 6 * (4 + 1 + 1 + 0) / (4 * 15) = 0.4.
    assert spearman(SECONDS[:4], SCORES[:4], GROUPS[:4]) == pytest.approx(0.4)
    assert spearman(SECONDS, SCORES, GROUPS) == pytest.approx((0.4 + 1.0) / 2)
    assert spearman(SECONDS, -SECONDS, GROUPS) == pytest.approx(1) and spearman(SECONDS, SECONDS, GROUPS) == pytest.approx(-1)
    assert ranks(np.array([5.0, 1.0, 5.0, 3.0])).tolist() == [3.5, 1, 3.5, 2]


def test_regression_errors() -> None:
    truth, predicted = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 6.0])
    assert rmse(truth, predicted) == pytest.approx(np.sqrt(3.0))
    assert r_squared(truth, predicted) == pytest.approx(1 - 9 / 2)
    assert r_squared(truth, truth) == 1 and r_squared(truth, np.full(3, 2.0)) == 0


def test_throughput_is_relative_to_the_best_of_the_task() -> None:
    seconds = np.array([2.0, 4.0, np.inf, 10.0, np.inf])
    assert normalized_throughput(seconds, np.array([0, 0, 0, 1, 2])).tolist() == [1, 0.5, 0, 1, 0]


def test_best_of_a_draft() -> None:
    # Drafts of 2: {2, 4} and {10, 20}, whose second best are 4 and 20; the best possible are 1 and 10.
    assert best_k(SECONDS, SCORES, GROUPS, 2, 2) == pytest.approx(11 / 24)
    assert best_k(SECONDS, SCORES, GROUPS, 2, 1) == top_k_score(SECONDS, SCORES, GROUPS, 2) == pytest.approx(11 / 12)
    # Drafts of 3: {1, 2, 4} and all of task 1, which has no third best.
    assert best_k(SECONDS, SCORES, GROUPS, 3, 3) == pytest.approx(11 / (4 + 20))
    assert best_k(SECONDS, SCORES, GROUPS, 2, 2, {0: 3.0, 1: 1.0}) == pytest.approx((3 + 10) / (3 * 4 + 20))
    assert best_k(SECONDS, np.zeros(6), GROUPS, 1, 1) == pytest.approx(11 / 28), "among equal scores the slower programs are drafted"


def test_discounted_gain() -> None:
    # Task 0: throughput 1, 1/2, 1/4, 1/8, ranked 1/2, 1/4, 1, 1/8; task 1 perfect.
    gain = 2 ** np.array([1, 0.5, 0.25, 0.125]) - 1
    discount = 1 / np.log2([2, 3, 4, 5])
    ranked = gain[[1, 2, 0, 3]]
    assert ndcg(SECONDS, SCORES, GROUPS) == pytest.approx(((ranked @ discount) / (gain @ discount) + 1) / 2)
    assert ndcg(SECONDS, SCORES, GROUPS, 1) == pytest.approx((ranked[0] / gain[0] + 1) / 2)
    assert ndcg(SECONDS, -SECONDS, GROUPS) == pytest.approx(1) == ndcg(SECONDS, -SECONDS, GROUPS, 2)
    assert ndcg(SECONDS[:4], np.zeros(4), GROUPS[:4]) == pytest.approx((gain[::-1] @ discount) / (gain @ discount))


def test_scores_are_fitted_by_a_line_per_task() -> None:
    # Throughput of task 0: 1, 1/2, of task 1: 1, 1/4; each task is exactly linear.
    seconds, groups = np.array([1.0, 2.0, 3.0, 12.0]), np.array([0, 0, 1, 1])
    assert fitted_throughput(seconds, np.array([40.0, 30.0, 0.2, 0.1]), groups).tolist() == pytest.approx([1, 0.5, 1, 0.25])
    assert fitted_throughput(seconds, np.array([3.0, 4.0, 7.0, 7.0]), groups).tolist() == pytest.approx([0.75, 0.75, 0.625, 0.625])


def test_invalid_arguments_are_rejected() -> None:
    zero = np.zeros(2, int)
    with pytest.raises(UserError, match=r"of one length >= 1; got shapes \[2\], \[3\], \[2\]"):
        spearman(np.ones(2), np.ones(3), zero)
    with pytest.raises(UserError, match="one length >= 1"):
        recall_at_k(np.ones(0), np.ones(0), zero[:0], 1)
    with pytest.raises(UserError, match="leave out failed programs"):
        top_k_score(np.array([1.0, np.inf]), np.ones(2), zero, 1)
    with pytest.raises(UserError, match="k must be an integer of at least 1, got 0"):
        recall_at_k(np.ones(2), np.ones(2), zero, 0)
    with pytest.raises(UserError, match="k must be an integer of at least 1, got 0"):
        ndcg(np.ones(2), np.ones(2), zero, 0)
    with pytest.raises(UserError, match="k must be an integer of at least 1, got -1"):
        best_k(np.ones(2), np.ones(2), zero, -1, 1)
    with pytest.raises(UserError, match=r"k must be an integer of at least 1, got 2\.5"):
        top_k_score(np.ones(2), np.ones(2), zero, 2.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="1 of 2 are NaN"):
        pairwise_accuracy(np.ones(2), np.array([1.0, np.nan]), zero)
    with pytest.raises(UserError, match="each task needs a positive weight; task 0 has None"):
        top_k_score(np.ones(2), np.ones(2), zero, 1, {1: 1.0})
    with pytest.raises(UserError, match="task 0 has nan"):
        best_k(np.ones(2), np.ones(2), zero, 1, 1, {0: np.nan})
    with pytest.raises(UserError, match="pairwise accuracy needs two programs of different times"):
        pairwise_accuracy(np.ones(2), np.ones(2), zero)
    with pytest.raises(UserError, match="rank correlation needs two programs of different times"):
        spearman(np.ones(2), np.ones(2), zero)
    with pytest.raises(UserError, match="all true values are equal"):
        r_squared(np.ones(2), np.ones(2))
    with pytest.raises(UserError, match=r"must have equal shapes and not be empty; got \[2\] and \[1\]"):
        rmse(np.ones(2), np.ones(1))
