"""Generate the search space of a function: apply the named schedules of every sketch rule parametrically."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import cast

from tunesmith.codegen.backends.backend import backend_of
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.measure.records.fields import MAX_NAME
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.state import ERROR_GROWTH, ScheduleState
from tunesmith.search.space.derive.normal_form import NormalForm, normal_form, scheduled
from tunesmith.search.space.derive.regular import irregularity, serial_part
from tunesmith.search.space.rules import stages
from tunesmith.search.space.rules.block_classes import has_own_nests
from tunesmith.search.space.sketch import Sketch, Space, collect
from tunesmith.support.caller import stacklevel
from tunesmith.support.errors import BuildError, UserError
from tunesmith.support.load_from_file import find_named
from tunesmith.support.registry import FUNCTION, Registry
from tunesmith.support.user_code import check_parameters, running, shown


class SketchWarning(UserWarning):
    """A schedule of a rule was refused, and is missing in the space."""


Named = tuple[str, Callable[[Schedule], None]]
"""A name, and the function that makes the schedule."""
Rule = Callable[[PrimFunc, Target], list[Named]]
"""Maps (function, target) to named schedules; [] if the rule does not apply."""

_NAMES = ("contraction", "fallback", "pointwise", "reductions", "rows")
_CPU_NAMES = ("derived", "dot_products", "row_blocks", "stages", "strassen", "tile_products", "winograd")
SEARCH_RULES: Registry[Rule] = Registry(
    "search rule",
    {n: f"tunesmith.search.space.rules.{n}:sketches" for n in (*_NAMES, *_CPU_NAMES, *[f"gpu_{n}" for n in (*_NAMES, "split_reduction")])}
    | {"default": "tunesmith.search.space.rules_table:built_in"},
    contract=FUNCTION,
)
"""Rules by name.  A registered rule is used only if it is named, so installing a package changes no search space."""


def find_rules(rules: Iterable[str | Rule]) -> tuple[Rule, ...]:
    """The rules given as registered names, as `path.py:function`, or as functions.

    Raises:
        UserError: a name is unknown, an item is neither a text nor a function, or a function does not take (func, target).
    """
    given = None if isinstance(rules, str) or not isinstance(rules, Iterable) else list(rules)
    if given is None or not all(isinstance(r, str) or callable(r) for r in given):
        raise UserError(f"rules={rules!r:.200}: pass a list of functions and names, such as [{', '.join(SEARCH_RULES.names()[:2])}]")
    return tuple([_rule(find_named(SEARCH_RULES, r) if isinstance(r, str) else r) for r in given])


def _rule(found: object) -> Rule:
    if not callable(found):
        raise UserError(f"a rule is a function of (func, target), not {shown(found)}: {found!r:.200}")
    check_parameters(found, ("func", "target"), f"the rule {_name(found)}")
    return cast(Rule, found)


def rules_of(target: Target) -> tuple[Rule, ...]:
    """The rules of a target's backend."""
    return find_rules(backend_of(target).rules)


def built_in(func: PrimFunc, target: Target) -> list[Named]:
    """The rule `default`: the schedules of the rules that apply where a search names none, in the same order.

    These are the schedules of the target's rules for the normal form of the function; if none of them makes a sketch, those of its fallback
    rules.
    """
    form = normal_form(func)
    if not has_own_nests(form.func) and scheduled(form.func):
        return []
    for group in (_first_rules(form, target), *[find_rules((n,)) for n in backend_of(target).fallback_rules]):
        named = [x for rule in group for x in form.rule(rule)(func, target)]
        if any(collect([x], func) for x in named):
            return named
    return []


def schedules_in_order(func: PrimFunc, target: Target) -> Iterator[list[Named]]:
    """The named schedules that `generate` tries by default: those of the target's rules, then those of each fallback rule.

    Raises:
        BuildError: no rule applies to the function.
    """
    form = normal_form(func)
    _check_schedulable(form)
    yield [x for rule in _first_rules(form, target) for x in form.rule(rule)(func, target)]
    for rule in find_rules(backend_of(target).fallback_rules):
        yield form.rule(rule)(func, target)


def _first_rules(form: NormalForm, target: Target) -> tuple[Rule, ...]:
    """The rules before the fallback rules; none for a function with blocks that have no nests of their own."""
    if not has_own_nests(form.func):
        return ()
    # Functions too large to be inlined as a whole have other rules, because the first would inline them.
    return find_rules(backend_of(target).large_rules) if stages.sketches(form.func, target) else rules_of(target)


