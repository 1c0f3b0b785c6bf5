"""debug.trace: all intermediate results of compiled and interpreted models, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.debug import Trace, trace
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=1")


def network() -> IRModule:
    rng = stream(0, "debug trace")
    b = GraphBuilder("main")
    x = b.input("x", (2, 8))
    for k in range(3):
        x = b.softmax(b.relu(b.matmul(x, b.constant(rng.standard_normal((8, 8)).astype(np.float32)), name=f"product{k}")))
    return IRModule({"main": b.finish(x, b.reshape(x, shape=(16,)))})


def compiled(mod: IRModule, executor: str | None = None) -> CompiledModel:
    return compile_model(mod, TARGET, executor=executor, untuned=default_schedule)


INPUT = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_results_of_a_compiled_model(executor: str) -> None:
    mod = network()
    model = compiled(mod, executor)
    found = trace(model, INPUT)
    main = model.module["main"]
    assert isinstance(found, Trace) and len(found) == len(found.calls) == 6
    assert [c.function for c in found.calls] == [b.operation.function for b in main.body.bindings if hasattr(b.operation, "function")]
    assert found.calls[0].operands == ("x",) and found.calls[1].operands == (found.calls[0].name,)
    # The executor reuses memory, and the trace keeps what was in it: it equals the interpretation of the same graph.
    expected = trace(model.module, INPUT)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    outputs = model(INPUT)
    np.testing.assert_array_equal(found[found.results[0]], outputs[0])
    assert model.module is found.module and found.call(found.calls[2].name) is found.calls[2]


def test_names_are_those_of_the_graph() -> None:
    found = trace(network(), INPUT)
    assert list(found) == ["product0", "relu", "softmax", "product1", "relu_1", "softmax_1", "product2", "relu_2", "softmax_2", "reshape"]
    assert found.results == ("softmax_2", "reshape") and found.call("relu_1").operands == ("product1",)
    assert found.call("relu_1").function == "relu"
    lines = str(found).splitlines()
    assert len(lines) == 10 and lines[1].startswith("relu ") and "float32[2, 8]  0 .. " in lines[1]


def test_every_stage_of_compilation_is_interpreted() -> None:
    mod = network()
    lowered = GRAPH(mod, TARGET)
    a, b = trace(mod, INPUT), trace(lowered, INPUT)
    np.testing.assert_allclose(b[b.results[0]], a[a.results[0]], rtol=1e-5)


def test_branches_and_dynamic_shapes() -> None:
    n = Var("n")
    b = GraphBuilder("main")
    x, flag = b.input("x", (n, 4)), b.input("flag", (), "bool")

    def then(r: RegionBuilder) -> Any:
        return r.exp(r.relu(x))

    def otherwise(r: RegionBuilder) -> Any:
        return r.tanh(x)

    mod = IRModule({"main": b.finish(b.neg(b.branch(flag, then, otherwise, name="chosen")))})
    model = compiled(mod)
    assert model.executor.kind == "vm"
    x_value = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    for value, names in ((True, {"relu", "exp"}), (False, {"tanh"})):
        flag_value = np.array(value)
        assert names < set(trace(mod, x_value, flag_value))
        found = trace(model, x_value, flag_value)
        expected = run(mod["main"], [x_value, flag_value], mod)
        np.testing.assert_allclose(found[found.results[0]], expected[0], rtol=1e-5)
        assert len(found) == 2


def test_loops() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (4,))

    def body(r: RegionBuilder, t: Var, state: Any) -> Any:
        state = r.tanh(r.add(state, x))
        return [state], [r.square(state)]

    state, rows = b.loop(3, [x], body)
    mod = IRModule({"main": b.finish(state, rows)})
    given = np.linspace(-1, 1, 4, dtype=np.float32)
    expected = run(mod["main"], [given], mod)
    interpreted = trace(mod, given)
    assert {"tanh", "tanh_1", "tanh_2", "square_2"} < set(interpreted)
    found = trace(compiled(mod), given)
    for name, result in zip(found.results, expected, strict=True):
        np.testing.assert_allclose(found[name], result, rtol=1e-5, atol=1e-6)
    for name, result in zip(interpreted.results, expected, strict=True):
        np.testing.assert_array_equal(interpreted[name], result)


def test_calls_of_functions_that_call_themselves() -> None:
    b = GraphBuilder("halve")
    k, v = b.input("k", (), "int64"), b.input("v", (4,))
    one, half = b.constant(np.array(1)), b.constant(0.5)
    halve = b.finish(
        b.branch(b.less(k, one), lambda r: v, lambda r: r.call_function("halve", [r.subtract(k, one), r.multiply(v, half)], [v.type])[0])
    )
    b = GraphBuilder("main")
    k, v = b.input("k", (), "int64"), b.input("v", (4,))
    (smaller,) = b.call_function("halve", [b.abs(k), v], [v.type], name="smaller")
    mod = IRModule({"main": b.finish(b.neg(smaller)), "halve": halve})
    given = np.array(-3), np.full(4, 8, np.float32)
    interpreted, found = trace(mod, *given), trace(compiled(mod), *given)
    assert list(interpreted) == list(found) == ["abs", "smaller", "neg"]
    assert found.call("smaller").function == "halve" and found.call("smaller").operands == ("abs", "v")
    assert found["smaller"].tolist() == interpreted["smaller"].tolist() == [1, 1, 1, 1]


def test_results_that_are_views_or_constants() -> None:
    b = GraphBuilder("main")
    x, n = b.input("x", (2, 3)), b.input("n", (), "int64")
    one = b.constant(np.array(1))
    made = b.exp(x)
    flat = b.branch(b.less(n, one), lambda r: r.reshape(made, shape=(6,)), lambda r: r.reshape(r.neg(made), shape=(6,)))
    count, last = b.while_loop([n, n], lambda r, i, v: r.less(i, one), lambda r, i, v: [r.add(i, one), r.constant(np.array(7))])
    mod = IRModule({"main": b.finish(flat, b.expand_dims(count, axes=(0,)), b.add(last, one), last)})
    for start in (-1, 0, 1):
        given = np.ones((2, 3), np.float32), np.array(start)
        for made_by in (mod, compiled(mod)):
            for array, expected in zip(trace(made_by, *given).result_arrays, run(mod["main"], given, mod), strict=True):
                assert array.shape == expected.shape
                np.testing.assert_allclose(array, expected, rtol=1e-5)


def test_refusals(tmp_path: Any) -> None:
    model = compiled(network(), "graph")
    with pytest.raises(RunError, match=r"takes 1 input\(s\), got 2"):
        trace(model, INPUT, INPUT)
    with pytest.raises(UserError, match='executor="aot" runs a model as one function: compile it with executor="graph" or "vm"'):
        trace(compiled(network(), "aot"), INPUT)
    loaded = tunesmith.load_module(model.export_library(tmp_path / "net.so"))
    wrong: list[Any] = [None, IRModule(), loaded, network()["main"]]
    for given in wrong:
        with pytest.raises(UserError, match="trace takes what tunesmith.compile makes of a model, or a module with the graph function"):
            trace(given, INPUT)


def test_a_failing_call_is_an_error() -> None:
    calls: list[Callable[[], object]] = []

    def fails() -> object:
        raise ValueError("no")

    model = compiled(network(), "graph")
    program, _ = model.executor._bound_program([INPUT])
    program._calls[0][1] = fails
    calls.append(fails)
    with pytest.raises(RunError, match="a call of the program failed: no"):
        trace(model, INPUT)
