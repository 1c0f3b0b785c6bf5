"""Test convolutions and pooling of volumes against torch and numpy, in both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

RNG = np.random.default_rng(2)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


WINDOW = {"strides": (1, 2, 1), "padding": (1, 0, 1, 0, 1, 1), "dilation": (1, 1, 2)}


def test_convolution() -> None:
    check_operator("conv3d", [floats(1, 4, 3, 4, 5), floats(2, 2, 2, 3, 2)], groups=2, rtol=1e-4, **WINDOW)
    check_operator("conv3d", [floats(1, 3, 4, 5, 2), floats(2, 3, 2, 2, 3)], layout="NDHWC", compiled=False, rtol=1e-4)


def test_transposed_convolution() -> None:
    attrs: dict[str, Any] = {"strides": (2, 1, 2), "padding": (0, 1, 0, 1, 0, 0), "output_padding": (1, 0, 0)}
    check_operator("conv3d_transpose", [floats(1, 2, 3, 2, 3), floats(2, 3, 2, 3, 2)], rtol=1e-4, **attrs)


def test_references_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x, w, v = floats(2, 4, 5, 4, 6), floats(6, 2, 2, 3, 2), floats(4, 3, 2, 3, 2)
    tensors = [torch.from_numpy(t) for t in (x, w, v)]

    def made(name: str, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        operator = GRAPH_OPERATORS.get(name)
        return operator.evaluate(arrays, operator.bind(attrs))[0]

    wanted = torch.nn.functional.conv3d(tensors[0], tensors[1], None, (2, 1, 1), (1, 0, 1), (1, 1, 2), 2)
    got = made("conv3d", x, w, strides=(2, 1, 1), padding=(1, 0, 1, 1, 0, 1), dilation=(1, 1, 2), groups=2)
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-4)
    wanted = torch.nn.functional.conv_transpose3d(tensors[0], tensors[2], None, (2, 1, 3), (1, 0, 1), (1, 0, 2))
    got = made("conv3d_transpose", x, v, strides=(2, 1, 3), padding=(1, 0, 1, 1, 0, 1), output_padding=(1, 0, 2))
    np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_pooling() -> None:
    x, window = floats(1, 2, 4, 5, 6), {"kernel": (2, 3, 2), "strides": (2, 2, 1), "padding": (1, 1, 0, 1, 1, 1)}
    check_operator("max_pool3d", [x], dilation=(1, 1, 2), **window)
    operator = GRAPH_OPERATORS.get("max_pool3d")
    check_operator("max_pool3d_indices", [x, *operator.evaluate([x], operator.bind(window))], **window)
    check_operator("avg_pool3d", [x], ceil_mode=True, **window)
    check_operator("avg_pool3d", [x.transpose(0, 2, 3, 4, 1)], count_include_pad=True, layout="NDHWC", compiled=False, **window)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("conv3d", ((1, 2, 3, 3, 3), (1, 2, 2, 2, 2)), {"layout": "NCHW"}, "layouts are NCDHW, NDHWC"),
        ("conv3d", ((1, 2, 3, 3, 3), (1, 3, 2, 2, 2)), {}, "do not fit together"),
        ("conv3d_transpose", ((1, 2, 3, 3, 3), (2, 1, 2, 2, 2)), {"strides": (1, 1)}, r"must be \(depth, height, width\)"),
        ("max_pool3d", ((1, 2, 3, 3, 3),), {"kernel": (2, 2, 2), "strides": (0, 1, 1)}, "must be positive"),
        ("avg_pool3d", ((2, 3, 3, 3),), {"kernel": (2, 2, 2), "strides": (1, 1, 1)}, "must have 5 dimensions"),
    ],
)
def test_errors(name: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any], message: str) -> None:
    operator = GRAPH_OPERATORS.get(name)
    with pytest.raises(ScriptError, match=message):
        operator.infer([TensorType.of(s) for s in shapes], operator.bind(attrs))
