"""Represent schedule steps as data: a primitive and arguments that identify blocks and loops by position.

A loop is identified by a block and the loop's depth, so that steps stay meaningful if earlier ones are removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.schedule.handles import IntRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules import fallback
from tunesmith.search.space.rules_table import rules_of
from tunesmith.support.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block by name."""

    name: str


@dataclass(frozen=True, slots=True)
class LoopRef:
    """The loop at a depth above a block; 0 is the outermost."""

    block: str
    depth: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """The n-th integer returned by sampling steps."""

    number: int


Argument: TypeAlias = "BlockRef | LoopRef | Sampled | int | float | str | bool | tuple[Argument, ...] | None"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a primitive."""

    primitive: str
    arguments: tuple[tuple[str, Argument], ...]


DEFAULT = Step("default_schedule", ())
"""The default schedule of a function without records; used as the only step."""


def rule_step(number: int) -> Step:
    """A structure of the search rules by number, with sampled sizes."""
    return Step("search_rule", (("number", number),))


class Replay:
    """A schedule to which steps are applied.

    Attributes:
        func: the program after the steps.
        has_trace: whether the schedule's trace reproduces it.
    """

    def __init__(self, schedule: Schedule, target: Target) -> None:
        self.schedule = schedule
        self.target = target
        self.sampled: list[IntRV] = []
        self.has_trace = True
        self._default: PrimFunc | None = None

    @property
    def func(self) -> PrimFunc:
        """The program after the steps."""
        return self.schedule.func if self._default is None else self._default

    def apply(self, step: Step) -> None:
        """Apply a step.  Raises the primitive's errors, and ScheduleError if an argument refers to nothing."""
        if step == DEFAULT:
            self._default, self.has_trace = default_schedule(self.func, self.target), False
            return
        if step.primitive == "search_rule":
            named = [x for rule in (*rules_of(self.target), fallback.sketches) for x in rule(self.func, self.target)]
            if not named:
                raise ScheduleError("search_rule", "applies", "no rule has a structure")
            named[int(str(dict(step.arguments)["number"])) % len(named)][1](self.schedule)
            return
        given = {name: self._resolve(a) for name, a in step.arguments}
        out = getattr(self.schedule, step.primitive)(**given)
        results = out if isinstance(out, (list, tuple)) else [out]
        self.sampled += [r for r in results if isinstance(r, IntRV)]

    def _resolve(self, a: Argument) -> Any:
        if isinstance(a, BlockRef):
            return self.schedule.get_block(a.name)
        if isinstance(a, LoopRef):
            loops = self.schedule.get_loops(self.schedule.get_block(a.block))
            if a.depth >= len(loops):
                raise ScheduleError("get_loops", "fuzz-depth", f"block {a.block} has {len(loops)} loops")
            return loops[a.depth]
        if isinstance(a, Sampled):
            if a.number >= len(self.sampled):
                raise ScheduleError("sample_tile", "fuzz-number", f"{len(self.sampled)} integers were sampled")
            return self.sampled[a.number]
        return [self._resolve(x) for x in a] if isinstance(a, tuple) else a


def python(step: Step) -> str:
    """The step as a line of Python for the schedule `s` and the list `sampled`."""
    if step == DEFAULT:
        return "s = tunesmith.Schedule(default_schedule(s.func, target))"
    if step.primitive == "search_rule":
        (number,) = dict(step.arguments).values()
        return f"n = [x for rule in (*rules_of(target), fallback.sketches) for x in rule(s.func, target)]; n[{number} % len(n)][1](s)"
    text = f"s.{step.primitive}({', '.join([f'{n}={_argument(a)}' for n, a in step.arguments])})"
    return f"sampled += {text}" if step.primitive in ("sample_tile", "sample_perfect_tile") else text


def _argument(a: Argument) -> str:
    if isinstance(a, BlockRef):
        return f"s.get_block({a.name!r})"
    if isinstance(a, LoopRef):
        return f"s.get_loops(s.get_block({a.block!r}))[{a.depth}]"
    if isinstance(a, Sampled):
        return f"sampled[{a.number}]"
    return f"[{', '.join(map(_argument, a))}]" if isinstance(a, tuple) else repr(a)
