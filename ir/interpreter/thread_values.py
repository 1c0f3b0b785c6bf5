"""Values over all threads of a block at once: source whose names hold one numpy scalar, or an array with a row for each thread.

What is the same for all threads (serial loop variables above all) stays a plain number; which of the two a name holds is known when
the source is written (`wide`).  Threads that do not take part are masked out; what they compute meanwhile is never seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Expr, IsNegative, Ramp, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.interpreter.memory import InterpretError
from tunesmith.ir.interpreter.source import Compiler
from tunesmith.ir.interpreter.thread_accesses import runtime
from tunesmith.ir.interpreter.thread_memory import Clock, ThreadPlace
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.poly import Atom, Op, Poly, Var
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt

_PARTIAL = {"pow": 1, "shl": 0, "shr": 0}
"""Integer operations that are undefined for some right operands, and one for which they are not."""


class Held(NamedTuple):
    """Names of a buffer's memory in generated code."""

    memory: str
    data: str
    written: str
    dims: list[str]
    strides: list[str]
    private: bool
    tracked: bool


class Active(NamedTuple):
    """Who takes part in a value: masks of threads and of lanes, and the wider set that this one is part of."""

    threads: str | None
    lanes: str | None
    outer: str | None


@dataclass(frozen=True)
class Spot:
    """An index: `array`, known when the kernel is compiled, with its least and greatest values, plus `number`, the same for all
    threads, plus `mixed`, which is neither."""

    array: np.ndarray | None
    number: str
    mixed: str | None

    @property
    def wide(self) -> bool:
        """Whether threads may have different values."""
        return self.array is not None or self.mixed is not None


