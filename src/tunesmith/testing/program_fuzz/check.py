"""Compare the results of a program from three oracles: direct evaluator, interpreter, and compiled code between guard pages."""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter import interpret
from tunesmith.ir.poly import Var
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.stmt import BufferStore, For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, walk
from tunesmith.lower.passes.drop_dead_stores import drop_dead_stores
from tunesmith.measure.evaluator.guard_pages import GuardedArray
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import replay
from tunesmith.schedule.trace import Trace
from tunesmith.support.errors import UserError
from tunesmith.testing.program_fuzz import evaluate
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.render import render

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """A detected failure.

    Attributes:
        kind: failure class; minimisation preserves it.
        detail: description of the observation.
    """

    kind: str
    detail: str


@dataclass(slots=True)
class Case:
    """A parsed program with its expected results.

    Attributes:
        expected: memory after each call, by buffer name.
        interpreted: whether the interpreter agrees on the unscheduled program, which is required to check schedules with it.
    """

    program: p.Program
    seed: int
    expected: list[dict[str, evaluate.Memory]]
    func: PrimFunc
    inputs: list[list[Array]]
    interpreted: bool = True
    findings: list[Finding] = field(default_factory=list)


class Refused(Exception):
    """The program or build was refused with a proper error; the argument is its short form."""


Report = Callable[[str], None]
"""Callback with the name of each phase at its start, for crash attribution."""


def prepare(program: p.Program, seed: int, states: Sequence[evaluate.State], report: Report, interprets: bool = True) -> Case:
    """Parse a program and check the interpreter and the script round trip.  Raises Refused."""
    report("parse")
    try:
        func: Any = parse(render(program))
    except UserError as e:
        raise Refused(f"script: {short(e)}") from None
    inputs = [
        [start.memory[b.name].array() for b in program.params] for start in [evaluate.start(program, b, seed) for b in program.bindings]
    ]
    case = Case(program, seed, [s.memory for s in states], func, inputs)
    case.findings += _guarded("round trip", lambda: _script_round_trip(func))
    case.interpreted = interprets
    if not interprets:
        return case
    report("interpret")
    found = _guarded("interpret original", lambda: interpretation(case, func, "original"))
    case.interpreted = not found
    case.findings += found
    return case


def check_schedule(case: Case, func: PrimFunc, trace: Trace | None, target: Target, report: Report) -> list[Finding]:
    """All checks of a scheduled program and its trace, up to the first failure.  Raises Refused if the build is refused."""
    what = "original" if func is case.func else "scheduled"
    if what == "scheduled":
        report("round trip")
        found = _guarded("round trip", lambda: _script_round_trip(func) + _trace_round_trip(case, func, trace))
        if found:
            return found
    report("build")
    try:
        artifact: Any = build(func, target)
    except UserError as e:
        raise Refused(f"build: {short(e)}") from None
    except Exception as e:
        return [raised_finding(f"build {what}", e)]
    if what == "scheduled" and case.interpreted:
        report("interpret")
        found = _guarded("interpret scheduled", lambda: interpretation(case, _sequential(func), what))
        if found:
            return found
    report("run")
    return _guarded(f"run {what}", lambda: execution(case, artifact, what))


def _sequential(func: PrimFunc) -> PrimFunc:
    """The function with some loops made serial for the interpreter: vectorized loops, where lanes that accumulate to one element are a
    sum and not a race; threadIdx loops, which this interpreter does not support; bound loops that fill intermediates, which may carry
    values when serial, as on a CPU; and loops whose thread-local buffers are also used outside.  Lowering refuses the last kind unless
    the loop has one iteration or the buffer is not needed, and then serial execution is equivalent."""
    everywhere = _scratch(func.body)
    intermediates = set(func.allocs)

    def on_for(n: For, recurse: Any) -> For:
        m: For = n.map_children(recurse)
        fills = any(type(x) is BufferStore and x.buffer in intermediates for x in walk(n))
        is_thread = m.kind == "thread" and (fills or (m.thread or "").startswith("threadIdx"))
        inside = _scratch(n.body) if m.kind in ("parallel", "thread") else Counter()
        alone = m.kind == "parallel" and m.extent.const == 1  # lowering drops such a loop and its restrictions
        shares = any(inside[b] != everywhere[b] for b in inside)
        return m.with_(kind="serial", thread=None) if m.kind == "vectorized" or is_thread or alone or shares else m

    return func.with_(body=transform(func.body, {For: on_for}))


def _scratch(n: Stmt) -> Counter[Buffer]:
    """Number of uses of each thread-local buffer."""
    return Counter([x.buffer for x in walk(n) if isinstance(x, (BufferLoad, BufferStore)) and x.buffer.scope != "global"])


