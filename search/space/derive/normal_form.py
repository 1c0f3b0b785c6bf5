"""Leave out terms that are always zero before a rule schedules a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.primitives.restrict_reduction import congruent_variables
from tunesmith.schedule.schedule import Schedule

Named = tuple[str, Callable[[Schedule], None]]
Rule = Callable[[PrimFunc, Target], list[Named]]


def without_zero_terms(rule: Rule) -> Rule:
    """The rule for functions whose reduction variables take only the values for which a remainder makes a term other than zero."""

    @wraps(rule)
    def restricted(func: PrimFunc, target: Target) -> list[Named]:
        if not any(congruent_variables(b) for b in blocks_under(func.body)):
            return rule(func, target)
        s = Schedule(func)
        _restrict(s)
        return [(name, lambda t, schedule=schedule: _after(t, schedule)) for name, schedule in rule(s.func, target)]  # type: ignore[misc]

    return restricted


def _after(s: Schedule, schedule: Callable[[Schedule], None]) -> None:
    _restrict(s)
    schedule(s)


def _restrict(s: Schedule) -> None:
    for b in s.blocks():
        for n in congruent_variables(b):
            s.restrict_reduction(s.get_block(b.name), n)