class ThreadValues(Compiler):
    """Writes the values of a kernel; what its statements are is written on top of this.

    Args:
        func: the function that the kernel is part of.
        values: of Params and scalar parameters.
        check_races: whether accesses are tracked.
        clock: counts epochs for the whole call.
        threads: how many a block has.
    """

    def __init__(self, func: PrimFunc, values: Mapping[Var, int], check_races: bool, clock: Clock, threads: int) -> None:
        super().__init__(func, values, check_races)
        self.clock, self.threads = clock, threads
        self.env.update(runtime())
        self.env["clock"] = clock
        self.wide: set[str] = set()
        """Names that hold a value for each thread."""
        self.wide_vars: set[Var] = set()
        self.coords: dict[Var, np.ndarray] = {}
        """Of the wide variables those that are coordinates of threads, with their values."""
        self.bound: dict[Var, Poly] = {}
        """Variables that stand for an expression of loop variables: those of blocks, and of thread loops with one iteration."""
        self.mask: str | None = None
        self.activity: dict[str, Active] = {}
        self.statement = 0
        self.held: dict[Buffer, Held] = {}
        self._hoisted: dict[Any, str] = {}
        self.zero = self._array(np.zeros(threads, np.int64))
        self.linear = self._array(np.arange(threads, dtype=np.int64))

    def place(self, buffer: Buffer | None = None) -> str:
        names = {v: n for v, n in self.vars.items() if isinstance(v, Var)}
        path = "/" + "/".join(self.path)
        return self.hoist(ThreadPlace(self.clock, path, names, dict(self.bound), self.values, buffer))

    def _array(self, values: np.ndarray) -> str:
        """The name of a value for each thread that never changes."""
        values.setflags(write=False)
        name = self.hoist(values)
        self.wide.add(name)
        return name

    def temp(self, text: str) -> str:
        name = super().temp(text)
        if self.is_wide(text):
            self.wide.add(name)
        return name

    def is_wide(self, *texts: str | None) -> bool:
        """Whether something in the source text has a value for each thread."""
        return any(n in self.wide for t in texts if t is not None for n in re.findall(r"\w+", t))

    # ---- index expressions

    def index(self, p: Poly) -> str:
        if not isinstance(p, Poly):
            return super().index(p)
        spot = self.spot(p)
        if spot.array is None and spot.mixed is None:
            return spot.number
        parts = [] if spot.array is None else [self.hoisted(spot.array)]
        parts += [t for t in (spot.mixed, spot.number) if t not in (None, "0")]
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"

    def spot(self, p: Poly) -> Spot:
        """The parts of an index expression."""
        p = substitute_poly(p, self.bound) if not p.vars.isdisjoint(self.bound) else p
        pure, plain, mixed = [], [], []
        for term in p.terms:
            names = frozenset().union(*[a.vars for a in term[0]]) if term[0] else frozenset()
            if names.isdisjoint(self.wide_vars):
                plain.append(term)
            elif all(v in self.coords or v in self.values for v in names):
                pure.append(term)
            else:
                mixed.append(term)
        array = self._numbers(Poly(tuple(pure))) if pure else None
        number = super().index(Poly(tuple(plain)))
        return Spot(array, number, self._sum(mixed) if mixed else None)

    def _numbers(self, p: Poly) -> np.ndarray:
        """The value for each thread of an expression of thread coordinates."""
        known = self._hoisted.get(p)
        if known is None:
            known = self._hoisted[p] = self._array(_evaluate(p, {**self.values, **self.coords}))
        made: np.ndarray = self.env[known]
        self._hoisted[id(made)] = known
        return made

    def hoisted(self, array: np.ndarray) -> str:
        """The name of an array that `spot` gave."""
        return self._hoisted[id(array)]

    def _sum(self, terms: Sequence[tuple[tuple[Atom, ...], int]]) -> str:
        texts = ["*".join([*([str(c)] if c != 1 or not m else []), *[self.atom(a) for a in m]]) for m, c in terms]
        return f"({' + '.join(texts)})"

    def atom(self, a: Atom) -> str:
        if type(a) is Op and a.op in ("min", "max") and not a.vars.isdisjoint(self.wide_vars):
            out, *more = [self.index(y) for y in a.args]
            for x in more:
                out = f"{a.op}imum({out}, {x})"
            return out
        return super().atom(a)

    def within(self, spot: Spot, extent: str) -> str:
        """Source of the condition 0 <= index < extent of all threads, those too that take no part."""
        if spot.mixed is not None:
            name = self.hoisted(spot.array) if spot.array is not None else "0"
            full = self.temp(f"{spot.mixed} + {name} + {spot.number}")
            return f"{full}.min() >= 0 and ({full} < {extent}).all()"
        if spot.array is not None:
            low, high = int(spot.array.min()), int(spot.array.max())
            return f"{-low} <= {spot.number} and {spot.number} + {high} < {extent}"
        return f"0 <= {spot.number} < {extent}"

    def named(self, p: Poly) -> Spot:
        """As `spot`, with the parts that are computed held in names."""
        spot = self.spot(p)
        number = spot.number if re.fullmatch(r"\w+", spot.number) else self.temp(spot.number)
        return Spot(spot.array, number, spot.mixed and self.temp(spot.mixed))

    def text(self, spot: Spot) -> str:
        """Source of the value of a spot."""
        parts = [] if spot.array is None else [self.hoisted(spot.array)]
        parts += [t for t in (spot.mixed, spot.number) if t is not None and (t != "0" or not spot.wide)]
        return " + ".join(parts)

    # ---- who takes part

    def masks(self, active: str | None) -> Active:
        """The masks by name; None is the statement's own."""
        return Active(self.mask, None, None) if active is None else self.activity[active]

    def narrowed(self, threads: str | None, lanes: str | None, outer: str | None) -> str:
        """The name of a set of threads and lanes."""
        name = self.fresh("active")
        self.activity[name] = Active(threads, lanes, outer)
        return name

    def both(self, condition: str, threads: str | None) -> str:
        """A new mask: those of `threads` for which a wide condition holds."""
        return self.temp(f"({condition}) & {threads}" if threads else f"({condition}) & True")

    # ---- memory accesses

    def for_each_thread(self, cells: str) -> str:
        return cells if cells in self.wide else self.temp(f"{self.zero} + {cells}")

    def holding(self, s: BufferStore | BufferLoad) -> Held:
        """The memory of an access."""
        if s.buffer not in self.held or len(s.indices) != len(s.buffer.shape):
            raise InterpretError(
                f"function {self.func.name}: {len(s.indices)} indices into {s.buffer!r}, which is not that kind of memory here"
            )
        return self.held[s.buffer]

    def cells(self, s: BufferStore | BufferLoad, active: str | None, what: str) -> tuple[str, str]:
        """Names of the place and of the cell of a scalar access, checked: a number, or one for each thread."""
        held, place = self.holding(s), self.place(s.buffer)
        if not s.indices:
            return place, "0"
        spots = [self.named(i) for i in s.indices]
        inside = " and ".join([self.within(i, n) for i, n in zip(spots, held.dims, strict=True)])
        at = tuple_of([self.text(i) for i in spots])
        self.line(f"if not ({inside}): {place}.outside_threads({what!r}, {self.masks(active).threads}, {at}, {tuple_of(held.dims)})")
        return place, self._linear(spots, held.strides)

    def _linear(self, spots: Sequence[Spot], strides: Sequence[str]) -> str:
        numbers = [t.number if n == "1" else f"{t.number}*{n}" for t, n in zip(spots, strides, strict=True) if t.number != "0"]
        parts = [f"({' + '.join(numbers)})"] if numbers else []
        arrays = [(t.array, n) for t, n in zip(spots, strides, strict=True) if t.array is not None]
        if arrays and all(n.isdigit() for _, n in arrays):
            key = tuple([(id(a), n) for a, n in arrays])
            if key not in self._hoisted:
                self._hoisted[key] = self._array(np.asarray(sum(a * int(n) for a, n in arrays)))
            parts.append(self._hoisted[key])
        else:
            parts += [f"{self.hoisted(a)}*{n}" for a, n in arrays]
        parts += [f"{t.mixed}*{n}" for t, n in zip(spots, strides, strict=True) if t.mixed is not None]
        text = " + ".join(parts) or "0"
        return text if re.fullmatch(r"\w+", text) else self.temp(text)

    def vector_cells(self, s: BufferStore | BufferLoad, lanes: int, active: str | None, what: str, rows: bool) -> tuple[str, str]:
        """Names of the cells and of the lanes that take part in a vector access; with `rows`, for each thread in any case."""
        held, masks = self.holding(s), self.masks(active)
        index = tuple_of([self.index(i) for i in s.indices])
        stride = "1" if s.stride is None else self.index(s.stride)
        leading = "None" if s.mask is None else self.index(s.mask)
        rows = rows or held.private or self.is_wide(index, stride, leading, masks.threads, masks.lanes)
        cells, taking = self.fresh("cells"), self.fresh("taking")
        if rows:
            self.wide |= {cells, taking}
        where = f"{held.memory}, {self.place(s.buffer)}, {what!r}, {index}, {lanes}, {stride}, {leading}"
        self.line(f"{cells}, {taking} = lanes_of({where}, {masks.threads}, {masks.lanes}, {self.threads if rows else 0})")
        return cells, taking

    # ---- values

    def value(self, e: Expr, active: str | None) -> str:
        key = active
        while True:  # what all threads have computed serves a part of them too
            known = self.known.get((id(e), key))
            if known is not None:
                return known
            if key is None:
                break
            key = self.activity[key].outer
        return super().value(e, active)

    def truth(self, e: Expr, active: str | None) -> str:
        """Source of a scalar condition."""
        return f"{self.index(e.index)} < 0" if type(e) is IsNegative and e.lanes == 1 else self.value(e, active)

    def rows(self, lanes: int) -> str:
        """Source of the shape of a wide value."""
        return f"({self.threads}, {lanes})" if lanes > 1 else f"({self.threads},)"

    def wanted(self, active: str | None, lanes: int) -> str | None:
        """Source of the mask of a scalar or a vector, by thread or by thread and lane; None when all are wanted."""
        masks = self.masks(active)
        if lanes == 1:
            return masks.threads
        return " & ".join([*([masks.lanes] if masks.lanes else []), *([f"{masks.threads}[:, None]"] if masks.threads else [])]) or None

    def _binary(self, e: Binary, active: str | None) -> str:
        if e.op not in _PARTIAL or dt.is_float(e.dtype):
            return super()._binary(e, active)
        a, b, lanes = self.value(e.a, active), self.value(e.b, active), dt.lanes(e.dtype)
        wanted = self.wanted(active, lanes)
        if wanted is not None and (lanes > 1 or b in self.wide):  # nothing undefined is computed where nobody asks for it
            b = self.temp(f"where({wanted}, {b}, {b}.dtype.type({_PARTIAL[e.op]}))")
        return self.temp(f"binary_{e.op}({a}, {b})")

    def _lt0(self, e: IsNegative, active: str | None) -> str:
        if e.lanes == 1:
            index = self.index(e.index)
            return self.temp(f"{index} < 0") if self.is_wide(index) else self.temp(f"bool_({index} < 0)")
        return self.temp(f"ramp_of({self.index(e.index)}, {'1' if e.stride is None else self.index(e.stride)}, {e.lanes}) < 0")

    def _poly(self, e: Poly, active: str | None) -> str:
        index = self.index(e)
        return self.temp(index if self.is_wide(index) else f"int64({index})")

    def _ramp(self, e: Ramp, active: str | None) -> str:
        return self.temp(f"ramp_of({self.index(e.base)}, {self.index(e.stride)}, {e.lanes})")

    def _broadcast(self, e: Broadcast, active: str | None) -> str:
        value = self.value(e.a, active)
        if value in self.wide:
            return self.temp(f"broadcast_to({value}[:, None], {self.rows(e.lanes)})")
        return self.temp(f"full({e.lanes}, {value})")

    def _call(self, e: Call, active: str | None) -> str:
        known = intrinsic(e.name)
        if not known.shuffle or len(e.args) != 1:
            return super()._call(e, active)
        value = self.value(e.args[0], active)
        return self.temp(f"{self.place()}.shuffle({value}, {known.shuffle}, {self.masks(active).threads})")

    def _select(self, e: Select, active: str | None) -> str:
        lanes, count = dt.lanes(e.cond.dtype), dt.lanes(e.dtype)
        if lanes == 1:
            cond = self.temp(self.truth(e.cond, active))
            if cond not in self.wide:
                return self._select_same(e, cond, active)
        else:
            cond = self.value(e.cond, active)
        column = f"{cond}[:, None]" if lanes == 1 and count > 1 else cond
        if _total(e.a) and _total(e.b):
            return self.temp(f"where({column}, {self.value(e.a, active)}, {self.value(e.b, active)})")
        masks = self.masks(active)
        shape = self.rows(count)
        name = self.temp(f"zeros({shape}, {str(dt.to_numpy(e.dtype))!r})")
        self.wide.add(name)
        for text, side in ((cond, e.a), (f"~{cond}", e.b)):
            if lanes == 1:
                threads, wanted = self.both(text, masks.threads), masks.lanes
                where = threads + ("[:, None]" if count > 1 else "")
            else:
                outside = self.wanted(active, lanes)
                everywhere = f"broadcast_to({text}, {shape})"
                wanted = where = self.temp(f"{everywhere} & {outside}" if outside else everywhere)
                threads = self.temp(f"{wanted}.any(axis=1)")
                self.wide |= {wanted, threads}
            self.line(f"if {threads}.any():")
            outer, self.known = self.known, dict(self.known)
            self.indent += 1
            self.line(f"copyto({name}, {self.value(side, self.narrowed(threads, wanted, active))}, where={where})")
            self.indent -= 1
            self.known = outer
        return name

    def _select_same(self, e: Select, cond: str, active: str | None) -> str:
        """All threads take the same side."""
        name = self.fresh("t")
        sides = []
        for head, side in ((f"if {cond}:", e.a), ("else:", e.b)):
            self.line(head)
            outer, self.known = self.known, dict(self.known)
            self.indent += 1
            sides.append(self.value(side, active))
            self.line(f"{name} = {sides[-1]}")
            self.indent -= 1
            self.known = outer
        if self.is_wide(*sides):
            self.wide.add(name)
            self.line(f"{name} = broadcast_to({name}, {self.rows(dt.lanes(e.dtype))})")
        return name

    def _load(self, e: BufferLoad, active: str | None) -> str:
        held, threads = self.holding(e), self.masks(active).threads
        if e.lanes > 1:
            return self._load_vector(e, held, active)
        place, cells = self.cells(e, active, "load of")
        if not held.private:
            if held.tracked:
                self.line(f"{held.memory}.read({place}, {self.for_each_thread(cells)}, {threads}, {self.statement})")
            masked = threads is not None and cells in self.wide
            return self.temp(f"gather({held.data}, {cells}, {threads})" if masked else f"{held.data}[{cells}]")
        if cells not in self.wide:
            at, text = cells, f"{held.data}[{cells}]"
        else:
            at = f"{cells}, {self.linear}"
            text = f"{held.data}[{at}]"
            if threads is not None:
                at = f"where({threads}, {cells}, 0), {self.linear}"
                text = f"gather_private({held.data}, {cells}, {threads})"
        if held.tracked:
            known = self.temp(f"{held.written}[{at}]")
            self.line(f"if not {known}.all(): {held.memory}.check({place}, {cells}, {known}, {threads})")
        name = self.temp(text)
        self.wide.add(name)
        return name

    def _load_vector(self, e: BufferLoad, held: Held, active: str | None) -> str:
        cells, taking = self.vector_cells(e, e.lanes, active, "load of", False)
        if held.tracked:
            place = self.place(e.buffer)
            if held.private:
                known = self.temp(f"load_lanes({held.written}, {cells}, {taking})")
                self.line(f"if not {known}.all(): {held.memory}.check({place}, {cells}, {known}, {taking})")
            elif cells in self.wide:
                self.line(f"{held.memory}.read({place}, {cells}, {taking}, {self.statement})")
            else:
                shape = self.rows(e.lanes)
                every = f"None if {taking} is None else broadcast_to({taking}, {shape})"
                self.line(f"{held.memory}.read({place}, broadcast_to({cells}, {shape}), {every}, {self.statement})")
        return self.temp(f"load_lanes({held.data}, {cells}, {taking})")

    def _lookup(self, e: IndirectIndex, active: str | None) -> str:
        name = self.local(e.var.name)
        value, extent = self.value(e.value, active), self.index(e.extent)
        self.line(f"{name} = {self.place()}.looked_up({value}, {extent}, {self.masks(active).threads})")
        if value in self.wide:
            self.wide.add(name)
            self.wide_vars.add(e.var)
        self.vars[e.var] = name
        out = self.looked_up(e, active)
        self.locals.remove(name)
        del self.vars[e.var]
        self.wide_vars.discard(e.var)
        return out

    _VALUES: Mapping[type, Callable[[Any, Any, str | None], str]] = {
        **Compiler._VALUES,
        Poly: _poly,
        Binary: _binary,
        IsNegative: _lt0,
        Select: _select,
        Call: _call,
        Broadcast: _broadcast,
        Ramp: _ramp,
        BufferLoad: _load,
        IndirectIndex: _lookup,
    }


