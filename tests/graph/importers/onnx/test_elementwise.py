"""Test composed ONNX functions: accuracy near zero, no spurious overflow, exact integer powers, log-sum-exp of infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402

from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402


def evaluated(operator: str, *arrays: np.ndarray, **attributes: Any) -> np.ndarray:
    names = [f"x{i}" for i in range(len(arrays))]
    types = [helper.np_dtype_to_tensor_dtype(x.dtype) for x in arrays]
    inputs = [helper.make_tensor_value_info(n, t, x.shape) for n, t, x in zip(names, types, arrays, strict=True)]
    output = helper.make_tensor_value_info("y", types[0], None)
    graph = helper.make_graph([helper.make_node(operator, names, ["y"], **attributes)], "tested", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with np.errstate(all="ignore"):
        return run(from_onnx(model)["main"], list(arrays))[0]


WIDE = [0.0, -0.0, 1e-30, 1e-6, -1e-4, 0.3, -2.0, 5.0, 15.0, 30.0, 88.8, 1e10, -3e38, np.inf, -np.inf, np.nan]
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "Sinh": (np.sinh, WIDE),
    "Cosh": (np.cosh, WIDE),
    "Asinh": (np.arcsinh, WIDE),
    "Atanh": (np.arctanh, [0.0, 1e-30, 1e-6, -1e-4, 0.3, -0.99, 1.0, -1.0, 1.5, np.nan]),
    "Acosh": (np.arccosh, [1.0, 1.001, 1.5, 10.0, 300.0, 1e4, 3e38, np.inf, 0.5, np.nan]),
    "Celu": (lambda x: np.where(x < 0, np.expm1(x), x), WIDE),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 4e-3), ("float32", 1e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("operator", FUNCTIONS)
def test_accuracy_near_zero_and_for_large_numbers(operator: str, dtype: str, tolerance: float) -> None:
    function, values = FUNCTIONS[operator]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(dtype)
        expected = np.asarray(function(x.astype(np.float64))).astype(dtype)
    if operator == "Celu" and dtype != "float32":
        pytest.skip("ONNX defines it for float32 only")
    np.testing.assert_allclose(evaluated(operator, x), expected, rtol=tolerance, atol=1e-6 if dtype == "float16" else 0)


def test_integer_powers_are_exact() -> None:
    x, y = np.array([3, -3, 2, 7]), np.array([39, 39, -1, 22])
    assert evaluated("Pow", x, y).tolist() == [3**39, -(3**39), 0, 7**22]
    assert evaluated("Pow", x.astype(np.int32), np.array([3, 2, 5, 11])).tolist() == [27, 9, 32, 7**11]
    assert evaluated("Pow", x, np.float32([0.5, 2, -1, 0])).tolist() == [1, 9, 0, 1]


def test_log_sum_exp_of_infinities() -> None:
    x = np.float32([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 2], [np.nan, np.inf]])
    made = evaluated("ReduceLogSumExp", x, axes=[1], keepdims=0)
    np.testing.assert_array_equal(made, np.float32([-np.inf, np.inf, 2, np.nan]))
