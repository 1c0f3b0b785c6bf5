"""Compile workloads of low precision for random sets of CPU features, and run the code where this machine has them.

A combination of features that no processor has must give code or an error that names the target: LLVM aborts the process when it has no
instruction for an operation, so cases run in worker processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tunesmith.codegen.build import build, check_runs_here
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.ops.workload import Workload, workload
from tunesmith.runtime.arrays import in_bfloat16, in_float32
from tunesmith.runtime.module import Module
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import BuildError, TargetError
from tunesmith.support.seeds import stream

FACTORY = "tunesmith.testing.target_features:factory"
"""The job of worker pools: `run` of a case."""

CPUS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "znver5", "sapphirerapids", "alderlake", "native")
FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avxvnni", "avx512bf16", "avx2", "fma", "f16c")
TYPES = (
    "dtype=bfloat16",
    "dtype=bfloat16,out_dtype=float32",
    "dtype=uint8,rhs_dtype=int8",
    "dtype=int8",
    "dtype=uint8",
    "dtype=float16",
    "dtype=float16,out_dtype=float32",
)
SHAPES = (
    "matmul(m=9,n=33,k=16,{})",
    "matmul(m=4,n=64,k=10,{})",
    "dense(m=5,n=40,k=32,{})",
    "conv2d(n=1,h=6,w=7,ci=8,co=20,kh=3,kw=3,pad=1,{})",
    "conv2d(n=1,h=5,w=5,ci=3,co=16,kh=3,kw=3,stride=2,layout=NCHW,{})",
    "conv2d(n=1,h=5,w=5,ci=8,co=8,kh=3,kw=3,groups=8,{})",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One compilation.

    Attributes:
        target: text of the target.
        workload: text of the workload.
        seed: of the configuration of the search space; -1 for the schedule of the cost formula.
    """

    target: str
    workload: str
    seed: int


def draw(seed: int) -> Case:
    """A random case: a processor with some features added or removed, a vector width, and a workload."""
    rng = stream(seed, "target features")

    def pick(*options: str) -> str:
        return options[int(rng.integers(len(options)))]

    names = rng.permutation(FEATURES)[: int(rng.integers(0, 5))]
    flags = ",".join([pick("+", "-", "-") + str(name) for name in names])
    text = f"llvm -mcpu={pick(*CPUS)} -num-cores=1{f' -mattr={flags}' if flags else ''}"
    text += pick("", " -vector-bits=128", " -vector-bits=256", " -vector-bits=512")
    return Case(text, pick(*SHAPES).format(pick(*TYPES)), seed if rng.random() < 0.6 else -1)


def factory() -> Callable[[tuple[str, str, int]], str]:
    """The job function of a worker."""
    return lambda fields: run(Case(*fields))


def run(case: Case) -> str:
    """Compile a case, and compare its results with numpy where the target runs here.

    Returns:
        "equal", "compiled", or "refused: " and the message of the error.
    Raises:
        AssertionError: a result differs from numpy's.
    """
    compiled = workload(case.workload)
    try:
        target = Target(case.target)
        if case.seed < 0:
            func = analytic_schedule(compiled.func, target)
        else:
            rng = stream(case.seed, "configuration")
            sketches = generate(compiled.func, target).sketches
            sketch = sketches[int(rng.integers(len(sketches)))]
            func = sketch.concretize(tuple(map(int, sketch.space.sample(1, rng)[0])))
        artifact = build(func, target)
    except (BuildError, TargetError) as error:
        return f"refused: {error}"
    try:
        check_runs_here(target)
    except BuildError:
        return "compiled"
    _compare(compiled, Module.from_object(artifact.data)[artifact.functions[0]])
    return "equal"


def _compare(compiled: Workload, function: Callable[..., object]) -> None:
    inputs = compiled.random_inputs(1)
    expected = compiled.reference(inputs)
    types = [b.dtype for b in compiled.func.params if isinstance(b, Buffer)]
    outputs = [np.full(r.shape, np.nan if r.dtype.kind == "f" else 77, r.dtype) for r in expected]
    arrays = [in_bfloat16(x) if dtype == "bfloat16" else x for x, dtype in zip([*inputs, *outputs], types, strict=True)]
    function(*arrays)
    for actual, reference in zip(arrays[len(inputs) :], expected, strict=True):
        found = mismatch(in_float32(actual), reference, tolerance_of(compiled.func))
        assert found is None, found