def _total(e: Expr) -> bool:
    """Whether the value may be computed for threads that do not ask for it: nothing in it can fail or be seen by others."""
    for n in walk_objects(e):
        if type(n) in (BufferLoad, IndirectIndex) or (type(n) is Call and intrinsic(n.name).shuffle):
            return False
        if type(n) is Binary and n.op in _PARTIAL and not dt.is_float(n.dtype):
            return False
    return True


def _evaluate(p: Poly, env: Mapping[Var, Any]) -> np.ndarray:
    """The value for each thread."""
    total: Any = np.int64(0)
    with np.errstate(divide="ignore"):
        for m, c in p.terms:
            term: Any = np.int64(c)
            for a in m:
                term = term * (_OPS[a.op]([_evaluate(y, env) for y in a.args]) if type(a) is Op else env[a])  # type: ignore[index]
            total = total + term
    return np.asarray(total)


_OPS: Mapping[str, Callable[[list[Any]], Any]] = {
    "floordiv": lambda x: x[0] // x[1],
    "mod": lambda x: x[0] % x[1],
    "ceildiv": lambda x: -(-x[0] // x[1]),
    "min": lambda x: np.minimum.reduce(np.broadcast_arrays(*x)),
    "max": lambda x: np.maximum.reduce(np.broadcast_arrays(*x)),
}


def tuple_of(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
