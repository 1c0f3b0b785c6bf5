"""Test which layers are proposed as one function, and that it and its parts compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import CallFunction, Constant, Value, all_bindings
from tunesmith.graph.passes import propose_chains as made
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.passes.propose_chains import propose_chains
from tunesmith.graph.tuning.apply_records import ApplyRecords
from tunesmith.graph.tuning.choose_parts import choose_parts
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.records.database import Database
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
PIXELS = (2, 6, 5)
"""Images, rows and pixels of a row."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "LEAST_BYTES", 0)


def weights(b: GraphBuilder, *shape: int) -> Constant:
    return b.constant(stream(0, "weights", *shape).standard_normal(shape).astype(np.float32) / 4)


def block(rows: bool, stride: int = 1, residual: bool = False, twice: bool = False, depthwise: bool = True) -> IRModule:
    """Expand, depthwise and project of MobileNet, with 4, 8 and 4 channels, as products of rows or of images.

    Args:
        rows: pixels are rows of matrices between the convolutions.
        stride: of the depthwise convolution.
        residual: the input is added to the result.
        twice: the result of the first product is a result of the function, too.
        depthwise: the convolution is depthwise.
    """
    b = GraphBuilder("main")
    x = b.input("x", (int(np.prod(PIXELS)), 4) if rows else (*PIXELS, 4))
    y = first = b.relu(b.add(b.matmul(x, weights(b, 4, 8)), weights(b, 8)))
    if rows:
        y = b.reshape(y, shape=(*PIXELS, 8))
    filters = weights(b, 3, 3, 1 if depthwise else 8, 8)
    y = b.conv2d(y, filters, strides=(stride, stride), padding=(1, 1, 1, 1), groups=8 if depthwise else 1, layout="NHWC")
    y = b.clip(b.add(y, weights(b, 8)), min=0.0, max=6.0)
    if rows:
        y = b.reshape(y, shape=(int(np.prod(y.type.extents[:3])), 8))
    y = b.add(b.matmul(y, weights(b, 8, 4)), weights(b, 4))
    if residual:
        y = b.add(x, y)
    return IRModule({"main": b.finish(y, first) if twice else b.finish(y)})


def called(mod: IRModule, name: str = "main") -> list[str]:
    return [b.operation.function for b in all_bindings(mod[name].body) if isinstance(b.operation, CallFunction)]


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize(("stride", "residual"), [(1, False), (1, True), (2, False)])
def test_one_function_and_its_parts_compute_the_same(rows: bool, stride: int, residual: bool) -> None:
    mod = block(rows, stride, residual)
    done = GRAPH(mod, TARGET)
    assert called(done) == ["fused_convolutions"] and isinstance(done["fused_convolutions"], PrimFunc)
    parts = called(done, "fused_convolutions_parts")
    assert len(parts) == 3 and all(isinstance(done[name], PrimFunc) for name in parts)
    shape = mod["main"].params[0].type.extents
    x = stream(1, "x").standard_normal(shape).astype(np.float32)
    want = run(mod["main"], [x], mod)[0]
    np.testing.assert_allclose(run(done["main"], [x], done)[0], want, rtol=1e-5, atol=1e-5)
    by_parts = choose_parts(done, ApplyRecords(Database(), TARGET), TARGET)
    assert called(by_parts) == parts
    np.testing.assert_allclose(run(by_parts["main"], [x], by_parts)[0], want, rtol=1e-5, atol=1e-5)


def test_the_functions(assert_golden: Callable[..., None]) -> None:
    done = propose_chains(block(rows=True, stride=2))
    assert list(done) == ["main", "fused_convolutions", "fused_convolutions_parts"]
    assert_golden("\n".join(str(f) for f in done.values()))


def test_a_residual_input_is_one_parameter() -> None:
    done = propose_chains(block(rows=True, residual=True))
    call = next(b.operation for b in done["main"].body.bindings if isinstance(b.operation, CallFunction))
    assert sum(isinstance(a, Value) for a in call.args) == 1