def _guarded(what: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as e:
        return [raised_finding(what, e)]


def raised_finding(what: str, e: Exception) -> Finding:
    """A finding for an exception: its type and the innermost function of this project in its traceback."""
    frames = [
        f for f in traceback.extract_tb(e.__traceback__) if "/testing/program_fuzz/" not in f.filename and "<interpreter" not in f.filename
    ]
    at = frames[-1] if frames else None
    place = "" if at is None else f" in {at.filename.rpartition('/')[2]}:{at.name}"
    if isinstance(e, interpret.InterpretError):
        race = re.search(r"a race in the (\w+) loop", str(e))
        place = f": a race in a {race[1]} loop" if race else f": {short(e)}"
    return Finding(f"{what}: {type(e).__name__}{place}", "".join(traceback.format_exception(e))[-3000:])


def short(e: BaseException) -> str:
    """The first line of a message, without names and numbers that differ between programs."""
    text = (str(e).splitlines() or [""])[0]
    text = re.sub(r"<script>:\d+:? ?", "", text)
    text = re.sub(r"\(.*\)|\[.*?\]|`.*?`|'.*?'", "_", text)
    return re.sub(r"\b[a-zA-Z]{0,4}_?\d[\w.]*|-?\d+", "#", text)[:100]


def _script_round_trip(func: PrimFunc) -> list[Finding]:
    text = script(func)
    again = parse(text)
    difference = structural.difference(func, again)
    return [] if difference is None else [Finding("round trip: text differs", f"{difference}\n{text}")]


def _trace_round_trip(case: Case, func: PrimFunc, trace: Trace | None) -> list[Finding]:
    if trace is None:
        return []
    again = replay(Trace.from_json(json.loads(json.dumps(trace.to_json()))), case.func).func
    difference = structural.difference(func, again)
    return [] if difference is None else [Finding("round trip: trace differs", str(difference))]


# ---- interpreter -------------------------------------------------------------------------------------------------------


def interpretation(case: Case, func: PrimFunc, what: str) -> list[Finding]:
    """Compare the interpreter's results with the expected ones."""
    sizes = [v for v in func.params if isinstance(v, Var)]
    # Lowering removes dead code, which may be all that iterations of a parallel loop share.
    func = drop_dead_stores(func, Target("llvm -mcpu=x86-64-v3 -num-cores=1"))
    for binding, inputs, expected in zip(case.program.bindings, case.inputs, case.expected, strict=True):
        arrays = interpret.run(func, inputs, dict(zip(sizes, binding, strict=True)), check_races=True)
        for b, got in zip(case.program.params, arrays, strict=True):
            wrong = difference(expected[b.name], got)
            if wrong:
                return [Finding(f"interpret {what}: wrong result", f"{b.name}{binding or ''}: {wrong}")]
    return []


# ---- compiled code ------------------------------------------------------------------------------------------------------


def execution(case: Case, artifact: Any, what: str) -> list[Finding]:
    """Run compiled code with buffers between guard pages and compare its results with the expected ones."""
    function = Module.from_object(artifact.data)[artifact.functions[0]]
    for binding, inputs, expected in zip(case.program.bindings, case.inputs, case.expected, strict=True):
        arrays = []
        for b, values in zip(case.program.params, inputs, strict=True):
            a = GuardedArray(b.dtype, values.shape)
            a.store(values)
            arrays.append(a)
        arguments = [a.argument() for a in arrays]
        for a, b in zip(arrays, case.program.params, strict=True):
            if b.role == "input":
                a.seal()
        function(*arguments, *binding)
        for b, a in zip(case.program.params, arrays, strict=True):
            where = f"{b.name}{binding or ''}"
            if a.damaged():
                return [Finding(f"run {what}: writes outside an argument", where)]
            wrong = difference(expected[b.name], a.load())
            if wrong:
                return [Finding(f"run {what}: wrong result", f"{where}: {wrong}")]
    return []


def difference(memory: evaluate.Memory, got: Array) -> str | None:
    """Description of the difference between an array and the expected memory, or None."""
    want = memory.array()
    if memory.errors:
        with np.errstate(all="ignore"):
            right = np.abs(got.astype(np.float64) - want.astype(np.float64)) <= memory.bound()
        right |= (got == want) | (np.isnan(got) & np.isnan(want))
    else:
        right = np.asarray(got == want)
    if right.all():
        return None
    at = np.unravel_index(int(np.argmin(right)), right.shape) if right.shape else ()
    place = ", ".join(str(int(i)) for i in at)
    return f"{int((~right).sum())} of {right.size} elements are wrong, the first at [{place}]: got {got[at]}, expected {want[at]}"
