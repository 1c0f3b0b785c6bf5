"""Generate random loops, axes and guards of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tunesmith.testing.program_fuzz import domain
from tunesmith.testing.program_fuzz import generate_index as gi
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.choices import Choices

LoopSpec = tuple[str, p.Index]


@dataclass(slots=True)
class Frame:
    """The context of a block.

    Attributes:
        loops: enclosing loops, outermost first; the last `own` of them enclose only this block.
        axes: the block's axes.
        guards: the block's guards.
        spaces: values of loops, axes and sizes at all instances, per call.
    """

    loops: list[LoopSpec]
    own: int
    axes: list[p.Axis] = field(default_factory=list)
    guards: list[p.IndexCompare] = field(default_factory=list)
    spaces: list[domain.Points] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[p.Axis]:
        """The axes of one kind, spatial or reduction."""
        return [a for a in self.axes if a.kind == kind]


def extent(c: Choices, sizes: list[str], budget: int) -> p.Index:
    """The extent of a loop with at most `budget` iterations."""
    if sizes and c.chance(0.6) and budget >= 16:
        n = p.Name(c.one(sizes))
        return c.one([n, n, n, gi.add(n, 1), p.Arith("*", n, p.Num(2))])
    return p.Num(
        min(
            budget, c.weighted({1: 0.4, 2: 1.0, 3: 1.5, 4: 1.5, 5: 1.2, 6: 1.2, 7: 0.8, 8: 2.0, 9: 0.6, 10: 0.5, 13: 0.4, 16: 1.2, 32: 0.4})
        )
    )


def make_frame(
    c: Choices,
    odd: float,
    scope: list[LoopSpec],
    own: list[LoopSpec],
    reduces: bool,
    fresh: Callable[[str], str],
    sizes: list[dict[str, int]],
) -> Frame:
    """Random axes and guards over the loops; unusual ones have the probability `odd`."""
    frame = Frame([*scope, *own], len(own))
    names = [n for n, _ in frame.loops]
    reduction: set[str] = set()
    if reduces and names:
        inner = [n for n, _ in own] or names[-1:]
        reduction = set(c.shuffled(inner)[: c.weighted({1: 3.0, 2: 1.0})])
        if scope and c.chance(0.15):
            reduction.add(names[0])
    left: list[LoopSpec] = []
    for name, e in frame.loops:  # the axis of a triangular loop has the maximum extent
        outer = next((x for n, x in left if isinstance(e, p.Arith) and e.a == p.Name(n)), None)
        left.append((name, e if outer is None else outer))
    while left:
        name, e = left.pop(0)
        kind = "R" if name in reduction else "S"
        after = left[0] if left else None
        if (
            after is not None
            and (after[0] in reduction) == (kind == "R")
            and _constant(e)
            and _constant(after[1])
            and c.chance(0.05 + 0.1 * odd)
        ):
            left.pop(0)
            _pair(c, frame, (name, e), after, kind, fresh)
        else:
            _single(c, odd, frame, name, e, kind, name in [n for n, _ in scope], fresh)
    _guard(c, odd, frame, names)
    if c.chance(0.3):
        frame.axes = c.shuffled(frame.axes)
    fill_spaces(frame, sizes)
    return frame


def fill_spaces(frame: Frame, sizes: list[dict[str, int]]) -> None:
    """Enumerate the block's instances for each binding of the sizes."""
    for size in sizes:
        (at,) = domain.holding([domain.points(frame.loops, size)], frame.guards)
        for a in frame.axes:
            at[a.name] = domain.values(a.binding, at) + 0 * next(iter(at.values()))
        frame.spaces.append(at)


def _constant(e: p.Index) -> bool:
    return isinstance(e, p.Num)


