"""compile_model: executors, coverage by records, refusals, libraries, determinism."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.backends import backend
from tunesmith.codegen.backends.backend import Backend
from tunesmith.codegen.backends.cpu import CPU_BACKEND
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.driver.compile_records import UnusedLogWarning
from tunesmith.driver.tune import COLD_BYTES
from tunesmith.driver.tune_options import grouped
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.tuning.tasks import extract_tasks
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.measure.policies import MeasurePolicy, RacePolicy
from tunesmith.measure.records.database import Database
from tunesmith.ops.workload import workload
from tunesmith.support.errors import BuildError, RecordError, RunError, UserError
from tunesmith.support.registry import Registry

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")

MODEL = '''
"""Two layers, and what becomes of them."""

import numpy as np

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule


def model(m=4, k=8, n=16):
    b = GraphBuilder("main")
    x = b.input("x", (m, k))
    w = b.constant(np.arange(k * n, dtype=np.float32).reshape(k, n) % 5 - 2, "w")
    y = b.relu(b.add(b.matmul(x, w), b.constant(np.ones(n, np.float32), "bias")))
    return IRModule({"main": b.finish(b.softmax(y), y)})


number = 3


def text():
    return "relu(shape=4)"
'''
FUNCTIONS = ["fused_matmul_add_relu", "op_softmax"]
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


def model(*sizes: int) -> IRModule:
    space: dict[str, Any] = {}
    exec(MODEL, space)
    made: IRModule = space["model"](*sizes)
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "two_layers.py"
    path.write_text(MODEL)
    return f"{path}:model"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Log of a short search."""
    log = tmp_path_factory.mktemp("tuned") / "log.jsonl"
    policy = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
    report = tunesmith.tune(
        model(), **grouped(target=TARGET, trials=4, log=log, sampler="random", workers=0, leaders=0, progress=False, policy=policy)
    )
    assert report.ok and [t.workload for t in report.tasks] == FUNCTIONS
    return log


def check(made: Any, *, rtol: float = 1e-5) -> None:
    for a, w in zip(made(X), run(model()["main"], [X]), strict=True):
        np.testing.assert_allclose(a, w, rtol=rtol, atol=1e-6)


# ---- executors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ("graph", "vm", None))
def test_a_model_runs(executor: str | None) -> None:
    made = compile_model(model(), TARGET, executor=executor, untuned=default_schedule)
    check(made)
    assert made.executable.kind == (executor or "graph")
    assert [(s.name, s.shape, s.dtype) for s in made.inputs] == [("x", (4, 8), "float32")]
    assert [s.shape for s in made.outputs] == [(4, 16), (4, 16)]
    made.set_input("x", X)
    made.run()
    np.testing.assert_array_equal(made.get_output(1), made(X)[1])
    assert all(name in str(made.profile(X, repeats=1)) for name in FUNCTIONS)
    assert sorted(name for name in made.module if name != "main") == FUNCTIONS
    with pytest.raises(RunError, match="x"):
        made(X[:2])


def test_the_analytic_model_schedules_untuned_functions() -> None:
    """It is the default, and deterministic."""
    made = compile_model(model(), TARGET)
    check(made)
    plain = compile_model(model(), TARGET, untuned=default_schedule)
    assert str(made.module) != str(plain.module)
    check(compile_model(model(), TARGET, executor="vm"))


def branching() -> IRModule:
    b = GraphBuilder("main")
    x, p = b.input("x", (3,)), b.input("p", (), "bool")
    return IRModule({"main": b.finish(b.branch(p, lambda r: r.exp(x), lambda r: x))})


def sized() -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (Var("n"), 3))
    return IRModule({"main": b.finish(b.softmax(x))})


