"""Test operators without operands against numpy, interpreted and compiled, in all types; dynamic sizes; errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS, INJECTIVE
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Var, ceildiv, poly
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

NUMBERS = ("float16", "float32", "float64", "int32", "int64", "uint8")


@pytest.mark.parametrize("dtype", (*NUMBERS, "bool"))
def test_types(dtype: str) -> None:
    check_operator("full", [], shape=(2, 3), value=1, dtype=dtype)
    check_operator("full", [], shape=(), value=0, dtype=dtype)
    check_operator("eye", [], n=3, m=4, k=1, dtype=dtype)
    check_operator("eye", [], n=4, m=3, k=-2, dtype=dtype)
    check_operator("eye", [], n=2, m=2, dtype=dtype)
    check_operator("size_value", [], value=1, dtype=dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_arange(dtype: str) -> None:
    check_operator("arange", [], start=1, stop=9, step=3, dtype=dtype)
    check_operator("arange", [], start=9, stop=0, step=-2, dtype=dtype)
    check_operator("arange", [], start=0.0, stop=4, step=2.0, dtype=dtype)


@pytest.mark.parametrize("dtype", ("float16", "float32", "float64"))
def test_arange_of_fractions(dtype: str) -> None:
    check_operator("arange", [], start=0.0, stop=1, step=0.1, dtype=dtype)
    check_operator("arange", [], start=1, stop=-1.2, step=-0.25, dtype=dtype)


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 10, 1), (0, 1, 0.1), (2.5, -3, -0.5), (-7, 8, 4), (1, 1.3, 0.1)])
def test_arange_has_the_length_of_numpy(start: float, stop: float, step: float) -> None:
    op = GRAPH_OPERATORS.get("arange")
    (made,) = op.infer([], op.bind({"start": start, "stop": stop, "step": step, "dtype": "float64"}))
    assert made.extents == np.arange(start, stop, step).shape


def test_minimum_and_maximum_of_types() -> None:
    for value in (math.nan, math.inf, -math.inf, 3.4e38):
        check_operator("full", [], shape=(2,), value=value, dtype="float32")
    check_operator("full", [], shape=(2,), value=-(2**63), dtype="int64")
    check_operator("full", [], shape=(2,), value=2**64 - 1, dtype="uint64")
    check_operator("full", [], shape=(1,), value=-128, dtype="int8")


def _run(name: str, attrs: dict[str, Any], sizes: dict[Var, int]) -> tuple[np.ndarray, np.ndarray]:
    """The results of the interpreted program, with sizes as parameters, and of the reference."""
    op = GRAPH_OPERATORS.get(name)
    bound = op.bind(attrs)
    func = te.create_prim_func(list(op.apply([], bound)))
    by_name = {v.name: n for v, n in sizes.items()}
    params = {p: by_name[p.name] for p in func.params if isinstance(p, Var)}
    return run(func, [], params)[-1], op.evaluate([], bound, sizes)[0]


def test_symbolic_sizes() -> None:
    n, m = Var("n"), Var("m")
    cases: list[tuple[str, dict[str, Any], TensorType]] = [
        ("full", {"shape": (n, 2), "value": 3, "dtype": "int32"}, TensorType.of((n, 2), "int32")),
        ("full", {"shape": (2,), "value": poly(n) * m, "dtype": "float32"}, TensorType.of((2,))),
        ("arange", {"start": 0, "stop": n, "step": 1, "dtype": "int64"}, TensorType.of((n,), "int64")),
        ("arange", {"start": m, "stop": n, "step": 2, "dtype": "float32"}, TensorType.of((ceildiv(poly(n) - m, 2),))),
        ("arange", {"start": n, "stop": 0, "step": -3, "dtype": "int32"}, TensorType.of((ceildiv(n, 3),), "int32")),
        ("arange", {"start": 0, "stop": n, "step": m, "dtype": "int64"}, TensorType.of((ceildiv(n, m),), "int64")),
        ("eye", {"n": n, "m": m, "k": 1, "dtype": "float32"}, TensorType.of((n, m))),
        ("size_value", {"value": poly(n) + 3}, TensorType.of((), "int64")),
        ("size_value", {"value": n, "dtype": "float32"}, TensorType.of(())),
    ]
    for name, attrs, kind in cases:
        op = GRAPH_OPERATORS.get(name)
        assert op.infer([], op.bind(attrs)) == (kind,), (name, attrs)
        made, wanted = _run(name, attrs, {n: 7, m: 2})
        assert made.dtype == wanted.dtype and np.array_equal(made, wanted), (name, attrs)


def test_kinds_and_arity() -> None:
    for name in ("full", "arange", "eye", "size_value"):
        op = GRAPH_OPERATORS.get(name)
        assert op.kind == INJECTIVE and op.arity == (0, 0)


@pytest.mark.parametrize(
    ("name", "attrs", "message"),
    [
        ("full", {"shape": (2,), "value": 1.5, "dtype": "int32"}, r"full\(\): value is 1\.5, which is not representable in int32"),
        ("full", {"shape": (2,), "value": 300, "dtype": "uint8"}, "value is 300, which is not representable in uint8"),
        ("full", {"shape": (2,), "value": math.nan, "dtype": "int64"}, "value is nan, which is not representable in int64"),
        ("full", {"shape": (2,), "value": "x", "dtype": "int64"}, "value is 'x'; it must be a number or a size"),
        ("full", {"shape": (0,), "value": 1, "dtype": "int64"}, "the extent 0 is not positive"),
        ("full", {"shape": (2,), "value": 1, "dtype": "int65"}, "unknown dtype 'int65'"),
        ("arange", {"start": 0, "stop": 4, "step": 0, "dtype": "int64"}, "step must not be 0"),
        ("arange", {"start": 4, "stop": 0, "step": 1, "dtype": "int64"}, "the extent 0 is not positive"),
        ("arange", {"start": 0.5, "stop": 4, "step": 1, "dtype": "int64"}, r"start is 0\.5, which is not representable in int64"),
        ("arange", {"start": 0, "stop": math.inf, "step": 1, "dtype": "float32"}, "numbers must be finite"),
        ("arange", {"start": 0, "stop": Var("n"), "step": 0.5, "dtype": "float32"}, "a range with sizes must have integers only"),
        ("arange", {"start": 0, "stop": "4", "step": 1, "dtype": "int64"}, "must be numbers or sizes"),
        ("arange", {"start": 0, "stop": 4, "step": 1, "dtype": "bool"}, "a range of bool is not supported"),
        ("size_value", {"value": 1.5}, r"value is 1\.5, which is not representable in int64"),
    ],
)
def test_errors(name: str, attrs: dict[str, Any], message: str) -> None:
    op = GRAPH_OPERATORS.get(name)
    with pytest.raises(ScriptError, match=message):
        op.infer([], op.bind(attrs))
