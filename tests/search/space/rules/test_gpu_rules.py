"""Test the GPU rules: the sketches of each operator (golden), and that their rows compile and compute correct results.

The sketches of a large GPU are run through OpenCL on this processor and by the interpreter's threads, with race detection, and compiled to
machine code for two architectures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.cuda.nvrtc import compile_cuda
from tunesmith.codegen.device.build import OPTIONS, build, device_source
from tunesmith.codegen.params import param_specs
from tunesmith.ir import structural
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import GPU
from tunesmith.ops.workload import Workload
from tunesmith.runtime.device.device import DEVICES
from tunesmith.runtime.device.module import DeviceModule
from tunesmith.runtime.device.program import DeviceProgram
from tunesmith.schedule.schedule import replay
from tunesmith.search.space.rules_table import find_rules, rules_of
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.seeds import stream
from tunesmith.testing import gpu_rows
from tunesmith.testing.gpu_rows import WORKLOADS, arguments, check

H200, A100 = Target("nvidia/h200"), Target("nvidia/a100")
OPENCL = Target("opencl -num-cores=2 -max-threads-per-block=1024 -shared-memory-per-block=262144")
"""Accepts the block sizes of a large GPU."""
LAW_ROWS = 7
"""Rows per sketch: more than 300 in total."""

SKETCHES = (3, 3, 2, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1)
"""Numbers of sketches of the workloads."""
CASES = [(text, k) for text, n in zip(WORKLOADS, SKETCHES, strict=True) for k in range(n)]


def task(text: str) -> tuple[Workload, tuple[Sketch, ...]]:
    """A workload with its sketches for a large GPU."""
    return gpu_rows.task(text, H200)


def rows(text: str, k: int) -> list[tuple[int, ...]]:
    """Random rows of a sketch to run and compile."""
    return gpu_rows.rows(task(text)[1][k], text, k)


def test_sketches_of_the_operators(assert_golden: Callable[..., None]) -> None:
    lines = []
    for text in WORKLOADS:
        lines.append(text)
        lines += [f"  {s.name}: {', '.join(p.name for p in s.params)}" for s in task(text)[1]]
    assert_golden("\n".join(lines) + "\n")


def test_every_sketch_is_tested() -> None:
    assert [(text, k) for text in WORKLOADS for k in range(len(task(text)[1]))] == CASES


def test_rules_depend_on_the_kind_of_the_target() -> None:
    assert (
        rules_of(H200)
        == rules_of(OPENCL)
        == find_rules(["gpu_contraction", "gpu_split_reduction", "gpu_rows", "gpu_reductions", "gpu_pointwise"])
    )


@pytest.mark.parametrize(("text", "k"), CASES)
def test_concretize_equals_replay(text: str, k: int) -> None:
    w, sketches = task(text)
    for row in sketches[k].space.sample(LAW_ROWS, stream(0, "gpu law", text, k)):
        numbers = tuple(int(x) for x in row)
        replayed = replay(sketches[k].trace.with_configuration(numbers), w.func).func
        assert structural.difference(sketches[k].concretize(numbers), replayed) is None


@pytest.mark.parametrize(("text", "k"), CASES)
def test_results_on_opencl(text: str, k: int) -> None:
    if not DEVICES.get("opencl").count():
        pytest.skip("no OpenCL device here: pip install 'tunesmith[opencl]'")
    w, sketches = task(text)
    for row in rows(text, k):
        artifact = build(sketches[k].concretize(row), OPENCL)
        given, expected = arguments(w)
        DeviceModule(DeviceProgram.from_bytes(artifact.data))[w.func.name](*given)
        check(w, given, expected, f"{sketches[k].name} {row}")


@pytest.mark.parametrize(("text", "k"), CASES)
@pytest.mark.parametrize("target", [H200, OPENCL], ids=["shuffles", "trees"])
def test_results_and_races_in_the_interpreter(text: str, k: int, target: Target) -> None:
    w, sketches = task(text)
    for row in rows(text, k):
        lowered = GPU(sketches[k].concretize(row), target)
        given, expected = arguments(w)
        flat = [None if np.isnan(a).all() else a.reshape(-1) for a in given]
        names = [p.name for p in param_specs(w.func)]
        found = run_threads(lowered, {n: a for n, a in zip(names, flat, strict=True) if a is not None})
        check(w, [f.reshape(a.shape) for f, a in zip(found, given, strict=True)], expected, f"{sketches[k].name} {row}")


@pytest.mark.parametrize(("text", "k"), CASES)
def test_kernels_compile_for_two_architectures(text: str, k: int) -> None:
    _, sketches = task(text)
    for row, target in zip(rows(text, k), itertools.cycle((H200, A100)), strict=False):
        source = device_source(sketches[k].concretize(row), target)
        compiled = compile_cuda(source.text(), target.arch, OPTIONS)
        assert compiled.cubin[:4] == b"\x7fELF"
        for kernel in source.kernels:
            found = compiled.resources[kernel.launch.kernel]
            assert 0 <= kernel.shared_bytes - found.shared_bytes - kernel.launch.shared_bytes < 16
            x, y, z = kernel.launch.block
            assert x * y * z <= target.max_threads_per_block and kernel.shared_bytes <= target.shared_memory_per_block
