"""Test quantisation without calibration data: dynamic per row, and that of weights only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Call, Constant, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm").with_attributes(num_cores=2)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return stream(seed, "quantise", *shape).standard_normal(shape).astype(np.float32)


def network(rows: Any = 8, bias: bool = True) -> IRModule:
    """Two layers whose weights have names."""
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (rows, 16)), b.constant(data(16, 24), "fc1.weight"))
    y = b.relu(b.add(y, b.constant(data(24), "fc1.bias")) if bias else y)
    return IRModule({"main": b.finish(b.matmul(y, b.constant(data(24, 10), "fc2.weight")))})


def images() -> IRModule:
    """A convolution alone."""
    b = GraphBuilder("main")
    return IRModule({"main": b.finish(b.conv2d(b.input("x", (1, 3, 9, 9)), b.constant(data(8, 3, 3, 3), "conv.weight")))})


def main_of(mod: IRModule) -> GraphFunc:
    main = mod["main"]
    assert isinstance(main, GraphFunc)
    verify(main, mod)
    return main


def integer_products(mod: IRModule) -> int:
    main = mod["main"]
    assert isinstance(main, GraphFunc)
    calls = [b.operation for b in all_bindings(main.body) if isinstance(b.operation, Call)]
    return sum(c.operator == "matmul" and c.args[1].type.dtype == "int8" for c in calls)


@pytest.mark.parametrize("rows", [1, 8, Var("n")])
def test_rows(rows: Any) -> None:
    """Every row has its own scale, so that a row of large elements does not spoil the others; the interpreter and compiled code agree."""
    mod = network(rows)
    small = tunesmith.quantize(mod, rows=True)
    assert integer_products(small) == 2
    main = small["main"]
    assert isinstance(main, GraphFunc)
    verify(main, small)
    x = data(8, 16)[: 1 if rows == 1 else 8]
    x[-1] *= 1000.0
    exact, (expected,) = run(mod["main"], [x], mod)[0], run(small["main"], [x], small)  # type: ignore[arg-type]
    error = np.abs(expected - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert error.max() < 0.03
    made = compile_model(small, TARGET, untuned=default_schedule)(x)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_rows_of_zeros_are_zeros() -> None:
    small = tunesmith.quantize(network(bias=False), rows=True)
    x = np.zeros((8, 16), np.float32)
    assert (compile_model(small, TARGET, untuned=default_schedule)(x) == 0).all()


def test_rows_leave_convolutions_and_skipped_weights() -> None:
    assert integer_products(tunesmith.quantize(network(), rows=True, skip=["fc1*"])) == 1
    b = GraphBuilder("main")
    y = b.conv2d(b.input("x", (1, 3, 9, 9)), b.constant(data(8, 3, 3, 3), "conv.weight"))
    mod = IRModule({"main": b.finish(b.matmul(b.mean(y, axes=(2, 3)), b.constant(data(8, 4), "fc.weight")))})
    for made in (tunesmith.quantize(mod, rows=True), tunesmith.quantize(mod)):
        calls = [b.operation for b in main_of(made).body.bindings if isinstance(b.operation, Call)]
        assert [c.args[1].type.dtype for c in calls if c.operator == "conv2d"] == ["float32"]
        assert [a.data.shape for c in calls for a in c.args if isinstance(a, Constant) and a.type.dtype == "int8" and a.data.ndim] == [
            (8, 4)
        ]


@pytest.mark.parametrize("rows", [False, True])
def test_models_without_a_matrix_product_are_refused_without_calibration_data(rows: bool) -> None:
    for mod, skip in ((images(), ()), (network(), ["fc*"])):
        with pytest.raises(UserError, match="the model has no matrix product with constant float32 weights.* to quantise"):
            tunesmith.quantize(mod, rows=rows, skip=skip)


def test_rows_whose_sums_may_exceed_int32_stay_float32() -> None:
    """The sum of 140,000 products of 127 and 127 wraps around in int32."""
    long, given = np.ones((140_000, 2), np.float32), [np.ones((1, 140_000), np.float32)]
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, 140_000)), b.constant(long, "long"))
    alone = IRModule({"main": b.finish(y)})
    with pytest.raises(UserError, match="no matrix product .* and sums that fit int32 to quantise"):
        tunesmith.quantize(alone, rows=True)
    mod = IRModule({"main": b.finish(b.matmul(y, b.constant(data(2, 4), "short")))})
    made = tunesmith.quantize(mod, rows=True)
    assert integer_products(made) == 1
    expected = run(main_of(mod), given)[0]
    np.testing.assert_allclose(run(main_of(made), given)[0], expected, atol=0.02 * np.abs(expected).max())


def test_products_of_one_activation_share_its_bytes() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (4, 16))
    mod = IRModule({"main": b.finish(b.add(b.matmul(x, b.constant(data(16, 8), "q")), b.matmul(x, b.constant(data(16, 8, seed=1), "k"))))})
    text = str(tunesmith.quantize(mod, rows=True)["main"])
    assert text.count("G.round(") == 1 and text.count("G.matmul(") == 2


def test_rows_need_no_calibration_data() -> None:
    with pytest.raises(UserError, match="rows=True quantises activations in each call and needs no calibration data: leave out batches"):
        tunesmith.quantize(network(), [[data(8, 16)]], rows=True)
