"""Test functions related to the gamma function, and erfinv, against numpy and scipy, at poles, and in all types."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

X = np.concatenate([np.linspace(-6.3, 9.7, 41), [0.0, -0.0, 1.0, 2.0, -3.0, 1e-9, 170.5, 1e10, math.inf, math.nan]])


@pytest.mark.parametrize(("name", "reference"), [("lgamma", scipy.special.gammaln), ("digamma", scipy.special.digamma)])
def test_gamma_functions(name: str, reference: np.ufunc) -> None:
    check_operator(name, [X], rtol=1e-12, atol=1e-12)
    check_operator(name, [X.astype(np.float32)], rtol=1e-6, atol=1e-6, compiled=False)
    numbers = X[~((X < 0) & (X == np.floor(X)))]  # scipy has other values at poles
    operator = GRAPH_OPERATORS.get(name)
    np.testing.assert_allclose(operator.evaluate([numbers])[0], reference(numbers), rtol=1e-12, atol=1e-13)


def test_inverse_of_the_error_function() -> None:
    below_one = np.nextafter(np.float64(1), 0)
    y = np.concatenate([np.linspace(-1, 1, 81), [0.0, -0.0, 1e-300, 1e-9, 0.85, -0.8500001, 1 - 1e-12, below_one, 1.5, math.inf, math.nan]])
    check_operator("erfinv", [y], rtol=1e-12, atol=0)
    check_operator("erfinv", [y.astype(np.float32)], rtol=1e-6, atol=0, compiled=False)
    np.testing.assert_allclose(GRAPH_OPERATORS.get("erfinv").evaluate([y])[0], scipy.special.erfinv(y), rtol=1e-13, atol=0)


def test_integers_are_refused() -> None:
    with pytest.raises(ScriptError, match="it takes floats, not int32"):
        GRAPH_OPERATORS.get("lgamma").infer([TensorType.of((3,), "int32")])
