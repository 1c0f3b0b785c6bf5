"""Own programs and models are benchmarked: against own functions and libraries that read ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.bench.bench import BenchPolicy
from tunesmith.driver.bench.entry import find_entries
from tunesmith.driver.bench.user_function import FunctionSystem
from tunesmith.driver.bench.worker import BaselineSystem, CompiledSystem
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.measure.baselines.baseline import Baseline
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.records.database import Database
from tunesmith.script import T
from tunesmith.support.errors import RunError, UserError

SHORT = BenchPolicy(starts=1, rounds=2, window_s=0.01, patience_s=0.0)

MINE = """
import numpy as np
from tunesmith import te


def scaled():
    a = te.placeholder((16, 24), "float32", "A")
    b = te.placeholder((24,), "float32", "B")
    return [a, b, te.compute((16, 24), lambda i, j: a[i, j] * b[j] + 1.0, "C")]


def in_numpy(a, b):
    return a * b + 1


def prepared(a, b):
    c = np.empty_like(a)

    def call():
        np.multiply(a, b, out=c)
        np.add(c, 1, out=c)
        return c

    return call


def wrong(a, b):
    return a * b


def transposed(a, b):
    return (a * b + 1).T


def two(a, b):
    return a, b


def no_inputs():
    return lambda: 0


def failing(a, b):
    raise KeyError("no such thing")


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_an_own_program_is_timed_against_own_functions(mine: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    tunesmith.tune(f"{mine}:scaled", log=log, budget=tunesmith.Budget(trials=4), progress=False)
    against = [f"{mine}:in_numpy", f"{mine}:prepared", f"{mine}:wrong", f"{mine}:no_inputs", "openblas"]
    report = tunesmith.bench(f"{mine}:scaled", log, against, policy=SHORT)
    rows = {r.system.rpartition(":")[2]: r for r in report.rows}
    assert rows["tunesmith"].note == "replayed record" and rows["tunesmith"].gflops
    assert rows["in_numpy"].ok and rows["in_numpy"].ratio is not None and rows["in_numpy"].precision == "f32"
    assert rows["prepared"].ok and rows["prepared"].median and rows["prepared"].error == 0
    assert not rows["wrong"].ok and "elements are wrong" in rows["wrong"].note
    assert rows["no_inputs"].note.startswith(f"{mine}:no_inputs is called with (input0, input1), which it does not take")
    assert report.absent == (f"openblas has no {mine}:scaled (compare it with an own function: path.py:name)",)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("transposed", r"returned float32\[24, 16\]; the workload has float32\[16, 24\]"),
        ("two", r"returned float32\[16, 24\], float32\[24\]; the workload has float32\[16, 24\]"),
        ("failing", "no such thing"),
    ],
)
def test_an_own_function_that_does_not_compute_it_is_refused(mine: Path, tmp_path: Path, name: str, why: str) -> None:
    (entry,) = find_entries(f"{mine}:scaled")
    system = FunctionSystem(f"{mine}:{name}")
    assert system.available() == ""
    with pytest.raises((RunError, UserError), match=why):
        system.prepare(entry.save(tmp_path, "w", 0))