def generate(func: PrimFunc, target: Target, rules: Sequence[Rule] | None = None, error_growth: float = ERROR_GROWTH) -> Space:
    """The search space of `func`: the sketches of `rules`, by default those of the target's kind.

    Sketches without admissible rows are skipped and listed in `Space.left_out`, schedules that a primitive refused in `Space.refused`; a
    refused schedule of `rules`, except of `built_in`, is also a `SketchWarning`.  If no sketch remains and `rules` is None, the backend's
    fallback rules are tried.  Sketches whose rounding errors grow by more than `error_growth`, relative to direct sums, are left out, too.

    Raises:
        BuildError: no rule applies to the function.
        UserError: a rule raises an exception, does not return named functions of a Schedule, or two sketches of `rules` have one name.
    """
    form = normal_form(func)
    if rules is None:
        _check_schedulable(form)
    out: list[Sketch] = []
    empty: list[str] = []
    refused: list[str] = []
    given = rules
    default = rules is None or built_in in rules
    for rule in [form.rule(r) for r in _first_rules(form, target)] if rules is None else rules:
        found: list[str] = []
        out.extend(sketches_of(rule, func, target, empty, found))
        lines = [f"the rule {_name(rule)} has a schedule for {func.name} that is refused, {line}" for line in found]
        refused += lines
        for line in lines if given is not None and rule is not built_in else ():
            warnings.warn(f"{line}. The space has no such sketch", SketchWarning, stacklevel=stacklevel())
    if given is not None:
        _check_names(out, func)
    empty += [f"{s.name}: its errors are {s.error_growth:.2g} times those of direct sums" for s in out if s.error_growth > error_growth]
    out = [s for s in out if s.error_growth <= error_growth]
    for rule in find_rules(backend_of(target).fallback_rules) if given is None else ():
        if not out:
            found = []
            out = sketches_of(form.rule(rule), func, target, empty, found)
            refused += [f"the rule {_name(rule)} has a schedule for {func.name} that is refused, {line}" for line in found]
    named = [f"block {name} of {func.name} keeps plain loops: {why}" for name, why in form.reasons.items()] if default else []
    if not out:
        raise _no_sketch(func, given, [*named, *empty, *refused])
    named += _without_threads(func, form.reasons) if default and target.is_cpu else []
    return Space(tuple(out), tuple(empty), tuple(refused), tuple(named))


def _check_schedulable(form: NormalForm) -> None:
    """Refuse functions without blocks, and nests that are scheduled already."""
    func = form.func
    if has_own_nests(func):
        return
    if not blocks_under(func.body):
        raise BuildError(
            f"no sketch rule applies to {func.name}, which has no blocks: wrap the statement of each computation in "
            '`with T.block("Y"):`. Without blocks it can be compiled, but not tuned'
        )
    if mark := scheduled(func):
        why = "".join([f", and block {name}: {why}" for name, why in list(form.reasons.items())[:1]])
        raise BuildError(
            f"no sketch rule applies to {func.name}, which is scheduled already: {mark}{why}. "
            "Pass the unscheduled function, schedule it by hand, or pass your own rule in rules="
        )


def _no_sketch(func: PrimFunc, given: Sequence[Rule] | None, reasons: Sequence[str]) -> BuildError:
    """The error for a space without sketches."""
    why = f" ({'; '.join(reasons[:3])})" if reasons else ""
    if given is None:
        return BuildError(f"no sketch rule applies to {func.name}{why}: schedule it by hand, or pass your own rule in rules=")
    names = ", ".join(map(_name, given))
    made = f"the rule {names} makes" if len(given) == 1 else f"the rules {names} make" if given else "rules=[] makes"
    advice = "Schedule it by hand" if built_in in given else "Change the rule, or name 'default' too, which has the rules of the target"
    return BuildError(f"{made} no schedule for {func.name} that applies{why}. {advice}")


def _without_threads(func: PrimFunc, others: Collection[str]) -> list[str]:
    """A line for each block that keeps its loops or runs serially, with the reason; `others` are named already."""
    s = ScheduleState(func)
    out = []
    for b in [b for b in blocks_under(func.body) if b.name not in others]:
        why = irregularity(b)
        serial = "" if why else serial_part(s, b)
        out += [f"block {b.name} of {func.name} keeps plain loops: {why}"] if why else []
        out += [f"block {b.name} of {func.name} runs serially: {serial}"] if serial else []
    return out


def sketches_of(
    rule: Rule, func: PrimFunc, target: Target, left_out: list[str] | None = None, refused: list[str] | None = None
) -> list[Sketch]:
    """The sketches of one rule; `left_out` and `refused` are those of `collect`.

    Raises:
        UserError: the rule raises an exception, or does not return named functions of a Schedule.
    """
    what = f"the rule {_name(rule)}"
    with running(what):
        return collect(_named_schedules(rule(func, target), what), func, left_out, refused)


def _check_names(sketches: Sequence[Sketch], func: PrimFunc) -> None:
    twice = next((n for n, count in Counter([s.name for s in sketches]).items() if count > 1), None)
    if twice is not None:
        raise UserError(
            f"the rules make several sketches named {twice!r} for {func.name}; names are unique in a space. "
            "Name each rule once ('default' contains the target's rules), or give the sketches of your rule other names"
        )


def _named_schedules(given: object, what: str) -> list[tuple[str, Callable[[Schedule], None]]]:
    """The result of a rule, whose form is checked: rules may be user code."""
    expected = "a rule returns a list of (name, function of a Schedule), or [] if it does not apply"
    if not isinstance(given, (list, tuple)):
        raise UserError(f"{what} returned {shown(given)}; {expected}")
    for entry in given:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and callable(entry[1])):
            raise UserError(f"{what} returned a list with {shown(entry)}, {entry!r:.200}; {expected}")
        if len(entry[0]) > MAX_NAME:
            raise UserError(f"{what} returned a sketch whose name has {len(entry[0])} characters; a record holds at most {MAX_NAME}")
        check_parameters(entry[1], ("schedule",), f"{what} returned a function for {entry[0]!r} which")
    return list(given)


def _name(rule: Callable[..., object]) -> str:
    """Module and name of a rule."""
    module, name = getattr(rule, "__module__", ""), getattr(rule, "__qualname__", repr(rule))
    return f"{module}:{name}" if module else name