@pytest.mark.parametrize("options", [{"twice": True}, {"depthwise": False}])
def test_a_value_that_others_use_and_dense_layers_end_a_chain(options: dict[str, bool]) -> None:
    mod = block(rows=False, **options)
    done = propose_chains(mod)
    if "depthwise" in options:
        assert done["main"] is mod["main"]
    else:  # depthwise and project are a chain still
        assert [b.operation.operator for b in done["fused_convolutions"].body.bindings] == ["conv2d", "add", "clip", "matmul", "add"]


def test_images_that_fit_in_the_caches_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = block(rows=True)
    largest = int(np.prod(PIXELS)) * 8 * 4
    monkeypatch.setattr(made, "LEAST_BYTES", largest)
    assert "fused_convolutions" in propose_chains(mod)
    monkeypatch.setattr(made, "LEAST_BYTES", largest + 1)
    assert propose_chains(mod)["main"] is mod["main"]


def test_a_reshape_that_mixes_pixels_and_channels_ends_a_chain() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (60, 4))
    y = b.reshape(b.matmul(x, weights(b, 4, 8)), shape=(2, 6, 10, 4))
    y = b.conv2d(y, weights(b, 3, 3, 1, 4), groups=4, layout="NHWC")
    mod = IRModule({"main": b.finish(y)})
    assert propose_chains(mod)["main"] is mod["main"]


def test_operands_that_are_not_broadcast_to_pixels_end_a_chain() -> None:
    """A factor for each row of the image has no form for images in place of rows."""
    b = GraphBuilder("main")
    x, factor = b.input("x", (1, 6, 5, 4)), b.input("factor", (6, 1, 4))
    y = b.conv2d(x, weights(b, 3, 3, 1, 4), groups=4, padding=(1, 1, 1, 1), layout="NHWC")
    y = b.matmul(b.multiply(y, factor), weights(b, 4, 8))
    mod = IRModule({"main": b.finish(y)})
    assert propose_chains(mod)["main"] is mod["main"]


def test_a_first_convolution_may_read_channels_first() -> None:
    b = GraphBuilder("main")
    x = b.input("x", (1, 3, 8, 8))
    y = b.relu(b.conv2d(x, weights(b, 3, 3, 3, 8), strides=(2, 2), padding=(1, 1, 1, 1), layout="NHWC", image_layout="NCHW"))
    y = b.conv2d(y, weights(b, 3, 3, 1, 8), groups=8, padding=(1, 1, 1, 1), layout="NHWC")
    mod = IRModule({"main": b.finish(y)})
    done = GRAPH(mod, TARGET)
    assert "fused_convolutions" in called(done)
    given = stream(2, "x").standard_normal((1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run(done["main"], [given], done)[0], run(mod["main"], [given], mod)[0], rtol=1e-5, atol=1e-5)


def random_model(seed: int) -> IRModule:
    """Random layers of images and of rows, with residual additions, values that several calls use, and several results."""
    rng = stream(seed, "models of chains")
    b = GraphBuilder("main")
    count = iter(range(1000))

    def constant(*shape: int) -> Constant:
        return b.constant(stream(seed, "weights", next(count)).standard_normal(shape).astype(np.float32) / 2)

    x = b.input("x", (int(rng.integers(1, 3)), int(rng.integers(5, 9)), int(rng.integers(5, 9)), int(rng.choice([4, 8]))))
    image, extra = x, []
    for _ in range(int(rng.integers(3, 9))):
        n, h, w, c = image.type.extents
        y = image
        kind = rng.choice(["depthwise", "product", "rows", "convolution", "elementwise"])
        if kind in ("product", "rows"):
            out = int(rng.choice([4, 8, 12]))
            y = b.matmul(b.reshape(y, shape=(n * h * w, c)) if kind == "rows" else y, constant(c, out))
            y = b.relu(b.add(y, constant(out))) if rng.random() < 0.5 else y
            y = b.reshape(y, shape=(n, h, w, out)) if kind == "rows" else y
        elif kind == "elementwise":
            y = b.multiply(b.add(y, constant(*[(c,), (1, 1, 1, c), (h, w, c), (1,)][int(rng.integers(4))])), b.constant(np.float32(0.5)))
        else:
            stride = int(rng.integers(1, 3)) if min(h, w) > 3 else 1
            filters = constant(3, 3, 1, c) if kind == "depthwise" else constant(3, 3, c, 4)
            groups = c if kind == "depthwise" else 1
            y = b.conv2d(y, filters, strides=(stride, stride), padding=(1, 1, 1, 1), groups=groups, layout="NHWC")
        if y.type == image.type and rng.random() < 0.4:
            y = b.add(image, y) if rng.random() < 0.5 else b.add(y, image)
        if rng.random() < 0.15:
            extra.append(y)
        image = y
    return IRModule({"main": b.finish(image, *extra)})


@pytest.mark.parametrize("seed", range(40))
def test_random_models(seed: int) -> None:
    mod = random_model(seed)
    x = stream(seed, "x").standard_normal(mod["main"].params[0].type.extents).astype(np.float32)
    want = run(mod["main"], [x], mod)
    lowered = GRAPH(mod, TARGET)
    for done in (lowered, choose_parts(lowered, ApplyRecords(Database(), TARGET), TARGET)):
        for found, expected in zip(run(done["main"], [x], done), want, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_random_models_have_chains() -> None:
    proposed = [any(name.startswith("fused_convolutions") for name in propose_chains(random_model(seed))) for seed in range(40)]
    assert sum(proposed) >= 10


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_layers_of_other_types_stay_as_they_are(dtype: str) -> None:
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, 6, 5, 4), dtype), b.input("w", (4, 8), dtype), out_dtype=dtype)
    mod = IRModule({"main": b.finish(b.conv2d(y, b.input("v", (3, 3, 1, 8), dtype), groups=8, layout="NHWC", out_dtype=dtype))})
    assert propose_chains(mod)["main"] is mod["main"]


