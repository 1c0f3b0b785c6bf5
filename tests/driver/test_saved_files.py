"""Files that earlier versions wrote are read: logs, record tables, cost models and exported libraries (tests/golden/saved_0_1)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tunesmith
from tunesmith.cli.main import main
from tunesmith.experiments.arena.pool_file import load_pools
from tunesmith.graph.tuning.apply_records import apply_record
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.structural import digest
from tunesmith.measure.candidate import parse_function
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import workload

SAVED = Path(__file__).parents[1] / "golden" / "saved_0_1"
WORKLOADS = ("matmul(m=24,n=32,k=16)", "softmax(m=16,n=24)")


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    return dict(np.load(SAVED / "expected.npz"))


def test_every_record_of_a_log_applies() -> None:
    database = Database.from_log(SAVED / "log.jsonl")
    assert not database.report.bad_count and len(database.tasks()) == 2
    applied = 0
    for key, target in database.tasks():
        line = database.workloads()[key]
        func = parse_function(line.script)
        assert digest(func) == key == digest(workload(line.name).func)
        for record in database.records(key, target):
            if record.error is None:
                assert isinstance(apply_record(record, func), PrimFunc)
                applied += 1
    assert applied >= 20


def test_a_log_is_verified_and_counted(tmp_path: Path) -> None:
    shutil.copy(SAVED / "log.jsonl", tmp_path)
    for command in (["verify"], ["stats"]):
        result = CliRunner().invoke(main, ["log", *command, str(tmp_path / "log.jsonl")])
        assert result.exit_code == 0, result.output


def test_a_pool_is_a_tabular_benchmark() -> None:
    pools = load_pools([SAVED / "pool.parquet"])
    assert [p.name for p in pools] == list(WORKLOADS)


@pytest.mark.parametrize(("model", "values"), [("xgb.json", "eval_xgb.json"), ("mlp.safetensors", "eval_mlp.json")])
def test_a_saved_model_predicts_what_it_did(model: str, values: str, tmp_path: Path) -> None:
    if model.endswith(".safetensors"):
        pytest.importorskip("torch")
    out = tmp_path / "values.json"
    result = CliRunner().invoke(main, ["costmodel", "eval", str(SAVED / model), str(SAVED / "pool.parquet"), "--json", str(out)])
    assert result.exit_code == 0, result.output
    found, before = (json.loads(p.read_text())["values"]["model"] for p in (out, SAVED / values))
    # The trees continue from the analytic cost, whose estimates improve from version to version: those of 0.1 are nearly as good on it.
    tolerance = {"abs": 0.05} if model == "xgb.json" else {"rel": 1e-4}
    # The pool has fewer than 32 programs of a task, for which 0.1 printed the metric all the same.
    assert found.pop("best-5 of 32") is None and before.pop("best-5 of 32") is not None
    assert found == pytest.approx(before, **tolerance)


def test_an_exported_function_runs() -> None:
    module = tunesmith.load_module(SAVED / "dense.so")
    w = workload("dense(m=4,n=8,k=16,activation=gelu)")
    inputs = [np.random.default_rng(0).random([e.as_int() for e in p.shape], dtype=np.float32) for p in w.func.params[:-1]]
    out = np.empty((4, 8), np.float32)
    module["dense"](*inputs, out)
    np.testing.assert_allclose(out, w.reference(inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18_graph", "gpt_decode_cat_vm", "mobilenet_v2_aot"])
def test_an_exported_model_runs(name: str, expected: dict[str, np.ndarray]) -> None:
    model = tunesmith.load_module(SAVED / f"{name}.so")
    inputs = [expected[k] for k in sorted(k for k in expected if k.startswith(f"{name}_in"))]
    found = model(*inputs)
    outputs = found if isinstance(found, tuple) else (found,)
    assert len(outputs) == sum(k.startswith(f"{name}_out") for k in expected)
    for k, array in enumerate(outputs):
        np.testing.assert_allclose(array, expected[f"{name}_out{k}"], rtol=1e-5, atol=1e-6)
