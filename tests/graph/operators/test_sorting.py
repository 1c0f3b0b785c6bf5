"""Test argsort and searchsorted against numpy: stable order, NaN, integers, parts of the order, and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.ir.poly import Var, poly
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

X = np.float32([[2, -1, math.nan, 2, -math.inf], [0, -0.0, 3, math.nan, math.nan], [5, 4, 3, 3, math.inf]])


def test_argsort_is_stable() -> None:
    check_operator("argsort", [X], axis=1)
    check_operator("argsort", [X], axis=1, descending=True, count=3)
    check_operator("argsort", [np.int8([[3, -128, 3], [127, 3, 0]])], axis=0, compiled=False)
    check_operator("argsort", [np.uint8([[3, 1], [3, 200], [0, 1]])], axis=-2, descending=True)
    operator = GRAPH_OPERATORS.get("argsort")
    made = [operator.evaluate([X[1:2]], operator.bind({"axis": 1, "descending": down}))[0].tolist() for down in (False, True)]
    assert made == [[[0, 1, 2, 3, 4]], [[3, 4, 2, 0, 1]]]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("n", [128, 129, 192, 321])
def test_long_axes_are_merged(n: int, descending: bool) -> None:
    rng = np.random.default_rng(n)
    few = rng.integers(-128, 128, (2, n)).astype(np.int8)
    few[:, ::3] = -128 if descending else 127
    check_operator("argsort", [few], axis=1, descending=descending)
    check_operator("argsort", [few.view(np.uint8).T.copy()], axis=0, descending=descending, count=5)
    special = rng.choice(np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5]), (1, n))
    check_operator("argsort", [special], axis=-1, descending=descending)
    check_operator("argsort", [special], axis=-1, descending=descending, count=100)


@pytest.mark.parametrize("n", [1, 2, 3, 100, 1000])
def test_searchsorted_in_many_boundaries(n: int) -> None:
    rng = np.random.default_rng(n)
    boundaries, values = np.sort(rng.integers(0, 2 * n, n)), rng.integers(-1, 2 * n + 1, (3, 50))
    for right in (False, True):
        check_operator("searchsorted", [boundaries, values], right=right)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    values = np.float64([[0.5, 1, -2, math.nan], [7, 3, 2.5, 1]])
    check_operator("searchsorted", [np.float64([0, 1, 1, 3]), values], right=right)
    check_operator("searchsorted", [np.float64([[0, 1, 1], [2, 2.5, 8]]), values], right=right, compiled=False)
    operator = GRAPH_OPERATORS.get("searchsorted")
    one = operator.evaluate([np.int64([1, 3, 3]), np.int64([3])], operator.bind({"right": right}))
    assert one[0].tolist() == [3 if right else 1]


def infer(name: str, *types: TensorType, **attrs: Any) -> tuple[TensorType, ...]:
    operator = GRAPH_OPERATORS.get(name)
    return operator.infer(types, operator.bind(attrs))


def test_dynamic_sizes() -> None:
    n = poly(Var("n"))
    assert infer("argsort", TensorType.of((n, 4)), axis=0) == (TensorType.of((n, 4), "int64"),)
    assert infer("argsort", TensorType.of((n, 4)), axis=0, count=2) == (TensorType.of((2, 4), "int64"),)


def test_errors() -> None:
    x = TensorType.of((3, 4))
    with pytest.raises(ScriptError, match="count 5 must be from 1 to the extent 4"):
        infer("argsort", x, axis=1, count=5)
    with pytest.raises(ScriptError, match="it takes floats and integers, not bool"):
        infer("argsort", TensorType.of((3,), "bool"), axis=0)
    with pytest.raises(ScriptError, match="must have an axis of boundaries"):
        infer("searchsorted", TensorType.of(()), x)
    with pytest.raises(ScriptError, match="must be a vector, or have the extents"):
        infer("searchsorted", TensorType.of((2, 5)), x)
