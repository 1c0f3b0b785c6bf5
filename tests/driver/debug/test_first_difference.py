"""debug.first_difference: the first call that differs, found across fusion and layouts, in a network with a fault in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import tunesmith
from tunesmith.debug import Difference, first_difference, trace
from tunesmith.driver.compile_model import CompiledModel, compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import CallFunction, all_bindings
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.passes import GRAPH, Pipeline, module_pass
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream
from tunesmith.testing import torch_models

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=1")


def compiled(mod: IRModule, pipeline: Pipeline = GRAPH, executor: str | None = None) -> CompiledModel:
    return compile_model(mod, TARGET, pipeline=pipeline, executor=executor, untuned=default_schedule)


def faulty(function: str, added: float = 0.5) -> Pipeline:
    """The graph pipeline with a fault: what `function` stores to its last parameter is too large."""

    @module_pass
    def fault(mod: IRModule) -> IRModule:
        f = mod[function]
        result = [p for p in f.params if isinstance(p, Buffer)][-1]

        def on_store(n: BufferStore, _: Any) -> BufferStore:
            return BufferStore(n.buffer, n.indices, n.value + const(added, result.dtype)) if n.buffer is result else n

        return mod.update({function: with_body(f, transform(f.body, {BufferStore: on_store}))})

    return GRAPH + fault


def called(mod: IRModule) -> list[str]:
    """The functions that `main` calls, in order."""
    return [b.operation.function for b in all_bindings(mod["main"].body) if isinstance(b.operation, CallFunction)]


@pytest.fixture(scope="module")
def resnet() -> tuple[IRModule, tuple[Any, ...]]:
    net, inputs = torch_models.get("resnet18", "small")
    return tunesmith.from_torch(net, inputs), tuple([x.numpy() for x in inputs])


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_a_fault_in_the_middle_of_a_network_is_found(resnet: tuple[IRModule, tuple[Any, ...]], executor: str) -> None:
    mod, inputs = resnet
    functions = called(GRAPH(mod, TARGET))
    chosen = next(f for f in functions[len(functions) // 2 :] if functions.count(f) == 1)
    model = compiled(mod, faulty(chosen), executor)
    found = first_difference(mod, model, *inputs)
    assert isinstance(found, Difference) and found.function == chosen and isinstance(found.func, PrimFunc)
    assert found.error is not None and found.relative is not None and found.relative > 1e-3
    assert chosen in str(found) and "look at the function" in str(found)


def test_a_correct_network_has_no_difference(resnet: tuple[IRModule, tuple[Any, ...]]) -> None:
    mod, inputs = resnet
    assert first_difference(mod, compiled(mod), *inputs) is None
    assert first_difference(mod, GRAPH(mod, TARGET), *inputs) is None


# ---- small models --------------------------------------------------------------------------------------------------------------


def network() -> IRModule:
    rng = stream(0, "first difference")
    b = GraphBuilder("main")
    x = b.input("x", (4, 8))
    for k in range(4):
        x = b.softmax(b.relu(b.matmul(x, b.constant(rng.standard_normal((8, 8)).astype(np.float32)), name=f"product{k}")))
    return IRModule({"main": b.finish(x)})


INPUT = stream(1, "first difference").standard_normal((4, 8)).astype(np.float32)


def test_two_compiled_models_and_their_traces() -> None:
    good, bad = compiled(network()), compiled(network(), faulty("op_softmax"), executor="vm")
    found = first_difference(good, bad, INPUT)
    assert found is not None and found.name == found.reference == "softmax" and found.function == "op_softmax"
    assert found.error == pytest.approx(0.5, rel=1e-4) and found.shape == found.reference_shape == (4, 8)
    assert found.actual is not None and found.expected is not None and found.actual - found.expected == pytest.approx(0.5, rel=1e-4)
    assert first_difference(trace(good, INPUT), trace(bad, INPUT)) == found
    assert first_difference(dict(trace(good, INPUT)), bad, INPUT) == found
    assert first_difference(good, bad, INPUT, rtol=10.0) is None


def test_another_fault_later_is_not_reported() -> None:
    mod = network()
    lowered = GRAPH(mod, TARGET)
    both = faulty("op_softmax") + faulty("fused_matmul_relu").passes[-1]
    found = first_difference(mod, compiled(mod, both), INPUT)
    assert "fused_matmul_relu" in called(lowered) and found is not None and found.function == "fused_matmul_relu"


def test_new_intermediates_of_a_correct_pass_are_no_difference() -> None:
    @module_pass
    def detour(mod: IRModule) -> IRModule:
        b = GraphBuilder("main")
        y = b.input("x", (4, 8))
        doubled = b.add(y, y)
        (made,) = b.call_function("inner", [b.multiply(doubled, b.constant(np.float32(0.5)))], [mod["main"].results[0].type])
        return IRModule({"main": b.finish(made), "inner": mod["main"].with_(name="inner")})

    mod = network()
    assert first_difference(mod, detour(mod, TARGET), INPUT) is None


def test_results_that_no_other_has_the_size_of() -> None:
    good, bad = network(), network()
    (made,) = trace(good, INPUT).results
    found = first_difference({"final": trace(good, INPUT)[made][:2]}, compiled(bad), INPUT)
    assert found is not None and found.error is None and "the first model has no result of the size of [4, 8]" in str(found)


def test_nan_and_infinity() -> None:
    a, b = trace(network(), INPUT), trace(network(), INPUT)
    b.calls[-1].array[0, 0] = np.nan
    found = first_difference(a, b)
    assert found is not None and found.name == b.results[0] and found.error == np.inf
    a.calls[-1].array[0, 0] = np.nan
    assert first_difference(a, b) is None


def one_call(make: Callable[[GraphBuilder, Any], Any], dtype: str = "float32") -> IRModule:
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(make(b, b.input("x", (4, 8), dtype)))})


def test_results_that_are_inputs_or_constants_are_compared() -> None:
    softmax, identity = one_call(lambda b, x: b.softmax(x)), one_call(lambda b, x: x)
    constant = one_call(lambda b, x: b.constant(np.ones((4, 8), np.float32), "w"))
    for model in (identity, compiled(identity), compiled(identity, executor="vm")):
        np.testing.assert_array_equal(trace(model, INPUT).result_arrays[0], INPUT)
        with pytest.raises(UserError, match="result 0 of the second model is the input x, and differs"):
            first_difference(softmax, model, INPUT)
        assert first_difference(identity, model, INPUT) is None
    for model in (constant, compiled(constant)):
        with pytest.raises(UserError, match="result 0 of the second model is a constant, and differs"):
            first_difference(softmax, model, INPUT)
        with pytest.raises(UserError, match="result 0 of the second model is a constant, and differs"):
            first_difference({"softmax": trace(softmax, INPUT)["softmax"]}, model, INPUT)
        assert first_difference(constant, model, INPUT) is None
    found = first_difference(identity, softmax, INPUT)
    assert found is not None and found.name == "softmax" and found.reference == "x" and found.error is not None


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
def test_integers_and_bools_are_compared_exactly(dtype: str) -> None:
    def changed(value: int) -> IRModule:
        op = (lambda b, x, c: b.logical_or(x, c)) if dtype == "bool" else (lambda b, x, c: b.add(x, c))
        return one_call(lambda b, x: op(b, x, b.constant(np.array(value, dtype), "c")), dtype)

    largest = {"int64": 2**60, "int8": 100, "bool": 0}[dtype]
    x = np.full((4, 8), largest, dtype)
    found = first_difference(changed(0), changed(1), x, rtol=1.0, atol=10.0)
    assert found is not None and found.error == 1.0 and found.expected == largest and found.actual == largest + 1
    assert f"got {largest + 1}, expected {largest}" in str(found)
    assert first_difference(changed(1), changed(1), x) is None


@pytest.mark.parametrize("array", ["abc", None, object(), np.array(["a"] * 32), [[1, 2], [3]], np.ones((4, 8), complex)])
def test_arrays_that_are_no_numbers_are_refused(array: object) -> None:
    with pytest.raises(UserError, match="'softmax' of the first model is no array of real numbers: "):
        first_difference({"softmax": array}, network(), INPUT)


@pytest.mark.parametrize("key", ["rtol", "atol"])
@pytest.mark.parametrize("value", ["x", None, -1, float("nan"), float("inf"), np.array([1, 2]), [], True, 10**400])
def test_tolerances_that_are_no_numbers_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{key}=.*: expected a finite number >= 0"):
        first_difference(network(), network(), INPUT, **{key: value})


def test_refusals() -> None:
    mod = network()
    with pytest.raises(UserError, match="the second model must be a module, a compiled model or a trace"):
        first_difference(mod, dict(trace(mod, INPUT)), INPUT)
    b = GraphBuilder("main")
    x = b.input("x", (4, 8))
    two = IRModule({"main": b.finish(b.relu(x), b.exp(x))})
    with pytest.raises(UserError, match="the models have 1 and 2 results: they compute different things"):
        first_difference(mod, two, INPUT)


def test_results_without_elements_of_different_shapes() -> None:
    def model(transposed: bool) -> IRModule:
        b = GraphBuilder("main")
        made = b.exp(b.input("x", (Var("n"), 2)))
        return IRModule({"main": b.finish(b.permute_dims(made) if transposed else made)})

    found = first_difference(model(False), model(True), np.zeros((0, 2), np.float32))
    assert found is not None and found.shape == (2, 0) and "permute_dims" in str(found)