def test_dynamic_shapes_and_branches_need_the_virtual_machine() -> None:
    for mod in (sized(), branching()):
        assert compile_model(mod, TARGET).executable.kind == "vm"
    soft = compile_model(sized(), TARGET)
    for n in (1, 5, 2):
        x = np.ones((n, 3), np.float32)
        np.testing.assert_allclose(soft(x), x / 3, rtol=1e-6)
    x, either = np.float32([0, 1, 2]), compile_model(branching(), TARGET)
    np.testing.assert_allclose(either(x, np.array(True)), np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(either(x, np.array(False)), x)
    with pytest.raises(BuildError, match=r'has a dynamic shape, but this executor supports only static shapes.*executor="vm"'):
        compile_model(sized(), TARGET, executor="graph")
    with pytest.raises(
        BuildError, match=r'main has branches or `while` loops, but the graph executor supports only sequences of calls.*executor="vm"'
    ):
        compile_model(branching(), TARGET, executor="graph")


def test_a_model_of_operands_and_views_only() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (2, 3))
    mod = IRModule(
        {"main": b.finish(x, b.reshape(x, shape=(6,)), b.constant(np.float32([1, 2])), b.flip(b.constant(np.arange(3)), axes=0))}
    )
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    for executor in ("graph", "vm"):
        made = compile_model(mod, TARGET, executor=executor)
        assert made.coverage == () and made.executable.data is None
        for a, w in zip(made(given), (given, given.reshape(6), [1, 2], [2, 1, 0]), strict=True):
            np.testing.assert_array_equal(a, w)


def test_refusals() -> None:
    with pytest.raises(UserError, match="no executor 'fast'; there are graph, vm"):
        compile_model(model(), TARGET, executor="fast")
    with pytest.raises(RecordError, match="no records were given: pass records="):
        compile_model(model(), TARGET, strict=True)
    only_tir = IRModule([workload("relu(shape=4)").func])
    for executor in ("graph", None):
        with pytest.raises(UserError, match="no function 'main'"):
            compile_model(only_tir, TARGET, executor=executor)
    with pytest.raises(BuildError, match="main"):
        compile_model(IRModule([only_tir["relu"].with_(name="main")]), TARGET)


def test_a_backend_without_aot_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Backend] = Registry("backend")
    registry.register("llvm", replace(CPU_BACKEND, build_aot=None))
    monkeypatch.setattr(backend, "BACKENDS", registry)
    with pytest.raises(BuildError, match=r'executor="aot": the backend of llvm compiles no models ahead of time. Use executor="graph"'):
        compile_model(model(4, 8, 16), TARGET, executor="aot")


def test_main_is_the_only_callable_of_a_model() -> None:
    compiled = compile_model(model(4, 8, 16), TARGET, untuned=default_schedule)
    assert [a.tolist() for a in compiled["main"](X)] == [a.tolist() for a in compiled(X)]
    with pytest.raises(UserError, match=r"no callable function 'op_softmax'. It calls .*op_softmax: compile one of them alone, as"):
        compiled["op_softmax"]


def test_another_pipeline() -> None:
    """Without fusion each operator is a separate function."""
    made = compile_model(model(), TARGET, pipeline=GRAPH.without("fuse_operators"), untuned=default_schedule)
    assert [c.function for c in made.coverage] == ["op_matmul", "op_add", "op_relu", "op_softmax"]
    check(made)


# ---- records ---------------------------------------------------------------------------------------------------------------


def test_compilation_uses_the_records_of_a_search(tuned: Path) -> None:
    made = compile_model(model(), TARGET, Database.from_log(tuned), strict=True)
    assert [(c.function, c.status) for c in made.coverage] == [(name, "used") for name in FUNCTIONS]
    assert all(c.record and c.seconds for c in made.coverage)
    check(made)
    check(tunesmith.compile(model(), TARGET, tuned, strict=True))


