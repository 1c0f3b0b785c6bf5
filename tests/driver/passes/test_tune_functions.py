"""tune_functions: a pass that tunes what has no record, in a pipeline with the pass that applies the records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.passes import tune_functions as module
from tunesmith.driver.tune_options import Search
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.tuning.apply_records import COVERAGE
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.pass_context import PassContext
from tunesmith.measure.records.database import Database
from tunesmith.passes import GRAPH, ApplyRecords, TuneFunctions
from tunesmith.support.errors import UserError

TARGET = Target("llvm -num-cores=1")


def model(rows: Any = 4) -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (rows, 8))
    for _ in range(2):
        x = b.softmax(b.relu(b.matmul(x, b.constant(np.ones((8, 8), np.float32)))))
    return IRModule({"main": b.finish(x)})


def tuning(log: Path, **changes: Any) -> TuneFunctions:
    search = Search("random", batch=2, leaders=0, check_models=False)
    return TuneFunctions(log, **{"budget": 2, "search": search, "workers": 0, "progress": False, **changes})


def test_a_model_is_tuned_in_its_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "new" / "log.jsonl"
    pipeline = GRAPH + tuning(log) + ApplyRecords(log)
    assert pipeline.names[-2:] == ("tune_functions", "apply_records")
    compiled = tunesmith.compile(model(), TARGET, pipeline=pipeline)
    assert [c.status for c in compiled.coverage] == ["used", "used"] and len(Database.from_log(log)) >= 2
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_allclose(compiled(x), tunesmith.compile(model(), TARGET)(x), rtol=1e-5)
    # The records of a second run are those of the first.
    monkeypatch.setattr(module, "tune", lambda *args, **kwargs: pytest.fail("nothing is missing"))
    again = tunesmith.compile(model(), TARGET, pipeline=pipeline)
    assert again.coverage == compiled.coverage
    mod = pipeline(model(), TARGET)
    assert all(f.attr(COVERAGE) for f in mod.values() if isinstance(f, PrimFunc))
    assert ApplyRecords(Database(), TARGET)(mod) is mod  # schedules of records stay


def test_what_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Sequence[PrimFunc], dict[str, Any]]] = []
    monkeypatch.setattr(module, "tune", lambda workloads, target, log, **keywords: given.append((workloads, keywords)))
    mod = GRAPH(model(), TARGET)
    log = tmp_path / "log.jsonl"
    assert tuning(log, budget=7)(mod, TARGET) is mod
    ((found, keywords),) = given
    assert [f.name for f in found] == ["fused_matmul_relu", "op_softmax"]
    assert keywords["search"].weights == {"fused_matmul_relu": 2.0, "op_softmax": 2.0} and keywords["search"].sampler == "random"
    assert keywords["budget"] == 7 and keywords["policy"].race.constant_bytes and keywords["sizes"] is None
    dynamic = GRAPH(model(Var("n")), TARGET)
    given.clear()
    tuning(log)(dynamic, TARGET)
    assert not given
    tuning(log, sizes="n=1..4")(dynamic, TARGET)
    assert given[0][1]["sizes"] == "n=1..4" and given[0][1]["search"].weights == {}


def test_records_of_other_passes_are_missing(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    mod = GRAPH(model(), TARGET)
    tuning(log)(mod, TARGET)
    assert tuning(log).without_record(mod, TARGET) == []
    with PassContext(disabled=["simplify"]):
        assert len(tuning(log).without_record(mod, TARGET)) == 2
        applied = ApplyRecords(log).apply(mod, TARGET)
        assert [c.status for c in applied.coverage] == ["missing", "missing"]
        assert "its records were measured with other passes: the default passes. Tune it with" in applied.coverage[0].reason
    with PassContext(disabled=["convert_layout"]):
        assert tuning(log).without_record(mod, TARGET) == []


def test_refusals_are_those_of_tune(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sampler"):
        tuning(tmp_path / "log.jsonl", search="nonsense")(GRAPH(model(), TARGET), TARGET)