def test_refusals(mine: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.touch()
    with pytest.raises(UserError, match=r"mine.py holds no 'in_nump'. Did you mean 'in_numpy'"):
        tunesmith.bench("relu(shape=4)", log, [f"{mine}:in_nump"], policy=SHORT)
    with pytest.raises(UserError, match="is an int, not a function of the inputs"):
        tunesmith.bench("relu(shape=4)", log, [f"{mine}:number"], policy=SHORT)
    with pytest.raises(UserError, match="no workload was given"):
        tunesmith.bench([], log)
    with pytest.raises(UserError, match="two different workloads are named 'f'"):
        tunesmith.bench([_add(4), _add(5)], log)
    with pytest.raises(UserError, match="f has dynamic shapes, for which there is nothing to time"):
        tunesmith.bench(_dynamic(), log)
    assert [e.name for e in find_entries([_add(4), _add(4), "relu(shape=4)"])] == ["f", "relu(shape=4)"]


def _add(n: int) -> PrimFunc:
    @T.prim_func
    def f(A: T.Buffer((n,)), B: T.Buffer((n,))) -> None:
        for i in range(n):
            with T.block("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v] + T.float32(1)

    return f


def _dynamic() -> PrimFunc:
    @T.prim_func
    def f(a: T.handle, b: T.handle) -> None:
        n = T.int64()
        A = T.match_buffer(a, (n,))
        B = T.match_buffer(b, (n,))
        for i in range(n):
            with T.block("B"):
                v = T.axis.spatial(n, i)
                B[v] = A[v] + T.float32(1)

    return f


def _accumulating() -> PrimFunc:
    @T.prim_func
    def f(A: T.Buffer((8,)), B: T.Buffer((8,))) -> None:
        for i in range(8):
            with T.block("B"):
                v = T.axis.spatial(8, i)
                B[v] = B[v] + A[v]

    return f


def test_a_program_that_updates_its_output_starts_from_the_same_contents(mine: Path, tmp_path: Path) -> None:
    (entry,) = find_entries(_accumulating())
    made = entry.save(tmp_path, "w", 0)
    assert made.updates
    code = tunesmith.compile(_accumulating()).artifact.code()
    assert CompiledSystem().prepare(replace(made, code=code)).wrong == ""
    system = FunctionSystem(f"{mine}:in_numpy")
    assert system.available() == ""
    with pytest.raises(RunError, match="updates its outputs"):
        system.prepare(made)


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """A product with a constant matrix, and its softmax."""
    onnx = pytest.importorskip("onnx")
    weights = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["p"]), onnx.helper.make_node("Softmax", ["p"], ["y"], axis=-1)]
    value = onnx.helper.make_tensor_value_info
    inputs, outputs = [[value(name, onnx.TensorProto.FLOAT, shape)] for name, shape in (("x", [8, 16]), ("y", [8, 24]))]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(weights, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), path)
    return path


def test_models_without_a_name_are_numbered() -> None:
    def relu(rows: int) -> IRModule:
        b = GraphBuilder("main")
        return IRModule({"main": b.finish(b.relu(b.input("x", (rows, 16))))})

    assert [e.name for e in find_entries([relu(4), relu(8), "relu(shape=4)"])] == ["model", "model 2", "relu(shape=4)"]


def test_a_model_without_functions_has_nothing_to_time() -> None:
    b = GraphBuilder("main")
    with pytest.raises(UserError, match="model has no functions, for which there is nothing to time: its outputs are inputs or constants"):
        find_entries(IRModule({"main": b.finish(b.input("x", (4,)))}))


def test_the_suffix_of_a_model_may_be_in_upper_case(onnx_file: Path) -> None:
    upper = onnx_file.rename(onnx_file.with_name("MODEL.ONNX"))
    (entry,) = find_entries(str(upper))
    assert entry.onnx == entry.name == str(upper)


class Reader(Baseline):
    """A library that reads ONNX files, with a chosen result."""

    name, package = "reader", "numpy"

    def __init__(self, result: Sequence[np.ndarray] | Exception) -> None:
        super().__init__(1)
        self.result = result

    def variants(self, call: object) -> list[object]:  # type: ignore[override]
        return []

    def onnx_call(self, path: str, inputs: Sequence[np.ndarray]) -> ModelCall | None:
        if isinstance(self.result, Exception):
            raise self.result
        return ModelCall(lambda: None, lambda: tuple(self.result), "f32")  # type: ignore[arg-type]


def test_a_model_is_compiled_with_the_records_that_there_are(tmp_path: Path, onnx_file: Path) -> None:
    (entry,) = find_entries(str(onnx_file))
    assert entry.onnx == str(onnx_file) and entry.flops > 0 and not entry.operator
    made = entry.save(tmp_path, "w", 0)
    log = tmp_path / "log.jsonl"
    search = tunesmith.Search(check_models=False)  # which may withdraw a record
    tunesmith.tune(str(onnx_file), log=log, budget=2, search=search, progress=False)
    own = entry.with_code(made, tunesmith.Target.detect(), Database.from_log(log))
    system = CompiledSystem()
    prepared = system.prepare(own)
    assert (prepared.wrong, prepared.variant, prepared.precision) == ("", own.note, "f32") and own.note.startswith("records of 2 of 2")
    assert len(system.window(0.001).seconds) >= 1
    expected = np.load(made.reference)["arr_0"]
    assert BaselineSystem(Reader([expected])).prepare(made).variant == "ONNX"
    assert "elements are wrong" in BaselineSystem(Reader([expected + 1])).prepare(made).wrong
    with pytest.raises(RunError, match="baseline reader failed on .*ValueError: not today"):
        BaselineSystem(Reader(ValueError("not today"))).prepare(made)
    assert not BaselineSystem(Reader([])).prepare(replace(made, onnx="")).offered
