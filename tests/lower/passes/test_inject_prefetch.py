"""inject_prefetch: the addresses and the spread of prefetches, and loops that get none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.expr import Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import evaluate
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import Evaluate, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.inject_prefetch import inject_prefetch
from tunesmith.lower.pipelines import CPU
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

V4 = Target("llvm -mcpu=x86-64-v4 -num-cores=2")
M, N, K, LANES = 4, 64, 5, 16


def product(ahead: int, operand: str = "W_copy", rows: int = 2, loop: str = "j") -> PrimFunc:
    """A matrix product with packed weights: panels of 16 columns outside, tiles of rows inside."""
    s = Schedule(workload(f"dense(m={M},n={N},k={K},bias=0)").func)
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    (jo, ji), (io, ii) = s.split(j, [None, LANES]), s.split(i, [None, rows])
    s.reorder([jo, io, k, ii, ji])
    copy = s.cache_read(block, "W", "global", [[1, "/", LANES], 0, [1, "%", LANES]])
    s.annotate(copy, "pack_constant", "W")
    where = {"j": jo, "i": io}[loop]
    s.annotate(where, "prefetch_operand", operand)
    s.annotate(where, "prefetch_ahead", ahead)
    s.vectorize(ji)
    s.unroll(ii)
    s.decompose_reduction(block, k)
    return s.func


def fetches(func: PrimFunc) -> list[Call]:
    return [n.value for n in walk(func.body) if type(n) is Evaluate]  # type: ignore[misc]


def test_the_next_panel_is_prefetched_evenly(assert_golden: Callable[..., None]) -> None:
    done = CPU(product(1), V4)
    (fetch,) = fetches(done)
    assert fetch.name == "prefetch_l2"
    assert_golden(str(done))
    # All iterations together cover the next panel from start to end.
    index = fetch.args[0].indices[0]  # type: ignore[attr-defined]
    loops = {n.var.name: n for n in walk(done.body) if type(n) is For and n.var in index.vars}
    at = [evaluate(index, {loops["j_0"].var: 1, loops["i_0"].var: i, loops["k"].var: k}) for i in range(M // 2) for k in range(K)]
    panel = K * LANES
    assert at == sorted(at) and at[0] == 2 * panel and 2 * panel < at[-1] < 3 * panel and max(np.diff(at)) <= LANES


@pytest.mark.parametrize(
    "func",
    [
        product(0),
        product(1, "absent"),
        product(1, "A"),  # does not move with the loop
        product(1, loop="i"),  # nor do the weights with the rows
    ],
    ids=["no iteration ahead", "no such buffer", "an operand of rows", "a loop of rows"],
)
def test_loops_without_prefetches(func: PrimFunc) -> None:
    assert not fetches(inject_prefetch(func, V4))


def test_a_function_without_the_annotation_is_unchanged() -> None:
    func = workload("relu(shape=8)").func
    assert inject_prefetch(func, V4) is func


def test_one_row_prefetches_several_lines_at_once() -> None:
    s = Schedule(workload("dense(m=1,n=64,k=5,bias=0)").func)
    block = s.get_block("C")
    i, j, k = s.get_loops(block)
    jo, ji = s.split(j, [None, 32])
    s.reorder([i, jo, k, ji])
    s.vectorize(ji)
    s.cache_read(block, "W", "global", [[1, "/", 32], 0, [1, "%", 32]])
    s.annotate(jo, "prefetch_operand", "W_copy")
    s.annotate(jo, "prefetch_ahead", 1)
    assert len(fetches(inject_prefetch(s.func, V4))) == 2


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_results_are_unchanged(ahead: int) -> None:
    x, w = np.ones((M, K), np.float32), np.arange(K * N, dtype=np.float32).reshape(K, N)
    np.testing.assert_allclose(run(product(ahead), {"A": x, "W": w})[2], x @ w)
    np.testing.assert_allclose(run(inject_prefetch(product(ahead), V4), {"A": x, "W": w})[2], x @ w)
    made, out = build(product(ahead), Target("llvm -num-cores=2")), np.zeros((M, N), np.float32)
    Module.from_object(made.data)["dense"](x, w, out)
    np.testing.assert_allclose(out, x @ w)
    assert ("call void @llvm.prefetch.p0(ptr" in emit_text(product(ahead), V4)[0]) == (ahead > 0)


@pytest.mark.parametrize(("dtype", "value"), [("float32", "T.lookup(I[vj], 32, lambda q: X[q + vj, vk])"), ("bool", "X[vj, vk]")])
def test_indirect_indices_and_bools(dtype: str, value: str) -> None:
    """Loads with indirect indices are not prefetched; loads of bools are, as bytes."""
    func = parse(
        f"""
@T.prim_func
def f(I: T.Buffer((8,), "int64"), X: T.Buffer((64, 16), "{dtype}"), C: T.Buffer((8, 16), "{dtype}")):
    for j in T.serial(8, annotations={{"prefetch_operand": "X", "prefetch_ahead": 1}}):
        for k in T.serial(16):
            with T.block("C"):
                vj, vk = T.axis.remap("SS", [j, k])
                C[vj, vk] = {value}
"""
    )
    assert isinstance(func, PrimFunc)
    assert len(fetches(CPU(func, V4))) == (dtype == "bool")
    i, x = np.arange(8)[::-1].copy(), (np.arange(1024) % 3).reshape(64, 16).astype(dtype)
    out = np.zeros((8, 16), dtype)
    Module.from_object(build(func, Target("llvm -mcpu=x86-64-v3 -num-cores=1")).data)["f"](i, x, out)
    np.testing.assert_array_equal(out, x[:8] if dtype == "bool" else x[[7] * 8])
