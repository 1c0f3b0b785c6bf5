"""Check matrix products with masked terms: conditions of the program are preserved, unlike guards for partial tiles."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.syntax import T
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import GPU
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

H200 = Target("nvidia/h200")


@T.prim_func
def causal(A: T.Buffer((21, 9), "float32"), B: T.Buffer((9, 21), "float32"), C: T.Buffer((21, 21), "float32")):
    for i, j, k in T.grid(21, 21, 9):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += T.select(vj <= vi, A[vi, vk], T.float32(0.0)) * B[vk, vj]


@T.prim_func
def upper_rows(A: T.Buffer((21, 9), "float32"), B: T.Buffer((9, 21), "float32"), C: T.Buffer((21, 21), "float32")):
    for i, j, k in T.grid(21, 21, 9):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 1.0
            C[vi, vj] += T.select(vi < 13, A[vi, vk], T.float32(0.0)) * B[vk, vj]


@T.prim_func
def band(A: T.Buffer((21, 9), "float32"), B: T.Buffer((9, 21), "float32"), C: T.Buffer((21, 21), "float32")):
    for i, j, k in T.grid(21, 21, 9):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += T.select(vk < 5, A[vi, vk], T.float32(0.0)) * B[vk, vj]


@pytest.mark.parametrize("target", [H200, Target("opencl")], ids=["cuda", "opencl"])
@pytest.mark.parametrize("func", [causal, upper_rows, band], ids=lambda f: f.name)
def test_masks_are_preserved(func: PrimFunc, target: Target) -> None:
    rng = stream(0, "masked", func.name)
    a, b = rng.integers(-4, 5, (21, 9)).astype(np.float32), rng.integers(-4, 5, (9, 21)).astype(np.float32)
    c = np.full((21, 21), np.nan, np.float32)
    expected = run(func, [a, b, c])[2]
    sketches = generate(func, H200).sketches
    assert len(sketches) == 2
    for sketch in sketches:
        for row in sketch.space.sample(4, stream(0, "masked rows", func.name, sketch.name)):
            lowered = GPU(sketch.concretize(tuple(int(x) for x in row)), target)
            flat = [x.reshape(-1).copy() for x in (a, b, c)]
            found = run_threads(lowered, flat, check_races=True)[2]
            np.testing.assert_array_equal(found.reshape(21, 21), expected, err_msg=f"{sketch.name} {row}")