def test_a_matrix_may_be_rows_and_weights_at_once() -> None:
    b = GraphBuilder("main")
    m = b.input("m", (16, 16))
    y = b.reshape(b.add(b.matmul(m, m), m), shape=(1, 4, 4, 16))
    y = b.conv2d(y, weights(b, 3, 3, 1, 16), padding=(1, 1, 1, 1), groups=16, layout="NHWC")
    mod = IRModule({"main": b.finish(b.matmul(b.reshape(y, shape=(16, 16)), m))})
    done = GRAPH(mod, TARGET)
    assert called(done) == ["fused_convolutions"]
    x = stream(3, "m").standard_normal((16, 16)).astype(np.float32)
    np.testing.assert_allclose(run(done["main"], [x], done)[0], run(mod["main"], [x], mod)[0], rtol=1e-4, atol=1e-4)


def test_rows_may_be_added_to_images_of_equal_pixels() -> None:
    """The residual is an image of 4 x 4 pixels before the convolution, and of 2 x 8 after it."""
    b = GraphBuilder("main")
    r = b.input("r", (16, 8))
    y = b.reshape(b.add(b.matmul(b.input("x", (16, 8)), weights(b, 8, 8)), r), shape=(1, 4, 4, 8))
    y = b.conv2d(y, weights(b, 3, 3, 1, 8), strides=(2, 1), padding=(1, 3, 1, 3), groups=8, layout="NHWC")
    mod = IRModule({"main": b.finish(b.add(b.matmul(b.reshape(y, shape=(16, 8)), weights(b, 8, 8)), r))})
    done = GRAPH(mod, TARGET)
    assert called(done) == ["fused_convolutions"]
    given = [stream(4, "rows", n).standard_normal((16, 8)).astype(np.float32) for n in range(2)]
    np.testing.assert_allclose(run(done["main"], given, done)[0], run(mod["main"], given, mod)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(40))
def test_the_pass_is_idempotent(seed: int) -> None:
    done = propose_chains(random_model(seed))
    again = propose_chains(done)
    assert list(again) == list(done) and all(again[name] is done[name] for name in done)


def test_a_chain_ends_before_a_shape_that_it_cannot_have() -> None:
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (1, 6, 4, 8)), weights(b, 8, 8))
    y = b.conv2d(y, weights(b, 3, 3, 1, 8), padding=(1, 1, 1, 1), groups=8, layout="NHWC")
    y = b.relu(b.multiply(y, b.input("factor", (6, 1, 8))))
    done = propose_chains(IRModule({"main": b.finish(b.matmul(y, weights(b, 8, 4)))}))
    assert [b.operation.operator for b in done["fused_convolutions"].body.bindings] == ["matmul", "conv2d"]
