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
from tunesmith.graph.ir.name_patterns import PatternWarning
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


def unpacked(func: GraphFunc, name: str) -> np.ndarray:
    """The float weights of a product with 4-bit weights."""
    calls = [b.operation for b in all_bindings(func.body) if isinstance(b.operation, Call) and b.operation.operator == "matmul_int4"]
    call = next(c for c in calls if c.args[1].name == name)
    packed, scale, offset = (a.data for a in call.args[1:] if isinstance(a, Constant))
    numbers = np.stack([packed & 15, packed >> 4], 1).reshape(2 * len(packed), -1)
    group = len(numbers) // len(scale)
    return np.asarray(numbers * np.repeat(scale.astype(np.float64), group, 0) + np.repeat(offset.astype(np.float64), group, 0))


@pytest.mark.parametrize("group", [2, 4, 8])
def test_four_bits(group: int) -> None:
    """Each weight is within half a step of its group, zeros are exact, and results are those of the rounded weights."""
    mod = network()
    main = mod["main"]
    assert isinstance(main, GraphFunc)
    small = tunesmith.quantize(mod, bits=4, group=group)
    made = small["main"]
    assert isinstance(made, GraphFunc)
    verify(made, small)
    rounded = {}
    for name, shape in (("fc1.weight", (16, 24)), ("fc2.weight", (24, 10))):
        weights = next(o for b in all_bindings(main.body) for o in b.operation.args if o.name == name)
        assert isinstance(weights, Constant)
        groups = weights.data.reshape(-1, group, shape[1])
        step = (np.maximum(groups.max(1), 0) - np.minimum(groups.min(1), 0)) / 15
        rounded[name] = unpacked(made, name)
        assert (np.abs(rounded[name] - weights.data) <= np.repeat(step, group, 0) * 0.501 + 1e-6).all()
    x = data(8, 16, seed=1)
    bias = next(o for b in all_bindings(main.body) for o in b.operation.args if o.name == "fc1.bias")
    assert isinstance(bias, Constant)
    want = np.maximum(x @ rounded["fc1.weight"] + bias.data, 0) @ rounded["fc2.weight"]
    np.testing.assert_allclose(run(made, [x], small)[0], want, atol=1e-4)
    np.testing.assert_allclose(compile_model(small, TARGET, untuned=default_schedule)(x), want, atol=1e-4)


@pytest.mark.parametrize(
    "weights", [np.zeros((8, 3)), np.full((8, 3), 7.0), np.full((8, 3), -1e-30), np.tile([[0.0], [2.0]], (4, 3)), np.eye(8)[:, :3]]
)
def test_four_bits_of_weights_of_one_sign(weights: np.ndarray) -> None:
    """Zeros stay zeros, and the largest weight of a group is exact up to rounding."""
    b = GraphBuilder("main")
    mod = IRModule({"main": b.finish(b.matmul(b.input("x", (2, 8)), b.constant(weights.astype(np.float32), "w")))})
    made = tunesmith.quantize(mod, bits=4, group=8)["main"]
    assert isinstance(made, GraphFunc)
    np.testing.assert_allclose(unpacked(made, "w"), weights, rtol=1e-6, atol=0)


def test_layers_that_are_skipped_keep_their_weights() -> None:
    made = tunesmith.quantize(network(), bits=4, group=8, skip="fc2*")["main"]
    text = str(made)
    assert text.count("G.matmul_int4(") == 1 and text.count("G.matmul(") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 3}, "bits=3: weights are quantised to 8 or 4 bits"),
        ({"bits": 4, "rows": True}, "bits=4 is weight-only quantisation: leave out batches and rows"),
        ({"bits": 4, "batches": [[data(8, 16)]]}, "bits=4 is weight-only quantisation"),
        ({"group": 64}, "group=64 is for bits=4"),
        ({"percentile": 99.0}, "percentile=99.0 is for calibration data"),
        ({"bits": 4, "group": 3}, "group=3: two weights share a byte"),
        ({"bits": 4, "group": 0}, "group=0: a group has at least 2 weights"),
        (
            {"bits": 4, "group": 16},
            r"group=16 does not divide the 24 rows of the weight fc2.weight: choose another group, or skip=\['fc2.weight'\]",
        ),
    ],
)
def test_four_bits_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tunesmith.quantize(network(), **arguments)


def test_four_bits_of_a_model_without_products() -> None:
    with pytest.raises(UserError, match="no matrix product"):
        tunesmith.quantize(images(), bits=4)


@pytest.mark.parametrize("first", [{}, {"bits": 4, "group": 8}, {"batches": [[data(8, 16)]]}])
def test_a_quantised_model_is_refused(first: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="the model is quantised already: it has the operators"):
        tunesmith.quantize(tunesmith.quantize(network(), **first))


def test_a_batch_that_does_not_fit_is_named() -> None:
    with pytest.raises(UserError, match="calibration, batch 1: "):
        tunesmith.quantize(network(), [[data(8, 16)], [data(7, 16)]])


@pytest.mark.parametrize("pattern", ["fc1.bias", "fc1", "input"])
def test_patterns_that_match_no_weight_of_a_contraction(pattern: str) -> None:
    with pytest.warns(PatternWarning, match=r"Weights: fc1\.weight, fc2\.weight\."):
        tunesmith.quantize(network(), skip=[pattern])


def large(low: float, high: float) -> IRModule:
    """A product with weights of two values."""
    b = GraphBuilder("main")
    w = np.tile(np.float32([[low], [high]]), (16, 2))
    return IRModule({"main": b.finish(b.matmul(b.input("x", (1, 32)), b.constant(w, "w")))})


def test_four_bits_of_a_range_beyond_float32() -> None:
    made = tunesmith.quantize(large(-2e38, 2e38), bits=4)["main"]
    assert isinstance(made, GraphFunc)
    weights = unpacked(made, "w")
    assert np.isfinite(weights).all() and np.abs(weights[::2] + 2e38).max() < 2e37


def test_four_bits_of_offsets_beyond_float32() -> None:
    with pytest.raises(UserError, match=r"the weight w has groups of weights near the largest float32: leave it out by skip=\['w'\]"):
        tunesmith.quantize(large(-3.4e38, 3.4e38), bits=4)
