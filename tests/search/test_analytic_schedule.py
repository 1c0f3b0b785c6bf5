"""Test schedules without measurements: reproducibility, results, and functions without a search space."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.device.build import build as build_for_device
from tunesmith.codegen.llvm.build import build
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.legalise import prim_func
from tunesmith.graph.tuning.apply_records import Scheduled
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.script.parser import parse
from tunesmith.ir.specialize import sizes_of
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.pass_context import PassContext
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule, replay
from tunesmith.search import analytic_schedule as untuned
from tunesmith.search.analytic_schedule import analytic_choice, analytic_schedule, schedule_by_cost, untuned_choice
from tunesmith.search.structure_search import Drawn, draw
from tunesmith.search.task import Task

TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")
MATMUL = "matmul(m=32,n=32,k=32)"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a small draw, because the ranking is not tested."""
    monkeypatch.setattr(untuned, "DRAWN", 64)


def test_equal_functions_get_equal_schedules() -> None:
    first, second = [analytic_schedule(workload(MATMUL).func, TARGET) for _ in range(2)]
    verify(first)
    assert structural.equal(first, second) and first.name == "matmul"
    assert not structural.equal(first, workload(MATMUL).func)
    assert not structural.equal(first, default_schedule(workload(MATMUL).func, TARGET))
    renamed = analytic_schedule(workload(MATMUL).func.with_(name="layer1"), TARGET)
    assert renamed.name == "layer1" and structural.equal(renamed.with_(name="matmul"), first), "the draw does not depend on names"


