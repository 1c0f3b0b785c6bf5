"""Targets of kind c: a search measures C code, its records are replayed, and models and index checks work as on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.device.build import build as build_for_device
from tunesmith.driver.compile_records import UnusedLogWarning
from tunesmith.driver.tune_options import grouped
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.ops.workload import workload
from tunesmith.support.errors import BuildError, RunError

TARGET = Target(f"c -mcpu={Target.detect().mcpu} -num-cores=1")
TEXT = "matmul(m=24,n=32,k=16)"


def test_a_search_measures_c_and_its_records_are_replayed(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    policy = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
    options = grouped(trials=4, sampler="random", workers=0, leaders=0, policy=policy)
    report = tunesmith.tune(TEXT, TARGET, log, **options, progress=False)
    assert report.best is not None
    lib = tunesmith.compile(TEXT, TARGET, records=log, strict=True)
    assert [c.status for c in lib.coverage] == ["used"] and "matmul" in lib.source
    a, b = workload(TEXT).random_inputs()
    out = np.zeros((24, 32), "float32")
    lib(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)
    again = tunesmith.compile(TEXT, TARGET, records=log, strict=True)
    assert (again.artifact.data, again.source) == (lib.artifact.data, lib.source)
    assert tunesmith.replay(log, verify=True).ok
    with pytest.warns(UnusedLogWarning):
        other = tunesmith.compile(TEXT, str(TARGET).replace("c ", "llvm ", 1), records=log)
    assert [c.status for c in other.coverage] == ["missing"] and "define " in other.source and "fmuladd" not in lib.source


def test_indices_are_checked_in_c() -> None:
    func = parse("""
@T.prim_func
def rows(A: T.Buffer((8, 4), "float32"), I: T.Buffer((5,), "int64"), B: T.Buffer((5, 4), "float32")):
    for i, j in T.grid(5, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.lookup(I[vi], 8, lambda v: A[v, vj])
""")
    lib = tunesmith.build(func, TARGET, bounds_check=True)
    a, b = np.arange(32, dtype="float32").reshape(8, 4), np.zeros((5, 4), "float32")
    index = np.array([7, 0, 3, 3, 1])
    lib(a, index, b)
    np.testing.assert_array_equal(b, a[index])
    with pytest.raises(RunError, match="rows: .* is 8, and the extent is 8: out of bounds"):
        lib(a, np.array([0, 8, 0, 0, 0]), b)


def test_a_function_without_a_schedule_gets_one() -> None:
    lib = tunesmith.compile("softmax(m=6,n=40)", "c")
    (x,) = workload("softmax(m=6,n=40)").random_inputs()
    out = np.zeros((6, 40), "float32")
    lib(x, out)
    np.testing.assert_allclose(out, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)


def test_models_and_functions_have_their_source() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8))
    mod = IRModule({"main": b.finish(b.relu(b.matmul(x, b.constant(np.ones((8, 8), "float32")))))})
    for kind, executor, part in (("c", "graph", "float32x8"), ("c", "aot", "float32x8"), ("llvm", "vm", "define ")):
        model = tunesmith.compile(mod, f"{kind} -mcpu=x86-64-v3 -num-cores=1", executor=executor)
        assert part in model.source and "fused_matmul_relu" in model.source
    plain = tunesmith.compile(mod, "llvm -mcpu=x86-64-v3 -num-cores=1", lowering=tunesmith.passes.CPU.without("simplify"))
    assert "define " in plain.source
    lib = tunesmith.compile("relu(shape=8)", "llvm -mcpu=x86-64-v3 -num-cores=1")
    with pytest.raises(BuildError, match="export_c writes models, .*`source` has the C text of the kernels"):
        lib.export_c("folder")
    relu = default_schedule(workload("relu(shape=4096)").func, Target("opencl"))
    assert "get_local_id(0)" in build_for_device(relu, Target("opencl")).source
