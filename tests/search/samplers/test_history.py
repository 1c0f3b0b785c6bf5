"""Test the history of proposals and results, and the scorer of unmeasured candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.models.checked_scores import ScoreWarning
from tunesmith.costmodel.models.registry import make_model
from tunesmith.costmodel.models.sample_weights import DISTURBED_WEIGHT
from tunesmith.search.samplers.history import History
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.search.samplers.scorer import ENOUGH, Scorer
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.sampler_conformance import example_task


def some(n: int, k: int = 0) -> list[Candidate]:
    rows = np.unique(example_task("usual").space.sketches[k].space.sample(2 * n, stream(0, "some")), axis=0)[:n]
    return [Candidate(k, tuple(r)) for r in rows.tolist()]


def test_results_are_recorded() -> None:
    history = History(example_task("usual"))
    a, b, c, d = some(4)
    history.tell([Result(a, 3.0), Result(b, None), Result(c, 1.0)])
    assert history.elite(5) == [c, a] and history.elite(1) == [c] and history.failed == {b}
    batch: list[Candidate] = []
    assert [history.take(x, batch) for x in (a, b, d, d)] == [False, False, True, False] and batch == [d]


def test_disturbed_times_are_replaced_by_clean_ones() -> None:
    history = History(example_task("usual"))
    a, b = some(2)
    history.tell([Result(a, 3.0, clean=False), Result(b, 2.0, clean=False)])
    assert history.disturbed == {a, b}
    history.tell([Result(a, 1.0)])
    assert history.disturbed == {b} and history.measured == {a: 1.0, b: 2.0}


def test_the_scorer_weighs_disturbed_samples() -> None:
    class Weighing(Counting):
        def update(self, features: Any, seconds: Any, groups: Any, weights: Any = None) -> None:
            self.weights = weights.tolist()

    model = Weighing()
    scorer = Scorer(ProposalGenerator(example_task("usual")), model)  # type: ignore[arg-type]
    candidates = some(ENOUGH)
    scorer.learn(dict.fromkeys(candidates, 1.0), {candidates[2]})
    assert model.weights == [1.0, 1.0, DISTURBED_WEIGHT, *[1.0] * (ENOUGH - 3)]


def test_ties_of_time_are_ordered() -> None:
    history = History(example_task("usual"))
    every = some(6)
    history.tell([Result(c, 1.0) for c in reversed(every)])
    assert history.elite(6) == sorted(every)


def test_fill_exhausts_a_small_space() -> None:
    task = example_task("small")
    history, batch = History(task), []
    history.fill(batch, 1000, stream(0, "fill"))
    assert len(batch) == len(set(batch)) == task.space.size()
    more: list[Candidate] = []
    history.fill(more, 3, stream(1, "fill"))
    assert more == []


def test_fill_completes_a_batch() -> None:
    history = History(example_task("usual"))
    batch = some(2)
    history.fill(batch, 9, stream(0, "fill"))
    assert len(batch) == 9
    history.fill(batch, 5, stream(0, "fill"))
    assert len(batch) == 9


class Counting:
    """A model whose score is the first feature; records its calls."""

    inputs = "program"

    def __init__(self, ready: bool = False) -> None:
        self.ready = ready
        self.scored: list[int] = []
        self.learned: list[int] = []

    def score(self, features: Any) -> Any:
        self.scored.append(len(features))
        return features[:, 0].astype(np.float64)

    def update(self, features: Any, seconds: Any, groups: Any) -> None:
        assert len(features) == len(seconds) == len(groups)
        self.learned.append(len(seconds))


def test_the_learned_model_is_used_after_training() -> None:
    task = example_task("usual")
    model = Counting()
    scorer = Scorer(ProposalGenerator(task), model)  # type: ignore[arg-type]
    rows = {k: s.space.sample(n, stream(k, "rows")) for k, (s, n) in enumerate(zip(task.space.sketches, (5, 1, 7, 3), strict=True))}
    before = scorer.predicted_costs(rows)
    assert all(np.array_equal(before[k], np.log(scorer.generator.estimate(k, r))) for k, r in rows.items()) and not model.scored
    scorer.learn(dict.fromkeys(some(ENOUGH - 1), 1.0))
    assert not scorer.trained and not model.learned
    scorer.learn(dict.fromkeys(some(ENOUGH), 1.0))
    assert scorer.trained and model.learned == [ENOUGH]
    after = scorer.predicted_costs(rows)
    assert model.scored == [16] and scorer.generator.scored == 16  # all sketches at once
    for k, r in rows.items():
        np.testing.assert_array_equal(after[k], -scorer.generator.features(k, r)[:, 0].astype(np.float64))


def test_a_pretrained_model_is_used_from_the_start() -> None:
    assert Scorer(ProposalGenerator(example_task("usual")), Counting(ready=True)).trained  # type: ignore[arg-type]


def test_nan_scores_are_ranked_last_and_invalid_scores_rejected() -> None:
    task = example_task("usual")
    model = Counting(ready=True)
    scorer = Scorer(ProposalGenerator(task), model)  # type: ignore[arg-type]
    rows = {0: task.space.sketches[0].space.sample(4, stream(0, "rows"))}
    model.score = lambda features: np.array([1.0, np.nan, -2.0, np.inf])  # type: ignore[method-assign]
    with pytest.warns(ScoreWarning, match="the cost model returned NaN or infinity for 2 of 4 candidates, which are ranked last"):
        assert scorer.predicted_costs(rows)[0].tolist() == [-1.0, 3.0, 2.0, 3.0]
    model.score = lambda features: np.full(4, np.nan)  # type: ignore[method-assign]
    with pytest.warns(ScoreWarning, match="4 of 4"):
        assert len(set(scorer.predicted_costs(rows)[0].tolist())) == 1
    model.score = lambda features: np.zeros((4, 1))  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"scores of shape \[4, 1\] for 4 candidates; the shape must be \[4\]"):
        scorer.predicted_costs(rows)
    for bad in (["a"] * 4, None, [1.0, 2.0, None, 3.0], [[1.0], 2.0, 3.0, 4.0], np.zeros(4, "M8[s]"), {1: 2}):
        model.score = lambda features, bad=bad: bad  # type: ignore[method-assign,misc]
        with pytest.raises(UserError, match=r"the cost model Counting returned a \w+; it must return an array of numbers, one for each"):
            scorer.predicted_costs(rows)
    model.score = lambda features: [1, 2, 3, 4]  # type: ignore[method-assign]
    assert scorer.predicted_costs(rows)[0].tolist() == [-1.0, -2.0, -3.0, -4.0]


@pytest.mark.parametrize("name", ["xgb", "random"])
def test_predicted_costs_are_negated_scores(name: str) -> None:
    task = example_task("usual")
    model = make_model(name)
    scorer = Scorer(ProposalGenerator(task), model)
    scorer.learn({c: 1e-6 * (i + 1) for i, c in enumerate(some(40))})
    rows = task.space.sketches[0].space.sample(9, stream(4, "rows"))
    np.testing.assert_array_equal(scorer.predicted_costs({0: rows})[0], -model.score(scorer.generator.features(0, rows)))
