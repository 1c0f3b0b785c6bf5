"""Test training sets (features of records, skipped records) and the evaluation of models on held-out programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.models.checked_scores import ScoreWarning
from tunesmith.costmodel.models.random_model import RandomModel
from tunesmith.costmodel.training.evaluation import METRICS, TRIVIAL, evaluate, metric_values, split
from tunesmith.costmodel.training.training_set import Measured, Refused, TaskKey, TrainingSet, training_set
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.ops.workload import workload
from tunesmith.search.samplers.proposal_generator import ProposalGenerator
from tunesmith.search.samplers.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=sapphirerapids -num-cores=4")
MATMUL, OTHER, SOFTMAX = "matmul(m=64,n=48,k=32)", "matmul(m=30,n=50,k=70)", "softmax(m=40,n=64)"


@cache
def task_of(text: str) -> Task:
    return Task(text, workload(text).func, TARGET)


def measured(text: str, n: int = 12, sketches: int = 2) -> list[Measured]:
    """Random candidates of a workload's first sketches; their times are the analytic ones, which models can learn."""
    task, out = task_of(text), []
    for k, s in enumerate(task.space.sketches[:sketches]):
        rows = s.space.sample(n, stream(0, "rows", text, k))
        seconds = ProposalGenerator(task).analytic[k].seconds(rows)
        for row, t in zip(rows.tolist(), seconds.tolist(), strict=True):
            out.append(Measured(task.digest, TARGET.to_json(), s.name, s.trace_of(tuple(row)).to_json(), row, t))
    return out


def data_of(*texts: str, records: Sequence[Measured] | None = None) -> TrainingSet:
    tasks = [task_of(t) for t in texts]
    given = [m for t in texts for m in measured(t)] if records is None else records
    return training_set(given, {t.digest: script(t.func) for t in tasks}, {t.digest: t.name for t in tasks})


@cache
def three_tasks() -> TrainingSet:
    return data_of(MATMUL, OTHER, SOFTMAX)


