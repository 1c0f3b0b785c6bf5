"""Bring a function into the form that rules expect, before a rule schedules it: one nest for each block, without terms that are zero.

In normal form each block has a nest of its own, whose loops are its iteration variables in order, and reduction variables take only the
values for which a remainder makes a term other than zero.  The steps are primitives, and come first in the trace of each sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import poly
from tunesmith.ir.stmt import Block, For, If, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under, inner_statements
from tunesmith.schedule.primitive import apply_instruction
from tunesmith.schedule.primitives.restrict_reduction import congruent_variables
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.trace import Trace
from tunesmith.search.space.rules.block_classes import has_own_nests
from tunesmith.support.errors import ScheduleError

Named = tuple[str, Callable[[Schedule], None]]
Rule = Callable[[PrimFunc, Target], list[Named]]


@dataclass(frozen=True)
class NormalForm:
    """A function in normal form, as far as primitives accept the steps.

    Attributes:
        func: the function after the steps.
        steps: the steps, which apply to the function as it was given.
        reasons: for each block that has no nest of its own, or one with other loops, the reason.
    """

    func: PrimFunc
    steps: Trace
    reasons: Mapping[str, str]

    def rule(self, rule: Rule) -> Rule:
        """The rule for the given function that schedules the normal form, after the steps."""

        @wraps(rule)
        def normal(func: PrimFunc, target: Target) -> list[Named]:
            return [(name, lambda s, schedule=schedule: self._after(s, schedule)) for name, schedule in rule(self.func, target)]  # type: ignore[misc]

        return normal if self.steps.instructions else rule

    def _after(self, s: Schedule, schedule: Callable[[Schedule], None]) -> None:
        for i in self.steps.instructions:
            apply_instruction(s, i, i.decision)
        schedule(s)


def normal_form(func: PrimFunc) -> NormalForm:
    """The normal form of a function.  The loops of a function that is scheduled already stay as they are."""
    s = Schedule(func)
    refused: dict[str, str] = {}
    if not has_own_nests(func) and not scheduled(func):
        for name in [b.name for b in s.blocks()]:
            _divide(s, name, refused)
        for name in [b.name for b in s.blocks()]:
            _order(s, name, refused)
    for b in s.blocks():
        for n in congruent_variables(b):
            if s.accepts(lambda b=b, n=n: s.restrict_reduction(s.get_block(b.name), n)):  # type: ignore[misc]
                s.restrict_reduction(s.get_block(b.name), n)
    reasons = {} if has_own_nests(s.func) else {b.name: why for b in s.blocks() if (why := _reason(s, b, refused))}
    return NormalForm(s.func, s.trace, reasons)


# ---- nests of several blocks ------------------------------------------------------------------------------------------


def _divide(s: Schedule, name: str, refused: dict[str, str]) -> None:
    """Divide all loops that the block shares with blocks after it, or none."""
    depths = [n for n, (_, body, at) in enumerate(_levels(s, name)) if type(body) is Seq and body.stmts[-1] is not at]
    if not depths:
        return

    def steps(s: Schedule) -> None:
        b = s.get_block(name)
        for depth in range(depths[-1], -1, -1):
            s.fission(s.get_loops(b)[depth], b)

    try:
        steps(Schedule(s.func))
    except ScheduleError as error:
        refused[name] = error.summary
    else:
        steps(s)


def _levels(s: Schedule, name: str) -> list[tuple[For, object, object]]:
    """The loops around a block, each with its body and the statement of the body that contains the block; empty below a condition."""
    path = s.path(name)
    if any(type(n) is If for n in path):
        return []
    return [(f, body, path[n + 2] if type(body) is Seq else body) for n, (f, body) in enumerate(pairwise(path)) if type(f) is For]


# ---- the order of loops -----------------------------------------------------------------------------------------------


def _order(s: Schedule, name: str, refused: dict[str, str]) -> None:
    """Reorder the loops of a block into the order of its variables."""
    levels = _levels(s, name)
    loops = [f for f, _, _ in levels]
    if any(type(body) is Seq for _, body, _ in levels):
        return
    of = {poly(f.var): f for f in loops}
    wanted = [of[e] for e in s.block(name).bindings if e in of]
    if wanted == loops or len(wanted) != len(s.block(name).bindings) or len(set(wanted)) != len(loops):
        return

    def steps(s: Schedule) -> None:
        handles = dict(zip([f.var for f in loops], s.get_loops(s.get_block(name)), strict=True))
        s.reorder([handles[f.var] for f in wanted])

    try:
        steps(Schedule(s.func))
    except ScheduleError as error:
        refused[name] = error.summary
    else:
        steps(s)


# ---- what remains -----------------------------------------------------------------------------------------------------


def _reason(s: Schedule, b: Block, refused: Mapping[str, str]) -> str:
    """Why the block has no nest of its own whose loops are its variables; empty if it has one."""
    loops = s.loops_of(b.name)
    if any(type(n) is If for n in s.path(b.name)):
        return "it is below an `if` outside of blocks; move the condition into the block"
    shared = [f for f, body, _ in _levels(s, b.name) if type(body) is Seq]
    if shared:
        nest = [c.name for c in blocks_under(shared[0])]
        before = nest[: nest.index(b.name)]
        why = next((f": {refused[n]}" for n in (b.name, *reversed(before)) if n in refused), "")
        others = [c.name for c in blocks_under(shared[-1]) if c is not b]
        return f"it shares loop {shared[-1].var.name} with {f'block {others[0]}' if others else 'a plain statement'}{why}"
    names = ", ".join(f.var.name for f in loops)
    if b.name in refused:
        return f"its loops {names} are in another order than its variables: {refused[b.name]}"
    other = next((f"{it.var.name} is {e!r}" for it, e in zip(b.iters, b.bindings, strict=True) if e.as_var() is None), "")
    if other:
        return f"its variable {other}, not a loop of its own"
    unused = [f.var.name for f in loops if not any(f.var in e.vars for e in b.bindings)]
    if unused:
        return f"no variable is loop {unused[0]}"
    return (
        "" if [e.as_var() for e in b.bindings] == [f.var for f in loops] else f"its loops {names} are in another order than its variables"
    )


def scheduled(func: PrimFunc) -> str:
    """What shows that a function is scheduled already; empty for an unscheduled function."""
    left: list[Stmt] = [func.body]
    while left:
        n = left.pop()
        if type(n) is For and (n.kind != "serial" or n.annotations):
            return f"loop {n.var.name} is {n.kind if n.kind != 'serial' else 'annotated'}"
        if type(n) is Block and n.annotations:
            return f"block {n.name} is annotated"
        if type(n) is not Block:
            left.extend(reversed(inner_statements(n)))
    return next((f"buffer {b.name} is a {b.scope}" for b in func.allocs if b.scope != "global"), "")
