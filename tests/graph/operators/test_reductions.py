"""Test reductions against numpy, interpreted and compiled, over all sets of axes; NaN and infinities; argmax and argmin; errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS, REDUCTION
from tunesmith.ir import structural
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.reduction import reduce
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

NUMERIC = ("sum", "prod", "mean", "max", "min")
TYPES = ("float16", "float32", "float64", "int32", "int64")
EDGES = np.float32([[1, np.nan, 3], [np.inf, 2, -np.inf], [5, 5, 1], [-np.inf, -np.inf, -np.inf], [np.inf, np.inf, 0]])
AXES: list[dict[str, Any]] = [{}, {"keepdims": True}, {"axes": (0, 2)}, {"axes": -1, "keepdims": True}, {"axes": (-2,)}, {"axes": ()}]


def _data(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(-9, 9, (3, 5, 2)).astype(dtype) if "int" in dtype else rng.standard_normal((3, 5, 2)).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NUMERIC)
def test_axes(name: str, dtype: str) -> None:
    if name == "mean" and "int" in dtype:
        return
    for attrs in AXES:
        check_operator(name, [_data(dtype)], compiled=dtype in ("float32", "int64") or not attrs, **attrs)


@pytest.mark.parametrize("name", NUMERIC)
def test_nan_and_infinities(name: str) -> None:
    check_operator(name, [EDGES], axes=1)
    check_operator(name, [EDGES.T.copy()], axes=1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16"])
def test_references_over_no_elements_give_the_identity(dtype: str) -> None:
    """As compiled functions."""
    x = np.zeros((0, 3), dtype)
    least, greatest = (-np.inf, np.inf) if dtype == "float32" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for name, identity in (("max", least), ("min", greatest), ("sum", 0), ("prod", 1)):
        (made,) = GRAPH_OPERATORS.get(name).evaluate([x], (("axes", (0,)),))
        assert made.dtype == dtype and made.tolist() == [identity] * 3


@pytest.mark.parametrize("name", NUMERIC)
def test_scalars(name: str) -> None:
    check_operator(name, [np.array(3.5, np.float32)])
    check_operator(name, [np.array(3.5, np.float16)], keepdims=True)


def test_half_precision_is_accumulated_in_float32() -> None:
    x = np.full((5000,), 1.0, np.float16)
    check_operator("sum", [x])
    check_operator("mean", [np.full((300,), 1000.0, np.float16)])


def test_integers_wrap_in_their_own_type() -> None:
    check_operator("sum", [np.full((3,), 2**31 - 1, np.int32)])
    check_operator("prod", [np.full((3,), 200, np.uint8)])


@pytest.mark.parametrize("name", ["all", "any"])
def test_bool(name: str) -> None:
    x = np.random.default_rng(0).random((3, 5, 2)) > 0.5
    for attrs in AXES:
        check_operator(name, [x], **attrs)
    for value in (True, False):
        check_operator(name, [np.array(value)])
        check_operator(name, [np.full((2, 3), value)], axes=0)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin(name: str, dtype: str) -> None:
    for attrs in ({"axis": 0}, {"axis": 1, "keepdims": True}, {"axis": -1}):
        check_operator(name, [_data(dtype)], **attrs)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_index_is_returned_and_nan_is_the_extreme(name: str) -> None:
    check_operator(name, [np.int32([[2, 2, 2], [1, 3, 3], [3, 1, 1]])], axis=1)
    check_operator(name, [EDGES], axis=1)
    check_operator(name, [np.float32([[np.nan, 1, np.nan], [1, np.nan, np.nan], [np.inf, np.nan, -np.inf]])], axis=1, keepdims=True)
    check_operator(name, [np.iinfo(np.int64).max * np.ones((2, 2), np.int64)], axis=0)


@pytest.mark.parametrize("name", ["sum", "max", "min"])
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)])
def test_programs_equal_those_of_ops(name: str, axes: tuple[int, ...]) -> None:
    x = te.placeholder((3, 4, 5), "float32", "X")
    op = GRAPH_OPERATORS.get(name)
    made = te.create_prim_func([x, *op.apply([x], op.bind({"axes": axes}))])
    assert structural.equal(made, te.create_prim_func([x, reduce(name, x, axes)]))


def test_result_types_and_kinds() -> None:
    n = Var("n")
    kind = TensorType.of((n, 3, 4))
    for name in NUMERIC:
        op = GRAPH_OPERATORS.get(name)
        assert op.kind == REDUCTION
        assert op.infer([kind], op.bind({})) == (TensorType.of(()),)
        assert op.infer([kind], op.bind({"axes": (0, -1)})) == (TensorType.of((3,)),)
        assert op.infer([kind], op.bind({"axes": -2, "keepdims": True})) == (TensorType.of((n, 1, 4)),)
    for name in ("argmax", "argmin"):
        op = GRAPH_OPERATORS.get(name)
        assert op.infer([kind], op.bind({"axis": 1})) == (TensorType.of((n, 4), "int64"),)
    for name in ("all", "any"):
        op = GRAPH_OPERATORS.get(name)
        assert op.infer([TensorType.of((n, 3), "bool")], op.bind({"axes": 1})) == (TensorType.of((n,), "bool"),)


@pytest.mark.parametrize(("name", "attrs"), [("mean", {}), ("max", {"axes": 0}), ("argmin", {"axis": 0}), ("sum", {"axes": (0, 1)})])
def test_symbolic_programs_run(name: str, attrs: dict[str, Any]) -> None:
    op = GRAPH_OPERATORS.get(name)
    x = te.placeholder((Var("n"), 4), "float32", "X")
    func = te.create_prim_func([x, *op.apply([x], op.bind(attrs))])
    data = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (size,) = [p for p in func.params if isinstance(p, Var)]
    np.testing.assert_allclose(run(func, [data], {size: 3})[-1], op.evaluate([data], op.bind(attrs))[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype", "attrs", "message"),
    [
        ("sum", "float32", {"axes": 2}, r"sum\(float32\[2, 3\]\): axis 2 is not an axis of 2 dimensions"),
        ("max", "float32", {"axes": (0, -2)}, "contain an axis twice"),
        ("argmax", "float32", {"axis": -3}, "axis -3 is not an axis"),
        ("sum", "float32", {"axes": (0.5,)}, r"axis 0\.5 is not an axis"),
        ("mean", "int32", {}, "it takes floats, not int32"),
        ("sum", "bool", {}, "it takes floats and integers, not bool"),
        ("all", "float32", {}, "it takes bool, not float32"),
        ("argmin", "bool", {"axis": 0}, "it takes floats and integers, not bool"),
    ],
)
def test_errors(name: str, dtype: str, attrs: dict[str, Any], message: str) -> None:
    op = GRAPH_OPERATORS.get(name)
    with pytest.raises(ScriptError, match=message):
        op.infer([TensorType.of((2, 3), dtype)], op.bind(attrs))


def test_argmax_of_a_scalar_is_rejected() -> None:
    op = GRAPH_OPERATORS.get("argmax")
    with pytest.raises(ScriptError, match="a scalar has no axis"):
        op.infer([TensorType.of(())], op.bind({"axis": 0}))
