"""Generate Python source for the values of kernels, vectorized over the threads of a block.

A name is uniform (one numpy scalar, as serial loop variables are) or varying (an array with a row per thread), which is decided when the
source is generated (`varying`).  Inactive threads are masked out; their values are never observed.
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
from tunesmith.ir.interpreter.thread_memory import Clock, ThreadPoint
from tunesmith.ir.intrinsics import intrinsic
from tunesmith.ir.poly import Atom, Op, Poly, Var
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt

_PARTIAL = {"pow": 1, "shl": 0, "shr": 0}
"""Integer operations that are undefined for some right operands, with an operand for which they are defined."""


class MemoryNames(NamedTuple):
    """Names of the memory of a buffer in generated code."""

    memory: str
    data: str
    written: str
    dims: list[str]
    strides: list[str]
    private: bool
    tracked: bool


class ActiveMasks(NamedTuple):
    """Masks of the active threads and lanes of a value, and the name of the enclosing set of masks."""

    threads: str | None
    lanes: str | None
    outer: str | None


@dataclass(frozen=True)
class IndexParts:
    """An index as a sum of `array`, varying and known at compile time, `number`, uniform, and `mixed`, varying and computed at run time."""

    array: np.ndarray | None
    number: str
    mixed: str | None

    @property
    def varying(self) -> bool:
        """Whether threads may have different values."""
        return self.array is not None or self.mixed is not None


class ThreadValues(Compiler):
    """Generates the values of a kernel; base class of the compiler of its statements.

    Args:
        func: the function that contains the kernel.
        values: values of Params and scalar parameters.
        check_races: whether accesses are tracked.
        clock: counter of epochs for the whole call.
        threads: threads per block.
    """

    def __init__(self, func: PrimFunc, values: Mapping[Var, int], check_races: bool, clock: Clock, threads: int) -> None:
        super().__init__(func, values, check_races)
        self.clock, self.threads = clock, threads
        self.env.update(runtime())
        self.env["clock"] = clock
        self.varying: set[str] = set()
        """Names with a value per thread."""
        self.varying_vars: set[Var] = set()
        self.coords: dict[Var, np.ndarray] = {}
        """Variables that are thread coordinates, with their values."""
        self.bound: dict[Var, Poly] = {}
        """Variables defined as expressions of loop variables: iteration variables, and variables of thread loops with one iteration."""
        self.mask: str | None = None
        self.activity: dict[str, ActiveMasks] = {}
        self.statement = 0
        self.held: dict[Buffer, MemoryNames] = {}
        self._hoisted: dict[Any, str] = {}
        self.zero = self._array(np.zeros(threads, np.int64))
        self.linear = self._array(np.arange(threads, dtype=np.int64))

    def point(self, buffer: Buffer | None = None) -> str:
        names = {v: n for v, n in self.vars.items() if isinstance(v, Var)}
        path = "/" + "/".join(self.path)
        return self.hoist(ThreadPoint(self.clock, path, names, dict(self.bound), self.values, buffer))

    def _array(self, values: np.ndarray) -> str:
        """The name of a constant array with a value per thread."""
        values.setflags(write=False)
        name = self.hoist(values)
        self.varying.add(name)
        return name

    def temp(self, text: str) -> str:
        name = super().temp(text)
        if self.is_varying(text):
            self.varying.add(name)
        return name

    def is_varying(self, *texts: str | None) -> bool:
        """Whether the source text uses a varying name."""
        return any(n in self.varying for t in texts if t is not None for n in re.findall(r"\w+", t))

    # ---- index expressions

    def index(self, p: Poly) -> str:
        if not isinstance(p, Poly):
            return super().index(p)
        index = self.index_parts(p)
        if index.array is None and index.mixed is None:
            return index.number
        parts = [] if index.array is None else [self.hoisted(index.array)]
        parts += [t for t in (index.mixed, index.number) if t not in (None, "0")]
        return parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"

    def index_parts(self, p: Poly) -> IndexParts:
        """The parts of an index expression."""
        p = substitute_poly(p, self.bound) if not p.vars.isdisjoint(self.bound) else p
        pure, plain, mixed = [], [], []
        for term in p.terms:
            names = frozenset().union(*[a.vars for a in term[0]]) if term[0] else frozenset()
            if names.isdisjoint(self.varying_vars):
                plain.append(term)
            elif all(v in self.coords or v in self.values for v in names):
                pure.append(term)
            else:
                mixed.append(term)
        array = self._numbers(Poly(tuple(pure))) if pure else None
        number = super().index(Poly(tuple(plain)))
        return IndexParts(array, number, self._sum(mixed) if mixed else None)

    def _numbers(self, p: Poly) -> np.ndarray:
        """The values of an expression of thread coordinates, one per thread."""
        known = self._hoisted.get(p)
        if known is None:
            known = self._hoisted[p] = self._array(_evaluate(p, {**self.values, **self.coords}))
        made: np.ndarray = self.env[known]
        self._hoisted[id(made)] = known
        return made

    def hoisted(self, array: np.ndarray) -> str:
        """The name of an array of `index_parts`."""
        return self._hoisted[id(array)]

    def _sum(self, terms: Sequence[tuple[tuple[Atom, ...], int]]) -> str:
        texts = ["*".join([*([str(c)] if c != 1 or not m else []), *[self.atom(a) for a in m]]) for m, c in terms]
        return f"({' + '.join(texts)})"

    def atom(self, a: Atom) -> str:
        if type(a) is Op and a.op in ("min", "max") and not a.vars.isdisjoint(self.varying_vars):
            out, *more = [self.index(y) for y in a.args]
            for x in more:
                out = f"{a.op}imum({out}, {x})"
            return out
        return super().atom(a)

    def within(self, index: IndexParts, extent: str) -> str:
        """Source of the condition that 0 <= index < extent for all threads, including inactive ones."""
        if index.mixed is not None:
            name = self.hoisted(index.array) if index.array is not None else "0"
            full = self.temp(f"{index.mixed} + {name} + {index.number}")
            return f"{full}.min() >= 0 and ({full} < {extent}).all()"
        if index.array is not None:
            low, high = int(index.array.min()), int(index.array.max())
            return f"{-low} <= {index.number} and {index.number} + {high} < {extent}"
        return f"0 <= {index.number} < {extent}"

    def named(self, p: Poly) -> IndexParts:
        """As `index_parts`, with computed parts assigned to names."""
        index = self.index_parts(p)
        number = index.number if re.fullmatch(r"\w+", index.number) else self.temp(index.number)
        return IndexParts(index.array, number, index.mixed and self.temp(index.mixed))

    def text(self, index: IndexParts) -> str:
        """Source of the value of an index."""
        parts = [] if index.array is None else [self.hoisted(index.array)]
        parts += [t for t in (index.mixed, index.number) if t is not None and (t != "0" or not index.varying)]
        return " + ".join(parts)

    # ---- masks

    def masks(self, active: str | None) -> ActiveMasks:
        """The masks with a name; None means the masks of the statement."""
        return ActiveMasks(self.mask, None, None) if active is None else self.activity[active]

    def narrowed(self, threads: str | None, lanes: str | None, outer: str | None) -> str:
        """The name of a new set of masks of threads and lanes."""
        name = self.fresh("active")
        self.activity[name] = ActiveMasks(threads, lanes, outer)
        return name

    def both(self, condition: str, threads: str | None) -> str:
        """A new mask: the `threads` for which a varying condition holds."""
        return self.temp(f"({condition}) & {threads}" if threads else f"({condition}) & True")

    # ---- memory accesses

    def for_each_thread(self, cells: str) -> str:
        return cells if cells in self.varying else self.temp(f"{self.zero} + {cells}")

    def holding(self, s: BufferStore | BufferLoad) -> MemoryNames:
        """The memory names of an access."""
        if s.buffer not in self.held or len(s.indices) != len(s.buffer.shape):
            raise InterpretError(
                f"function {self.func.name}: {len(s.indices)} indices into {s.buffer!r}, which is not allocated here with that rank"
            )
        return self.held[s.buffer]

    def cells(self, s: BufferStore | BufferLoad, active: str | None, what: str) -> tuple[str, str]:
        """Names of the location and of the bounds-checked cell of a scalar access; the cell is uniform or varying."""
        held, point = self.holding(s), self.point(s.buffer)
        if not s.indices:
            return point, "0"
        indices = [self.named(i) for i in s.indices]
        inside = " and ".join([self.within(i, n) for i, n in zip(indices, held.dims, strict=True)])
        at = tuple_of([self.text(i) for i in indices])
        self.line(f"if not ({inside}): {point}.outside_threads({what!r}, {self.masks(active).threads}, {at}, {tuple_of(held.dims)})")
        return point, self._linear(indices, held.strides)

    def _linear(self, indices: Sequence[IndexParts], strides: Sequence[str]) -> str:
        numbers = [t.number if n == "1" else f"{t.number}*{n}" for t, n in zip(indices, strides, strict=True) if t.number != "0"]
        parts = [f"({' + '.join(numbers)})"] if numbers else []
        arrays = [(t.array, n) for t, n in zip(indices, strides, strict=True) if t.array is not None]
        if arrays and all(n.isdigit() for _, n in arrays):
            key = tuple([(id(a), n) for a, n in arrays])
            if key not in self._hoisted:
                self._hoisted[key] = self._array(np.asarray(sum(a * int(n) for a, n in arrays)))
            parts.append(self._hoisted[key])
        else:
            parts += [f"{self.hoisted(a)}*{n}" for a, n in arrays]
        parts += [f"{t.mixed}*{n}" for t, n in zip(indices, strides, strict=True) if t.mixed is not None]
        text = " + ".join(parts) or "0"
        return text if re.fullmatch(r"\w+", text) else self.temp(text)

    def vector_cells(self, s: BufferStore | BufferLoad, lanes: int, active: str | None, what: str, rows: bool) -> tuple[str, str]:
        """Names of the cells and of the active lanes of a vector access; with `rows`, the cells are always varying."""
        held, masks = self.holding(s), self.masks(active)
        index = tuple_of([self.index(i) for i in s.indices])
        stride = "1" if s.stride is None else self.index(s.stride)
        leading = "None" if s.mask is None else self.index(s.mask)
        rows = rows or held.private or self.is_varying(index, stride, leading, masks.threads, masks.lanes)
        cells, taking = self.fresh("cells"), self.fresh("taking")
        if rows:
            self.varying |= {cells, taking}
        where = f"{held.memory}, {self.point(s.buffer)}, {what!r}, {index}, {lanes}, {stride}, {leading}"
        self.line(f"{cells}, {taking} = lanes_of({where}, {masks.threads}, {masks.lanes}, {self.threads if rows else 0})")
        return cells, taking

    # ---- values

    def value(self, e: Expr, active: str | None) -> str:
        key = active
        while True:  # a value computed for more threads can be reused for fewer
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
        """Source of the shape of a varying value."""
        return f"({self.threads}, {lanes})" if lanes > 1 else f"({self.threads},)"

    def wanted(self, active: str | None, lanes: int) -> str | None:
        """Source of the active mask of a scalar or vector, by thread or by thread and lane; None if all are active."""
        masks = self.masks(active)
        if lanes == 1:
            return masks.threads
        return " & ".join([*([masks.lanes] if masks.lanes else []), *([f"{masks.threads}[:, None]"] if masks.threads else [])]) or None

    def _binary(self, e: Binary, active: str | None) -> str:
        if e.op not in _PARTIAL or dt.is_float(e.dtype):
            return super()._binary(e, active)
        a, b, lanes = self.value(e.a, active), self.value(e.b, active), dt.lanes(e.dtype)
        wanted = self.wanted(active, lanes)
        if wanted is not None and (lanes > 1 or b in self.varying):  # inactive lanes get a defined operand
            b = self.temp(f"where({wanted}, {b}, {b}.dtype.type({_PARTIAL[e.op]}))")
        return self.temp(f"binary_{e.op}({a}, {b})")

    def _is_negative(self, e: IsNegative, active: str | None) -> str:
        if e.lanes == 1:
            index = self.index(e.index)
            return self.temp(f"{index} < 0") if self.is_varying(index) else self.temp(f"bool_({index} < 0)")
        return self.temp(f"ramp_of({self.index(e.index)}, {'1' if e.stride is None else self.index(e.stride)}, {e.lanes}) < 0")

    def _poly(self, e: Poly, active: str | None) -> str:
        index = self.index(e)
        return self.temp(index if self.is_varying(index) else f"int64({index})")

    def _ramp(self, e: Ramp, active: str | None) -> str:
        return self.temp(f"ramp_of({self.index(e.base)}, {self.index(e.stride)}, {e.lanes})")

    def _broadcast(self, e: Broadcast, active: str | None) -> str:
        value = self.value(e.a, active)
        if value in self.varying:
            return self.temp(f"broadcast_to({value}[:, None], {self.rows(e.lanes)})")
        return self.temp(f"full({e.lanes}, {value})")

    def _call(self, e: Call, active: str | None) -> str:
        known = intrinsic(e.name)
        if not known.shuffle or len(e.args) != 1:
            return super()._call(e, active)
        value = self.value(e.args[0], active)
        return self.temp(f"{self.point()}.shuffle({value}, {known.shuffle}, {self.masks(active).threads})")

    def _select(self, e: Select, active: str | None) -> str:
        lanes, count = dt.lanes(e.cond.dtype), dt.lanes(e.dtype)
        if lanes == 1:
            cond = self.temp(self.truth(e.cond, active))
            if cond not in self.varying:
                return self._select_same(e, cond, active)
        else:
            cond = self.value(e.cond, active)
        column = f"{cond}[:, None]" if lanes == 1 and count > 1 else cond
        if _total(e.a) and _total(e.b):
            return self.temp(f"where({column}, {self.value(e.a, active)}, {self.value(e.b, active)})")
        masks = self.masks(active)
        shape = self.rows(count)
        name = self.temp(f"zeros({shape}, {str(dt.to_numpy(e.dtype))!r})")
        self.varying.add(name)
        for text, side in ((cond, e.a), (f"~{cond}", e.b)):
            if lanes == 1:
                threads, wanted = self.both(text, masks.threads), masks.lanes
                where = threads + ("[:, None]" if count > 1 else "")
            else:
                outside = self.wanted(active, lanes)
                everywhere = f"broadcast_to({text}, {shape})"
                wanted = where = self.temp(f"{everywhere} & {outside}" if outside else everywhere)
                threads = self.temp(f"{wanted}.any(axis=1)")
                self.varying |= {wanted, threads}
            self.line(f"if {threads}.any():")
            outer, self.known = self.known, dict(self.known)
            self.indent += 1
            self.line(f"copyto({name}, {self.value(side, self.narrowed(threads, wanted, active))}, where={where})")
            self.indent -= 1
            self.known = outer
        return name

    def _select_same(self, e: Select, cond: str, active: str | None) -> str:
        """A Select with a uniform condition."""
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
        if self.is_varying(*sides):
            self.varying.add(name)
            self.line(f"{name} = broadcast_to({name}, {self.rows(dt.lanes(e.dtype))})")
        return name

    def _load(self, e: BufferLoad, active: str | None) -> str:
        held, threads = self.holding(e), self.masks(active).threads
        if e.lanes > 1:
            return self._load_vector(e, held, active)
        point, cells = self.cells(e, active, "load of")
        if not held.private:
            if held.tracked:
                self.line(f"{held.memory}.read({point}, {self.for_each_thread(cells)}, {threads}, {self.statement})")
            masked = threads is not None and cells in self.varying
            return self.temp(f"gather({held.data}, {cells}, {threads})" if masked else f"{held.data}[{cells}]")
        if cells not in self.varying:
            at, text = cells, f"{held.data}[{cells}]"
        else:
            at = f"{cells}, {self.linear}"
            text = f"{held.data}[{at}]"
            if threads is not None:
                at = f"where({threads}, {cells}, 0), {self.linear}"
                text = f"gather_private({held.data}, {cells}, {threads})"
        if held.tracked:
            known = self.temp(f"{held.written}[{at}]")
            self.line(f"if not {known}.all(): {held.memory}.check({point}, {cells}, {known}, {threads})")
        name = self.temp(text)
        self.varying.add(name)
        return name

    def _load_vector(self, e: BufferLoad, held: MemoryNames, active: str | None) -> str:
        cells, taking = self.vector_cells(e, e.lanes, active, "load of", False)
        if held.tracked:
            point = self.point(e.buffer)
            if held.private:
                known = self.temp(f"load_lanes({held.written}, {cells}, {taking})")
                self.line(f"if not {known}.all(): {held.memory}.check({point}, {cells}, {known}, {taking})")
            elif cells in self.varying:
                self.line(f"{held.memory}.read({point}, {cells}, {taking}, {self.statement})")
            else:
                shape = self.rows(e.lanes)
                every = f"None if {taking} is None else broadcast_to({taking}, {shape})"
                self.line(f"{held.memory}.read({point}, broadcast_to({cells}, {shape}), {every}, {self.statement})")
        return self.temp(f"load_lanes({held.data}, {cells}, {taking})")

    def _indirect_index(self, e: IndirectIndex, active: str | None) -> str:
        name = self.local(e.var.name)
        value, extent = self.value(e.value, active), self.index(e.extent)
        self.line(f"{name} = {self.point()}.indirect_indices({value}, {extent}, {self.masks(active).threads})")
        if value in self.varying:
            self.varying.add(name)
            self.varying_vars.add(e.var)
        self.vars[e.var] = name
        out = self.indirect_body(e, active)
        self.locals.remove(name)
        del self.vars[e.var]
        self.varying_vars.discard(e.var)
        return out

    _VALUES: Mapping[type, Callable[[Any, Any, str | None], str]] = {
        **Compiler._VALUES,
        Poly: _poly,
        Binary: _binary,
        IsNegative: _is_negative,
        Select: _select,
        Call: _call,
        Broadcast: _broadcast,
        Ramp: _ramp,
        BufferLoad: _load,
        IndirectIndex: _indirect_index,
    }


def _total(e: Expr) -> bool:
    """Whether the value may be computed for inactive threads: it cannot fail and has no effect on other threads."""
    for n in walk_objects(e):
        if type(n) in (BufferLoad, IndirectIndex) or (type(n) is Call and intrinsic(n.name).shuffle):
            return False
        if type(n) is Binary and n.op in _PARTIAL and not dt.is_float(n.dtype):
            return False
    return True


def _evaluate(p: Poly, env: Mapping[Var, Any]) -> np.ndarray:
    """The values of an index expression, one per thread."""
    total: Any = np.int64(0)
    with np.errstate(divide="ignore"):
        for m, c in p.terms:
            term: Any = np.int64(c)
            for a in m:
                term = term * (_OPS[a.op]([_evaluate(y, env) for y in a.args]) if type(a) is Op else env[a])
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
