"""Generate random programs of several blocks in several loop nests that read each other's results.

Each nest is evaluated when it is created; a nest that reads uninitialised data or has no unique result is regenerated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tunesmith.testing.program_fuzz import domain, evaluate, numbers
from tunesmith.testing.program_fuzz import generate_index as gi
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.generate_nest import Frame, LoopSpec, extent, fill_spaces, make_frame
from tunesmith.testing.program_fuzz.generate_value import DTYPES, STYLES, Scope, Values, conjunction
from tunesmith.testing.program_fuzz.numbers import FLOATS, Undecided

ATTEMPTS = 12
MAX_INSTANCES = 256


@dataclass(slots=True)
class Generated:
    """A program, the states after its calls, and reasons for discarded attempts."""

    program: p.Program
    states: list[evaluate.State]
    discarded: Counter[str] = field(default_factory=Counter)


def generate(seed: int) -> Generated | None:
    """The program of a seed; None if all attempts fail."""
    return _Generator(seed).make()


class _Generator:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.c = Choices(seed, "program")
        self.count = 0
        self.buffers: list[p.Buffer] = []
        self.body: list[p.Nest] = []
        self.discarded: Counter[str] = Counter()
        self.dtype = self.c.weighted(DTYPES)
        self.data = self.c.weighted({"small": 8.0, "fractions": 1.5, "wild": 1.5})
        self.odd = self.c.weighted({0.0: 1.0, 0.3: 2.0, 1.0: 3.0})
        self.sizes: tuple[str, ...] = ()
        self.bindings: tuple[tuple[int, ...], ...] = ((),)
        if self.c.chance(0.2):
            self.sizes = ("n", "m") if self.c.chance(0.25) else ("n",)
            self.bindings = tuple([tuple([self.c.one([1, 2, 3, 4, 5, 7, 8, 9]) for _ in self.sizes]) for _ in range(3)])
        self.states = [evaluate.State(dict(zip(self.sizes, b, strict=True))) for b in self.bindings]
        self.wrote: list[str] = []

    def make(self) -> Generated | None:
        """Generate the whole program."""
        count = self.c.weighted({1: 2.0, 2: 4.0, 3: 3.0, 4: 1.0})
        for n in range(count):
            self._add(last=n == count - 1)
        loaded = set(_loaded(tuple(self.body)))
        buffers = [self._observed(b, loaded) for b in self.buffers]
        if not any(b.role == "output" for b in buffers) or all(b.is_plain for b in p.blocks(tuple(self.body))):
            return None
        program = p.Program(tuple(buffers), tuple(self.body), self.sizes, self.bindings)
        try:
            return Generated(program, [evaluate.run(program, b, self.seed) for b in self.bindings], self.discarded)
        except Undecided:  # a decision depends on an output's contents before the call
            return None

    def _observed(self, b: p.Buffer, loaded: set[str]) -> p.Buffer:
        """Usually turn an intermediate that is never read into an output."""
        if b.role != "scratch" or b.name in loaded or self.c.chance(0.05):
            return b
        return replace(b, role="output", scope="global", pad=0)

    def fresh(self, letter: str) -> str:
        """A new name."""
        self.count += 1
        return f"{letter}{self.count}"

    def _add(self, last: bool) -> None:
        """Generate nests until one has a unique result."""
        for _ in range(ATTEMPTS):
            kept, states, wrote = len(self.buffers), self.states, list(self.wrote)
            self.states = [s.copy() for s in states]
            made = self._nest(last)
            try:
                for s in self.states:
                    evaluate.nest(made, s)
                self.body.append(made)
                return
            except Undecided as e:
                self.discarded[str(e)] += 1
            del self.buffers[kept:]
            self.states, self.wrote = states, wrote

    # ---- nests

    def _nest(self, last: bool) -> p.Nest:
        c = self.c
        recent = [b for b in self.buffers if b.role == "scratch" and b.name in self.wrote[-2:] and b.shape]
        if recent and c.chance(0.35):
            return self._following(c.one(recent), last)
        shared: list[LoopSpec] = []
        budget = MAX_INSTANCES
        depth = c.weighted({0: 5.0, 1: 3.5, 2: 1.5})
        for _ in range(depth):
            shared.append((self.fresh("i"), extent(c, list(self.sizes), min(budget, 16))))
            budget //= self._most(shared[-1][1])
        count = 1 if depth == 0 else c.weighted({1: 1.0, 2: 4.0, 3: 1.5})
        inner = [self._block_nest(shared, max(1, budget), last and n == count - 1) for n in range(count)]
        if depth == 0:
            return inner[0]
        body: tuple[p.Nest, ...] = tuple(inner)
        if depth == 2 and count > 1 and c.chance(0.25):  # the last blocks are outside the second loop
            last_nest = self._block_nest(shared[:1], max(1, budget), False)
            return p.Loop(shared[0][0], shared[0][1], (p.Loop(shared[1][0], shared[1][1], body), last_nest))
        for var, e in reversed(shared):
            body = (p.Loop(var, e, body),)
        return body[0]

    def _following(self, b: p.Buffer, last: bool) -> p.Nest:
        """A nest over all elements of an intermediate that reads each at its own index; some nests are longer or skip some elements."""
        c = self.c
        loops = [(self.fresh("i"), gi.add(d, c.integer(1, 4)) if c.chance(0.12) else d) for d in b.shape]
        frame = Frame(loops, len(loops), [p.Axis(self.fresh("v"), "S", e, p.Name(name)) for name, e in loops])
        if c.chance(0.15):
            frame.guards.append(p.IndexCompare("<", p.Name(c.one(loops)[0]), p.Num(c.integer(1, 8))))
        fill_spaces(frame, [s.sizes for s in self.states])
        names = [a.name for a in frame.axes]
        extents = {a.name: a.extent for a in frame.axes}
        scope = Scope(names, frame.spaces, extents, self._readable(), lambda dtype, data: self._input(frame, dtype, data), self.fresh)
        v = Values(c, scope, self.odd)
        conds = [p.IndexCompare("<", p.Name(n), d) for n, d in zip(names, b.shape, strict=True) if extents[n] != d]
        own: p.Value = p.Load(b.name, tuple(map(p.Name, names)), b.dtype)
        if conds:
            own = p.Select(conjunction(conds), own, v.literal(b.dtype), c.one(STYLES), b.dtype)
        value = self._combined(own, v, b.dtype) if c.chance(0.8) else own
        out, at = self._target(frame, v, b.dtype, last)
        nest: p.Nest = p.Block(self.fresh("b"), tuple(frame.axes), tuple(frame.guards), (), (p.Store(out.name, at, value),))
        for var, e in reversed(loops):
            nest = p.Loop(var, e, (nest,))
        return nest

    def _most(self, e: p.Index) -> int:
        return max(1, *[int(domain.values(e, s.sizes)) for s in self.states])

    def _block_nest(self, scope: list[LoopSpec], budget: int, last: bool) -> p.Nest:
        c = self.c
        own: list[LoopSpec] = []
        for _ in range(c.weighted({0: 1.5, 1: 4.0, 2: 2.0, 3: 0.4} if scope else {1: 3.0, 2: 4.0, 3: 1.5})):
            e = extent(c, list(self.sizes), budget)
            if (scope or own) and c.chance(0.03):
                e = gi.add(p.Name([*scope, *own][-1][0]), 1)
            own.append((self.fresh("i"), e))
            budget = max(1, budget // (16 if isinstance(e, p.Arith) or not isinstance(e, p.Num) else e.value))
        block: p.Nest = self._block(scope, own, last)
        for var, e in reversed(own):
            block = p.Loop(var, e, (block,))
        return block

    def _block(self, scope: list[LoopSpec], own: list[LoopSpec], last: bool) -> p.Block:
        c, odd = self.c, self.odd
        kind = c.weighted({"map": 4.0, "reduce": 3.0, "update": 1.2 * odd, "scan": 0.8 * odd, "two": 0.8 * odd, "branch": 0.8 * odd})
        frame = make_frame(c, self.odd, scope, own, kind == "reduce" and bool(own or scope), self.fresh, [s.sizes for s in self.states])
        names = [a.name for a in frame.axes] + (list(self.sizes) if c.chance(0.1) else [])
        scope_of_values = Scope(
            names, frame.spaces, {a.name: a.extent for a in frame.axes}, [], lambda dtype, data: self._input(frame, dtype, data), self.fresh
        )
        scope_of_values.buffers = self._readable()
        v = Values(c, scope_of_values, odd)
        name = self.fresh("b")
        init: tuple[p.Statement, ...] = ()
        dtype = self.dtype if c.chance(0.85) else c.weighted(DTYPES)
        if kind == "reduce" and frame.of_kind("R"):
            init, body = self._reduction(frame, v, dtype, last)
        elif kind in ("update", "scan"):
            body = self._update(frame, v, dtype, kind, last)
        else:
            body = self._map(frame, v, dtype, kind, last)
        is_plain = not init and c.chance(0.06 * odd)
        return p.Block(name, tuple(frame.axes), tuple(frame.guards), init, body, self._conditions(frame.loops), is_plain)

    def _conditions(self, loops: list[LoopSpec]) -> tuple[p.Value, ...]:
        """Conditions of an `if` around a block: usually none, else one on a loop or on an element of a parameter."""
        c = self.c
        if not c.chance(0.07 * self.odd):
            return ()
        known = [b for b in self.buffers if b.role != "scratch" and b.dtype != "bool" and b.data == "small"]
        if not known or (loops and c.chance(0.5)):
            return (p.IndexCompare(c.one(["<", ">", ">="]), p.Name(c.one(loops)[0]) if loops else p.Num(0), p.Num(c.integer(0, 4))),)
        b = c.one(known)
        first = p.Load(b.name, tuple([p.Num(0)] * len(b.shape)), b.dtype)
        number = c.integer(0, 2)
        return (p.Compare(c.one(["<", ">=", "=="]), first, p.Literal(float(number) if b.dtype in FLOATS else number, b.dtype)),)

    # ---- statements

    def _depth(self) -> int:
        return self.c.weighted({1: 2.0, 2: 3.0, 3: 1.0})

    def _map(self, frame: Frame, v: Values, dtype: str, kind: str, last: bool) -> tuple[p.Statement, ...]:
        c = self.c
        b, at = self._target(frame, v, dtype, last)
        one = p.Store(b.name, at, v.value(b.dtype, self._depth()))
        if kind == "two":
            b2, at2 = self._target(frame, v, c.one([dtype, self.dtype]), False)
            return (
                (one, p.Store(b2.name, at2, v.value(b2.dtype, 1))) if c.chance(0.5) else (p.Store(b2.name, at2, v.value(b2.dtype, 1)), one)
            )
        if kind == "branch":
            other = (p.Store(b.name, at, v.value(b.dtype, 1)),) if c.chance(0.4) else ()
            return (p.If(v.condition(1), (one,), other),)
        return (one,)

    def _update(self, frame: Frame, v: Values, dtype: str, kind: str, last: bool) -> tuple[p.Statement, ...]:
        """A statement C[i] = C[i] op x or C[i] = C[i - 1] op x."""
        c = self.c
        b, at = self._target(frame, v, dtype, last)
        old: p.Value = p.Load(b.name, at, b.dtype)
        if kind == "scan" and at:
            dim, step = c.integer(0, len(at) - 1), c.one([-1, -1, -1, 1, -2])
            moved = gi.add(at[dim], step)
            conds = [p.IndexCompare(">=", moved, p.Num(0)) if step < 0 else p.IndexCompare("<", moved, b.shape[dim])]
            old = p.Load(b.name, (*at[:dim], moved, *at[dim + 1 :]), b.dtype)
            old = p.Select(conds[0], old, v.literal(b.dtype), c.one(["select", "call", "ternary"]), b.dtype)
        return (p.Store(b.name, at, self._combined(old, v, b.dtype)),)

    def _combined(self, old: p.Value, v: Values, dtype: str) -> p.Value:
        """The running value combined with one more, usually a sum."""
        c = self.c
        x = v.value(dtype, 1)
        if dtype == "bool":
            return p.Logic(c.one(["and", "or"]), old, x) if c.chance(0.7) else p.Binary(c.one(["^", "max", "min"]), old, x, dtype)
        how = c.weighted({k: w * (1.0 if n < 4 else self.odd) for n, (k, w) in enumerate(_UPDATES.items())})
        if how in ("+", "*", "min", "max", "-"):
            return p.Binary(how, old, x, dtype)
        if how == "swapped":
            return p.Binary(c.one(["+", "*", "max"]), x, old, dtype)
        if how == "twice":
            return p.Binary("+", old, p.Binary("+", old, x, dtype), dtype)
        if how == "horner":
            return p.Binary("+", p.Binary("*", old, v.literal(dtype), dtype), x, dtype)
        if how == "select":
            return p.Select(p.Compare(c.one(["<", ">"]), x, old), x, old, "select", dtype)
        return p.Select(v.condition(1), p.Binary("+", old, x, dtype), old, c.one(["select", "call"]), dtype)

    def _reduction(self, frame: Frame, v: Values, dtype: str, last: bool) -> tuple[tuple[p.Statement, ...], tuple[p.Statement, ...]]:
        c = self.c
        spatial = frame.of_kind("S")
        b, at = self._target(frame, v, dtype, last, spatial)
        value = self._combined(p.Load(b.name, at, b.dtype), v, b.dtype)
        body: tuple[p.Statement, ...] = (p.Store(b.name, at, value),)
        if c.chance(0.06 * self.odd):
            body = (p.If(v.condition(1), body),)
        if c.chance(0.08 * self.odd):
            return (), body
        start: p.Value = p.Literal(_identity(value, b.dtype), b.dtype)
        if c.chance(0.12 * self.odd):
            outer = Scope([a.name for a in spatial], frame.spaces, v.scope.extents, v.scope.buffers, v.scope.new_input, self.fresh)
            start = Values(c, outer, self.odd).value(b.dtype, 1) if spatial and c.chance(0.5) else v.literal(b.dtype)
        return (p.Store(b.name, at, start),), body

    # ---- buffers

    def _readable(self) -> list[p.Buffer]:
        order = {n: i for i, n in enumerate(self.wrote)}
        return sorted(self.buffers, key=lambda b: order.get(b.name, -1))

    def _target(
        self, frame: Frame, v: Values, dtype: str, last: bool, axes: list[p.Axis] | None = None
    ) -> tuple[p.Buffer, tuple[p.Index, ...]]:
        """A buffer to write and the indices."""
        c = self.c
        chosen = list(frame.axes) if axes is None else axes
        names = [a.name for a in chosen]
        existing = [b for b in self.buffers if b.role != "input" and b.dtype == dtype]
        if existing and c.chance(0.22 * self.odd) and not (last and not any(b.role == "output" for b in existing)):
            b = c.one(existing)
            at = tuple([gi.fitting(c, names, d, frame.spaces) for d in b.shape])
        else:
            at, shape = self._places(chosen)
            role = "output" if last or c.chance(0.2) else "scratch"
            scope = c.weighted({"global": 12.0, "workspace": 1.0, "register": 0.7}) if role == "scratch" else "global"
            pad = c.integer(1, 3) if len(shape) > 1 and c.chance(0.03 if role == "scratch" else 0.005) else 0
            b = self._declare(p.Buffer(self.fresh("C" if role == "output" else "B"), shape, dtype, role, scope, pad, "small"))
        self.wrote = [*[n for n in self.wrote if n != b.name], b.name]
        if b not in v.scope.buffers:
            v.scope.buffers = [b, *v.scope.buffers] if c.chance(0.1) else v.scope.buffers
        return b, at

    def _places(self, axes: list[p.Axis]) -> tuple[tuple[p.Index, ...], tuple[p.Index, ...]]:
        """Indices of a new buffer, one or more axes per dimension, and its shape."""
        c = self.c
        at: list[p.Index] = []
        shape: list[p.Index] = []
        order = c.shuffled(axes) if c.chance(0.3) else list(axes)
        for a in order:
            if c.chance(0.04 * self.odd):
                continue
            v: p.Index = p.Name(a.name)
            how = c.weighted(
                {"plain": 12.0 if self.odd else 999.0, "shift": 1.0, "stride": 0.9, "reverse": 0.7, "half": 0.3, "larger": 0.8, "flat": 0.5}
            )
            k = c.integer(1, 3)
            if how == "flat" and shape and isinstance(a.extent, p.Num):
                at[-1] = p.Arith("+", p.Arith("*", at[-1], a.extent), v)
                shape[-1] = p.Num(shape[-1].value * a.extent.value) if isinstance(shape[-1], p.Num) else p.Arith("*", shape[-1], a.extent)
                continue
            i, n = {
                "shift": (gi.add(v, k), gi.add(a.extent, k)),
                "stride": (p.Arith("*", v, p.Num(2)), _times(a.extent, 2)),
                "reverse": (p.Arith("-", gi.add(a.extent, -1), v), a.extent),
                "half": (p.Arith("//", v, p.Num(2)), a.extent),
                "larger": (v, gi.add(a.extent, k)),
            }.get(how, (v, a.extent))
            at.append(i)
            shape.append(n)
        if not at or (len(at) < 3 and c.chance(0.03)):
            at.append(p.Num(0))
            shape.append(p.Num(c.integer(1, 2)))
        return tuple(at), tuple(shape)

    def _input(self, frame: Frame, dtype: str, data: str) -> p.Buffer:
        """A new input whose shape is derived from the axes' extents."""
        c = self.c
        if data == "index":
            axes = c.shuffled(frame.axes)[:1]
            bound = c.integer(2, 6)
            shape = tuple([a.extent for a in axes]) or (p.Num(3),)
            return self._declare(p.Buffer(self.fresh("I"), shape, dtype, "input", data="index", bound=bound))
        axes = c.shuffled(frame.axes)[: c.weighted({1: 2.0, 2: 3.0, 3: 0.5})]
        made: list[p.Index] = [gi.add(a.extent, c.integer(1, 3)) if c.chance(0.15) else a.extent for a in axes]
        if not made:
            made = [p.Num(c.integer(1, 6))]
        return self._declare(p.Buffer(self.fresh("A"), tuple(made), dtype, "input", data=data or self.data))

    def _declare(self, b: p.Buffer) -> p.Buffer:
        self.buffers.append(b)
        for s in self.states:
            evaluate.declare(s, b, self.seed)
        return b


