"""A schedule without measurements: the candidate that the analytic model likes best.

It is what a function without a record is compiled with.  The draw has a fixed seed, so equal functions and targets give equal
programs on every machine.
"""

from __future__ import annotations

from contextlib import suppress

from tunesmith.graph.default_schedule import default_schedule
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target import Target
from tunesmith.schedule.schedule import replay
from tunesmith.search.drafter import Drafter
from tunesmith.search.task import Task
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream

DRAWN = 4096
"""Candidates that are ranked."""


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
            for _, candidate in drawn.best(1):
                return replay(task.space.sketches[candidate.sketch].trace_of(candidate.row), func).func
    return default_schedule(func, target)
