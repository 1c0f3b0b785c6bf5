"""Loops marked parallel or vectorized in a script are proved independent before compilation."""

from __future__ import annotations

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.ir.target.target import Target
from tunesmith.support.errors import ScheduleError

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


@T.prim_func
def reduction(A: T.Buffer((8, 64), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        for k in T.parallel(64):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] += A[vi, vk]


@T.prim_func
def sum_without_a_block(A: T.Buffer((64,), "float32"), C: T.Buffer((1,), "float32")):
    for i in T.parallel(64):
        C[0] = C[0] + A[i]


@T.prim_func
def recurrence(A: T.Buffer((8,), "float32"), B: T.Buffer((9,), "float32")):
    for i in T.vectorized(8):
        B[i + 1] = B[i] + A[i]


@pytest.mark.parametrize("func", [reduction, sum_without_a_block, recurrence], ids=lambda f: f.name)
def test_loops_that_carry_a_dependence_are_refused(func: PrimFunc) -> None:
    with pytest.raises(ScheduleError, match=r"(parallel|vectorize) refused \[(data-parallel|independent)\]"):
        tunesmith.build(func, TARGET)
    with pytest.raises(ScheduleError, match=r"(parallel|vectorize) refused \[(data-parallel|independent)\]"):
        tunesmith.compile(func, TARGET)


@T.prim_func
def rows(A: T.Buffer((8, 16), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.parallel(8):
        C[i] = 0.0
        for k in T.vectorized(16):
            C[i] = C[i] + A[i, k]


def test_independent_rows_and_horizontal_sums_are_compiled() -> None:
    a, c = np.arange(128, dtype=np.float32).reshape(8, 16), np.zeros(8, np.float32)
    tunesmith.build(rows, TARGET)["rows"](a, c)
    np.testing.assert_array_equal(c, a.sum(1))
