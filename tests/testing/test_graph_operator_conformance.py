"""Test that the conformance check of operators detects wrong types, wrong values and wrong code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.operator import ELEMENTWISE, GraphOperator
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.registry import Registry
from tunesmith.testing import graph_operator_conformance
from tunesmith.testing.graph_operator_conformance import check_operator

X = np.float32([[1, -2, 3]])


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any], Callable[..., Any]], None]:
    """Registers the operator `tested` with an expression and a reference."""
    registry: Registry[GraphOperator] = Registry("graph operator")
    monkeypatch.setattr(graph_operator_conformance, "GRAPH_OPERATORS", registry)
    return lambda compute, reference: registry.register("tested", GraphOperator("tested", ELEMENTWISE, compute, reference)) and None


def _plus(amount: float) -> Callable[[Tensor], Tensor]:
    return lambda x: te.compute(x.shape, lambda *i: x[i] + amount, "Y")


def test_correct_operators_pass(register: Callable[..., None]) -> None:
    register(_plus(1.0), lambda x: x + np.float32(1))
    check_operator("tested", [X])


def test_wrong_values(register: Callable[..., None]) -> None:
    register(_plus(1.0), lambda x: np.where(x < 0, x, x + np.float32(1)))
    with pytest.raises(AssertionError, match=r"float32\[1, 3\]\), interpreted, result 0: 1 of 3 .* at \(0, 1\) -1\.0, expected -2\.0"):
        check_operator("tested", [X])


def test_nan_is_not_a_number(register: Callable[..., None]) -> None:
    register(_plus(1.0), lambda x: np.where(x < 0, np.float32(np.nan), x + np.float32(1)))
    with pytest.raises(AssertionError, match=r"-1\.0, expected nan"):
        check_operator("tested", [X])


def test_wrong_types(register: Callable[..., None]) -> None:
    register(_plus(1.0), lambda x: x + np.float64(1))
    with pytest.raises(AssertionError, match=r"the inferred types are \(float32\[1, 3\],\), the reference types are \(float64\[1, 3\],\)"):
        check_operator("tested", [X])


def test_wrong_code(register: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    register(_plus(1.0), lambda x: x + np.float32(1))
    source = te.placeholder(X.shape, "float32", "X")
    other = te.create_prim_func([source, _plus(2.0)(source)], "call_tested")
    right = graph_operator_conformance.build
    monkeypatch.setattr(graph_operator_conformance, "build", lambda func: right(other))
    check_operator("tested", [X], compiled=False)
    with pytest.raises(AssertionError, match=r"compiled, result 0: 3 of 3 elements differ: at \(0, 0\) 3\.0, expected 2\.0"):
        check_operator("tested", [X])


def test_references_must_not_write_to_their_operands(register: Callable[..., None]) -> None:
    register(_plus(1.0), lambda x: np.add(x, np.float32(1), out=x))
    with pytest.raises(ValueError, match="read-only"):
        check_operator("tested", [X])
