"""Test grid_sample against numpy and torch, for all modes and paddings, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

MODES, PADDINGS = ("nearest", "linear", "cubic"), ("zeros", "border", "reflection")


def arrays(shape: tuple[int, ...], points: tuple[int, ...], dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Images, and coordinates of which some are far outside."""
    rng = np.random.default_rng(len(points))
    return rng.standard_normal(shape).astype(dtype), rng.uniform(-2.2, 2.2, (shape[0], *points, len(shape) - 2)).astype(dtype)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_grid_sample(mode: str, padding: str, align_corners: bool) -> None:
    x, grid = arrays((2, 3, 5, 4), (6, 7), "float64" if mode == "cubic" else "float32")  # long sums of weights round in float32
    check_operator("grid_sample", [x, grid], mode=mode, padding=padding, align_corners=align_corners, compiled=mode != "cubic")
    torch = pytest.importorskip("torch")
    names = {"linear": "bilinear", "cubic": "bicubic"}
    expected = torch.nn.functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), names.get(mode, mode), padding, align_corners)
    operator = GRAPH_OPERATORS.get("grid_sample")
    attributes = operator.bind({"mode": mode, "padding": padding, "align_corners": align_corners})
    np.testing.assert_allclose(operator.evaluate([x, grid], attributes)[0], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_other_numbers_of_axes_and_types() -> None:
    check_operator("grid_sample", arrays((1, 2, 6), (9,), "float64"), padding="reflection")
    check_operator("grid_sample", arrays((1, 2, 3, 4, 5), (2, 3, 4)), mode="linear")
    check_operator("grid_sample", arrays((1, 2, 1, 4), (3, 3)), mode="linear", padding="reflection", align_corners=True)
    check_operator("grid_sample", arrays((1, 2, 4, 4), (3, 3), "float16"), mode="linear", padding="border", compiled=False)


def test_coordinates_that_are_not_finite_read_the_image() -> None:
    operator = GRAPH_OPERATORS.get("grid_sample")
    x = np.ones((1, 1, 3, 3), np.float32)
    grid = np.float32([[[[np.nan, 0], [np.inf, -np.inf], [1e30, 0]]]])
    for padding in PADDINGS[:2]:
        check_operator("grid_sample", [x, grid[..., 1:, :]], mode="nearest", padding=padding)
        assert operator.infer([TensorType.of(x.shape), TensorType.of(grid.shape)], operator.bind({"padding": padding}))


@pytest.mark.parametrize(
    ("x", "grid", "attributes", "message"),
    [
        ((1, 2, 3), (1, 4, 1), {"mode": "area"}, "unknown mode 'area'; modes are nearest, linear, cubic"),
        ((1, 2, 3), (1, 4, 1), {"padding": "wrap"}, "unknown padding 'wrap'; paddings are zeros, border, reflection"),
        ((1, 2, 3, 3), (1, 4, 4, 3), {}, "need a grid of shape"),
        ((2, 2, 3, 3), (1, 4, 4, 2), {}, "need a grid of shape"),
        ((1, 2), (1, 1), {}, "need a grid of shape"),
    ],
)
def test_errors(x: tuple[int, ...], grid: tuple[int, ...], attributes: dict[str, Any], message: str) -> None:
    operator = GRAPH_OPERATORS.get("grid_sample")
    with pytest.raises(ScriptError, match=message):
        operator.infer([TensorType.of(x), TensorType.of(grid)], operator.bind(attributes))
