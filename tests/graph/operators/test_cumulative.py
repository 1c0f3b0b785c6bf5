"""Test cumulative products, extremes and log-sum-exps against numpy, with NaN, infinities and ties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

X = np.random.default_rng(4).standard_normal((3, 5, 2)).astype(np.float32)
EDGES = np.float32([[1, 3, 3, -2, 3], [math.nan, 1, math.nan, 2, 0], [-math.inf, -math.inf, 2, math.inf, 1]])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumprod(exclusive: bool, reverse: bool) -> None:
    check_operator("cumprod", [X], axis=1, exclusive=exclusive, reverse=reverse, compiled=exclusive == reverse)
    check_operator("cumprod", [(X * 3).astype(np.int32)], axis=-1, exclusive=exclusive, reverse=reverse, compiled=False)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extremes_and_the_last_index_of_each(name: str) -> None:
    check_operator(name, [EDGES], axis=1)
    check_operator(name, [(X * 2).astype(np.int8)], axis=0, compiled=False)
    if name == "cummax":
        operator = GRAPH_OPERATORS.get(name)
        assert operator.evaluate([EDGES], operator.bind({"axis": 1}))[1].tolist()[:2] == [[0, 1, 2, 2, 4], [0, 0, 2, 2, 2]]


def test_logcumsumexp() -> None:
    check_operator("logcumsumexp", [X * 200], axis=1, rtol=1e-4)
    check_operator("logcumsumexp", [EDGES], axis=1, compiled=False)
    check_operator("logcumsumexp", [X.astype(np.float16)], axis=2, rtol=1e-2, compiled=False)


def test_errors() -> None:
    for name, dtype, message in (
        ("cumprod", "bool", "not bool"),
        ("logcumsumexp", "int32", "it takes floats"),
        ("cummax", "bool", "not bool"),
    ):
        operator = GRAPH_OPERATORS.get(name)
        with pytest.raises(ScriptError, match=message):
            operator.infer([TensorType.of((3,), dtype)], operator.bind({"axis": 0}))