def test_functions_with_indirect_indices_are_tuned(tmp_path: Path) -> None:
    """x[i, j]: the whole model is one function whose reads have loaded indices."""
    b = GraphBuilder("main")
    x, indices = b.input("x", (6, 5, 16)), b.input("i", (9, 2), "int64")
    module = IRModule({"main": b.finish(b.gather_nd(x, indices))})
    log = tmp_path / "log.jsonl"
    policy = MeasurePolicy(RacePolicy(min_repeat_ms=0.01, repeats=2, quiet_fraction=1e9), retake=0.0)
    report = tunesmith.tune(
        module, **grouped(target=TARGET, trials=3, log=log, sampler="random", workers=0, leaders=0, progress=False, policy=policy)
    )
    assert report.ok
    made = compile_model(module, TARGET, Database.from_log(log), strict=True)
    assert [c.status for c in made.coverage] == ["used"]
    rng = np.random.default_rng(3)
    given = rng.standard_normal((6, 5, 16)).astype(np.float32), np.stack([rng.integers(-6, 6, 9), rng.integers(-5, 5, 9)], 1)
    np.testing.assert_array_equal(made(*given), run(module["main"], given)[0])


def test_layers_of_a_model_are_timed_with_cold_weights_and_operators_with_warm_ones(tmp_path: Path) -> None:
    found = {}
    for name, what in (("model", model()), ("operator", "dense(m=4,n=8,k=8)")):
        log = tmp_path / f"{name}.jsonl"
        tunesmith.tune(what, **grouped(target=TARGET, trials=1, log=log, sampler="random", workers=0, leaders=1, progress=False))
        database = Database.from_log(log)
        found[name] = {r.policy["constant_bytes"] for r in database.records()}
    assert found == {"model": {COLD_BYTES}, "operator": {0}}


def test_missing_records_are_reported(tuned: Path) -> None:
    wider = model(4, 8, 24)
    with pytest.warns(UnusedLogWarning):
        made = compile_model(wider, TARGET, Database.from_log(tuned), untuned=default_schedule)
    assert [c.status for c in made.coverage] == ["missing", "missing"]
    other = Target("llvm -mcpu=x86-64-v3 -num-cores=7")
    with pytest.warns(UnusedLogWarning):
        made = compile_model(model(), other, Database.from_log(tuned), untuned=default_schedule)
    assert all(c.status == "missing" and "for other targets" in c.reason for c in made.coverage)


def test_a_record_that_does_not_apply_is_reported(hand: ModuleType) -> None:
    first, second = extract_tasks(GRAPH(model(), TARGET))
    good = hand.record_of(second.func, lambda s: None, TARGET)
    stranger = hand.record_of(second.func, lambda s: s.fuse(s.get_loops(s.blocks()[0].name)), TARGET)
    database = Database([good, hand.record_of(first.func, lambda s: None, TARGET, trace=stranger.trace)])
    made = compile_model(model(), TARGET, database, untuned=default_schedule)
    assert [c.status for c in made.coverage] == ["refused", "used"] and "does not apply" in made.coverage[0].reason
    check(made)


def test_strict_lists_all_functions_without_a_record() -> None:
    with pytest.raises(RecordError, match="2 of 2 functions have no usable record") as caught:
        compile_model(model(), TARGET, Database(), strict=True)
    assert all(name in str(caught.value) for name in FUNCTIONS) and str(caught.value).count("missing: no record of this workload") == 2


