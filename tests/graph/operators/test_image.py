"""Test image operators: values, types, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.poly import Var, poly
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

X = np.random.default_rng(13).normal(size=(2, 8, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks(mode: str) -> None:
    check_operator("depth_to_space", [X], block=2, mode=mode)
    check_operator("space_to_depth", [X], block=2, mode=mode)
    evaluate = {n: GRAPH_OPERATORS.get(n) for n in ("depth_to_space", "space_to_depth")}
    attrs = (("block", 2), ("mode", mode))
    back = evaluate["space_to_depth"].evaluate(evaluate["depth_to_space"].evaluate([X], attrs), attrs)[0]
    np.testing.assert_array_equal(back, X)


def test_channel_order_of_depth_to_space() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
    operator = GRAPH_OPERATORS.get("depth_to_space")
    assert operator.evaluate([x], (("block", 2), ("mode", "DCR")))[0].ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert operator.evaluate([x], (("block", 2), ("mode", "CRD")))[0].ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("coordinate_mode", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("size", [(8, 12), (4, 6), (3, 13), (1, 5), (7, 1)])
def test_resize2d(coordinate_mode: str, size: tuple[int, int]) -> None:
    for mode in ("nearest", "linear"):
        check_operator("resize2d", [X], size=size, mode=mode, coordinate_mode=coordinate_mode)
    check_operator("resize2d", [X.astype(np.int32)], compiled=False, size=size, coordinate_mode=coordinate_mode)


def test_resized_numbers() -> None:
    row = np.array([[[[0, 10]]]], np.float32)

    def resized(**attrs: Any) -> list[float]:
        operator = GRAPH_OPERATORS.get("resize2d")
        return operator.evaluate([row], operator.bind({"size": (1, 4), **attrs}))[0].ravel().tolist()

    assert resized() == resized(coordinate_mode="asymmetric") == [0, 0, 10, 10]
    assert resized(mode="linear") == [0, 2.5, 7.5, 10]
    assert resized(mode="linear", coordinate_mode="asymmetric") == [0, 5, 10, 10]
    np.testing.assert_allclose(resized(mode="linear", coordinate_mode="align_corners"), [0, 10 / 3, 20 / 3, 10], rtol=1e-6)


def infer(name: str, types: list[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_types_with_dynamic_sizes() -> None:
    n = poly(Var("n"))
    assert infer("depth_to_space", [TensorType.of((n, 8, n, 3))], block=2) == (TensorType.of((n, 2, n * 2, 6)),)
    assert infer("space_to_depth", [TensorType.of((n, 2, n * 2, 6))], block=2) == (TensorType.of((n, 8, n, 3)),)
    for mode in ("nearest", "linear"):
        assert infer("resize2d", [TensorType.of((1, 3, n, 5))], size=(n * 2, 10), mode=mode) == (TensorType.of((1, 3, n * 2, 10)),)


@pytest.mark.parametrize(
    ("name", "type_", "attrs", "message"),
    [
        ("depth_to_space", ((1, 6, 4, 4), "float32"), {"block": 2}, "cannot be divided into blocks of 2 x 2"),
        ("depth_to_space", ((1, 4, 4, 4), "float32"), {"block": 2, "mode": "RCD"}, "unknown mode 'RCD'"),
        ("space_to_depth", ((1, 4, 3, 4), "float32"), {"block": 2}, "must be multiples of 2"),
        ("space_to_depth", ((4, 3, 4), "float32"), {"block": 2}, "an image must have 4 dimensions"),
        ("resize2d", ((1, 4, 3, 4), "float32"), {"size": (2, 2), "mode": "cubic"}, "unknown mode 'cubic'"),
        ("resize2d", ((1, 4, 3, 4), "float32"), {"size": (2,)}, r"size must be \(height, width\)"),
        ("resize2d", ((1, 4, 3, 4), "int32"), {"size": (2, 2), "mode": "linear"}, "only floats can be interpolated"),
    ],
)
def test_errors(name: str, type_: tuple[tuple[int, ...], str], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        infer(name, [TensorType.of(*type_)], **attrs)
