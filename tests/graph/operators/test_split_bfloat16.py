"""Test the split of float32 into bfloat16 parts: values, the sum of the parts, products, special numbers, errors."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.operators.split_bfloat16 import split_parts
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ops import tensor_expression as te
from tunesmith.support.errors import ScriptError

RNG = np.random.default_rng(3)
SPLIT = GRAPH_OPERATORS.get("split_bfloat16")


@pytest.mark.parametrize(("axis", "parts"), [(0, "hl"), (1, "hhl"), (-1, "hlh"), (1, "h"), (0, "lll")])
def test_program_and_reference_agree_bit_for_bit(axis: int, parts: str) -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    attrs = SPLIT.bind({"axis": axis, "parts": parts})
    tensor = te.placeholder((3, 4), "float32", "x")
    func = te.create_prim_func([tensor, *SPLIT.apply([tensor], attrs)], "split")
    expected = split_parts(x, axis, parts).astype(np.float32)
    np.testing.assert_array_equal(run(func, [x])[1], expected)
    np.testing.assert_array_equal(SPLIT.evaluate([x], attrs)[0], expected)


def test_the_parts_sum_to_sixteen_bits() -> None:
    x = RNG.standard_normal(10000).astype(np.float32) * np.exp2(RNG.integers(-60, 60, 10000)).astype(np.float32)
    high, low = split_parts(x, 0, "hl").astype(np.float64).reshape(2, -1)
    assert np.abs(high + low - x).max() > 0
    assert (np.abs(high + low - x) <= 2.0**-16 * np.abs(x)).all() and (np.abs(high - x) <= 2.0**-8 * np.abs(x)).all()


def test_products_of_parts_have_about_the_precision_of_float32() -> None:
    a, b = RNG.standard_normal((20, 300)).astype(np.float32), RNG.standard_normal((300, 20)).astype(np.float32)
    made = split_parts(a, 1, "hhl").astype(np.float64) @ split_parts(b, 0, "hlh").astype(np.float64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(made - exact).max() < 1e-5 * np.abs(exact).max()


def test_infinities_have_no_low_part() -> None:
    high, low = split_parts(np.array([np.inf, np.nan, 3e38, 0.0, -0.0], np.float32), 0, "hl").astype(np.float32).reshape(2, -1)
    assert np.isposinf(high[0]) and np.isnan(low[0]) and np.isnan(high[1]) and np.isfinite(high[2]) and high[3] == low[3] == 0


@pytest.mark.parametrize(
    ("dtype", "attrs", "message"),
    [
        ("float64", {"axis": 0, "parts": "hl"}, "only float32 is split into bfloat16 parts, not float64"),
        ("float32", {"axis": 2, "parts": "hl"}, "axis 2 is not one of the 2 axes of the operand"),
        ("float32", {"axis": 0, "parts": ""}, "parts='' must be letters h"),
        ("float32", {"axis": 0, "parts": "hm"}, "parts='hm' must be letters h"),
    ],
)
def test_refusals(dtype: str, attrs: dict[str, object], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        SPLIT.infer([TensorType.of((3, 4), dtype)], SPLIT.bind(attrs))
