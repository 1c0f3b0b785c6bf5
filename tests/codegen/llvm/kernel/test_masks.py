"""Test that inactive lanes of masked vectors do not reach results."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.script.parser import parse


@pytest.mark.parametrize("divisor", ["B[{at}]", "(B[{at}] * B[{at}])", "(B[{at}] - A[{at}])"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("extent", [17, 31])
def test_inactive_lanes_of_a_division_are_excluded(divisor: str, dtype: str, extent: int) -> None:
    """LLVM 22 takes 0 / 0 for 0 and drops the select; the sum of ratios was NaN on AVX-512."""
    at = "vk * 16 + vl"
    func = parse(
        f"""
@T.prim_func
def ratios(A: T.Buffer(({extent},), "{dtype}"), B: T.Buffer(({extent},), "{dtype}"), Y: T.Buffer((16,), "{dtype}")):
    for k in T.serial(2):
        for l in T.vectorized(16):
            with T.block("Y"):
                vk, vl = T.axis.remap("SS", [k, l])
                Y[vl] = Y[vl] + T.select({at} < {extent}, A[{at}] / {divisor.format(at=at)}, T.{dtype}(0))
"""
    )
    a, b, y = np.arange(1, extent + 1, dtype=dtype), np.full(extent, 500, dtype), np.zeros(16, dtype)
    tunesmith.build(func, "llvm")["ratios"](a, b, y)
    d = eval(divisor.format(at=":"), {"A": a, "B": b})
    expected = np.zeros(32)
    expected[:extent] = a / d
    np.testing.assert_allclose(y, expected[:16] + expected[16:], rtol=1e-5)
