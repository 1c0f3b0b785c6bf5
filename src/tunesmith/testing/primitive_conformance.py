"""Check schedules made of primitives: results, the law of parametric schedules, and traces as JSON and as Python.

    def test_tiles():
        check_schedule(func, lambda s: s.my_primitive(s.get_block("C")), decisions=[])

`cells` makes the row of a primitive in the table of the reference from its sample, so that the table says what the checks really find.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence

import numpy as np

from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.stmt import BufferStore, For
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.schedule.primitive import PRIMITIVES
from tunesmith.schedule.schedule import Schedule, concretize, replay
from tunesmith.schedule.trace import Trace
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScheduleError
from tunesmith.support.seeds import stream
from tunesmith.testing.primitive_samples import SAMPLES
from tunesmith.testing.program_fuzz.generate_steps import FUZZED

Steps = Callable[[Schedule], object]
Decisions = Sequence[Sequence[int]]


def check_schedule(func: PrimFunc, steps: Steps, decisions: Decisions = ()) -> Schedule:
    """The schedule that `steps` make of `func` with these decisions, after four checks.

    The program is well formed and computes the same results; its trace can be replayed from JSON and from Python; and parametric scheduling
    followed by substitution gives the same program as concrete scheduling.

    Raises:
        AssertionError: a check fails.
    """
    s = Schedule(func, decisions=decisions)
    steps(s)
    check_results(func, s)
    check_json(func, s)
    check_python(func, s)
    check_law(func, steps, s, decisions)
    return s


def results(func: PrimFunc) -> list[np.ndarray]:
    """The values of the parameters after a call with small integer inputs; outputs are poisoned before the call."""
    written = {n.buffer for n in walk(func.body) if type(n) is BufferStore}
    inputs = {}
    for b in func.params:
        if isinstance(b, Buffer) and b not in written:
            shape = [e.as_int() for e in b.shape]
            inputs[b.name] = stream(0, "schedule", b.name).integers(-3, 4, shape).astype(dt.to_numpy(b.dtype))
    if not any(type(n) is For and (n.thread or "").startswith("threadIdx") for n in walk(func.body)):
        return run(func, inputs)
    buffers = [b for b in func.params if isinstance(b, Buffer)]
    arrays = [inputs[b.name] if b.name in inputs else np.zeros([e.as_int() for e in b.shape], dt.to_numpy(b.dtype)) for b in buffers]
    return run_threads(func, arrays, check_races=False)


def check_results(func: PrimFunc, s: Schedule) -> None:
    """The scheduled program is well formed and computes the results of `func`."""
    verify(s.func)
    for before, after in zip(results(func), results(s.func), strict=True):
        np.testing.assert_array_equal(after, before)


def check_json(func: PrimFunc, s: Schedule) -> None:
    """The trace, written as JSON and read again, replays to the same program."""
    read = Trace.from_json(json.loads(json.dumps(s.trace.to_json())))
    assert read == s.trace, "the trace differs after a round trip through JSON"
    again = replay(read, func)
    assert structural.difference(again.func, s.func) is None, "the replayed trace makes another program"
    assert again.trace == s.trace, "the replayed steps record another trace"


def check_python(func: PrimFunc, s: Schedule) -> None:
    """The trace as Python source makes the same program."""
    pasted = Schedule(func)
    exec(s.trace.as_python(), {"sch": pasted})
    assert structural.difference(pasted.func, s.func) is None, "the Python source of the trace makes another program"
    assert pasted.trace == s.trace, "the Python source records another trace"


def check_law(func: PrimFunc, steps: Steps, s: Schedule, decisions: Decisions = ()) -> Schedule:
    """Parametric scheduling and substitution of the decisions make the program of `s`; returns the parametric schedule."""
    symbolic = Schedule(func, parametric=True)
    steps(symbolic)
    values = [x for d in decisions for x in d]
    concrete = concretize(symbolic.func, dict(zip(symbolic.params, values, strict=True)))
    assert structural.difference(concrete, s.func) is None, "substitution after the steps and before them give different programs"
    return symbolic


# ---- the table of primitives -------------------------------------------------------------------------------------------


def labels(name: str) -> list[str]:
    """The labels of a primitive's refusals, from its docstring."""
    part = (inspect.getdoc(PRIMITIVES[name].function) or "").partition("Requires:")[2].partition("\nKeeps:")[0]
    return re.findall(r"^    ([a-z-]+): ", part, re.MULTILINE)


COLUMNS = ("primitive", "concrete", "parametric", "JSON", "Python", "refusals", "fuzzed")


def cells(name: str) -> dict[str, str]:
    """The cells of a primitive by column; empty where it has no sample, no precondition, or no entry for the fuzzers.

    Raises:
        AssertionError: a check of its sample fails.
    """
    found = dict.fromkeys(COLUMNS, "")
    found["primitive"] = name
    if name in SAMPLES:
        sample = SAMPLES[name]
        s = Schedule(sample.func, decisions=sample.decisions)
        sample.steps(s)
        assert any(i.kind == name for i in s.trace.instructions), f"the sample of {name} does not apply it"
        check_results(sample.func, s)
        found["concrete"] = "same results"
        found["parametric"] = parametric(name)
        check_json(sample.func, s)
        check_python(sample.func, s)
        found["JSON"] = found["Python"] = "round trip"
    found["refusals"] = str(len(labels(name))) if labels(name) else "none" if name in WITHOUT_PRECONDITION else ""
    if name in FUZZED:
        found["fuzzed"] = f"weight {FUZZED[name].weight:g}"
    return found


def parametric(name: str) -> str:
    """The result of the law of parametric schedules for the sample of a primitive; for one of `CONCRETE`, that it is refused.

    Raises:
        AssertionError: the check fails.
    """
    sample = SAMPLES[name]
    if name in CONCRETE:
        with_open_sizes = Schedule(sample.func, parametric=True)
        try:
            sample.steps(with_open_sizes)
        except ScheduleError:
            return "refused"
        raise AssertionError(f"{name} is listed as concrete and accepts open sizes")
    s = Schedule(sample.func, decisions=sample.decisions)
    sample.steps(s)
    symbolic = check_law(sample.func, sample.steps, s, sample.decisions)
    assert symbolic.params, f"the sample of {name} samples no size"
    return f"law, {len(symbolic.params)} sampled"


CONCRETE = ("sample_compute_location",)
"""Primitives that refuse schedules with open sizes, because their choices make different programs."""
WITHOUT_PRECONDITION = ("get_output_blocks",)
"""Primitives that refuse nothing."""
