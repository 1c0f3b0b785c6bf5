"""Demand that accesses of different iterations of a loop are to different elements.

Nothing here decides by a number that a Param may change: conditions that normal forms leave open become constraints of the sketch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tunesmith.ir.analysis.dependence import Inner, LoopAccess, independence_conditions
from tunesmith.ir.poly import ZERO, Poly, Var, is_param_only, minimum
from tunesmith.schedule.state import ScheduleState


def separation_conditions(a: LoopAccess, b: LoopAccess, loop: Var) -> Iterator[list[Poly]]:
    """Ways in which `a` of one iteration of `loop` and `b` of another access different elements, each a list of expressions to be <= 0."""
    for at in zip(a.indices, b.indices, strict=True):
        yield from independence_conditions(at, loop, (Inner(a.ranges, a.guards), Inner(b.ranges, b.guards)))


def require_one(s: ScheduleState, ways: Iterable[list[Poly]], label: str, message: str, at: Any) -> None:
    """Demand that in one of the `ways` every expression is <= 0.

    The first that is known to hold, else the first that may hold for some rows, which then becomes constraints.  A row that meets
    them passes here too when it is put in from the start, because numbers leave nothing unknown.
    """
    tried = list(ways)
    if any(all(minimum(p, ZERO) == p for p in way) for way in tried):
        return
    for way in tried:
        unknown = [p for p in way if minimum(p, ZERO) != p]
        if all(is_param_only(p) and minimum(p, ZERO) != ZERO for p in unknown):
            for p in unknown:
                s.require("le0", p, label, message)
            return
    raise s.refuse(label, message, at)
