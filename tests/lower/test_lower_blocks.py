"""lower_blocks, skip_zero_terms: blocks become statements, and padding costs no arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tunesmith.codegen.llvm_build import build, emit_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Block, Evaluate, If
from tunesmith.ir.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.lower_blocks import lower_blocks
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.skip_zero_terms import skip_zero_terms
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]


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


def test_each_guard_is_an_if_of_its_own(lowered: Lowered) -> None:
    done = lowered(guarded, lower_blocks)
    assert sum(type(n) is If for n in walk(done.body)) == 3


def panels(ahead: int) -> PrimFunc:
    """A product with packed weights whose panels are fetched ahead."""
    s = Schedule(workload("dense(m=4,n=32,k=5,bias=0)").func)
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    (jo, ji), (io, ii) = s.split(j, [None, 16]), s.split(i, [None, 2])
    s.reorder([io, jo, k, ii, ji])
    copy = s.cache_read(block, "W", "global", [[1, "/", 16], 0, [1, "%", 16]])
    s.annotate(copy, "pack_constant", "W")
    s.annotate(block, "prefetch_operand", "W_copy")
    s.annotate(block, "prefetch_panels", ahead)
    s.vectorize(ji)
    s.unroll(ii)
    s.decompose_reduction(block, k)
    return s.func


def test_panels_are_fetched_ahead_once_however_many_rows_use_them(assert_golden: Golden) -> None:
    target = Target("llvm -mcpu=x86-64-v4 -num-cores=2")
    done = CPU(panels(1), target)
    assert [n.value.name for n in walk(done.body) if type(n) is Evaluate] == ["prefetch_l2"]  # type: ignore[attr-defined]
    assert_golden(str(done))
    assert not any(type(n) is Evaluate for n in walk(CPU(panels(0), target).body))
    x, w = np.ones((4, 5), np.float32), np.arange(160, dtype=np.float32).reshape(5, 32)
    np.testing.assert_allclose(run(panels(2), {"A": x, "W": w})[2], x @ w)
    made = build(panels(2), Target("llvm -num-cores=2"))
    out = np.zeros((4, 32), np.float32)
    Module.from_object(made.data)["dense"](x, w, out)
    np.testing.assert_allclose(out, x @ w)
    assert "llvm.prefetch.p0(ptr" in emit_text(panels(1), target)[0]


@T.prim_func
def padded(X: T.Buffer((6,), "float32"), W: T.Buffer((3,), "float32"), Y: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        Y[i] = 0.0
        for r in T.serial(3):
            Y[i] = Y[i] + T.select(0 < i + r and i + r < 7, X[i + r - 1], T.float32(0.0)) * W[r]


def test_skip_zero_terms(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(padded, skip_zero_terms)))


@T.prim_func
def others(X: T.Buffer((6,), "float32"), W: T.Buffer((6,), "float32"), Y: T.Buffer((6,), "float32"), Z: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        Y[i] = W[i] * T.select(i < 3, X[i], T.float32(0.0))
        Y[i] = Y[i] + W[i] * T.select(i < 3, X[i], T.float32(1.0))
        Y[i] = Y[5 - i] + W[i] * T.select(i < 3, X[i], T.float32(0.0))
        Z[i] = Y[i] + W[i] * T.select(i < 3, X[i], T.float32(0.0))


def test_only_sums_of_products_with_zero_are_skipped(lowered: Lowered) -> None:
    """A product stored, a select of something else, a sum from another element or of another buffer stay."""
    assert lowered(others, skip_zero_terms) is others


@T.prim_func
def either_side(X: T.Buffer((6,), "float32"), W: T.Buffer((6,), "float32"), Y: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        Y[i] = 0.0
        Y[i] = Y[i] + W[i] * T.select(i < 3, X[i], T.float32(0.0))


def test_the_select_may_stand_on_either_side(lowered: Lowered) -> None:
    assert "if i < 3:" in str(lowered(either_side, skip_zero_terms))
