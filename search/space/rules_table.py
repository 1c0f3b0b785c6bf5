"""Generate the search space of a function: apply the named schedules of every sketch rule parametrically."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules import stages
from tunesmith.search.space.rules.block_classes import has_loop_for_each_variable
from tunesmith.search.space.sketch import Sketch, Space, collect
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.registry import FUNCTION, Registry


class SketchWarning(UserWarning):
    """A schedule of a rule was refused, and is missing in the space."""


Rule = Callable[[PrimFunc, Target], list[tuple[str, Callable[[Schedule], None]]]]
"""Maps (function, target) to named schedules; [] if the rule does not apply."""

_NAMES = ("contraction", "fallback", "pointwise", "reductions", "rows")
SEARCH_RULES: Registry[Rule] = Registry(
    "search rule",
    {n: f"tunesmith.search.space.rules.{n}:sketches" for n in (*_NAMES, "stages", *[f"gpu_{n}" for n in _NAMES])},
    contract=FUNCTION,
)
"""Rules by name.  A registered rule is used only if it is named, so installing a package changes no search space."""


def find_rules(rules: Iterable[str | Rule]) -> tuple[Rule, ...]:
    """The rules given as names or functions.  Raises UserError for an unknown name, or an item that is neither a name nor a function."""
    given = None if isinstance(rules, str) or not isinstance(rules, Iterable) else list(rules)
    if given is None or not all(isinstance(r, str) or callable(r) for r in given):
        raise UserError(f"rules={rules!r:.200}: pass a list of functions and names, such as [{', '.join(SEARCH_RULES.names()[:2])}]")
    return tuple([SEARCH_RULES.get(r) if isinstance(r, str) else r for r in given])


def rules_of(target: Target) -> tuple[Rule, ...]:
    """The rules of a target's backend."""
    return find_rules(backend_of(target).rules)


def generate(func: PrimFunc, target: Target, rules: Sequence[Rule] | None = None) -> Space:
    """The search space of `func`: the sketches of `rules`, by default those of the target's kind.

    Sketches without admissible rows are skipped and listed in `Space.left_out`, schedules that a primitive refused in `Space.refused`; a
    refused schedule of `rules` is also a `SketchWarning`.  If no sketch remains and `rules` is None, the fallback rule makes one.

    Raises:
        BuildError: no rule applies to the function, or it has indirect indices, whose cost no model can predict.
    """
    if any(type(n) is IndirectIndex for n in walk(func.body)):
        raise BuildError(f"{func.name} looks indices up in memory (gather): no sketch rule supports that; schedule it by hand")
    if rules is None and not has_loop_for_each_variable(func):
        raise BuildError(
            f"no sketch rule applies to {func.name}: the loops around each block are not its iteration variables in order. "
            "Pass the unscheduled function, schedule it by hand, or pass your own rule in rules="
        )
    out: list[Sketch] = []
    empty: list[str] = []
    refused: list[str] = []
    given = rules
    if rules is None:
        # Functions too large to be inlined as a whole: the other rules would inline them.
        rules = find_rules(backend_of(target).large_rules) if stages.sketches(func, target) else None
    for rule in rules_of(target) if rules is None else rules:
        found: list[str] = []
        out.extend(collect(rule(func, target), func, empty, found))
        refused += [f"the rule {_name(rule)} has a schedule for {func.name} that is refused, {line}" for line in found]
    if given is not None:
        for line in refused:
            warnings.warn(f"{line}. The space has no such sketch", SketchWarning, stacklevel=stacklevel())
    if not out and given is None:
        (last,) = find_rules([backend_of(target).fallback_rule])
        out = collect(last(func, target), func, empty)
    if not out:
        why = f" ({'; '.join([*empty, *refused][:3])})" if empty or refused else ""
        raise BuildError(f"no sketch rule applies to {func.name}{why}: schedule it by hand, or pass your own rule in rules=")
    return Space(tuple(out), tuple(empty), tuple(refused))


def _name(rule: Rule) -> str:
    """Module and name of a rule."""
    module, name = getattr(rule, "__module__", ""), getattr(rule, "__qualname__", repr(rule))
    return f"{module}:{name}" if module else name
