"""Fixtures that run passes on a small program and check the properties that every pass guarantees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.lower.pass_infra import Pass
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")
"""Vectors of four floats."""


def results(func: PrimFunc) -> list[np.ndarray]:
    """The values of the parameters after a call, flattened; inputs are small integers, outputs start poisoned."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    inputs = {}
    for b in func.params:
        if isinstance(b, Buffer) and b not in written:
            shape = [e.as_int() for e in b.shape]
            values = stream(0, "lower", b.name).integers(-3, 4, int(np.prod(shape))).reshape(shape)
            inputs[b.name] = values.astype(dt.to_numpy(b.dtype))
    return [a.reshape(-1) for a in run(func, inputs)]


def check(func: PrimFunc, *passes: Pass) -> PrimFunc:
    """The function after the passes.

    Checks that each pass keeps the program valid, preserves its results, and is idempotent.
    """
    verify(func)
    expected = results(func)
    for p in passes:
        done = p(func, TARGET)
        verify(done)
        for after, before in zip(results(done), expected, strict=True):
            np.testing.assert_array_equal(after, before, err_msg=f"{p.name} changed the results")
        assert p(done, TARGET) is done, f"{p.name} is not idempotent, or copies an unchanged program"
        func = done
    return func


@pytest.fixture(scope="session")
def lowered() -> Callable[..., PrimFunc]:
    """`lowered(func, *passes)`: see `check`."""
    return check


# ---- programs with threads -----------------------------------------------------------------------------------------------

OPENCL = Target("opencl")
CUDA = Target("cuda -arch=sm_90")


def thread_results(func: PrimFunc, check_races: bool = False) -> list[np.ndarray]:
    """As `results`, by the thread interpreter: with `check_races` a missing barrier is an error."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    given = []
    for b in func.params:
        assert isinstance(b, Buffer)
        n = int(np.prod([e.as_int() for e in b.shape]))
        values = np.full(n, -77) if b in written else stream(0, "lower", b.name).integers(-3, 4, n)
        given.append(values.astype(dt.to_numpy(b.dtype)).reshape([e.as_int() for e in b.shape]))
    return [a.reshape(-1) for a in run_threads(func, given, check_races=check_races)]


def check_threads(func: PrimFunc, *passes: Pass, target: Target = OPENCL, check_races: bool = False) -> PrimFunc:
    """As `check`, for GPU programs.  With `check_races` races are checked after the last pass."""
    verify(func)
    expected = thread_results(func)
    for n, p in enumerate(passes):
        done = p(func, target)
        verify(done)
        for after, before in zip(thread_results(done, check_races and n == len(passes) - 1), expected, strict=True):
            np.testing.assert_array_equal(after, before, err_msg=f"{p.name} changed the results")
        assert p(done, target) is done, f"{p.name} is not idempotent, or copies an unchanged program"
        func = done
    return func


@pytest.fixture(scope="session")
def threaded() -> Callable[..., PrimFunc]:
    """`threaded(func, *passes, target=OPENCL, check_races=False)`: see `check_threads`."""
    return check_threads
