"""lower_blocks, guard_zero_padding: blocks become statements, and padding costs no arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Block, Evaluate, If
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.guard_zero_padding import guard_zero_padding
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.runtime.module import Module

Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=1")


@T.prim_func
def matmul(A: T.Buffer((5, 6), "float32"), B: T.Buffer((6, 7), "float32"), C: T.Buffer((5, 7), "float32")):
    for i, j, k_0, k_1, r in T.grid(5, 7, 2, 4, 1):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            vk = T.axis.reduce(6, k_0 * 4 + k_1)
            vr = T.axis.reduce(1, r)
            T.where(k_0 * 4 + k_1 < 6)
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk + vr, vj]


def test_lower_blocks(lowered: Lowered, assert_golden: Golden) -> None:
    done = lowered(matmul, lower_blocks)
    assert not any(type(n) is Block for n in walk(done.body))
    assert_golden(str(done))


@T.prim_func
def guarded(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("first"):
            vi = T.axis.spatial(8, i)
            T.where(i < 6)
            T.where(2 < i)
            C[vi] = A[vi]
        with T.block("rest"):
            vi = T.axis.spatial(8, 7 - i)
            T.where(4 < i)
            C[vi] = A[vi] + 1.0


def test_each_guard_is_a_separate_if(lowered: Lowered) -> None:
    done = lowered(guarded, lower_blocks)
    assert sum(type(n) is If for n in walk(done.body)) == 3


@T.prim_func
def padded(X: T.Buffer((6,), "float32"), W: T.Buffer((3,), "float32"), Y: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        Y[i] = 0.0
        for r in T.serial(3):
            Y[i] = Y[i] + T.select(0 < i + r and i + r < 7, X[i + r - 1], T.float32(0.0)) * W[r]


def test_guard_zero_padding(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(padded, guard_zero_padding)))


@T.prim_func
def others(X: T.Buffer((6,), "float32"), W: T.Buffer((6,), "float32"), Y: T.Buffer((6,), "float32"), Z: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        Y[i] = W[i] * T.select(i < 3, X[i], T.float32(0.0))
        Y[i] = Y[i] + W[i] * T.select(i < 3, X[i], T.float32(1.0))
        Y[i] = Y[5 - i] + W[i] * T.select(i < 3, X[i], T.float32(0.0))
        Z[i] = Y[i] + W[i] * T.select(i < 3, X[i], T.float32(0.0))


def test_only_sums_of_products_with_zero_are_guarded(lowered: Lowered) -> None:
    """A stored product, another select, and a sum from another element or buffer are unchanged."""
    assert lowered(others, guard_zero_padding) is others


@T.prim_func
def either_side(X: T.Buffer((6,), "float32"), W: T.Buffer((6,), "float32"), Y: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        Y[i] = 0.0
        Y[i] = Y[i] + W[i] * T.select(i < 3, X[i], T.float32(0.0))


def test_the_select_may_be_either_factor(lowered: Lowered) -> None:
    assert "if i < 3:" in str(lowered(either_side, guard_zero_padding))


@T.prim_func
def gathered(N: T.Buffer((8,), "int64"), X: T.Buffer((12,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            T.block_attr({"prefetch": 16})
            C[vi] = T.lookup(N[vi], 12, lambda q: X[q])


def test_loads_with_indirect_indices_are_not_prefetched() -> None:
    """The address is unknown before the statement; the index values themselves are prefetched."""
    done = lower_blocks(gathered, TARGET)
    assert [n.value.args[0].buffer.name for n in walk(done.body) if type(n) is Evaluate] == ["N"]
    numbers, values, out = np.array([3, 1, 11, 0, 2, 9, 4, 4]), np.arange(12, dtype=np.float32), np.zeros(8, np.float32)
    Module.from_object(build(gathered, TARGET).data)["gathered"](numbers, values, out)
    np.testing.assert_array_equal(out, numbers)
