"""Winograd convolutions: which blocks, results, the law, filters that are transformed ahead."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules.winograd import sketches
from tunesmith.search.space.rules_table import generate

HERE = Target.detect()
CASES = {
    "whole tiles": "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "partial tiles": "conv2d(n=1,h=7,w=10,ci=5,co=19,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "a batch without padding": "conv2d(n=2,h=9,w=8,ci=8,co=16,kh=3,kw=3)",
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_law(name: str) -> None:
    case = workload(CASES[name])
    func, given = case.func, case.random_inputs()
    assert case.reference is not None
    want = case.reference(given)[-1]
    space = generate(func, HERE, rules=[sketches])
    assert not space.refused and not space.left_out
    assert [s.name for s in space.sketches if "serial" not in s.name] == [
        f"winograd F({m}){c}" for m in (2, 3, 4) for c in ("", " columns")
    ]
    for sketch in space.sketches:
        for row in sketch.space.sample(1 if sketch.name.endswith(" serial") else 2, np.random.default_rng(0)):
            numbers = tuple(int(x) for x in row)
            program = sketch.concretize(numbers)
            assert structural.equal(program, replay(sketch.trace.with_configuration(numbers), func).func)
            out = np.full_like(want, np.nan)
            Module.from_object(build(program, HERE).data)[func.name](*given[: len(func.params) - 1], out)
            assert np.abs(out - want).max() <= 5e-6 * np.abs(want).max(), (sketch.name, numbers)


def test_filters_are_transformed_ahead() -> None:
    func = workload(CASES["partial tiles"]).func
    for sketch in generate(func, HERE, rules=[sketches]).sketches:
        row = sketch.space.sample(1, np.random.default_rng(0))[0]
        parts = hoist_constant_packing(sketch.concretize(tuple(int(x) for x in row)))
        assert parts is not None and [p.name for p in parts.packers] == ["conv2d__pack_W"]
        assert "float64" in str(parts.packers[0]) and "float64" not in str(parts.main)


@pytest.mark.parametrize(
    "text",
    [
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=3,stride=2,pad=1)",
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=1,kw=1)",
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=5,kw=5,pad=2)",
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=3,pad=1,dtype=bfloat16)",
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=3,pad=1,layout=NCHW)",
        "conv3d(n=1,d=6,h=6,w=6,ci=16,co=32,kd=3,kh=3,kw=3)",
        "conv2d(n=1,h=12,w=12,ci=16,co=32,kh=3,kw=1)",
        "conv2d(n=1,h=12,w=12,ci=16,co=16,kh=3,kw=3,groups=4)",
        "conv1d(n=1,w=40,ci=16,co=32,kw=3,pad=1)",
        "matmul(m=32,n=32,k=32)",
    ],
)
def test_other_functions_have_no_sketches(text: str) -> None:
    assert sketches(workload(text).func, HERE) == []


def test_filters_that_are_no_constants_have_no_sketches() -> None:
    assert sketches(workload(CASES["whole tiles"]).func.with_(attrs=()), HERE) == []
