"""The CPU pipeline as a whole: every pass keeps what a scheduled program computes, finds nothing more to do, and is watched."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith import lower
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import transform
from tunesmith.lower.pass_infra import STAGES, Pipeline, function_pass, names, pass_context
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.support.seeds import stream

CASES = 40
LIMITED = ("version_loops", "unswitch_loops")
"""They stop at a number of copies, so that a second run may find what the first one left."""


def pair(schedules: ModuleType, n: int) -> tuple[Any, tuple[int, ...]]:
    """(case, row) number n: what the rules and random walks make of each workload in turn."""
    text = schedules.WORKLOADS[n % len(schedules.WORKLOADS)]
    rng = stream(n, "lower.pipeline", text)
    cases = [*schedules.rule_cases(text), schedules.walk_case(text, 900 + n)]
    case = cases[int(rng.integers(len(cases)))] if n % 4 else cases[-1]
    return case, schedules.biased_rows(case.sketch, case.workload.func, 1, rng)[0]


def without_folds(func: PrimFunc) -> PrimFunc:
    """Vectorized reductions as serial loops: their lanes meet in one element on purpose, which is no race."""

    def on_for(n: For, recurse: Any) -> For:
        b = n.body
        spatial = type(b) is Block and not any(i.kind == "R" and n.var in e.vars for i, e in zip(b.iters, b.bindings, strict=True))
        m: For = n.map_children(recurse)
        return m if n.kind != "vectorized" or spatial else m.with_(kind="serial")

    return func.with_(body=transform(func.body, {For: on_for}))


@pytest.mark.parametrize("n", range(CASES))
def test_every_pass_keeps_what_is_computed(schedules: ModuleType, n: int) -> None:
    case, row = pair(schedules, n)
    w = case.workload
    inputs = schedules.integers(w, n)
    expected = w.reference(inputs)
    # A walk may compute an element in two iterations of a parallel loop, with one value: no race in what it computes.
    races = not case.sketch.name.startswith("walk")
    func = case.sketch.concretize(row)
    for name, p in [("the schedule", None), *[(p.name, p) for p in CPU.passes]]:
        if p is not None:
            func = p(func, schedules.target())
        verify(func)
        flat = len(func.params[0].shape) == 1  # type: ignore[union-attr]
        given = [x.reshape(-1) if flat else x for x in inputs]
        done = run(without_folds(func), given, check_races=races)[len(inputs) :]
        for actual, reference in zip(done, expected, strict=True):
            what = f"{case.name}, row {row}, after {name}"
            np.testing.assert_allclose(actual.reshape(reference.shape), reference, rtol=1e-4, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("n", range(0, CASES, 3))
def test_every_pass_is_done_after_one_run(schedules: ModuleType, n: int) -> None:
    """A pass that changes nothing returns the very same object."""
    case, row = pair(schedules, n)
    func = case.sketch.concretize(row)
    for p in CPU.passes:
        func = p(func, schedules.target())
        if p.name not in LIMITED:
            assert p(func, schedules.target()) is func, f"{case.name}, row {row}: {p.name}"


def test_lowering_is_deterministic(schedules: ModuleType) -> None:
    case, row = pair(schedules, 6)
    a, b = [CPU(case.sketch.concretize(row), schedules.target()) for _ in range(2)]
    assert structural.equal(a, b) and str(a) == str(b)


# ---- composing and watching


@T.prim_func
def row(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi] + 1.0


def test_every_pass_is_named_after_its_file() -> None:
    passes = {path.stem for path in (Path(lower.__file__).parent / "passes").glob("*.py")} | {"bound_unrolling"}
    assert set(names(CPU.passes)) | set(names(GPU.passes)) <= passes
    assert names(CPU.passes)[:2] == ["inject_prefetch", "simplify"]


def test_a_pipeline_checks_its_stages() -> None:
    by_name = {p.name: p for p in CPU.passes}
    with pytest.raises(ValueError, match="pass flatten_buffers needs stage OPAQUE, but the pipeline is at SCHEDULED there"):
        Pipeline(by_name["simplify"], by_name["flatten_buffers"])
    stage = STAGES[0]
    for p in CPU.passes:
        assert STAGES.index(p.needs) <= STAGES.index(stage)
        stage = max(stage, p.gives, key=STAGES.index)
    assert stage == STAGES[-1]


def test_without_and_insert_after(schedules: ModuleType) -> None:
    shorter = CPU.without("simplify")
    assert "simplify" not in names(shorter.passes) and len(shorter.passes) == len(CPU.passes) - 3
    seen: list[PrimFunc] = []

    @function_pass(needs="OPAQUE")
    def look(func: PrimFunc, target: object) -> PrimFunc:
        seen.append(func)
        return func

    longer = CPU.insert_after("lower_blocks", look)
    longer(row, schedules.target())
    assert len(seen) == 1 and "with T.block" not in str(seen[0])


def test_instruments_see_every_pass(schedules: ModuleType) -> None:
    class Watch:
        def __init__(self) -> None:
            self.steps: list[tuple[str, PrimFunc, PrimFunc, float]] = []

        def after(self, name: str, before: PrimFunc, after: PrimFunc, seconds: float) -> None:
            self.steps.append((name, before, after, seconds))

    watch, inner = Watch(), Watch()
    with pass_context(watch):
        with pass_context(inner):
            done = CPU(row, schedules.target())
        CPU(row, schedules.target())
    CPU(row, schedules.target())
    assert [s[0] for s in inner.steps] == names(CPU.passes)
    assert len(watch.steps) == 2 * len(CPU.passes)
    assert inner.steps[0][1] is row and inner.steps[-1][2] is done
    assert all(a[2] is b[1] for a, b in zip(inner.steps, inner.steps[1:], strict=False))
    assert all(s[3] >= 0 for s in inner.steps)
