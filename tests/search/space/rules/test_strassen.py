"""Products of quarters in the space: which functions, results, the law, constants that are added ahead, errors within the limit."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.target.target import Target
from tunesmith.lower.hoist_constant_packing import hoist_constant_packing
from tunesmith.ops.workload import workload
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules.strassen import sketches
from tunesmith.search.space.rules_table import generate

HERE = Target.detect()
CASES = {
    "even sizes": "dense(m=16,n=96,k=64)",
    "odd sizes": "dense(m=13,n=91,k=67)",
    "pixels of a batch of images": "conv2d(n=2,h=3,w=9,ci=64,co=72,kh=1,kw=1,bias=1,relu=1)",
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_law(name: str) -> None:
    case = workload(CASES[name])
    func, given = case.func, case.random_inputs()
    want = run(func, given)[-1]
    space = generate(func, HERE, rules=[sketches])
    assert not space.refused and not space.left_out
    assert [s.name for s in space.sketches if "serial" not in s.name] == ["strassen rows", "strassen columns"]
    for sketch in space.sketches:
        for row in sketch.space.sample(3, np.random.default_rng(0)):
            numbers = tuple(int(x) for x in row)
            program = sketch.concretize(numbers)
            assert structural.equal(program, replay(sketch.trace.with_configuration(numbers), func).func)
            out = np.full_like(want, np.nan)
            Module.from_object(build(program, HERE).data)[func.name](*given[: len(func.params) - 1], out)
            assert np.abs(out - want).max() <= 5e-6 * np.abs(want).max(), (sketch.name, numbers)


def test_constants_are_added_ahead() -> None:
    for sketch in generate(workload(CASES["odd sizes"]).func, HERE, rules=[sketches]).sketches:
        row = sketch.space.sample(1, np.random.default_rng(0))[0]
        parts = hoist_constant_packing(sketch.concretize(tuple(int(x) for x in row)))
        assert parts is not None and [p.name for p in parts.packers] == ["dense__pack_W"]
        assert "W_sums" in str(parts.packers[0]) and "W_sums = " not in str(parts.main)


@pytest.mark.parametrize(
    "text",
    [
        "matmul(m=64,n=64,k=64)",
        "dense(m=4,n=96,k=64)",
        "dense(m=16,n=32,k=64)",
        "dense(m=16,n=96,k=32)",
        "conv2d(n=1,h=12,w=12,ci=64,co=64,kh=3,kw=3,pad=1)",
        "conv2d(n=1,h=12,w=12,ci=64,co=64,kh=1,kw=1,stride=2)",
        "conv2d(n=1,h=12,w=12,ci=64,co=64,kh=1,kw=1,dtype=bfloat16)",
        "softmax(m=64,n=64)",
    ],
)
def test_other_functions_have_no_sketches(text: str) -> None:
    assert sketches(workload(text).func, HERE) == []


def test_a_limit_of_the_errors_leaves_them_out() -> None:
    func = workload(CASES["even sizes"]).func
    names = {s.name for s in generate(func, HERE).sketches}
    limited = generate(func, HERE, error_growth=1.0)
    assert {n for n in names if n.startswith("strassen")} == names - {s.name for s in limited.sketches} != set()
    assert any("strassen rows: its errors are 1.9 times those of direct sums" in line for line in limited.left_out)
