"""Fuzz optional passes: programs keep their results when any of them are left out."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest

from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.pass_context import PassContext
from tunesmith.lower.pass_infra import Pipeline
from tunesmith.lower.pipelines import CPU, GPU
from tunesmith.ops.workload import workload
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream
from tunesmith.testing.program_fuzz import worker


def steered(pipeline: Pipeline, seed: int) -> PassContext:
    """A context without random optional passes of a pipeline; without any of them for the first seed."""
    rng = stream(seed, "disabled passes")
    share = rng.random()
    optional = sorted(set(pipeline.names) - {p.name for p in pipeline if p.needed_by})
    return PassContext(disabled=[name for name in optional if rng.random() < share]) if seed else PassContext(level=0)


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_and_schedules(seed: int) -> None:
    """Compiled code agrees with the direct evaluator and the interpreter; see `testing.program_fuzz`."""
    context = steered(CPU, seed)
    with context:
        found = worker.check_program(seed, 4, 0)
    assert not found.failures, f"in {context}: {found.failures[0].finding}"


@pytest.mark.parametrize("seed", range(16))
def test_sketches(schedules: ModuleType, seed: int) -> None:
    text = schedules.WORKLOADS[seed % len(schedules.WORKLOADS)]
    rng = stream(seed, "sketches without passes", text)
    cases = schedules.rule_cases(text)
    case = cases[int(rng.integers(len(cases)))]
    w = case.workload
    func = case.sketch.concretize(schedules.biased_rows(case.sketch, w.func, 1, rng)[0])
    context = steered(CPU, seed)
    with context:
        lowered = CPU(func, schedules.target())
    verify(lowered)
    inputs = schedules.integers(w, seed)
    done = run(lowered, [x.reshape(-1) for x in inputs])[len(inputs) :]
    compare(done, w.reference(inputs), f"{case.name} in {context}")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("text", ["matmul(m=17,n=19,k=5)", "softmax(m=5,n=13)", "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2)"])
def test_kernels(schedules: ModuleType, text: str, seed: int) -> None:
    target = Target("cuda -arch=sm_90" if seed % 2 else "opencl")
    w = workload(text)
    rng = stream(seed, "kernels without passes", text)
    sketches = generate(w.func, target).sketches
    sketch = sketches[int(rng.integers(len(sketches)))]
    func = sketch.concretize(tuple(map(int, next(iter(sketch.space.sample(1, rng))))))
    context = steered(GPU, seed)
    with context:
        lowered = GPU(func, target)
    inputs = schedules.integers(w, seed)
    expected = w.reference(inputs)
    outputs = [np.full(r.size, np.nan, r.dtype) for r in expected]
    done = run_threads(lowered, [*[x.reshape(-1) for x in inputs], *outputs])
    compare(done[len(inputs) :], expected, f"{text}, {sketch.name} in {context}")


def compare(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: str) -> None:
    for actual, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual.reshape(reference.shape), reference, rtol=1e-4, atol=1e-5, err_msg=what)
