"""Provide `apply`, which runs steps on a function and checks the guarantees common to all primitives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.schedule.schedule import Schedule, concretize, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream

Steps = Callable[[Schedule], object]
Decisions = Sequence[Sequence[int]]


def results(func: PrimFunc) -> list[np.ndarray]:
    """The values of the parameters after a call with small integer inputs; outputs are poisoned before the call."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    inputs = {}
    for b in func.params:
        if isinstance(b, Buffer) and b not in written:
            shape = [e.as_int() for e in b.shape]
            inputs[b.name] = stream(0, "schedule", b.name).integers(-3, 4, shape).astype(dt.to_numpy(b.dtype))
    return run(func, inputs)


def check(func: PrimFunc, steps: Steps, decisions: Decisions = ()) -> Schedule:
    """The schedule that `steps` make of `func` with these decisions, after four checks.

    The program is well formed; it computes the same results; its trace can be replayed from JSON and from Python; and parametric scheduling
    followed by substitution gives the same program as concrete scheduling.
    """
    s = Schedule(func, decisions=decisions)
    steps(s)
    verify(s.func)
    for before, after in zip(results(func), results(s.func), strict=True):
        np.testing.assert_array_equal(after, before)
    read = Trace.from_json(json.loads(json.dumps(s.trace.to_json())))
    assert read == s.trace
    again = replay(read, func)
    assert structural.difference(again.func, s.func) is None
    assert again.trace == s.trace
    pasted = Schedule(func)
    exec(s.trace.as_python(), {"sch": pasted})
    assert structural.difference(pasted.func, s.func) is None
    assert pasted.trace == s.trace
    symbolic = Schedule(func, parametric=True)
    steps(symbolic)
    values = [x for d in decisions for x in d]
    concrete = concretize(symbolic.func, dict(zip(symbolic.params, values, strict=True)))
    assert structural.difference(concrete, s.func) is None, "substitution after the steps and before them give different programs"
    return s


@pytest.fixture(scope="session")
def apply() -> Callable[..., Schedule]:
    """`apply(func, steps, decisions=())`: see `check`."""
    return check
