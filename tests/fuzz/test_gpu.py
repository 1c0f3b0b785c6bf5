"""Fuzz GPU sketches: the parametric law, and lowered programs against numpy, with all needed barriers and without races.

Covers every sketch of the GPU rules for small odd shapes on both targets, with configurations sampled as in a search.  The thread
interpreter runs the same programs that code generation receives.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.device.build import build
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.syntax import T
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.pipelines import GPU
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.opencl import OPENCL
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules import gpu_fallback
from tunesmith.search.space.rules_table import generate
from tunesmith.search.space.sketch import Sketch, collect
from tunesmith.support.seeds import stream

TARGETS = {"opencl": Target("opencl"), "cuda": Target("cuda -arch=sm_90")}
ROWS = 3
"""Configurations per sketch and target."""
WORKLOADS = (
    "matmul(m=17,n=19,k=5)",
    "matmul(m=1,n=13,k=7,tb=1)",
    "matmul(m=6,n=8,k=1,ta=1)",
    "matmul(m=21,n=24,k=18)",
    "batch_matmul(b=2,m=5,n=7,k=3)",
    "dense(m=7,n=9,k=5,activation=relu)",
    "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2,bias=1,relu=1)",
    "conv2d(n=1,h=7,w=5,ci=2,co=4,kh=3,kw=2,dilation=2)",
    "conv2d(n=2,h=4,w=5,ci=4,co=6,kh=3,kw=3,pad=1,groups=2,layout=NCHW)",
    "conv2d(n=1,h=5,w=4,ci=3,co=3,kh=2,kw=3,pad=1,groups=3,residual=1)",
    "softmax(m=5,n=13)",
    "softmax(m=3,n=129)",
    "layer_norm(m=3,n=11)",
    "layer_norm(m=2,n=100)",
    "gelu(shape=7x11)",
    "add(shape=3x5x7,other=5x1)",
    "sum(shape=5x13,axis=1)",
    "sum(shape=4x3x5,axis=0+2)",
    "sum(shape=300)",
    "max(shape=23)",
    "max(shape=3x70,axis=1)",
    "conv1d(n=2,w=9,ci=4,co=6,kw=3,stride=2,pad=1)",
    "conv2d_transpose(n=1,h=3,w=5,ci=3,co=7,kh=4,kw=4,stride=2,pad=1)",
    "max_pool2d(n=1,h=7,w=6,c=13,kh=3,kw=2,stride=2,pad=1)",
    "log_softmax(m=3,n=17)",
    "rms_norm(m=3,n=17)",
)


def rows(sketch: Sketch, count: int, *names: str) -> Iterator[tuple[int, ...]]:
    for row in sketch.space.sample(count, stream(5, "gpu", *names)):
        yield tuple(map(int, row))


def law(sketch: Sketch, row: tuple[int, ...], func: PrimFunc) -> PrimFunc:
    """The program of a configuration, which must equal the result of its trace."""
    made = sketch.concretize(row)
    found = structural.difference(made, replay(sketch.trace_of(row), func).func)
    assert found is None, f"{func.name}, {sketch.name}, row {row}: {found}"
    return made


def check_lowered(func: PrimFunc, inputs: list[np.ndarray], expected: list[np.ndarray], what: str) -> None:
    """Check that the lowered program computes the expected results in any order of threads."""
    verify(func)
    outputs = [np.full(r.size, np.nan if r.dtype.kind == "f" else -77, r.dtype) for r in expected]
    done = run_threads(func, [*[x.reshape(-1) for x in inputs], *outputs])[len(inputs) :]
    for got, want in zip(done, expected, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-4, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("text", WORKLOADS)
def test_sketches_of_the_rules(schedules: ModuleType, text: str, target: str) -> None:
    w = schedules.named(text)
    inputs = schedules.integers(w)
    expected = w.reference(inputs)
    sketches = generate(w.func, TARGETS[target]).sketches
    assert not any(s.name == "gpu fallback" for s in sketches)
    for sketch in sketches:
        tried = 0
        for row in rows(sketch, ROWS, text, target):
            func = GPU(law(sketch, row, w.func), TARGETS[target])
            check_lowered(func, inputs, expected, f"{text} on {target}, {sketch.name}, row {row}")
            tried += 1
        assert tried


@T.prim_func
def prefix(A: T.Buffer((6, 5), "float32"), B: T.Buffer((6, 5), "float32"), C: T.Buffer((5, 6), "float32")):
    """A program that no rule matches: running sums, and their squares transposed."""
    for i, j, k in T.grid(6, 5, 5):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                B[vi, vj] = 0.0
            B[vi, vj] = B[vi, vj] + T.select(vk <= vj, A[vi, vk], T.float32(0.0))
    for i, j in T.grid(5, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vj, vi] * B[vj, vi]


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_fallback(target: str) -> None:
    (sketch,) = generate(prefix, TARGETS[target]).sketches
    assert sketch.name == "gpu fallback"
    a = stream(0, "prefix").integers(-3, 4, (6, 5)).astype(np.float32)
    b = np.cumsum(a, axis=1)
    for row in sorted(set(rows(sketch, 6, "prefix"))):
        check_lowered(GPU(law(sketch, row, prefix), TARGETS[target]), [a], [b, (b * b).T], f"prefix, {row}")


@pytest.mark.parametrize(
    "text", ["matmul(m=17,n=19,k=5)", "softmax(m=5,n=13)", "gelu(shape=7x11)", "sum(shape=5x13,axis=1)", "max(shape=23)"]
)
def test_the_fallback_accepts_workloads_of_the_rules(schedules: ModuleType, text: str) -> None:
    w = schedules.named(text)
    inputs = schedules.integers(w)
    (sketch,) = collect(gpu_fallback.sketches(w.func, TARGETS["cuda"]), w.func)
    for row in sorted(set(rows(sketch, 3, text))):
        check_lowered(GPU(law(sketch, row, w.func), TARGETS["cuda"]), inputs, w.reference(inputs), f"{text}, {row}")


SMALLEST = ("softmax(m=1,n=13)", "layer_norm(m=1,n=30)", "softmax(m=1,n=1)", "softmax(m=5,n=1)")


@pytest.mark.parametrize("text", SMALLEST)
def test_one_row(schedules: ModuleType, text: str) -> None:
    """All configurations compile for workloads of a single row and for rows of one element."""
    w = schedules.named(text)
    inputs = schedules.integers(w)
    for sketch in generate(w.func, TARGETS["opencl"]).sketches:
        for row in rows(sketch, 6, text):
            check_lowered(GPU(law(sketch, row, w.func), TARGETS["opencl"]), inputs, w.reference(inputs), f"{text}, {sketch.name}, {row}")


@pytest.mark.skipif(OPENCL.count() == 0, reason="no OpenCL runtime: pip install 'tunesmith[opencl]'")
@pytest.mark.parametrize(
    "text",
    [
        "matmul(m=21,n=24,k=18)",
        "conv2d(n=1,h=5,w=6,ci=3,co=5,kh=3,kw=3,pad=1,stride=2,bias=1,relu=1)",
        "softmax(m=3,n=129)",
        "sum(shape=300)",
    ],
)
def test_compiled_programs_agree_with_numpy(schedules: ModuleType, text: str) -> None:
    """Run some configurations on the device, since interpreter and code could have the same error."""
    w: Any = schedules.named(text)
    inputs = schedules.integers(w)
    expected = w.reference(inputs)
    for sketch in generate(w.func, TARGETS["opencl"]).sketches:
        for row in rows(sketch, 2, text, "device"):
            program = DeviceProgram.from_bytes(build(sketch.concretize(row), TARGETS["opencl"]).data)
            outputs = [np.full(r.shape, np.nan, r.dtype) for r in expected]
            DeviceModule(program)[program.functions[0].name](*inputs, *outputs)
            for got, want in zip(outputs, expected, strict=True):
                assert (found := mismatch(got, want, tolerance_of(w.func))) is None, f"{text}, {sketch.name}, row {row}: {found}"
