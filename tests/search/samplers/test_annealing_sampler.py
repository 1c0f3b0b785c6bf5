"""Test annealing: chains improve, continue and restart; invalid settings are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.models.registry import make_model
from tunesmith.search.samplers.annealing_sampler import AnnealingSampler, AnnealingSettings
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.sampler_conformance import example_task, search

SMALL = AnnealingSettings(chains=64, steps=20)


def sampler(seed: int = 0, settings: AnnealingSettings = SMALL) -> AnnealingSampler:
    return AnnealingSampler(example_task("usual"), make_model("xgb", seed), seed, settings)


def test_chains_lower_their_predicted_cost() -> None:
    s = sampler()
    rng = stream(0, "test")
    before = s._predicted_costs(s._begin(rng))
    s._walk(rng)
    assert s._chains is not None
    after = s._predicted_costs(s._chains)
    assert after.mean() < before.mean() - before.std()
    for k, sketch in enumerate(s.task.space.sketches):
        assert sketch.space.admissible(s._chains.group(k, len(sketch.params))).all()


def test_chains_continue_and_some_restart_at_the_measured_best() -> None:
    s = sampler(settings=AnnealingSettings(chains=64, steps=20, restart=0.25, fresh=0.5))
    search(s, s.task.space, 2)
    assert s._chains is not None
    best = Candidate(2, tuple(s.task.space.sketches[2].space.sample(1, stream(3, "x"))[0].tolist()))
    s.tell([Result(best, 1e-12)])
    chains = s._begin(stream(1, "test"))
    at_best = (chains.sketch == 2) & (chains.rows[:, : len(best.row)] == best.row).all(axis=1)
    assert at_best[-16:].any() and not at_best[:32].all()
    assert np.array_equal(chains.rows[32:48], s._chains.rows[32:48]) and np.array_equal(chains.sketch[32:48], s._chains.sketch[32:48])
    assert not np.array_equal(chains.rows[:32], s._chains.rows[:32])


def test_constant_scores_do_not_stop_the_chains() -> None:
    """Equal predicted costs have no spread: the temperature is 0, and every step is accepted."""

    class Constant:
        inputs, ready = "program", True

        def score(self, features: Any) -> Any:
            return np.zeros(len(features))

        def update(self, *data: Any) -> None:
            pass

    s = AnnealingSampler(example_task("usual"), Constant(), 0, SMALL)  # type: ignore[arg-type]
    assert len({c for batch in search(s, s.task.space, 2) for c in batch}) == 16


@pytest.mark.parametrize(
    "changes", [{"chains": 0}, {"steps": 0}, {"hot": 0.01, "cold": 0.02}, {"cold": 0.0}, {"hot": float("nan")}, {"cold": float("nan")}]
)
def test_sizes_and_temperatures_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="annealing needs chains >= 1, steps >= 1 and hot >= cold > 0"):
        AnnealingSettings(**changes)


@pytest.mark.parametrize("changes", [{"jump": -0.1}, {"random_share": 1.1}, {"restart": 0.6, "fresh": 0.5}])
def test_shares_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"shares between 0 and 1, and restart \+ fresh <= 1"):
        AnnealingSettings(**changes)