def _times(e: p.Index, k: int) -> p.Index:
    return p.Num(e.value * k) if isinstance(e, p.Num) else p.Arith("*", e, p.Num(k))


def _identity(value: p.Value, dtype: str) -> bool | int | float:
    """The identity element of a reduction that ends in this operation."""
    op = value.op if isinstance(value, (p.Binary, p.Logic)) else "+"
    if dtype == "bool":
        return op in ("and", "min")
    if op in ("min", "max"):
        if dtype in FLOATS:
            return math.inf if op == "min" else -math.inf
        return numbers.limits(dtype)[1 if op == "min" else 0]
    return (1.0 if op == "*" else 0.0) if dtype in FLOATS else int(op == "*")


_UPDATES = {
    "+": 8.0,
    "*": 1.2,
    "min": 1.2,
    "max": 1.2,
    "-": 0.8,
    "swapped": 1.0,
    "twice": 0.7,
    "horner": 0.7,
    "select": 0.5,
    "guarded": 0.7,
}


def _loaded(x: Any) -> Iterator[str]:
    """Names of the buffers that are read."""
    if isinstance(x, p.Load):
        yield x.buffer
    for y in x if isinstance(x, tuple) else [getattr(x, f) for f in getattr(x, "__dataclass_fields__", ())]:
        yield from _loaded(y)