@pytest.mark.parametrize("text", (MATMUL, "softmax(m=5,n=7)", "conv2d(n=1,h=4,w=4,ci=2,co=8,kh=1,kw=3)", "relu(shape=1)"))
def test_scheduled_functions_compute_the_same(text: str) -> None:
    w = workload(text)
    inputs = w.random_inputs()
    (spec,) = w.outputs
    out = np.full(spec.shape, np.nan, spec.dtype)
    Module.from_object(build([analytic_schedule(w.func, TARGET)], TARGET).data)[w.func.name](*inputs, out)
    np.testing.assert_allclose(out, w.reference(inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("k", [4096, 4099])
def test_a_matrix_times_a_vector_is_vectorised_along_the_rows_of_the_matrix(k: int) -> None:
    found = analytic_schedule(workload(f"matmul(m=512,n=1,k={k})").func, TARGET)
    blocks = {b.name: b for b in blocks_under(found.body)}
    assert "C_rf" in blocks and "A_copy" not in blocks, "lanes of each row are reduced apart, and the matrix is not packed"


def dynamic() -> PrimFunc:
    b = GraphBuilder("sized")
    n = Var("n")
    return prim_func(b.finish(b.exp(b.input("x", (n, 16)))))


def test_dynamic_shapes_and_scheduled_functions_are_not_searched() -> None:
    assert structural.equal(analytic_schedule(dynamic(), TARGET), default_schedule(dynamic(), TARGET))
    s = Schedule(workload(MATMUL).func)
    s.parallel(s.get_loops(s.get_block("C"))[0])
    assert analytic_schedule(s.func, TARGET) is s.func


def test_the_best_of_the_draw_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Drawn] = []

    def spy(*given: Any) -> Drawn:
        drawn.append(draw(*given))
        return drawn[-1]

    monkeypatch.setattr(untuned, "draw", spy)
    func = workload("matmul(m=512,n=512,k=512)").func
    chosen = analytic_schedule(func, TARGET)
    ((sketches, population),) = [(d.sketches, d.population) for d in drawn]
    assert 1 < len(population) <= 64 + len(sketches)
    value, sketch, at = min((v, k, i) for k, values in population.values.items() for i, v in enumerate(values))
    assert value < max(v for values in population.values.values() for v in values)
    trace = sketches[sketch].trace_of(tuple(int(x) for x in population.rows[sketch][at]))
    assert structural.equal(chosen, replay(trace, func).func)


@pytest.mark.parametrize("text", (MATMUL, "conv2d(n=1,h=9,w=9,ci=8,co=8,kh=3,kw=3,pad=1)", "softmax(m=64,n=64)"))
def test_a_task_with_its_space_gets_the_same_schedule(text: str) -> None:
    func = workload(text).func
    assert structural.equal(schedule_by_cost(Task("t", func, TARGET)), analytic_schedule(func, TARGET))


def is_parallel(func: PrimFunc) -> bool:
    return any(type(n) is For and n.kind == "parallel" for n in walk(func.body))


@pytest.mark.parametrize("text", ("softmax(m=4,n=3)", "matmul(m=16,n=16,k=16)", "sum(shape=40x50,axis=1)", "relu(shape=1000)"))
def test_small_work_is_serial(text: str) -> None:
    func = workload(text).func
    assert not is_parallel(analytic_schedule(func, TARGET)) and not is_parallel(default_schedule(func, TARGET))


@pytest.mark.parametrize("text", ("softmax(m=512,n=512)", "matmul(m=512,n=512,k=512)", "sum(shape=999x4000,axis=1)", "relu(shape=4000000)"))
def test_large_work_is_parallel(text: str) -> None:
    func = workload(text).func
    assert is_parallel(analytic_schedule(func, TARGET)) and is_parallel(default_schedule(func, TARGET))


@pytest.mark.parametrize("tag", ["nvidia/h200", "nvidia/a100"])
@pytest.mark.parametrize(
    "text",
    [
        "matmul(m=1024,n=1024,k=1024)",
        "batch_matmul(b=16,m=256,n=256,k=64)",
        "conv2d(n=1,h=56,w=56,ci=64,co=64,kh=3,kw=3,pad=1)",
        "softmax(m=4096,n=4096)",
        "layer_norm(m=4096,n=1024)",
        "sum(shape=4194304)",
    ],
)
def test_gpu_schedules_do_not_spill(text: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untuned, "DRAWN", 2048)
    target = Target(tag)
    facts = build_for_device(analytic_schedule(workload(text).func, target), target).facts
    assert facts["spill_bytes"] == 0 and 0 < facts["registers"] <= 255
    assert facts["shared_bytes"] <= target.shared_memory_per_block


def test_the_kernel_with_the_fewest_spills_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    spills = iter([300.0, 100.0, 200.0])
    monkeypatch.setattr(untuned, "TRIED", 3)
    built: list[PrimFunc] = []

    def fake_build(func: PrimFunc, target: Target) -> SimpleNamespace:
        built.append(func)
        return SimpleNamespace(facts={"spill_bytes": next(spills)})

    monkeypatch.setattr(untuned, "build", fake_build)
    monkeypatch.setattr("tunesmith.codegen.device.build.UNCERTAIN", 255)  # so that every program may spill
    chosen = analytic_schedule(workload(MATMUL).func, Target("nvidia/h200"))
    assert len(built) == 3 and chosen is built[1]


PLUS = """
@T.prim_func
def plus(X: T.Buffer((n,), "float32"), Y: T.Buffer((n,), "float32"), n: T.int64):
    for i in T.serial(n):
        with T.block("Y"):
            v = T.axis.spatial(n, i)
            Y[v] = X[v] + T.float32(1)
"""


def test_choices_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untuned, "_REMEMBERED", {})
    made: list[str] = []

    def choice(func: PrimFunc, target: Target, error_growth: float) -> Scheduled:
        made.append(func.name)
        return analytic_choice(func, target, error_growth)

    monkeypatch.setattr(untuned, "analytic_choice", choice)
    first = untuned_choice(workload(MATMUL).func, TARGET)
    assert untuned_choice(workload(MATMUL).func, TARGET) is first and made == ["matmul"]
    assert untuned_choice(workload(MATMUL).func.with_(name="other"), TARGET).func.name == "other"
    untuned_choice(workload(MATMUL).func, TARGET.with_attributes(l2_bytes=1 << 16))
    untuned_choice(workload(MATMUL).func, TARGET, 1.0)
    with PassContext(disabled=["unswitch_loops"]):
        untuned_choice(workload(MATMUL).func, TARGET)
    assert len(made) == 5
    for _ in range(2):  # its size is a variable of its own
        func = parse(PLUS)
        assert isinstance(func, PrimFunc)
        assert sizes_of(untuned_choice(func, TARGET).func) == sizes_of(func)
