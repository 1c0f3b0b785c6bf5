"""Shifts by any count equal numpy, in scalar and vector code, and in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module

TARGETS = [Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1"), Target("llvm -mcpu=x86-64-v3 -num-cores=1")]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("op", ["<<", ">>"])
def test_counts_beyond_the_width(dtype: str, op: str) -> None:
    a = np.array([5, -7] * 8).astype(dtype)
    n = np.array([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65]).astype(dtype)
    if np.issubdtype(n.dtype, np.signedinteger):
        n[-1] = -1
    shift = np.left_shift if op == "<<" else np.right_shift
    want = shift(a, n), shift(a, n.dtype.type(70)), shift(a, n.dtype.type(3))
    for kind in ("serial", "vectorized"):
        func = parse(
            f"""
@T.prim_func
def f(A: T.Buffer((16,), "{dtype}"), N: T.Buffer((16,), "{dtype}"), B: T.Buffer((16,), "{dtype}"), C: T.Buffer((16,), "{dtype}"),
      D: T.Buffer((16,), "{dtype}")):
    for i in T.{kind}(16):
        B[i] = A[i] {op} N[i]
        C[i] = A[i] {op} T.{dtype}(70)
        D[i] = A[i] {op} T.{dtype}(3)
"""
        )
        assert isinstance(func, PrimFunc)
        for target in TARGETS:
            out = [np.zeros_like(a) for _ in want]
            Module.from_object(build(func, target).data)["f"](a, n, *out)
            for x, y in zip(out, want, strict=True):
                np.testing.assert_array_equal(x, y)
        for x, y in zip(run(func, [a, n, *[np.zeros_like(a)] * 3])[2:], want, strict=True):
            np.testing.assert_array_equal(x, y)


def test_minimum_of_a_float_as_unsigned_integer_and_zero() -> None:
    """LLVM 22 aborts if it folds this into a saturating conversion."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "uint32")):
    for i in T.serial(8):
        C[i] = T.min(T.cast("uint32", A[i]), T.uint32(0))
"""
    )
    assert isinstance(func, PrimFunc)
    c = np.ones(8, np.uint32)
    Module.from_object(build(func, TARGETS[0]).data)["f"](np.arange(8, dtype=np.float32), c)
    assert not c.any()


def test_a_parallel_loop_of_a_negative_extent_does_not_run() -> None:
    func = parse(
        """
@T.prim_func
def f(C: T.Buffer((8,), "int32"), n: T.int64):
    for i in T.parallel(n - 5):
        C[i] = 1
"""
    )
    assert isinstance(func, PrimFunc)
    call = Module.from_object(build(func, Target("llvm -mcpu=x86-64-v3 -num-cores=2")).data)["f"]
    for n in (3, 4, 5, 8):
        c = np.zeros(8, np.int32)
        call(c, n)
        assert c.sum() == max(n - 5, 0)
