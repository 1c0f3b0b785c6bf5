"""Test the Optuna samplers: the trials reported for repaired, failed and repeated proposals, and for earlier runs."""

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


def trials_of(sampler: OptunaSampler) -> list[Any]:
    return [t for s in sampler._studies for t in s.study.get_trials(deepcopy=False)]


def row_of(sampler: OptunaSampler, trial: Any) -> Candidate:
    """The candidate of a trial's parameters."""
    prefix = next(iter(n for n in trial.params if n != "sketch")).rpartition("/")[0]
    k = next(i for i, c in enumerate(sampler._columns) if c.prefix == prefix)
    columns = sampler._columns[k]
    return Candidate(k, tuple(d[trial.params[n]] for n, d in zip(columns.names, columns.domains, strict=True)))


def test_names() -> None:
    assert {"optuna-tpe", "optuna-cmaes", "optuna-gp", "optuna-qmc", "optuna-random"} <= set(SAMPLERS)


def test_one_joint_study_or_one_per_sketch() -> None:
    task = example_task("usual")
    joint, separate = OptunaSampler(task, 0, "tpe"), OptunaSampler(task, 0, "cmaes")
    for sampler in (joint, separate):
        search(sampler, task.space, 2)
    assert len(joint._studies) == 1 and len(separate._studies) == len(task.space.sketches)
    names = {s.name for s in task.space.sketches}
    assert {t.params["sketch"] for t in trials_of(joint)} <= names
    for trial in trials_of(joint):
        assert all(n == "sketch" or n.startswith(trial.params["sketch"] + "/") for n in trial.params)
    assert all("sketch" not in t.params for t in trials_of(separate))
    assert all(s.proposals > 0 for s in separate._studies)  # each sketch is tried


def test_values_of_repaired_rows_are_reported_at_the_repaired_rows() -> None:
    """For all samplers except CMA-ES: complete trials are the candidates, with their measured times."""
    task = example_task("usual")
    sampler = OptunaSampler(task, 1, "tpe")
    candidates = {c for batch in search(sampler, task.space, 3, failures=0.0) for c in batch}
    complete = [t for t in trials_of(sampler) if t.state == TrialState.COMPLETE]
    assert {row_of(sampler, t) for t in complete} == candidates and len(complete) == len(candidates)
    for t in complete:
        seconds = invented(task.space, row_of(sampler, t), 0.0).seconds
        assert seconds is not None and t.value == pytest.approx(math.log(seconds))
    assert any(t.state == TrialState.FAIL for t in trials_of(sampler))  # proposals that were not admissible


def test_cmaes_gets_values_for_its_own_proposals() -> None:
    task = example_task("usual")
    sampler = OptunaSampler(task, 1, "cmaes")
    search(sampler, task.space, 6, failures=0.0)
    trials = trials_of(sampler)
    assert all(t.state == TrialState.COMPLETE for t in trials)
    rows = [row_of(sampler, t) for t in trials]
    admissible = [task.space.sketches[c.sketch].space.admissible(np.array([c.row]))[0] for c in rows]
    assert not all(admissible)
    matching = 0
    for t, c in zip(trials, rows, strict=True):
        near = task.space.sketches[c.sketch].space.nearest(np.array([c.row]), stream(0, "x"))[0]
        matching += t.value == pytest.approx(math.log(sampler._history.measured[Candidate(c.sketch, tuple(near.tolist()))]))
    assert matching >= 0.8 * len(trials)  # the other proposals were replaced by unseen neighbours
    assert any(key.endswith("generation") for t in trials for key in t.system_attrs)  # proposed by CMA-ES, not by its start-up sampler


@pytest.mark.parametrize(("kind", "state"), [("tpe", TrialState.PRUNED), ("cmaes", TrialState.COMPLETE), ("random", TrialState.COMPLETE)])
def test_failures_are_reported(kind: str, state: TrialState) -> None:
    task = example_task("usual")
    sampler = OptunaSampler(task, 2, kind)
    search(sampler, task.space, 2, failures=1.0)
    ended = [t for t in trials_of(sampler) if t.state != TrialState.FAIL]
    assert ended and all(t.state == state for t in ended)
    if state == TrialState.COMPLETE:
        assert all(t.value == pytest.approx(SLOWEST + math.log(2)) for t in ended)


def test_earlier_results_are_added_to_the_study_without_foreign_rows() -> None:
    task = example_task("usual")
    sampler = OptunaSampler(task, 3, "tpe")
    rows = task.space.sketches[1].space.sample(5, stream(0, "earlier"))
    earlier = [Candidate(1, tuple(r.tolist())) for r in rows]
    foreign = Candidate(1, tuple(1000003 for _ in rows[0]))
    sampler.tell([Result(c, 1e-3) for c in (*earlier, foreign)])
    assert [row_of(sampler, t) for t in trials_of(sampler)] == earlier
    assert all(t.params["sketch"] == task.space.sketches[1].name and t.value == pytest.approx(math.log(1e-3)) for t in trials_of(sampler))


def test_a_custom_kind() -> None:
    """A Gaussian process after two random start-up trials."""
    task = example_task("small")
    kind = Kind(lambda s, seed: s.GPSampler(seed=seed, n_startup_trials=2))
    batches = search(OptunaSampler(task, 0, kind), task.space, 3, 2)
    assert all(len(b) == 2 for b in batches) and len({c for b in batches for c in b}) == 6


def test_unknown_samplers_and_missing_packages_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_optuna_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    search(OptunaSampler(example_task("small"), 0, "qmc"), example_task("small").space, 3)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""