def _pair(c: Choices, frame: Frame, outer: LoopSpec, inner: LoopSpec, kind: str, fresh: Callable[[str], str]) -> None:
    """Bind one axis to two loops: o * extent + i, with a guard if the axis is shorter."""
    assert isinstance(outer[1], p.Num) and isinstance(inner[1], p.Num)
    n, step = outer[1].value * inner[1].value, inner[1].value
    binding = p.Arith("+", p.Arith("*", p.Name(outer[0]), p.Num(step)), p.Name(inner[0]))
    short = c.integer(0, min(step, n - 1, 3)) if c.chance(0.5) else 0
    if short:
        frame.guards.append(p.IndexCompare("<", binding, p.Num(n - short)))
    frame.axes.append(p.Axis(fresh("v"), kind, p.Num(n - short), binding))


def _single(c: Choices, odd: float, frame: Frame, name: str, e: p.Index, kind: str, shared: bool, fresh: Callable[[str], str]) -> None:
    v: p.Index = p.Name(name)
    if c.chance(odd * (0.03 if kind == "R" else 0.1 if shared else 0.05)):
        return  # the loop is bound to no axis
    if kind == "R" and isinstance(e, p.Num) and c.chance(0.06 * odd):
        frame.axes.append(p.Axis(fresh("v"), kind, e, _repeating(c, v, e.value)))
        return
    how = c.weighted({"plain": 12.0, "shift": 0.4 * odd, "reverse": 0.5 * odd, "fused": 0.7 * odd, "late": 0.5 * odd})
    if how == "fused" and isinstance(e, p.Num) and e.value in (4, 6, 8, 10, 16):
        step = 2 if e.value in (6, 10) else c.one([2, 4])
        frame.axes.append(p.Axis(fresh("v"), kind, p.Num(e.value // step), p.Arith("//", v, p.Num(step))))
        frame.axes.append(p.Axis(fresh("v"), kind, p.Num(step), p.Arith("%", v, p.Num(step))))
    elif how == "shift" and kind == "S":
        k = c.integer(1, 3)
        frame.axes.append(p.Axis(fresh("v"), kind, gi.add(e, k), gi.add(v, k)))
    elif how == "reverse":
        frame.axes.append(p.Axis(fresh("v"), kind, e, p.Arith("-", gi.add(e, -1), v)))
    elif how == "late" and isinstance(e, p.Num) and e.value > 2:
        frame.guards.append(p.IndexCompare(">=", v, p.Num(1)))
        frame.axes.append(p.Axis(fresh("v"), kind, gi.add(e, -1), gi.add(v, -1)))
    else:
        frame.axes.append(p.Axis(fresh("v"), kind, e, v))


def _repeating(c: Choices, v: p.Index, extent: int) -> p.Index:
    """A binding of a reduction axis that repeats or skips values."""
    step = p.Num(c.integer(2, 3))
    if c.chance(0.5):
        return p.Arith(c.one(["//", "%"]), v, step)
    if c.chance(0.5):
        return p.Arith("%", p.Arith("*", v, step), p.Num(extent))
    return p.Arith("-", p.Arith("max", v, p.Num(1)), p.Num(1))


def _guard(c: Choices, odd: float, frame: Frame, names: list[str]) -> None:
    if not names or not c.chance(0.05 + 0.12 * odd):
        return
    v: p.Index = p.Name(c.one(names))
    how = c.weighted({"below": 3.0, "from": 1.0, "pair": 1.0, "modulo": 0.5, "never": 0.3})
    if how == "pair" and len(names) > 1:
        frame.guards.append(p.IndexCompare(c.one(["<", "<=", ">="]), p.Arith("+", v, p.Name(c.one(names))), p.Num(c.integer(1, 9))))
    elif how == "modulo":
        frame.guards.append(p.IndexCompare("==", p.Arith("%", v, p.Num(2)), p.Num(c.integer(0, 1))))
    elif how == "never":
        frame.guards.append(p.IndexCompare(">", v, p.Num(40)))
    else:
        frame.guards.append(p.IndexCompare("<" if how == "below" else ">=", v, p.Num(c.integer(1, 6))))
