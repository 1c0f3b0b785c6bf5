"""Test the numpy models of AMX products by cases whose results are known without a model."""

from __future__ import annotations

import numpy as np

from tunesmith.testing.amx_model import float_model, fused, integer_model


def test_known_results() -> None:
    one, tiny = np.float32([1]), np.float32([2.0**-126])
    assert fused(one + np.float32(2**-7), one, np.float32([2**-40])) == np.float32(1 + 2**-7)
    assert fused(one, np.float32([2.0**-24]), one) == 1, "a tie goes to the even number"
    assert fused(one, np.float32([2.0**-24]), one + np.float32(2.0**-23)) == np.float32(1 + 2.0**-22)
    assert fused(np.float32([2.0**-63]), np.float32([2.0**-64]), np.float32([0])) == 0
    assert fused(np.float32([1e-40]), one, tiny) == tiny
    a, b = np.float32([[[3, 5]]]), np.float32([[[7, 11]]])
    assert float_model(a, b, np.float32([[2]])) == 78
    assert integer_model(np.full((1, 1, 4), 127, np.int8), np.full((1, 1, 4), 127, np.int8), np.int32([[2**31 - 1]])) < 0
