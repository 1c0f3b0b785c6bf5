"""Combine a rule of a user with the built-in schedules: derive the nests of the blocks that its steps left, or continue built-in sketches.

A rule schedules the blocks that it knows.  `with_rest` and `schedule_rest` derive nests for the other blocks
(docs/design/009-derived-spaces.md); `continued` runs more steps after schedules that exist, such as those of `built_in`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.stmt import Block, For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.plans import Plan, plans
from tunesmith.search.space.rules import derived
from tunesmith.search.space.rules_table import Named, built_in
from tunesmith.support.errors import UserError

__all__ = ["built_in", "continued", "rest", "schedule_rest", "with_rest"]


def rest(s: Schedule) -> list[str]:
    """The names of the blocks that no step has scheduled, in program order.

    Such a block is alone in its nest, its loops are serial and are its iteration variables in order, neither it nor its loops have
    annotations, and it writes no workspace and no register.
    """
    found = [_left(statement) for statement in s.root_stmts()]
    return [b.name for b in found if b is not None]


def _left(statement: Stmt) -> Block | None:
    loops: list[Var] = []
    while type(statement) is For:
        if statement.kind != "serial" or statement.thread is not None or statement.annotations:
            return None
        loops.append(statement.var)
        statement = statement.body
    if type(statement) is not Block or [e.as_var() for e in statement.bindings] != loops or statement.annotations:
        return None
    return statement if all(a.buffer.scope == "global" for a in accesses(statement) if a.is_write) else None


def schedule_rest(s: Schedule, target: Target) -> None:
    """Schedule the blocks of `rest(s)` by the first plan of the derivation; nothing happens if there are none.

    Blocks that are left may be inlined into others that are left, or computed inside their nests; scheduled blocks stay as they are.

    Raises:
        UserError: the target is no CPU, or the function has dynamic shapes.
        ScheduleError: a step of the derivation is refused.
    """
    names = rest(s)
    found = plans(s.func, target, names) if _check(s.func, target) and names else []
    if found:
        derived.schedule(s, found[0], target, names)


def with_rest(name: str, steps: Callable[[Schedule], None], func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for each plan of the blocks that `steps` leaves: the steps, then the derived nests of the rest.

    `steps` runs once here, to find what it leaves, and once for each sketch; it must do the same each time.

    Args:
        name: the sketches are called `name` and the name of the plan; only `name` if nothing is left.
        steps: the steps of the rule.
        func: the unscheduled function.
        target: the machine, a CPU.

    Raises:
        UserError: the target is no CPU, or the function has dynamic shapes.
        ScheduleError: a step is refused for this function.
    """
    _check(func, target)
    s = Schedule(func, parametric=True)
    steps(s)
    names = rest(s)
    if not names:
        return [(name, steps)]

    def made(plan: Plan) -> Callable[[Schedule], None]:
        def schedule(s: Schedule) -> None:
            steps(s)
            derived.schedule(s, plan, target, rest(s))

        return schedule

    return [(f"{name} {plan.name}", made(plan)) for plan in plans(s.func, target, names)]


def continued(schedules: Sequence[Named], name: str, steps: Callable[[Schedule], None]) -> list[Named]:
    """The schedules with `steps` after each; `name` is appended to their names.  A schedule for which a step is refused gives no sketch."""

    def made(first: Callable[[Schedule], None]) -> Callable[[Schedule], None]:
        def schedule(s: Schedule) -> None:
            first(s)
            steps(s)

        return schedule

    return [(f"{before} {name}", made(first)) for before, first in schedules]


def _check(func: PrimFunc, target: Target) -> bool:
    """True; raises for what the derivation does not support."""
    if not target.is_cpu:
        raise UserError(
            f"the rest of {func.name} cannot be derived for {target.kind}: derived nests are for CPUs. Schedule all blocks in the rule"
        )
    if any(isinstance(p, Var) for p in func.params):
        raise UserError(f"the rest of {func.name} cannot be derived: it has dynamic shapes. Give it fixed sizes")
    return True
