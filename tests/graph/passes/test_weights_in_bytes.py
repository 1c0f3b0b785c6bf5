"""Test products of float32 activations with dequantised weights: bytes in memory, scales after the product, and what keeps them."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.driver.quantize import output_errors, quantize
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=1")


def layers() -> IRModule:
    """Two matrix products and a convolution."""
    rng = stream(0, "weights in bytes")
    build = GraphBuilder("main")
    x = build.input("x", (3, 16), "float32")
    image = build.input("image", (1, 2, 5, 5), "float32")
    first, second = (build.constant(rng.standard_normal(s).astype(np.float32), "w") for s in ((16, 24), (24, 8)))
    filters = build.constant(rng.standard_normal((4, 2, 3, 3)).astype(np.float32), "f")
    bias = build.constant(rng.standard_normal(24).astype(np.float32), "b")
    hidden = build.relu(build.add(build.matmul(x, first), bias))
    func = build.finish(build.matmul(hidden, second), build.conv2d(image, filters))
    return IRModule({"main": func})


def parameters(mod: IRModule) -> list[tuple[str, ...]]:
    made = GRAPH(mod, TARGET)
    return [tuple([p.dtype for p in f.params if isinstance(p, Buffer)]) for f in made.values() if isinstance(f, PrimFunc)]


def test_products_read_bytes_and_convolutions_floats() -> None:
    mod = quantize(layers())
    found = parameters(mod)
    assert sum(types[:2] == ("float32", "int8") for types in found) == 2, found
    assert ("float32", "float32", "float32") in found, "the convolution"
    assert all("int8" not in types for types in parameters(layers()))


def test_results_differ_by_the_rounding_of_the_weights() -> None:
    rng = stream(1, "weights in bytes")
    batches = [[rng.standard_normal(s).astype(np.float32) for s in ((3, 16), (1, 2, 5, 5))] for _ in range(3)]
    product, image = output_errors(layers(), quantize(layers()), batches)
    assert 1e-4 < product.largest < 2e-2 and product.cosine > 0.9999
    assert image.largest < 1e-6, "convolutions stay float32"
    with pytest.raises(UserError, match="no matrix product"):
        quantize(layers(), skip="w")


def test_the_scale_is_not_folded_into_bytes() -> None:
    compiled = tunesmith.compile(quantize(layers()), TARGET)
    weights = [data for _, data in compiled.executable.constants if data.ndim >= 2]
    assert sum(w.dtype == np.int8 for w in weights) == 2
