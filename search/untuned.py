"""A schedule without measurements: the candidate that the analytic model likes best.

It is what a function without a record is compiled with.  The draw has a fixed seed, so equal functions and targets give equal
programs on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tunesmith.codegen.device_build import build
from tunesmith.graph.default_schedule import default_schedule
from tunesmith.ir.analysis.work import worth_threads
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import For
from tunesmith.ir.target import Target
from tunesmith.ir.visit import walk
from tunesmith.schedule.schedule import replay
from tunesmith.search.drafter import Drafter, Population
from tunesmith.search.sampler import Candidate
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

DRAWN = 4096
"""Candidates that are ranked."""
TRIED = 8
"""Of the best so many are compiled at most, to find one that spills no registers, where a compiler tells that."""


def analytic_schedule(func: PrimFunc, target: Target) -> PrimFunc:
    """The function under the best of `DRAWN` candidates by the analytic model; the plain schedule where there is no space.

    Functions with symbolic sizes, and those that somebody has scheduled, have none.
    """
    if any(isinstance(p, Var) for p in func.params):
        return default_schedule(func, target)
    with suppress(UserError):
        task = Task(func.name, func, target)
        if task.space.sketches:
            drafter = Drafter(task)
            drawn = drafter.draw(DRAWN, stream(0, "untuned", task.digest))
            found = drawn.best(TRIED if target.base == "cuda" else 1)
            if target.is_cpu:
                found = _on_one_thread(task, drawn, target) or found
            best = [task.space.sketches[c.sketch].trace_of(c.row) for _, c in found]
            programs = (replay(trace, func).func for trace in best)
            return next(programs) if target.base != "cuda" else _without_spills(programs, target)
    return default_schedule(func, target)


def _on_one_thread(task: Task, drawn: Population, target: Target) -> list[tuple[float, Candidate]]:
    """The best candidate without a parallel loop, if its work is not worth starting threads: these may be asleep, or have no core."""
    serial = [k for k in drawn.rows if not any(type(n) is For and n.kind == "parallel" for n in walk(task.space.sketches[k].func.body))]
    best = Population({k: drawn.rows[k] for k in serial}, {k: drawn.values[k] for k in serial}).best(1)
    return [x for x in best if not worth_threads(x[0], target)]


def _without_spills(programs: Iterable[PrimFunc], target: Target) -> PrimFunc:
    """The first whose kernels the compiler keeps in registers, which estimates tell only nearly; if all spill, that which spills least."""
    found: list[tuple[float, PrimFunc]] = []
    for program in programs:
        spilled = build(program, target).facts["spill_bytes"]
        if not spilled:
            return program
        found.append((spilled, program))
    return min(found, key=lambda x: x[0])[1]