def damaged(log: Path, folder: Path) -> Path:
    """A damaged log: truncated records of the second function, foreign lines, and no end."""
    lines = log.read_text().splitlines()
    digest = [structural.digest(t.func) for t in extract_tasks(GRAPH(model(), TARGET))][1]
    cut = [line[: len(line) // 2] if digest in line and "workload" in line else line for line in lines]
    assert cut != lines
    foreign = ['{"kind": "record", "v": 99}', "[]", "\x00\x01", "", '{"i": [["k", "llvm"], []], "r": [[1], 0, 1, 1], "v": "v0.6"}']
    path = folder / "worn.jsonl"
    path.write_text("\n".join([*foreign, *cut, *foreign, lines[-1][:40]]))
    return path


def test_functions_that_main_does_not_call_are_left_out() -> None:
    made = {}
    for name, called in (("main", None), ("used", None), ("unused", "inner"), ("inner", None)):
        b = GraphBuilder(name)
        x = b.input("x", (3,))
        made[name] = b.finish(*(b.call_function(called, [x], [x.type]) if called else [b.exp(b.neg(x)) if name == "inner" else b.tanh(x)]))
    b = GraphBuilder("main")
    x = b.input("x", (3,))
    compiled = compile_model(
        IRModule({**made, "main": b.finish(*b.call_function("used", [x], [x.type]))}), TARGET, untuned=default_schedule
    )
    assert list(compiled.module) == ["main", "used", "op_tanh"] and [c.function for c in compiled.coverage] == ["op_tanh"]


def test_the_valid_lines_of_a_damaged_log_are_used(tuned: Path, tmp_path: Path) -> None:
    log = damaged(tuned, tmp_path)
    made = tunesmith.compile(model(), TARGET, log)
    assert [c.status for c in made.coverage] == ["used", "missing"]
    assert "lines of the log could not be read: `tunesmith log verify` lists them" in made.coverage[1].reason
    check(made)
    with pytest.raises(RecordError, match=r"1 of 2 functions have no usable record.*\n.*op_softmax .*: missing: .*could not be read"):
        tunesmith.compile(model(), TARGET, log, strict=True)


# ---- files -----------------------------------------------------------------------------------------------------------------


def in_a_new_process(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


LOAD = """
import sys
import numpy as np
from tunesmith.runtime.module import load_module

model = load_module(sys.argv[1])
soft, y = model(np.load(sys.argv[2]))
np.savez(sys.argv[3], soft, y)
print(*[s.name for s in model.inputs])
print("llvmlite" in sys.modules, "tunesmith.ir" in sys.modules)
"""


@pytest.mark.parametrize("executor", ("graph", "vm"))
@pytest.mark.parametrize("parameters", ("inside", "beside"))
def test_a_library_runs_without_the_compiler(tmp_path: Path, executor: str, parameters: str) -> None:
    made = compile_model(model(), TARGET, executor=executor, untuned=default_schedule)
    library = made.export_library(tmp_path / "model.so", parameters)
    assert (tmp_path / "model.so.params").exists() == (parameters == "beside")
    np.save(tmp_path / "x.npy", X)
    assert in_a_new_process(LOAD, library, tmp_path / "x.npy", tmp_path / "y.npz") == "x\nFalse False\n"
    found = np.load(tmp_path / "y.npz")
    for name, expected in zip(found.files, made(X), strict=True):
        np.testing.assert_array_equal(found[name], expected)
    check(tunesmith.load_module(library))


COMPILE = """
import sys
from tunesmith.driver.compile_model import compile_model
from tunesmith.ir.target.target import Target
from tunesmith.driver.workloads import find_module

made = compile_model(find_module(sys.argv[1]), Target(sys.argv[2]))
made.export_library(sys.argv[3])
"""


def test_equal_models_give_equal_bytes_in_every_process(file: str, tmp_path: Path) -> None:
    """This includes schedules chosen by the analytic model."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
        in_a_new_process(COMPILE, file, "llvm -mcpu=x86-64-v3 -num-cores=2", folder / "model.so")
    first, second = [(f / "model.so").read_bytes() for f in folders]
    assert first == second


def test_the_facade_compiles_models(file: str) -> None:
    for given in (model(), file):
        made = tunesmith.compile(given, TARGET)
        assert isinstance(made, CompiledModel)
        check(made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": ["graph"]}, r"no executor \['graph'\]; there are"),
        ({"offload": 3}, "offload is a list of external code generators, got 3"),
        ({"offload": "blas"}, r"write offload=\['blas'\]"),
        ({"offload": (3,)}, "a name or an ExternalCodegen, got 3"),
    ],
)
def test_options_of_another_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tunesmith.compile(model(), **options)
