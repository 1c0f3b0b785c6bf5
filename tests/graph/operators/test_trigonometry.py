"""Test trigonometric and hyperbolic operators, their inverses, erfc, atan2 and hypot against numpy, also at limits and in all types."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

INF, NAN = math.inf, math.nan
EDGES = np.float64(
    [0.0, -0.0, 1e-300, -1e-12, 1e-5, 0.3, -0.66, 0.67, 0.999999, 1.0, -1.0, 1.5, -2.5, 19.0, 40.0, -88.5, 1e9, INF, -INF, NAN]
)
ANY = ("asinh", "atan", "cosh", "erfc", "sinh", "tan", "acos", "asin", "atanh", "acosh")


@pytest.mark.parametrize("name", ANY)
def test_functions_of_one_number(name: str) -> None:
    spread = np.random.default_rng(5).uniform(-3, 3, 40)
    x = np.concatenate([EDGES, spread])
    if name == "tan":
        x = x[np.abs(x) < 100]
    if name in ("sinh", "cosh"):  # the interpreter reports no overflow of other elements
        x = x[~(np.abs(x) > 1e8) | np.isinf(x)]
    check_operator(name, [x], rtol=2e-13, atol=0.0)
    single = x.astype(np.float32)
    if name == "acosh":  # x - 1 has few digits near 1
        single = single[np.abs(single - 1) > 1e-3]
    check_operator(name, [single], rtol=2e-5 if name == "erfc" else 2e-6, atol=1e-37)
    check_operator(name, [spread.astype(np.float16)], rtol=1e-3, atol=1e-3)


def test_values_without_cancellation() -> None:
    """A difference such as 1 - erf(5) has no correct digit in float32."""
    for name, at, expected in (
        ("erfc", 5.0, 1.5374597944280347e-12),
        ("sinh", 1e-6, 1e-6),
        ("atanh", 1e-7, 1e-7),
        ("acos", 0.9999999, 4.8828122e-4),
    ):
        operator = GRAPH_OPERATORS.get(name)
        x = np.float32([at])
        assert operator.evaluate([x])[0][0] == pytest.approx(expected, rel=2e-6)
        check_operator(name, [x], rtol=2e-5, atol=0.0)


def test_angles_in_all_quadrants() -> None:
    values = np.float64([0.0, -0.0, 1.0, -2.0, 1e-200, 1e200, INF, -INF, NAN])
    y, x = [v.ravel() for v in np.meshgrid(values, values)]
    check_operator("atan2", [y, x], rtol=1e-14, atol=0.0)
    with np.errstate(over="ignore"):
        check_operator("atan2", [y.astype(np.float32), x.astype(np.float32)], rtol=1e-6, atol=1e-37)
    check_operator("atan2", [np.float16([[1], [-2]]), np.float16([0.5, -3])], rtol=1e-3)


def test_lengths_without_overflow() -> None:
    a, b = np.float32([3, 1e30, 0, -1e-30, INF, -INF, NAN]), np.float32([4, -1e30, 0, 1e-30, NAN, 2, 1])
    check_operator("hypot", [a, b], rtol=1e-6, atol=0.0)
    check_operator("hypot", [a[:2].astype(np.float64)[:, None], b[:2].astype(np.float64)], rtol=1e-15, atol=0.0)
    check_operator("copysign", [a, np.float32([-0.0])])


def test_integers_are_refused() -> None:
    whole = TensorType.of((3,), "int32")
    for name, count in (("tan", 1), ("atan2", 2)):
        with pytest.raises(ScriptError, match="it takes floats, not int32; insert a cast"):
            GRAPH_OPERATORS.get(name).infer([whole] * count)
