"""Comparisons, minima and maxima of bools on each backend: false is less than true, as in numpy."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.runtime.device.opencl import OPENCL
from tunesmith.support.errors import ScriptError

N = 32
OPENCL_ONLY = pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime here: pip install 'tunesmith[opencl]'")
CASES: dict[str, Any] = {
    "a < b": np.less,
    "a <= b": np.less_equal,
    "a > b": np.greater,
    "a >= b": np.greater_equal,
    "a == b": np.equal,
    "a != b": np.not_equal,
    "T.max(a, b)": np.maximum,
    "T.min(a, b)": np.minimum,
    "a & b": np.bitwise_and,
    "a | b": np.bitwise_or,
    "a ^ b": np.bitwise_xor,
    "T.select(a < b, a, b)": np.minimum,
    "T.select(a <= b, not a, b)": lambda a, b: np.where(a <= b, ~a, b),
}
PAIRS = [np.array(x * (N // 4), bool) for x in zip(*itertools.product((False, True), repeat=2), strict=True)]
X = np.arange(N) % 5 - 2.0
P = (np.arange(N) % 7 - 3).astype("int8")


MIXED: dict[str, Any] = {
    "T.if_then_else(A[0], x < 0, p < 0)": lambda a, b: P < 0,
    "T.if_then_else(A[3], x < 0, b)": lambda a, b: X < 0,
    "(p < 0) < (x < 0)": lambda a, b: ~(P < 0) & (X < 0),
    "T.max(a, x < 0)": lambda a, b: a | (X < 0),
}


def elementwise(value: str, vectorized: bool) -> PrimFunc:
    """`C[i]` from the bools a and b, the float64 x and the int8 p."""
    element = re.sub(r"\b[abxp]\b", lambda m: f"{m[0].upper()}[i]", value)
    made = parse(f"""
@T.prim_func
def f(A: T.Buffer(({N},), "bool"), B: T.Buffer(({N},), "bool"), X: T.Buffer(({N},), "float64"), P: T.Buffer(({N},), "int8"),
      C: T.Buffer(({N},), "bool")):
    for i in {"T.vectorized" if vectorized else "T.serial"}({N}):
        C[i] = {element}
""")
    assert isinstance(made, PrimFunc)
    return made


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("target", ["llvm", "c", pytest.param("opencl", marks=OPENCL_ONLY)])
def test_bools_are_ordered(target: str, vectorized: bool) -> None:
    """Vectors of bools are masks of several widths, in which true is -1."""
    a, b = PAIRS
    for value, meaning in {**CASES, **MIXED}.items():
        c = np.zeros(N, bool)
        tunesmith.build(elementwise(value, vectorized), target)["f"](a, b, X, P, c)
        np.testing.assert_array_equal(c, meaning(a, b), err_msg=value)


def test_the_interpreter_orders_bools() -> None:
    for value, meaning in {**CASES, **MIXED}.items():
        c = run(elementwise(value, False), [*PAIRS, X, P, np.zeros(N, bool)])[4]
        np.testing.assert_array_equal(c, meaning(*PAIRS), err_msg=value)


@pytest.mark.parametrize("value", ["a + b", "a - b", "a * b", "a // b", "a % b", "a << b"])
def test_arithmetic_of_bools_is_refused(value: str) -> None:
    with pytest.raises(ScriptError, match="is for numbers, got a condition; cast it to an integer type"):
        elementwise(value, False)
