"""Depthwise convolutions of quantised models read bytes, and convert them where they pad the image."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Call, all_bindings
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.depthwise import image_of_depthwise
from tunesmith.graph.passes.fold_requantization import fold_requantization
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.ir.function import IRModule


def layers(groups: int = 8, reads: int = 1, layout: str = "NHWC", flat: bool = False) -> IRModule:
    """A product in integers, requantised, and a convolution of its result, quantised again; with `flat`, a filter of three dimensions."""
    b = GraphBuilder("main")
    rng = np.random.default_rng(0)
    shape = (1, 6, 5, 8) if layout == "NHWC" else (1, 8, 6, 5)
    filters = (3, 3, 8 // groups, 8) if layout == "NHWC" else (8, 8 // groups, 3, 3)
    if flat:
        filters, groups = (3, 3, 8) if layout == "NHWC" else (8, 3, 3), 1
    unit = np.full((8,) if layout == "NHWC" else (8, 1, 1), 0.25, np.float32)
    scale, zero = b.constant(np.float32(0.125)), b.constant(np.asarray(3, np.uint8))
    sums = b.multiply(b.cast(b.input("x", shape, "int32"), dtype="float32"), b.constant(unit))
    image = b.dequantize(b.quantize(b.relu(sums), scale, zero), scale, zero)
    weight = b.constant(rng.standard_normal(filters).astype(np.float32))
    y = b.quantize(b.conv2d(image, weight, padding=(1, 1, 1, 1), groups=groups, layout=layout), scale, zero)
    return IRModule({"main": b.finish(*([y, b.relu(image)] if reads > 1 else [y]))})


def main(mod: IRModule) -> GraphFunc:
    found = mod["main"]
    assert isinstance(found, GraphFunc)
    return found


def functions(mod: IRModule) -> list[str]:
    return sorted([name for name, _ in fuse_operators(dead_code(fold_requantization(mod))).items() if name != "main"])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_bytes_are_read_by_the_convolution(layout: str, flat: bool) -> None:
    found = functions(layers(layout=layout, flat=flat))
    assert len(found) == 2 and "fused_dequantize_conv2d_quantize" in found


@pytest.mark.parametrize(("groups", "reads"), [(1, 1), (2, 1), (8, 2)])
def test_others_read_numbers(groups: int, reads: int) -> None:
    """Convolutions that read a pixel for several results, and images with several uses."""
    assert not any("dequantize_conv2d" in name for name in functions(layers(groups, reads)))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("groups", "reads", "flat"), [(8, 1, False), (1, 1, False), (8, 2, False), (1, 1, True)])
def test_results(groups: int, reads: int, flat: bool, layout: str) -> None:
    mod = layers(groups, reads, layout, flat)
    shape = [e.as_int() for e in main(mod).params[0].type.shape]
    given = np.random.default_rng(1).integers(-20, 90, shape).astype(np.int32)
    want = run(main(mod), [given], mod)
    got = tunesmith.compile(mod)(given)
    for a, e in zip(got if isinstance(got, (list, tuple)) else [got], want, strict=True):
        assert a.dtype == e.dtype
        assert np.abs(a.astype("float64") - e.astype("float64")).max() <= (1 if e.dtype == np.uint8 else 1e-6)


def test_images() -> None:
    def found(mod: IRModule) -> list[str | None]:
        calls = [b.operation for b in all_bindings(main(mod).body) if isinstance(b.operation, Call)]
        return [None if (image := image_of_depthwise(c)) is None else image.name for c in calls if c.operator == "conv2d"]

    assert found(layers(2)) == [None] and found(layers(1)) == [None]
    assert found(layers()) != [None] and found(layers(flat=True)) != [None]
