"""Test convolutions over rows of width and channels: exact results for bytes, padding values, strides, types, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Call, Constant, Operand, all_bindings
from tunesmith.graph.ir.verify import verify
from tunesmith.graph.passes.channels_into_width import GROUPS, channels_into_width
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.runtime.arrays import in_bfloat16, in_float32
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
TARGET = Target("llvm").with_attributes(num_cores=2)


def weights(*shape: int, dtype: str = "int8") -> np.ndarray:
    rng = stream(1, "filters", *shape)
    return in_bfloat16(rng.standard_normal(shape)) if dtype == "bfloat16" else rng.integers(-128, 128, shape).astype(dtype)


def function(shape: tuple[Any, ...], w: np.ndarray, dtype: str = "uint8", cast: bool = False, **attrs: Any) -> GraphFunc:
    """A convolution of an image, which may be converted from float32 in the function, and the image itself."""
    b = GraphBuilder("main")
    x: Operand = b.input("x", shape, "float32" if cast else dtype)
    image = b.cast(x, dtype=dtype) if cast else x
    filters = Constant("w", w)
    out = "float32" if dtype == "bfloat16" else "int32"
    return b.finish(b.conv2d(image, filters, **{"layout": "NHWC", "out_dtype": out, **attrs}))


def checked(func: GraphFunc, compiled: bool = True) -> GraphFunc:
    """The function after the pass; its results are those of the original, exactly for bytes."""
    mod = IRModule({"main": func})
    done = channels_into_width(mod)
    main = done["main"]
    assert isinstance(main, GraphFunc)
    verify(main, done)
    assert channels_into_width(done)["main"] is main, "the pass is not idempotent"
    (x,) = func.params
    shape = [7 if e.const is None else e.const for e in x.type.shape]
    rng = stream(2, "images", *shape)
    is_float = "float" in x.type.dtype
    given = rng.standard_normal(shape).astype(np.float32) if is_float else rng.integers(-128, 128, shape).astype(x.type.dtype)
    given = in_float32(in_bfloat16(given)) if x.type.dtype == "bfloat16" else given
    (want,) = run(func, [given])
    found = [run(main, [given])[0]]
    if compiled:
        model = compile_model(mod, TARGET, untuned=default_schedule)
        found.append(model(in_bfloat16(given) if x.type.dtype == "bfloat16" else given))
    for made in found:
        assert made.shape == want.shape and made.dtype == want.dtype
        if is_float:
            np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(made, want)
    return main


def convolution(func: GraphFunc) -> Call:
    (found,) = [b.operation for b in all_bindings(func.body) if isinstance(b.operation, Call) and b.operation.operator == "conv2d"]
    return found


def test_an_image(assert_golden: Callable[..., None]) -> None:
    """Three channels of bytes, in windows of 2 x 3 with a stride of 2: rows of 9 taps are filled up to 12."""
    w = np.arange(-18, 18, dtype=np.int8).reshape(2, 3, 3, 2)
    assert_golden(str(checked(function((1, 6, 7, 3), w, strides=(1, 2), padding=(1, 1, 0, 2), padding_value=9))))


@pytest.mark.parametrize("dtype", GROUPS)
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 6])
def test_all_numbers_of_channels(dtype: str, channels: int) -> None:
    w = weights(3, 2, channels, 5, dtype="bfloat16" if dtype == "bfloat16" else "int8")
    func = function((2, 6, 7, channels), w, dtype, padding=(1, 0, 1, 1), strides=(2, 1))
    if channels % GROUPS[dtype] == 0:
        assert channels_into_width(IRModule({"main": func}))["main"] is func
        return
    made = convolution(checked(func, compiled=channels == 3))
    kh, taps, one, co = made.args[1].type.shape
    assert (kh, one, co) == (3, 1, 5) and (taps.const or 1) % GROUPS[dtype] == 0


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 3, 2, 0), (2, 0, 0, 3)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
@pytest.mark.parametrize("width", [3, 7, 8])
def test_windows(padding: tuple[int, ...], strides: tuple[int, int], dilation: tuple[int, int], width: int) -> None:
    """The last window ends at, and before, the end of the padded row; padding is the zero point."""
    attrs: dict[str, Any] = {"padding": padding, "strides": strides, "dilation": dilation, "padding_value": 131}
    made = checked(function((1, 6, width, 3), weights(3, 3, 3, 4), **attrs), compiled=False)
    assert "reshape" in str(made)


def test_compiled_windows() -> None:
    for strides, padding in (((2, 2), (3, 3, 3, 3)), ((1, 1), (0, 1, 1, 0))):
        checked(function((1, 9, 11, 3), weights(7, 7, 3, 8), padding=padding, strides=strides, padding_value=200))
        checked(function((1, 9, 11, 3), weights(7, 7, 3, 8), "int8", padding=padding, strides=strides, padding_value=-100))


@pytest.mark.parametrize("cast", [False, True])
def test_images_with_channels_first_are_permuted(cast: bool) -> None:
    """An image that is converted is permuted before, so that one function does both."""
    made = checked(
        function((2, 3, 6, 7), weights(3, 3, 3, 5, dtype="bfloat16"), "bfloat16", cast, image_layout="NCHW", padding=(1, 1, 1, 1))
    )
    order = [b.operation.operator for b in all_bindings(made.body) if isinstance(b.operation, Call)]
    assert order == (["permute_dims", "cast", "reshape", "conv2d"] if cast else ["permute_dims", "reshape", "conv2d"])
    assert convolution(made).attr("image_layout") == "" and convolution(made).attr("out_dtype") == "float32"


def test_a_dynamic_batch() -> None:
    checked(function((Var("n"), 6, 7, 3), weights(3, 3, 3, 4), padding=(1, 1, 1, 1), strides=(1, 2)))


def test_dynamic_images() -> None:
    """The extents of the result are the same expressions of the sizes."""
    for strides in ((1, 1), (2, 2)):
        checked(function((1, Var("h"), Var("w"), 3), weights(3, 3, 3, 4), padding=(1, 1, 1, 1), strides=strides, padding_value=7))


KEPT: dict[str, tuple[tuple[Any, ...], np.ndarray, dict[str, Any]]] = {
    "float32": ((1, 5, 5, 3), weights(3, 3, 3, 4).astype(np.float32), {"dtype": "float32", "out_dtype": ""}),
    "whole groups": ((1, 5, 5, 4), weights(3, 3, 4, 4), {}),
    "groups": ((1, 5, 5, 6), weights(3, 3, 3, 4), {"groups": 2}),
    "depthwise": ((1, 5, 5, 3), weights(3, 3, 3), {}),
    "dilation of columns": ((1, 7, 7, 3), weights(3, 3, 3, 4), {"dilation": (1, 2)}),
    "channels first": ((1, 3, 5, 5), weights(4, 3, 3, 3), {"layout": "NCHW"}),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str, unchanged: Passed) -> None:
    shape, w, options = KEPT[name]
    unchanged(channels_into_width, function(shape, w, **options))


def test_filters_that_are_no_constants_are_kept(unchanged: Passed) -> None:
    b = GraphBuilder("main")
    x, w = b.input("x", (1, 5, 5, 3), "uint8"), b.input("w", (3, 3, 3, 4), "int8")
    unchanged(channels_into_width, b.finish(b.conv2d(x, w, layout="NHWC", out_dtype="int32")))


def test_branches_and_a_second_use_of_the_image() -> None:
    b = GraphBuilder("main")
    x, c = b.input("x", (1, 5, 5, 3), "uint8"), b.input("c", (), "bool")
    w = Constant("w", weights(3, 3, 3, 4))

    def convolved(r: Any) -> Operand:
        made: Operand = r.conv2d(x, w, layout="NHWC", out_dtype="int32")
        return made

    func = b.finish(b.branch(c, convolved, lambda r: r.neg(convolved(r))), convolved(b), x)
    done = channels_into_width(IRModule({"main": func}))
    verify(done["main"], done)  # type: ignore[arg-type]
    image = stream(3, "image").integers(0, 256, (1, 5, 5, 3)).astype(np.uint8)
    for truth in (False, True):
        given = [image, np.asarray(truth)]
        for made, want in zip(run(done["main"], given), run(func, given), strict=True):  # type: ignore[arg-type]
            np.testing.assert_array_equal(made, want)
    assert str(done["main"]).count("G.reshape") == 3


def test_a_quantised_image_of_three_channels_is_convolved_in_bytes() -> None:
    """The whole pipeline, from an image in NCHW with a zero point: the reduction is a multiple of 4 long."""
    b = GraphBuilder("main")
    s, z = b.constant(np.float32(0.02)), b.constant(np.uint8(114))
    x = b.dequantize(b.quantize(b.input("x", (1, 3, 9, 9)), s, z), s, z)
    w = b.dequantize(b.constant(weights(8, 3, 7, 7)), s, b.constant(np.int8(0)))
    mod = IRModule({"main": b.finish(b.conv2d(x, w, strides=(2, 2), padding=(3, 3, 3, 3)))})
    found = [p for f in GRAPH(mod, TARGET).values() if isinstance(f, PrimFunc) for p in f.params if isinstance(p, Buffer)]
    assert [tuple(p.shape) for p in found if p.dtype == "int8"] == [(7, 24, 1, 8)]
    given = stream(4, "image").standard_normal((1, 3, 9, 9)).astype(np.float32)
    (want,) = run(mod["main"], [given])  # type: ignore[arg-type]
    np.testing.assert_allclose(compile_model(mod, TARGET, untuned=default_schedule)(given), want, rtol=1e-4, atol=1e-3)
