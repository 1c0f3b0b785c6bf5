"""Test products with 4-bit weights: results, packing, fused epilogues, shapes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.operators.int4 import pack_int4, unpack_int4
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream
from tunesmith.testing.graph_operator_conformance import check_operator

MATMUL_INT4 = GRAPH_OPERATORS.get("matmul_int4")
TARGET = Target("llvm").with_attributes(num_cores=2)


def weights(k: int, n: int, groups: int) -> list[np.ndarray]:
    rng = stream(0, "int4", k, n, groups)
    return [
        rng.integers(0, 256, (k // 2, n)).astype(np.uint8),
        rng.uniform(0.01, 0.1, (groups, n)).astype(np.float32),
        rng.uniform(-1, 1, (groups, n)).astype(np.float32),
    ]


def rows(*shape: int) -> np.ndarray:
    return stream(1, "rows", *shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("k", "n", "groups"), [(2, 1, 1), (8, 5, 2), (64, 40, 2), (30, 33, 3)])
@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3)])
def test_results(k: int, n: int, groups: int, lead: tuple[int, ...]) -> None:
    check_operator("matmul_int4", [rows(*lead, k), *weights(k, n, groups)], atol=1e-5)


def test_the_reference_is_a_product_with_the_unpacked_weights() -> None:
    """Element by element, in another order than the formula."""
    x, (packed, scale, offset) = rows(3, 8), weights(8, 5, 2)
    (made,) = MATMUL_INT4.evaluate([x, packed, scale, offset])
    for i in range(3):
        for j in range(5):
            total = 0.0
            for r in range(8):
                byte = int(packed[r // 2, j])
                nibble = byte >> 4 if r % 2 else byte & 15
                total += float(x[i, r]) * (nibble * float(scale[r // 4, j]) + float(offset[r // 4, j]))
            assert abs(made[i, j] - total) < 1e-5


def test_packing_keeps_every_pair_of_numbers() -> None:
    first, second = np.divmod(np.arange(256), 16)
    numbers = np.stack([first, second])
    assert pack_int4(numbers).shape == (1, 256)
    assert np.array_equal(unpack_int4(pack_int4(numbers)), numbers)


@pytest.mark.parametrize("shape", [(1, 64), (2, 5, 64)])
def test_a_decoder_layer_is_one_function(shape: tuple[int, ...]) -> None:
    b = GraphBuilder("main")
    constants = [b.constant(a, name) for a, name in zip(weights(64, 48, 2), ("w", "s", "z"), strict=True)]
    bias = b.constant(rows(48), "bias")
    mod = IRModule({"main": b.finish(b.relu(b.add(b.matmul_int4(b.input("x", shape), *constants), bias)))})
    model = compile_model(mod, TARGET)
    assert len([name for name in model.module if name != "main"]) == 1
    x = rows(*shape)
    want = np.maximum(MATMUL_INT4.evaluate([x, *[c.data for c in constants]])[0] + bias.data, 0)
    np.testing.assert_allclose(model(x), want, atol=1e-4)


def test_a_dynamic_number_of_rows() -> None:
    n = Var("n")
    types = [TensorType.of((n, 8)), *[TensorType.of(a.shape, a.dtype.name) for a in weights(8, 5, 2)]]
    assert MATMUL_INT4.infer(types) == (TensorType.of((n, 5)),)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 8), (4, 5), (2, 5), (1, 5)], "do not fit rows of 8 elements: the bytes have 4 rows"),
        ([(3, 8), (8, 5), (2, 5), (2, 5)], "do not fit rows of 8 elements"),
        ([(3, 8), (4, 5), (2, 6), (2, 6)], "do not fit rows of 8 elements"),
        ([(3, 6), (3, 5), (2, 5), (2, 5)], "rows of 6 elements are no 2 groups of an even number of weights"),
        ([(3, 7), (3, 5), (1, 5), (1, 5)], "rows of 7 elements are no 1 groups"),
        ([(), (4, 5), (2, 5), (2, 5)], "rows of k elements"),
        ([(3, 8), (4, 5), (2, 5), (2,)], "the others are matrices"),
        ([(3, Var("k")), (4, 5), (2, 5), (2, 5)], "rows of k elements are no 2 groups"),
    ],
)
def test_shapes_that_do_not_fit(shapes: list[tuple[int, ...]], message: str) -> None:
    types = [TensorType.of(s, t) for s, t in zip(shapes, ("float32", "uint8", "float32", "float32"), strict=True)]
    with pytest.raises(ScriptError, match=message):
        MATMUL_INT4.infer(types)


@pytest.mark.parametrize("types", [("float16", "uint8", "float32", "float32"), ("float32", "int8", "float32", "float32")])
def test_types_that_do_not_fit(types: tuple[str, ...]) -> None:
    shapes = [(3, 8), (4, 5), (2, 5), (2, 5)]
    with pytest.raises(ScriptError, match="the packed weights uint8"):
        MATMUL_INT4.infer([TensorType.of(s, t) for s, t in zip(shapes, types, strict=True)])
