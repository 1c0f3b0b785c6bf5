"""Test normalisation operators: values, types with dynamic sizes, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import BROADCAST, FUSABLE, GRAPH_OPERATORS
from tunesmith.ir.poly import Var, poly
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

RNG = np.random.default_rng(7)


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(0.5, 2, shape).astype(dtype)


X = floats(2, 6, 4, 3)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax(axis: int) -> None:
    for name in ("softmax", "log_softmax"):
        check_operator(name, [X], axis=axis)
        check_operator(name, [X * 500], compiled=False, axis=axis, atol=1e-4)
        check_operator(name, [floats(3, 7, 2, dtype="float64")], compiled=False, axis=min(axis, 1), rtol=1e-12)
    check_operator("softmax", [floats(5)])


@pytest.mark.parametrize("axes", [(-1,), (2, 3), (1, 2, 3), (1,), (-1, 0)])
def test_layer_and_rms_norm(axes: tuple[int, ...]) -> None:
    along = [X.shape[a] for a in sorted(a % 4 for a in axes)]
    gamma, beta = floats(*along), floats(*along)
    for operands in ([X], [X, gamma], [X, gamma, beta]):
        check_operator("layer_norm", operands, axes=axes, rtol=1e-4, atol=1e-5)
    for operands in ([X], [X, gamma]):
        check_operator("rms_norm", operands, axes=axes, eps=1e-6, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(groups: int) -> None:
    gamma, beta = floats(6), floats(6)
    check_operator("group_norm", [X, gamma, beta], groups=groups, eps=1e-5, rtol=1e-4, atol=1e-5)
    check_operator("group_norm", [X], groups=groups, eps=0.1, rtol=1e-4, atol=1e-5)
    check_operator("group_norm", [X.transpose(0, 2, 3, 1), gamma, beta], groups=groups, eps=1e-5, layout="NHWC", rtol=1e-4, atol=1e-5)
    check_operator("group_norm", [floats(4, 6), gamma], compiled=False, groups=min(groups, 2), eps=1e-5, rtol=1e-4, atol=1e-5)


def test_instance_norm() -> None:
    check_operator("instance_norm", [X, floats(6), floats(6)], eps=1e-5, rtol=1e-4, atol=1e-5)
    check_operator("instance_norm", [X], eps=1e-2, rtol=1e-4, atol=1e-5)
    check_operator("instance_norm", [floats(2, 3, 9), floats(3)], eps=1e-5, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_batch_norm(axis: int) -> None:
    c = X.shape[axis]
    check_operator("batch_norm", [X, floats(c), floats(c), floats(c), np.abs(floats(c))], axis=axis, eps=1e-3, rtol=1e-4, atol=1e-5)


def test_variances_do_not_cancel() -> None:
    """The mean is a thousand times the standard deviation."""
    check_operator("layer_norm", [floats(3, 40) + 1000], rtol=1e-2, atol=1e-2)


def infer(name: str, types: list[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_types_with_dynamic_sizes() -> None:
    n = poly(Var("n"))
    rows, scale = TensorType.of((n, 8)), TensorType.of((8,))
    columns = TensorType.of((8, n), "float64")
    assert infer("softmax", [rows]) == (rows,)
    assert infer("softmax", [columns]) == infer("softmax", [columns], axis=0) == infer("log_softmax", [columns]) == (columns,)
    assert infer("layer_norm", [rows, scale, scale]) == infer("layer_norm", [rows], axes=(0, 1)) == (rows,)
    assert infer("layer_norm", [columns]) == infer("rms_norm", [columns], eps=0.1) == (columns,)
    image = TensorType.of((n, 8, n, 3))
    assert infer("group_norm", [image, scale, scale], groups=4, eps=0.1) == (image,)
    assert infer("instance_norm", [image], eps=0.1) == infer("batch_norm", [image, scale, scale, scale, scale], eps=0.1) == (image,)


def test_kinds() -> None:
    names = ("softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm")
    assert {GRAPH_OPERATORS.get(n).kind for n in names} == {FUSABLE}
    assert GRAPH_OPERATORS.get("batch_norm").kind == BROADCAST


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("softmax", [()], {}, "a scalar has no axis"),
        ("log_softmax", [(3, 4)], {"axis": 2}, "axis 2 is not an axis"),
        ("layer_norm", [(3, 4), (3,)], {}, r"must have the extents of the axes \[1\]"),
        ("layer_norm", [(3, 4)], {"axes": (1, -1)}, "contain an axis twice"),
        ("rms_norm", [(3, 4), (4, 1)], {"eps": 0.1}, "must have the extents"),
        ("group_norm", [(1, 6, 4, 4)], {"groups": 4, "eps": 0.1}, "cannot be divided into 4 groups"),
        ("group_norm", [(1, 6, 4, 4), (4,)], {"groups": 3, "eps": 0.1}, "must be a vector along axis 1"),
        ("group_norm", [(1, 6, 4, 4)], {"groups": 3, "eps": 0.1, "layout": "NC"}, "layout 'NC' must be"),
        ("instance_norm", [(1, 6)], {"eps": 0.1}, "must have at least 3 dimensions"),
        ("batch_norm", [(2, 3), (3,), (3,), (3,), (2,)], {"eps": 0.1}, "must be a vector along axis 1"),
    ],
)
def test_errors(name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        infer(name, [TensorType.of(s) for s in shapes], **attrs)


def test_integers_and_mixed_types_are_rejected() -> None:
    with pytest.raises(ScriptError, match="one floating point type, got int32"):
        infer("softmax", [TensorType.of((3,), "int32")])
    with pytest.raises(ScriptError, match="one floating point type, got float64"):
        infer("layer_norm", [TensorType.of((3, 4)), TensorType.of((4,), "float64")])
