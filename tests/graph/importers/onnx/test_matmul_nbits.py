"""Import onnxruntime's products with 4-bit weights (com.microsoft.MatMulNBits), compared with a loop over the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

TARGET = Target("llvm").with_attributes(num_cores=2)


def model(
    x: np.ndarray, k: int, n: int, group: int, zeros: str = "", bias: bool = False, **attributes: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    """The model, and its constants: weights [n, groups, group / 2], the zero points of two groups in a byte."""
    rng, groups = stream(0, "nbits", k, n, group), -(-k // group)
    made = {
        "B": rng.integers(0, 256, (n, groups, group // 2)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, n * groups).astype(np.float32),
    }
    if zeros == "bytes":
        made["z"] = rng.integers(0, 256, n * -(-groups // 2)).astype(np.uint8)
    if zeros == "floats":
        made["z"] = rng.uniform(0, 15, (n, groups)).astype(np.float32)
    if bias:
        made["b"] = rng.standard_normal(n).astype(np.float32)
    inputs = ["x", "B", "s", "z" if zeros else "", "", "b" if bias else ""]
    settings = {"K": k, "N": n, "block_size": group, "bits": 4, **attributes}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **settings)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(v, name) for name, v in made.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), made


def expected(x: np.ndarray, constants: dict[str, np.ndarray], k: int, n: int, group: int) -> np.ndarray:
    """The definition of onnxruntime's documentation, weight by weight."""
    groups = -(-k // group)
    w = np.zeros((k, n))
    for j in range(n):
        for r in range(k):
            g, inside = divmod(r, group)
            byte = int(constants["B"][j, g, inside // 2])
            number = byte >> 4 if inside % 2 else byte & 15
            zero = 8.0
            if "z" in constants and constants["z"].dtype == np.uint8:
                pair = int(constants["z"].reshape(n, -1)[j, g // 2])
                zero = pair >> 4 if g % 2 else pair & 15
            elif "z" in constants:
                zero = float(constants["z"][j, g])
            w[r, j] = (number - zero) * float(constants["s"][j * groups + g])
    return np.asarray(x.astype(np.float64) @ w + constants.get("b", 0.0))


@pytest.mark.parametrize("zeros", ["", "bytes", "floats"])
@pytest.mark.parametrize(("k", "n", "group"), [(64, 24, 32), (96, 17, 32), (40, 8, 16), (16, 3, 16)])
def test_results(zeros: str, k: int, n: int, group: int) -> None:
    x = stream(1, "x", k).standard_normal((2, 3, k)).astype(np.float32)
    proto, constants = model(x, k, n, group, zeros, bias=k == 96)
    made = compile_model(from_onnx(proto), TARGET)(x)
    np.testing.assert_allclose(made, expected(x, constants, k, n, group), atol=2e-4)


def test_half_activations() -> None:
    x = stream(1, "x").standard_normal((3, 32)).astype(np.float16)
    proto, constants = model(x, 32, 8, 16)
    made = compile_model(from_onnx(proto), TARGET)(x)
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, expected(x, constants, 32, 8, 16), atol=2e-2)


def test_weights_of_other_sizes_are_refused() -> None:
    x = np.zeros((1, 32), np.float32)
    with pytest.raises(UserError, match="weights of 8 bits; 4 bits are supported"):
        from_onnx(model(x, 32, 8, 16, bits=8)[0])


def test_an_order_of_groups_is_refused() -> None:
    proto, _ = model(np.zeros((1, 32), np.float32), 32, 8, 16)
    proto.graph.node[0].input[4] = "order"
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(32, np.int32), "order"))
    with pytest.raises(UserError, match="an order of groups"):
        from_onnx(proto)


def test_weights_that_are_computed_are_refused() -> None:
    proto, _ = model(np.zeros((1, 32), np.float32), 32, 8, 16)
    proto.graph.input.append(helper.make_tensor_value_info("w", 2, [8, 2, 8]))
    proto.graph.node[0].input[1] = "w"
    with pytest.raises(UserError, match=r"input 1 \(the weights\) is not known at import"):
        from_onnx(proto)
