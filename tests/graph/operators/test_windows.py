"""Test pooling, local response normalisation and cumulative sums: values, types, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import FUSABLE, GRAPH_OPERATORS
from tunesmith.ir.expr import Select
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.visit import walk
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(-3, 1, shape).astype(np.float32)


WINDOWS: list[dict[str, Any]] = [
    {"kernel": (2, 2), "strides": (2, 2)},
    {"kernel": (3, 2), "strides": (2, 1), "padding": (1, 0, 1, 1)},
    {"kernel": (3, 3), "strides": (2, 3), "padding": (1, 1, 1, 1), "ceil_mode": True},
    {"kernel": (2, 3), "strides": (3, 2), "padding": (0, 1, 1, 0), "ceil_mode": True},
    {"kernel": (1, 1), "strides": (3, 2), "ceil_mode": True},
    {"kernel": (2, 3), "strides": (1, 1), "padding": (1, 0, 0, 2), "dilation": (3, 2)},
    {"kernel": (7, 6), "strides": (1, 1)},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pooling(window: dict[str, Any], layout: str) -> None:
    x = floats(2, 3, 7, 6) if layout == "NCHW" else floats(2, 7, 6, 3)
    check_operator("max_pool2d", [x], **window, layout=layout)
    for padded in (False, True):
        check_operator("avg_pool2d", [x], **window, layout=layout, count_include_pad=padded)


def test_max_pool_of_integers_and_of_windows_of_padding() -> None:
    check_operator("max_pool2d", [RNG.integers(-90, -3, (1, 2, 5, 5)).astype(np.int8)], kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    check_operator("max_pool2d", [floats(1, 1, 3, 3)], kernel=(1, 1), strides=(1, 1), padding=(1, 0, 0, 0))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "window",
    [
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
        {"kernel": (2, 3), "strides": (2, 1), "ceil_mode": True},
        {"kernel": (2, 2), "strides": (1, 2), "dilation": (2, 3), "padding": (1, 1, 1, 1)},
    ],
)
def test_indices_of_maxima(window: dict[str, Any], layout: str) -> None:
    x = np.round(floats(2, 3, 7, 6) * 2)  # with equal elements
    x[0, 0, 2:5, 3] = np.nan
    x = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    operator = GRAPH_OPERATORS.get("max_pool2d")
    (y,) = operator.evaluate([x], operator.bind({**window, "layout": layout}))
    check_operator("max_pool2d_indices", [x, y], **window, layout=layout)


def test_windows_inside_the_image_need_no_conditions() -> None:
    def conditions(**window: Any) -> int:
        operator = GRAPH_OPERATORS.get("max_pool2d")
        made = operator.apply([te.placeholder((1, 1, 8, 8))], operator.bind(window))[0]
        assert made.value is not None
        return sum(isinstance(n, Select) for n in walk(made.value))

    assert conditions(kernel=(2, 2), strides=(2, 2)) == 0
    assert conditions(kernel=(2, 2), strides=(2, 2), ceil_mode=True) == 0
    assert conditions(kernel=(3, 3), strides=(2, 2), ceil_mode=True) == 1
    assert conditions(kernel=(3, 3), strides=(2, 2), padding=(1, 1, 0, 0)) == 1


@pytest.mark.parametrize("size", [1, 3, 4])
def test_lrn(size: int) -> None:
    check_operator("lrn", [floats(2, 5, 3, 2)], size=size, alpha=0.3, beta=0.75, bias=1.5, rtol=1e-4)
    check_operator("lrn", [floats(2, 5)], size=size, alpha=1e-4, beta=0.5, bias=1.0, rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_cumsum(axis: int, reverse: bool, exclusive: bool) -> None:
    x = floats(3, 5, 4)
    check_operator("cumsum", [x], axis=axis, reverse=reverse, exclusive=exclusive)
    check_operator("cumsum", [(x * 10).astype(np.int64)], axis=axis, reverse=reverse, exclusive=exclusive)
    nothing = np.zeros((3, 0), np.int64)
    for a in (0, 1):
        np.testing.assert_array_equal(
            GRAPH_OPERATORS.get("cumsum").reference(nothing, axis=a, exclusive=exclusive, reverse=reverse), nothing
        )


def test_unfold() -> None:
    check_operator("unfold", [floats(3, 7, 2)], axis=1, size=3, step=2)
    check_operator("unfold", [floats(7)], axis=-1, size=3, dilation=2, compiled=False)


def infer(name: str, types: list[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_types_with_dynamic_sizes() -> None:
    n = poly(Var("n"))
    x = TensorType.of((n, 3, n * 2, 8))
    pooled = TensorType.of((n, 3, n, 4))
    assert infer("max_pool2d_indices", [x, pooled], kernel=(2, 2), strides=(2, 2)) == (TensorType(pooled.shape, "int64"),)
    with pytest.raises(ScriptError, match="is not the result of max_pool"):
        infer("max_pool2d_indices", [x, pooled], kernel=(3, 2), strides=(2, 2))
    for name in ("max_pool2d", "avg_pool2d"):
        assert infer(name, [x], kernel=(2, 2), strides=(2, 2)) == (TensorType.of((n, 3, n, 4)),)
        assert infer(name, [x], kernel=(2, 2), strides=(2, 2), ceil_mode=True) == (TensorType.of((n, 3, n, 4)),)
        assert infer(name, [x], kernel=(3, 3), strides=(1, 1), padding=(1, 1, 1, 1)) == (x,)
    assert infer("cumsum", [x], axis=2) == infer("lrn", [x], size=5, alpha=0.1, beta=0.75, bias=1.0) == (x,)


def test_kinds() -> None:
    assert {GRAPH_OPERATORS.get(n).kind for n in ("max_pool2d", "avg_pool2d", "lrn", "cumsum")} == {FUSABLE}


WINDOW = {"kernel": (2, 2), "strides": (1, 1)}


@pytest.mark.parametrize(
    ("name", "type_", "attrs", "message"),
    [
        ("max_pool2d", ((3, 4), "float32"), WINDOW, "have 4 dimensions"),
        ("max_pool2d", ((1, 3, 4, 4), "float32"), {**WINDOW, "layout": "CHWN"}, "layout 'CHWN' must be NCHW or NHWC"),
        ("max_pool2d", ((1, 3, 4, 4), "float32"), {"kernel": (2,), "strides": (1, 1)}, r"must be \(vertical, horizontal\)"),
        ("max_pool2d", ((1, 3, 4, 4), "float32"), {**WINDOW, "padding": (-1, 0, 0, 0)}, "must not be negative"),
        ("max_pool2d", ((1, 3, 4, 4), "float32"), {"kernel": (5, 5), "strides": (1, 1)}, "the extent 0 is not positive"),
        ("avg_pool2d", ((1, 3, 4, 4), "int32"), WINDOW, "a mean requires floats"),
        ("lrn", ((3,), "float32"), {"size": 3, "alpha": 0.1, "beta": 0.5, "bias": 1.0}, "must have batch and channel axes"),
        ("lrn", ((1, 3), "float32"), {"size": 3, "alpha": 0.1, "beta": 0.5, "bias": 0.0}, "must be positive"),
        ("cumsum", ((3,), "bool"), {"axis": 0}, "cumsum of bool elements is not defined; cast them to an integer type"),
        ("unfold", ((3, 4), "float32"), {"axis": 1, "size": 3, "dilation": 2}, "a window of 5 elements does not fit in axis 1"),
        ("unfold", ((3, 4), "float32"), {"axis": 1, "size": 0}, "must be positive"),
        ("cumsum", ((3,), "float32"), {"axis": 1}, "axis 1 is not an axis"),
    ],
)
def test_errors(name: str, type_: tuple[tuple[int, ...], str], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        infer(name, [TensorType.of(*type_)], **attrs)
