"""Configurations of GPU sketches for tests on devices: workloads, sketches, configurations, arguments and reference outputs.

The shapes are awkward: no tile divides them, rows are shorter than a thread block, and vectors do not divide all extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tunesmith.codegen.params import param_specs
from tunesmith.ir.expr import maximum
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.argument_data import make_inputs
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.workload import Workload, workload
from tunesmith.search.space.rules_table import generate
from tunesmith.search.space.sketch import Sketch
from tunesmith.support.seeds import stream

WORKLOADS = (
    "matmul(m=33,n=45,k=19)",
    "matmul(m=64,n=32,k=48)",
    "batch_matmul(b=3,m=17,n=20,k=12)",
    "conv2d(n=1,h=9,w=11,ci=8,co=12,kh=3,kw=3,pad=1,bias=1,relu=1)",
    "conv2d(n=2,h=9,w=8,ci=5,co=7,kh=3,kw=2,pad=1,stride=2)",
    "conv2d(n=1,h=9,w=8,ci=20,co=20,kh=3,kw=3,pad=1,groups=20)",
    "softmax(m=5,n=100)",
    "softmax(m=7,n=33)",
    "layer_norm(m=7,n=96)",
    "sum(shape=7x200,axis=1)",
    "sum(shape=3001)",
    "max(shape=40x50)",
    "relu(shape=33x60)",
    "add(shape=17x19)",
)
"""Workloads in float32."""
HALVES = ("relu(shape=33x60,dtype=float16)", "add(shape=16x24,dtype=float16)", "relu(shape=5x7,dtype=float16)")
"""Elementwise workloads in float16."""
ROWS = 3
"""Configurations per sketch."""


@cache
def task(text: str, target: Target) -> tuple[Workload, tuple[Sketch, ...]]:
    """A workload and its sketches for a target."""
    w = workload(text)
    return w, generate(w.func, target).sketches


def rows(sketch: Sketch, *names: str | int, n: int = ROWS) -> list[tuple[int, ...]]:
    """Random configurations of a sketch, reproducible from the names."""
    drawn = sketch.space.sample(n, stream(0, "gpu rows", *names))
    return [tuple(int(x) for x in row) for row in drawn]


def arguments(w: Workload) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """All arguments with poisoned outputs, and the reference outputs."""
    params = param_specs(w.func)
    inputs = make_inputs(params)
    given = iter(inputs)
    return [np.full(p.shape, np.nan, np.float32) if p.written else next(given) for p in params], w.reference(inputs)


def check(w: Workload, found: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: str) -> None:
    """Raise an AssertionError if outputs differ from the reference."""
    written = [a for a, p in zip(found, param_specs(w.func), strict=True) if p.written]
    for actual, right in zip(written, expected, strict=True):
        wrong = mismatch(actual, right, tolerance_of(w.func))
        assert wrong is None, f"{what}: {wrong}"


def bfloat16_program() -> tuple[PrimFunc, Callable[[Sequence[np.ndarray]], list[np.ndarray]]]:
    """y = max(x, 0) / 2 in bfloat16, which no library operator provides, and its exact numpy reference."""
    x = te.placeholder((33, 60), "bfloat16", "X")
    y = te.compute((33, 60), lambda i, j: maximum(x[i, j], 0.0) * 0.5, "Y")
    return te.create_prim_func([x, y], "half_relu"), lambda inputs: [np.maximum(inputs[0], 0) * np.float32(0.5)]
