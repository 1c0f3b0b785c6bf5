"""Require that different iterations of a loop access different elements.

Conditions that the normal forms do not decide become constraints of the sketch, because they depend on values of Params.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tunesmith.ir.analysis.dependence import Inner, LoopAccess, independence_conditions, ordering_conditions
from tunesmith.ir.poly import ZERO, Poly, Var, is_param_only, minimum
from tunesmith.schedule.state import ScheduleState


def pair_conditions(a: LoopAccess, b: LoopAccess, loop: Var) -> Iterator[list[Poly]]:
    """Independence conditions of `a` and `b` in different iterations of `loop`: alternatives, each a list of expressions <= 0."""
    for at in zip(a.indices, b.indices, strict=True):
        yield from independence_conditions(at, loop, (Inner(a.ranges, a.guards), Inner(b.ranges, b.guards)))


def in_order_conditions(a: LoopAccess, b: LoopAccess, loop: Var) -> Iterator[list[Poly]]:
    """As `pair_conditions`, for `a` in an iteration of `loop` that is later than that of `b`."""
    for at in zip(a.indices, b.indices, strict=True):
        yield from ordering_conditions(at, loop, (Inner(a.ranges, a.guards), Inner(b.ranges, b.guards)))


def require_one(s: ScheduleState, alternatives: Iterable[list[Poly]], label: str, message: str, at: Any) -> None:
    """Require one of the alternatives, each a list of expressions that must be <= 0.

    If an alternative is proven, nothing is required.  Otherwise the first that may hold for some configurations becomes constraints.  A
    configuration that satisfies them also passes in concrete mode, because numbers leave nothing undecided.

    Raises:
        ScheduleError: no alternative can hold.
    """
    candidates = list(alternatives)
    if any(all(minimum(p, ZERO) == p for p in conditions) for conditions in candidates):
        return
    for conditions in candidates:
        unknown = [p for p in conditions if minimum(p, ZERO) != p]
        if all(is_param_only(p) and minimum(p, ZERO) != ZERO for p in unknown):
            for p in unknown:
                s.require("le0", p, label, message)
            return
    raise s.refuse(label, message, at)
