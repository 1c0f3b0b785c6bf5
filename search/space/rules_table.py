"""From a function to its space: every rule is asked; what it names is applied parametrically."""

from __future__ import annotations

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
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.registry import Registry

Rule = Callable[[PrimFunc, Target], list[tuple[str, Callable[[Schedule], None]]]]
"""(function, target) to named schedules; [] when the rule does not apply."""

_NAMES = ("contraction", "fallback", "pointwise", "reductions", "rows")
SEARCH_RULES: Registry[Rule] = Registry(
    "search rule", {n: f"tunesmith.search.space.rules.{n}:sketches" for n in (*_NAMES, "stages", *[f"gpu_{n}" for n in _NAMES])}
)
"""Rules by name.  One is asked only where it is named: a package that is installed changes no space by itself."""


def find_rules(rules: Iterable[str | Rule]) -> tuple[Rule, ...]:
    """Rules, some of them by name.  UserError if there is no such name, or one is neither a name nor a function."""
    given = None if isinstance(rules, str) or not isinstance(rules, Iterable) else list(rules)
    if given is None or not all(isinstance(r, str) or callable(r) for r in given):
        raise UserError(
            f"rules={rules!r:.200}: a list of functions and of names is wanted, such as [{', '.join(SEARCH_RULES.names()[:2])}]"
        )
    return tuple([SEARCH_RULES.get(r) if isinstance(r, str) else r for r in given])


def rules_of(target: Target) -> tuple[Rule, ...]:
    """The rules of a target's backend."""
    return find_rules(backend_of(target).rules)


def generate(func: PrimFunc, target: Target, rules: Sequence[Rule] | None = None) -> Space:
    """The sketches of all rules for `func`; without `rules`, of those for the target's kind.

    A sketch without any admissible row is left out, `Space.left_out` says which and why; where no sketch is left, and `rules` are not
    given, the fallback rule makes one.

    Raises:
        BuildError: no rule knows this kind of function, or it looks indices up in memory, which no model can judge.
    """
    if any(type(n) is IndirectIndex for n in walk(func.body)):
        raise BuildError(f"{func.name} looks indices up in memory: no rule makes a space for that, schedule it by hand")
    if rules is None and not has_loop_for_each_variable(func):
        raise BuildError(
            f"no sketch rule applies to {func.name}, whose loops are not the iteration variables of its blocks, each and in order: "
            "write it without a schedule, schedule it by hand, or pass rules= with one of your own"
        )
    out: list[Sketch] = []
    empty: list[str] = []
    asked = rules
    if rules is None:
        # What is too large to be inlined as a whole: the rules of CPUs and GPUs would do that.
        rules = find_rules(backend_of(target).large_rules) if stages.sketches(func, target) else None
    for rule in rules_of(target) if rules is None else rules:
        out.extend(collect(rule(func, target), func, empty))
    if not out and asked is None:
        (last,) = find_rules([backend_of(target).fallback_rule])
        out = collect(last(func, target), func, empty)
    if not out:
        why = f" ({'; '.join(empty[:3])})" if empty else ""
        raise BuildError(f"no sketch rule applies to {func.name}{why}: schedule it by hand, or pass rules= with one of your own")
    return Space(tuple(out), tuple(empty))
