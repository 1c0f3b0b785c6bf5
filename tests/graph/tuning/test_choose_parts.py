"""Test the choice between a function and its parts by records, and the models that are compiled with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import PARTS_OF, CallFunction, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes import propose_attention
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.apply_records import ApplyRecords
from tunesmith.graph.tuning.choose_parts import choose_parts
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.support.seeds import stream

TARGET = Target.detect()
PARTS = ("op_einsum", "op_softmax", "op_matmul")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propose_attention, "LEAST_BYTES", 0)


def model() -> IRModule:
    """Two layers of attention without weights."""
    b = GraphBuilder("main")
    x, k = b.input("x", (2, 16, 8)), b.input("k", (2, 24, 8))
    for _ in range(2):
        x = b.matmul(b.softmax(b.matmul(x, b.permute_dims(k, axes=(0, 2, 1))), axis=-1), k)
    return IRModule({"main": b.finish(x)})


def inputs() -> list[np.ndarray]:
    return [stream(0, "choose", rows).standard_normal((2, rows, 8)).astype(np.float32) for rows in (16, 24)]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A record of each function, by name."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(propose_attention, "LEAST_BYTES", 0)
        log = tmp_path_factory.mktemp("choose") / "log.jsonl"
        search = tunesmith.Search("random", seed=1, leaders=0, check_models=False)
        tunesmith.tune(model(), log=log, search=search, budget=2, workers=0, progress=False)
        database = Database.from_log(log)
        tasks = extract_tasks(GRAPH(model(), TARGET))
        return {t.name: (database.best(t.digest, TARGET.to_json(), t.func), database) for t in tasks}


def chosen(records: dict[str, Any], seconds: dict[str, float]) -> IRModule:
    """The module for records with these times; functions that are not named have none."""
    found = Database()
    for name, s in seconds.items():
        found.add(replace(records[name][0], samples=(s,) * 5))
    return choose_parts(GRAPH(model(), TARGET), ApplyRecords(found, TARGET), TARGET)


def called(mod: IRModule) -> list[str]:
    return [b.operation.function for b in all_bindings(mod["main"].body) if isinstance(b.operation, CallFunction)]


WHOLE, EACH = "fused_attention", dict.fromkeys(PARTS, 1e-3)


def test_tasks_are_both_the_function_and_its_parts(records: dict[str, Any]) -> None:
    assert set(records) == {WHOLE, *PARTS}
    assert {t.name: t.weight for t in extract_tasks(GRAPH(model(), TARGET))} == dict.fromkeys(records, 2)


@pytest.mark.parametrize(
    ("seconds", "whole"),
    [
        ({WHOLE: 2.9e-3, **EACH}, True),
        ({WHOLE: 3.1e-3, **EACH}, False),
        ({WHOLE: 1e-6}, True),
        ({WHOLE: 1.0, "op_softmax": 1e-9}, True),
        (EACH, False),
        ({}, False),
    ],
)
def test_the_faster_records_decide(records: dict[str, Any], seconds: dict[str, float], whole: bool) -> None:
    mod = chosen(records, seconds)
    assert called(mod) == ([WHOLE] * 2 if whole else list(PARTS) * 2)
    assert set(mod) == {"main", *([WHOLE] if whole else PARTS)}
    verify(mod["main"], mod)
    given = model()
    np.testing.assert_allclose(run(mod["main"], inputs(), mod)[0], run(given["main"], inputs(), given)[0], rtol=1e-4, atol=1e-5)


def test_parts_that_other_calls_use_are_kept(records: dict[str, Any]) -> None:
    lowered = GRAPH(model(), TARGET)
    b = GraphBuilder("other")
    s = b.input("s", (2, 16, 24))
    (y,) = b.call_function("op_softmax", [s], [s.type])
    database = records[WHOLE][1]
    mod = choose_parts(lowered.update({"other": b.finish(y)}), ApplyRecords(database, TARGET), TARGET)
    assert "op_softmax" in mod and not any(isinstance(f, GraphFunc) and f.attr(PARTS_OF) for f in mod.values())


def test_a_module_without_proposals_is_unchanged() -> None:
    b = GraphBuilder("main")
    mod = GRAPH(IRModule({"main": b.finish(b.exp(b.input("x", (4,))))}), TARGET)
    assert choose_parts(mod, ApplyRecords(Database(), TARGET), TARGET) is mod


@pytest.mark.parametrize(("executor", "with_records"), [("graph", False), ("graph", True), ("vm", True)])
def test_compiled_models_agree(records: dict[str, Any], executor: str, with_records: bool) -> None:
    database = records[WHOLE][1] if with_records else None
    compiled = tunesmith.compile(model(), records=database, executor=executor)
    given = model()
    np.testing.assert_allclose(compiled(*inputs()), run(given["main"], inputs(), given)[0], rtol=1e-4, atol=1e-5)
    assert {f for f in compiled.module if isinstance(compiled.module[f], PrimFunc)} in ({WHOLE}, set(PARTS))


def test_a_searched_model_is_compared_as_a_whole(tmp_path: Path) -> None:
    report = tunesmith.tune(
        model(), log=tmp_path / "log.jsonl", search=tunesmith.Search("random", seed=1, leaders=0), budget=2, workers=0, progress=False
    )
    (found,) = report.models
    assert found.after > 0 and found.changed in (1, 3) and not any("compared" in note for note in report.notes)
