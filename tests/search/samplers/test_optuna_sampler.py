"""Optuna's samplers: what the studies are told about repaired, failed and repeated proposals, and about earlier runs."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tunesmith.search.samplers.optuna_sampler import SLOWEST, Kind, OptunaSampler
from tunesmith.search.samplers.registry import SAMPLERS
from tunesmith.search.samplers.sampler import Candidate, Result
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream
from tunesmith.testing.sampler_conformance import example_task, invented, search


def told(sampler: OptunaSampler) -> list[Any]:
    return [t for s in sampler._studies for t in s.study.get_trials(deepcopy=False)]


def row_of(sampler: OptunaSampler, trial: Any) -> Candidate:
    """The candidate that a trial's parameters name."""
    prefix = next(iter(n for n in trial.params if n != "sketch")).rpartition("/")[0]
    k = next(i for i, c in enumerate(sampler._columns) if c.prefix == prefix)
    columns = sampler._columns[k]
    return Candidate(k, tuple(d[trial.params[n]] for n, d in zip(columns.names, columns.domains, strict=True)))


def test_names() -> None:
    assert {"optuna-tpe", "optuna-cmaes", "optuna-gp", "optuna-qmc", "optuna-random"} <= set(SAMPLERS)


def test_a_study_with_the_sketch_as_a_choice_or_one_for_each_sketch() -> None:
    task = example_task("usual")
    joint, apart = OptunaSampler(task, 0, "tpe"), OptunaSampler(task, 0, "cmaes")
    for sampler in (joint, apart):
        search(sampler, task.space, 2)
    assert len(joint._studies) == 1 and len(apart._studies) == len(task.space.sketches)
    names = {s.name for s in task.space.sketches}
    assert {t.params["sketch"] for t in told(joint)} <= names
    for trial in told(joint):
        assert all(n == "sketch" or n.startswith(trial.params["sketch"] + "/") for n in trial.params)
    assert all("sketch" not in t.params for t in told(apart))
    assert all(s.proposals > 0 for s in apart._studies)  # each sketch is tried


def test_the_value_of_a_repaired_row_is_told_where_it_was_measured() -> None:
    """To all but CMA-ES: complete trials are candidates, with the times that these measured."""
    task = example_task("usual")
    sampler = OptunaSampler(task, 1, "tpe")
    asked = {c for batch in search(sampler, task.space, 3, failures=0.0) for c in batch}
    complete = [t for t in told(sampler) if t.state == TrialState.COMPLETE]
    assert {row_of(sampler, t) for t in complete} == asked and len(complete) == len(asked)
    for t in complete:
        seconds = invented(task.space, row_of(sampler, t), 0.0).seconds
        assert seconds is not None and t.value == pytest.approx(math.log(seconds))
    assert any(t.state == TrialState.FAIL for t in told(sampler))  # proposals that were not admissible


def test_cmaes_is_told_about_its_own_proposals() -> None:
    task = example_task("usual")
    sampler = OptunaSampler(task, 1, "cmaes")
    search(sampler, task.space, 6, failures=0.0)
    trials = told(sampler)
    assert all(t.state == TrialState.COMPLETE for t in trials)
    rows = [row_of(sampler, t) for t in trials]
    admissible = [task.space.sketches[c.sketch].space.admissible(np.array([c.row]))[0] for c in rows]
    assert not all(admissible)
    right = 0
    for t, c in zip(trials, rows, strict=True):
        near = task.space.sketches[c.sketch].space.nearest(np.array([c.row]), stream(0, "x"))[0]
        right += t.value == pytest.approx(math.log(sampler._history.measured[Candidate(c.sketch, tuple(near.tolist()))]))
    assert right >= 0.8 * len(trials)  # the others are proposals whose place an unseen neighbour took
    assert any(key.endswith("generation") for t in trials for key in t.system_attrs)  # CMA-ES proposed, not its start-up


@pytest.mark.parametrize(("kind", "state"), [("tpe", TrialState.PRUNED), ("cmaes", TrialState.COMPLETE), ("random", TrialState.COMPLETE)])
def test_failures_are_told(kind: str, state: TrialState) -> None:
    task = example_task("usual")
    sampler = OptunaSampler(task, 2, kind)
    search(sampler, task.space, 2, failures=1.0)
    ended = [t for t in told(sampler) if t.state != TrialState.FAIL]
    assert ended and all(t.state == state for t in ended)
    if state == TrialState.COMPLETE:
        assert all(t.value == pytest.approx(SLOWEST + math.log(2)) for t in ended)


def test_earlier_results_are_in_the_study_and_foreign_rows_are_not() -> None:
    task = example_task("usual")
    sampler = OptunaSampler(task, 3, "tpe")
    rows = task.space.sketches[1].space.sample(5, stream(0, "earlier"))
    earlier = [Candidate(1, tuple(r.tolist())) for r in rows]
    foreign = Candidate(1, tuple(1000003 for _ in rows[0]))
    sampler.tell([Result(c, 1e-3) for c in (*earlier, foreign)])
    assert [row_of(sampler, t) for t in told(sampler)] == earlier
    assert all(t.params["sketch"] == task.space.sketches[1].name and t.value == pytest.approx(math.log(1e-3)) for t in told(sampler))


def test_another_sampler_of_optuna() -> None:
    """A Gaussian process, after three proposals by chance."""
    task = example_task("small")
    kind = Kind(lambda s, seed: s.GPSampler(seed=seed, n_startup_trials=2))
    batches = search(OptunaSampler(task, 0, kind), task.space, 3, 2)
    assert all(len(b) == 2 for b in batches) and len({c for b in batches for c in b}) == 6


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    task = example_task("small")
    with pytest.raises(UserError, match="unknown Optuna sampler 'tpee'; known: cmaes, gp, qmc, random, tpe"):
        OptunaSampler(task, 0, "tpee")

    def missing(samplers: Any, seed: int) -> Any:
        raise ImportError("No module named 'other'")

    with pytest.raises(UserError, match="needs a package that is not installed: No module named 'other'"):
        OptunaSampler(task, 0, Kind(missing))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs the package `optuna`.*pip install 'tunesmith\[optuna\]'"):
        OptunaSampler(task)


def test_optuna_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    search(OptunaSampler(example_task("small"), 0, "qmc"), example_task("small").space, 3)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""
