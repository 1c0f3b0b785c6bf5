"""Functions without tuning records are correct, vectorized and parallel."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.fallback.default_schedule import default_schedule, is_unscheduled
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

TARGET = Target("llvm")


@pytest.mark.parametrize(
    "text",
    [
        "matmul(m=33,n=70,k=17)",
        "matmul(m=130,n=129,k=50,ta=1,tb=1)",
        "dense(m=20,n=40,k=30,activation=gelu)",
        "conv2d(n=2,h=14,w=15,ci=24,co=16,kh=3,kw=3,pad=1,stride=2,groups=2,layout=NCHW)",
        "conv2d(n=1,h=9,w=9,ci=8,co=8,kh=3,kw=3,pad=1,groups=8,bias=1,relu=1)",
        "softmax(m=70,n=300)",
        "layer_norm(m=60,n=333)",
        "sum(shape=300x130,axis=0)",
        "sum(shape=31x7)",
        "add(shape=3x5x70,other=5x1)",
        "log(shape=1000,dtype=float64)",
    ],
)
def test_results_are_correct(text: str) -> None:
    w = workload(text)
    func = default_schedule(w.func, TARGET)
    inputs = w.random_inputs()
    outputs = [np.full(spec.shape, np.nan, spec.dtype) for spec in w.outputs]
    Module.from_object(build(func, TARGET).data)[w.name](*inputs, *outputs)
    for actual, expected in zip(outputs, w.reference(inputs), strict=True):
        assert mismatch(actual, expected, tolerance_of(w.func)) is None


def test_only_large_work_gets_threads() -> None:
    def kinds(text: str) -> set[str]:
        func = default_schedule(workload(text).func, Target("llvm -mcpu=x86-64-v3 -num-cores=4"))
        return {n.kind for n in walk(func.body) if type(n) is For}

    assert kinds("matmul(m=64,n=64,k=64)") == {"parallel", "serial", "vectorized"}
    assert kinds("matmul(m=8,n=8,k=8)") == {"serial", "vectorized"}
    assert kinds("matmul(m=8,n=4,k=8)") == {"serial"}
    one = default_schedule(workload("relu(shape=100x1000)").func, Target("llvm -mcpu=x86-64-v3 -num-cores=1"))
    assert "parallel" not in {n.kind for n in walk(one.body) if type(n) is For}


def test_scheduled_functions_are_unchanged(hand: ModuleType) -> None:
    for change in (
        lambda s: s.split(s.get_loops(s.get_block("C"))[0], [None, 4]),
        lambda s: s.parallel(s.get_loops(s.get_block("C"))[0]),
        lambda s: s.cache_read(s.get_block("C"), "B", "workspace"),
        lambda s: s.reorder(list(reversed(s.get_loops(s.get_block("C"))))),
    ):
        s = Schedule(hand.matmul())
        change(s)
        assert not is_unscheduled(s.func)
        assert default_schedule(s.func, TARGET) is s.func


def test_gpu_loops_are_bound_deterministically(hand: ModuleType) -> None:
    func = hand.matmul()
    bound = default_schedule(func, Target("cuda -arch=sm_90"))
    assert {f.thread for f in walk(bound.body) if type(f) is For and f.thread} == {"blockIdx.x", "threadIdx.x"}
    assert is_unscheduled(func)
    assert structural.digest(default_schedule(func, TARGET)) == structural.digest(default_schedule(hand.matmul(), TARGET))
