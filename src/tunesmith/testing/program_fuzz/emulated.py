"""Run random programs with random schedules on an emulated machine, and compare their results with those of the direct evaluator."""

from __future__ import annotations

from pathlib import Path

from tunesmith.codegen.llvm.build import build
from tunesmith.codegen.llvm.export import export_library
from tunesmith.ir.target.target import Target
from tunesmith.runtime.arrays import in_bfloat16, in_float32
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import RunError, UserError
from tunesmith.testing.emulated_machine import EmulatedMachine
from tunesmith.testing.program_fuzz.check import Case, Finding, Refused, difference, prepare, raised_finding, short
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.generate import generate
from tunesmith.testing.program_fuzz.steps import Replay, Step
from tunesmith.testing.program_fuzz.worker import Failure, Outcome, Trial, walk


def check_emulated(seed: int, schedules: int, machine: EmulatedMachine, target: Target, folder: Path) -> Outcome:
    """Generate the program of a seed and check it with some schedules; schedule 0 is empty.

    Args:
        seed: of the program and its schedules.
        schedules: their number.
        machine: runs the code.
        target: what is compiled for.
        folder: receives a library, which the next one replaces.
    """
    out = Outcome(seed)
    made = generate(seed)
    if made is None:
        out.refused["generator: no program"] += 1
        return out
    out.discarded = made.discarded
    try:
        case = prepare(made.program, seed, made.states, lambda _: None, interprets=False)
    except Refused as e:
        out.refused[str(e)] += 1
        return out
    for k in range(schedules):
        steps: list[Step] = []
        replay = Replay(Schedule(case.func, seed=seed), target)
        found = walk(Choices(seed, "schedule", k), k, replay, steps, out) if k else None
        try:
            found = found or _difference(case, replay, machine, folder)
            out.sequences += 1
        except Refused as e:
            out.refused[str(e)] += 1
        if found:
            out.failures.append(Failure(seed, k, found, Trial(case.program, seed, tuple(steps), str(target))))
    return out


def _difference(case: Case, replay: Replay, machine: EmulatedMachine, folder: Path) -> Finding | None:
    """Compare the results of all calls; None if they agree.  Raises Refused if the program is not built."""
    try:
        artifact = build(replay.func, replay.target)
    except UserError as e:
        raise Refused(f"build: {short(e)}") from None
    except Exception as e:
        return raised_finding("build", e)
    library = export_library(folder / "case.so", [artifact.data])
    for binding, inputs, expected in zip(case.program.bindings, case.inputs, case.expected, strict=True):
        given = [in_bfloat16(a) if b.dtype == "bfloat16" else a for a, b in zip(inputs, case.program.params, strict=True)]
        try:
            results = machine.call(library, artifact.functions[0], given, binding)
        except RunError as e:
            return Finding("run: error", str(e))
        for b, got in zip(case.program.params, results, strict=True):
            wrong = difference(expected[b.name], in_float32(got))
            if wrong:
                return Finding("run: wrong result", f"{b.name}{binding or ''}: {wrong}")
    return None