@pytest.mark.parametrize("inputs", ["program", "stores"])
def test_features_equal_those_of_a_search(inputs: str) -> None:
    records = measured(MATMUL)
    shuffled = [records[i] for i in stream(1, "order").permutation(len(records))]
    data = data_of(MATMUL, records=shuffled)
    task = task_of(MATMUL)
    names = [s.name for s in task.space.sketches]
    of = {m.seconds: Candidate(names.index(m.sketch), tuple(m.row)) for m in records}
    wanted = ProposalGenerator(task).features_of([of[t] for t in data.seconds.tolist()], inputs)
    assert data.features(inputs).shape == wanted.shape
    assert np.allclose(data.features(inputs), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert data.features(inputs) is data.features(inputs)
    assert data.tasks == (TaskKey(task.digest, MATMUL, TARGET.key),) and data.tasks[0].family == "matmul"


def test_missing_stores_are_padded_with_nan() -> None:
    data = three_tasks()
    stores = data.features("stores")
    present = (~np.isnan(stores[:, :, 0])).sum(axis=1)
    assert present.min() < present.max() == stores.shape[1]
    assert (np.isnan(stores).all(axis=2) == np.isnan(stores).any(axis=2)).all()
    assert data.features("program")[:, 0].tolist() == present.tolist(), "the first column is the number of stores"


def test_records_that_cannot_be_rebuilt_are_counted_with_reasons() -> None:
    good = measured(MATMUL, sketches=1)
    bad = [
        replace(good[0], workload="f" * 32),
        replace(good[1], trace=[["no_such_step", {}, []]]),
        replace(good[2], trace=["nonsense"]),
        replace(good[2], trace=[[k, {**a, "factors": 3} if k == "split" else a, *rest] for k, a, *rest in good[2].trace]),
        replace(good[3], row=[*good[3].row, 1]),
        replace(good[4], row=[10**6] * len(good[4].row)),
        replace(good[5], target={"kind": "llvm", "mcpu": "abacus"}),
        replace(good[6], sketch="by another name"),
        replace(good[7], seconds=np.inf),
    ]
    data = data_of(MATMUL, records=[*good, *bad])
    assert len(data) == len(good) + 2 and data.refused.count == 7, "records with another sketch name and failed records are used"
    assert np.isinf(data.seconds).sum() == 1
    text = str(data.refused)
    assert text.startswith("7 records skipped")
    for reason in (
        "workload ffff",
        "no_such_step",
        "instruction 0 of the trace",
        "the row does not have",
        "violates a constraint",
        "abacus",
    ):
        assert reason in text, reason
    with pytest.raises(UserError, match="no record can be used for training: 1 records skipped"):
        data_of(MATMUL, records=bad[:1])


def test_programs_are_held_out_once_and_tasks_are_not_split() -> None:
    data = three_tasks()
    for holdout, rounds in (("within", 5), ("task", 3), ("family", 2)):
        parts = list(split(data, holdout))
        assert len(parts) == rounds
        assert sorted(np.concatenate([test for _, test in parts]).tolist()) == list(range(len(data)))
        for learn, test in parts:
            assert sorted([*learn, *test]) == list(range(len(data)))
            shared = {int(g) for g in data.groups[learn]} & {int(g) for g in data.groups[test]}
            assert len(shared) == (3 if holdout == "within" else 0)
            families = [{data.tasks[g].family for g in data.groups[p]} for p in (learn, test)]
            assert holdout != "family" or not families[0] & families[1]
    assert [t.tolist() for _, t in split(data, "within", seed=1)] != [t.tolist() for _, t in split(data, "within")]
    assert len(list(split(data, "task", folds=2))) == 2


def test_evaluation_compares_a_model_with_controls() -> None:
    data = three_tasks()
    found = evaluate("xgb", data, "within", folds=3)
    assert list(found.values) == ["model", "shuffled", "analytic", "random"] and (found.programs, found.tasks) == (len(data), 3)
    spearman = {name: v["Spearman"] or 0.0 for name, v in found.values.items()}
    assert spearman["analytic"] > 0.98, "the times in this test are the analytic ones"
    assert spearman["model"] > 0.5 > abs(spearman["shuffled"]) and abs(spearman["random"]) < 0.5
    assert found == evaluate("xgb", data, "within", folds=3)
    as_it_is = evaluate("analytic", data, None)
    assert list(as_it_is.values) == ["model", "analytic", "random"] and as_it_is.values["model"] == as_it_is.values["analytic"]


def test_invalid_scores_are_rejected_and_nan_is_ranked_last() -> None:
    class Odd(RandomModel):
        def score(self, features: object) -> Any:
            return transform(super().score(features))  # type: ignore[arg-type]

    data = data_of(SOFTMAX)
    for wrong, message in (
        (lambda s: np.stack([s, s], 1), r"the cost model Odd returned scores of shape \[\d+, 2\] for \d+ candidates"),
        (lambda s: [str(x) for x in s], "the cost model Odd returned a list; it must return an array of numbers"),
        (lambda s: None, "the cost model Odd returned a NoneType; it must return an array of numbers"),
    ):
        transform = wrong
        with pytest.raises(UserError, match=message):
            evaluate(Odd, data, "within", folds=2)
    transform = lambda s: np.where(np.arange(len(s)) % 2, s, np.nan)  # noqa: E731
    with pytest.warns(ScoreWarning, match="NaN or infinity .* which are ranked last"):
        found = evaluate(Odd, data, "within", folds=2)
    assert all(v is None or np.isfinite(v) for v in found.values["model"].values())


def test_scores_of_different_folds_are_not_compared() -> None:
    data = three_tasks()
    parts = [np.flatnonzero(np.arange(len(data)) % 2 == i) for i in (0, 1)]
    truth = [100.0 * i - np.log(data.seconds[p]) for i, p in enumerate(parts)]
    assert metric_values(data, parts, truth)["Spearman"] == pytest.approx(1)
    one = np.array([0])
    assert metric_values(data, [one], [np.zeros(1)])["pairs"] is None and set(metric_values(data, [one], [np.zeros(1)])) == set(METRICS)


def test_metrics_of_too_few_programs_are_undefined() -> None:
    """A choice of all programs of a task says nothing: `random` would be perfect."""
    data = three_tasks()  # 24 programs each
    expected = {2: ["best-5 of 32"], 4: ["recall@10", "best-5 of 32"], 5: ["top-5", "recall@10", "best-5 of 32"], 24: list(TRIVIAL)}
    for folds, undefined in expected.items():
        found = evaluate("random", data, "within", folds=folds)
        assert found.too_few_for == undefined
        assert [n for n, v in found.values["model"].items() if n in TRIVIAL and v is not None] == [n for n in TRIVIAL if n not in undefined]
    assert evaluate("random", data, "task").too_few_for == ["best-5 of 32"]
    parts = [np.arange(len(data))]
    few = data.groups.argsort(kind="stable")[:5]  # a task with 24 programs has more than 5 in the part, one with 5 has not
    assert metric_values(data, parts, [np.zeros(len(data))])["top-5"] is not None
    assert metric_values(data, [few], [np.zeros(5)])["top-5"] is None and metric_values(data, [few], [np.zeros(5)])["top-1"] is not None


def test_invalid_evaluations_are_rejected() -> None:
    data = three_tasks()
    with pytest.raises(UserError, match="programs are held out by within, task, family, target, not by 'network'"):
        evaluate("random", data, "network")
    with pytest.raises(UserError, match="all programs have the same target, so holding it out leaves no training data"):
        evaluate("random", data, "target")
    with pytest.raises(UserError, match="folds must be at least 2, got 1"):
        evaluate("random", data, "within", folds=1)
    with pytest.raises(UserError, match="the model 'xgb' is untrained: hold programs out"):
        evaluate("xgb", data, None)
    failed = TrainingSet(data.tasks, data.groups, np.full(len(data), np.inf), [], data.refused)
    single = data_of(MATMUL, OTHER, records=[measured(t)[0] for t in (MATMUL, OTHER)])
    with pytest.raises(
        UserError, match=r"no task has two programs, so none can be held out within its task: .* hold out whole tasks \(task\)"
    ):
        evaluate("random", single, "within")
    assert evaluate("random", single, "task").programs == 2
    with pytest.raises(UserError, match="no record can be used for training: there is none"):
        data_of(MATMUL, records=[])
    with pytest.raises(UserError, match="all programs failed"):
        metric_values(failed, [np.arange(len(data))], [np.zeros(len(data))])


def test_workloads_are_held_out_on_all_targets() -> None:
    tasks = [TaskKey(w, f"matmul(m={w})", t) for t in ("a", "b") for w in ("w0", "w1", "w2", "w3")]
    groups = np.repeat(np.arange(len(tasks)), 4)
    data = TrainingSet(tasks, groups, np.ones(len(groups)), [], Refused())
    rounds = list(split(data, "task"))
    assert len(rounds) == 4
    for learn, test in rounds:
        assert not {tasks[g].workload for g in groups[learn]} & {tasks[g].workload for g in groups[test]}
        assert {tasks[g].target for g in groups[test]} == {"a", "b"}
