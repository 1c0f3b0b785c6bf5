"""hoist_guards: guards leave the loops that they do not depend on, and adjacent statements share equal guards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.syntax import T
from tunesmith.lower.passes.hoist_guards import hoist_guards

Threaded = Callable[..., PrimFunc]
Golden = Callable[..., None]


@T.prim_func
def sums(A: T.Buffer((64, 40), "float32"), C: T.Buffer((40,), "float32")):
    for x in T.thread_binding(64, "threadIdx.x"):
        for k in T.serial(8):
            for m in T.unroll(8):
                if x < 40:
                    C[x] = C[x] + A[k * 8 + m, x]
        if x < 40:
            C[x] = C[x] * T.float32(0.5)
        if x < 39:
            C[x] = C[x] + T.float32(1.0)


@T.prim_func
def kept(A: T.Buffer((64, 40), "float32"), C: T.Buffer((40,), "float32")):
    for x in T.thread_binding(64, "threadIdx.x"):
        for k in T.serial(64):
            if x + k < 40:
                C[x] = C[x] + A[k, x]
        for k in T.serial(64):
            if x < 40:
                if A[k, x] < T.float32(0.0):
                    C[x] = C[x] + A[k, x]
        for k in T.serial(64):
            if x < 40:
                C[x] = C[x] + A[k, x]
            else:
                C[0] = T.float32(0.0)


def test_hoist_guards(threaded: Threaded, assert_golden: Golden) -> None:
    assert_golden(str(threaded(sums, hoist_guards)))


def test_what_stays(threaded: Threaded, assert_golden: Golden) -> None:
    """Guards that depend on the loop, conditions that read memory, and branches with two outcomes."""
    assert_golden(str(threaded(kept, hoist_guards)))


@pytest.mark.parametrize("func", [sums, kept], ids=["sums", "kept"])
def test_results_are_the_same(threaded: Threaded, func: PrimFunc) -> None:
    a = np.random.default_rng(0).standard_normal((64, 40)).astype("float32")
    c = np.ones(40, "float32")
    (_, before), (_, after) = (run_threads(f, [a, c.copy()], check_races=False) for f in (func, threaded(func, hoist_guards)))
    np.testing.assert_array_equal(before, after)
