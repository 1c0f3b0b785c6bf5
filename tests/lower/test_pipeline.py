"""The CPU pipeline: every pass preserves results and is idempotent; composition of passes."""

from __future__ import annotations

import importlib
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
from tunesmith.lower.pass_infra import Pass, Pipeline, function_pass
from tunesmith.lower.pipelines import CPU, PASSES
from tunesmith.lower.stages import STAGES, check_stage
from tunesmith.support.errors import InternalError, UserError
from tunesmith.support.seeds import stream

CASES = 40
LIMITED = ("version_loops", "unswitch_loops")
"""Passes that stop at a number of copies, so that a second run may continue."""


def pair(schedules: ModuleType, n: int) -> tuple[Any, tuple[int, ...]]:
    """(case, configuration) number n: sketches of the rules and of random walks, for each workload in turn."""
    text = schedules.WORKLOADS[n % len(schedules.WORKLOADS)]
    rng = stream(n, "lower.pipeline", text)
    cases = [*schedules.rule_cases(text), schedules.walk_case(text, 900 + n)]
    case = cases[int(rng.integers(len(cases)))] if n % 4 else cases[-1]
    return case, schedules.biased_rows(case.sketch, case.workload.func, 1, rng)[0]


def without_folds(func: PrimFunc) -> PrimFunc:
    """Turn vectorized reductions into serial loops: their lanes update one element by design, which is not a race."""

    def on_for(n: For, recurse: Any) -> For:
        b = n.body
        spatial = type(b) is Block and not any(i.kind == "R" and n.var in e.vars for i, e in zip(b.iters, b.bindings, strict=True))
        m: For = n.map_children(recurse)
        return m if n.kind != "vectorized" or spatial else m.with_(kind="serial")

    return func.with_(body=transform(func.body, {For: on_for}))


@pytest.mark.parametrize("n", range(CASES))
def test_every_pass_preserves_results(schedules: ModuleType, n: int) -> None:
    case, row = pair(schedules, n)
    w = case.workload
    inputs = schedules.integers(w, n)
    expected = w.reference(inputs)
    # A random walk may compute an element in two iterations of a parallel loop with the same value: a benign race.
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
def test_every_pass_is_idempotent(schedules: ModuleType, n: int) -> None:
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


# ---- composition


@T.prim_func
def row(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi] + 1.0


def test_every_pass_has_a_file_and_is_listed() -> None:
    files = {path.stem for path in (Path(lower.__file__).parent / "passes").glob("*.py")} - {"__init__"}
    assert files == set(PASSES)
    for name, p in PASSES.items():
        module = importlib.import_module(f"tunesmith.lower.passes.{name}")
        assert [x for x in vars(module).values() if isinstance(x, Pass) and x.name == name] == [p]
        assert p.run.__doc__ and p.requires in STAGES and p.provides in STAGES


def test_an_option_changes_the_pass(schedules: ModuleType) -> None:
    @T.prim_func
    def tiles(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for i in T.serial(8):
            for j in T.unroll(8):
                if i < 7:
                    C[i * 8 + j] = A[i * 8 + j] * 2.0

    once = PASSES["unswitch_loops"](tiles, schedules.target())
    assert str(once) != str(tiles) and PASSES["unswitch_loops"].with_options(most=0)(tiles, schedules.target()) is tiles


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("unswitch_loops", "most", -1, "most=-1: unswitch_loops moves at least 0 conditions, not -1"),
        ("version_loops", "most", -1, "most=-1: version_loops makes at least 0 copies, not -1"),
        ("version_loops", "rests", -2, "rests=-2: version_loops makes at least 0 tiles for a rest, not -2"),
        ("bound_unrolling", "cpu_budget", 0, "cpu_budget=0: bound_unrolling needs a budget of at least 1 instruction, not 0"),
        ("bound_unrolling", "gpu_budget", -3, "gpu_budget=-3: bound_unrolling needs"),
    ],
)
def test_numbers_without_meaning_are_refused(schedules: ModuleType, name: str, option: str, value: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PASSES[name].with_options(**{option: value})(row, schedules.target())


@pytest.mark.parametrize(
    ("stage", "fault"),
    [("OPAQUE", "the block C"), ("FLAT", "an access of A with 2 indices"), ("VECTOR", "the vectorized loop j")],
)
def test_a_function_in_the_wrong_stage_is_refused(stage: str, fault: str) -> None:
    @T.prim_func
    def blocks(C: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                C[vi] = 1.0

    @T.prim_func
    def nested(A: T.Buffer((8, 8), "float32")):
        for i, j in T.grid(8, 8):
            A[i, j] = 1.0

    @T.prim_func
    def vectors(A: T.Buffer((8,), "float32")):
        for j in T.vectorized(8):
            A[j] = 1.0

    func = {"OPAQUE": blocks, "FLAT": nested, "VECTOR": vectors}[stage]
    check_stage(func, STAGES[STAGES.index(stage) - 1], "test")
    with pytest.raises(InternalError, match=f"after the pass test the function is in stage {stage}, which does not allow {fault}"):
        check_stage(func, stage, "test")


def test_a_pipeline_checks_its_stages() -> None:
    by_name = {p.name: p for p in CPU.passes}
    with pytest.raises(UserError, match="the pass 'flatten_buffers' needs stage OPAQUE, but the pipeline is at SCHEDULED there: move"):
        Pipeline(by_name["simplify"], by_name["flatten_buffers"])
    for wrong in ("simplify", None, Pass):
        with pytest.raises(UserError, match="is not a pass: make one of a function with module_pass or function_pass"):
            Pipeline(wrong)  # type: ignore[arg-type]
    stage = STAGES[0]
    for p in CPU.passes:
        assert isinstance(p, Pass)
        assert STAGES.index(p.requires) <= STAGES.index(stage)
        stage = max(stage, p.provides, key=STAGES.index)
    assert stage == STAGES[-1]


def test_without_and_insert_after(schedules: ModuleType) -> None:
    shorter = CPU.without("simplify")
    assert "simplify" not in shorter.names and len(shorter.passes) == len(CPU.passes) - 3
    seen: list[PrimFunc] = []

    @function_pass(requires="OPAQUE")
    def look(func: PrimFunc, target: object) -> PrimFunc:
        seen.append(func)
        return func

    longer = CPU.insert_after("lower_blocks", look)
    assert longer.names[longer.names.index("lower_blocks") + 1] == "look"
    longer(row, schedules.target())
    assert len(seen) == 1 and "with T.block" not in str(seen[0])
