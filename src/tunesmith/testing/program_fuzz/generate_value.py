"""Generate random value expressions that are defined at all instances of a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tunesmith.testing.program_fuzz import domain, numbers
from tunesmith.testing.program_fuzz import generate_index as gi
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.choices import Choices
from tunesmith.testing.program_fuzz.numbers import FLOATS, INTEGERS

SPECIAL = ("index", "tiny", "huge")
"""Data kinds of inputs that serve a single purpose."""
STYLES = ("select", "call", "ternary")
DTYPES = {
    "int32": 5.0,
    "float32": 5.0,
    "int64": 2.0,
    "float64": 1.5,
    "float16": 1.2,
    "bfloat16": 1.0,
    "bool": 1.2,
    "int8": 1.2,
    "int16": 0.8,
    "uint8": 1.2,
    "uint16": 0.6,
    "uint32": 0.8,
    "uint64": 0.6,
}


@dataclass(slots=True)
class Scope:
    """What expressions of a block may use.

    Attributes:
        names: index names: axes and sizes.
        spaces: values of the names at all instances, per call.
        extents: extents of the axes.
        buffers: readable buffers, the most interesting ones last.
        new_input: factory of inputs with a type and data kind, whose shape matches the axes.
    """

    names: list[str]
    spaces: list[domain.Points]
    extents: dict[str, p.Index]
    buffers: list[p.Buffer]
    new_input: Callable[[str, str], p.Buffer]
    fresh: Callable[[str], str]


class Values:
    """Generator of value expressions."""

    def __init__(self, c: Choices, scope: Scope, odd: float = 1.0) -> None:
        self.c, self.scope, self.odd = c, scope, odd
        self.indirections = 0

    # ---- leaves

    def literal(self, dtype: str) -> p.Literal:
        """A random number."""
        c = self.c
        if dtype == "bool":
            return p.Literal(c.chance(0.5), dtype)
        if dtype in FLOATS:
            return p.Literal(float(c.one([0, 1, 2, -1, 3, 0.5, -2, 7])), dtype)
        low, high = numbers.limits(dtype)
        return p.Literal(c.one([low, high]) if c.chance(0.05) else max(low, c.integer(-3, 7)), dtype)

    def leaf(self, dtype: str) -> p.Value:
        """A load, number or index."""
        kind = self.c.weighted({"load": 7.0, "literal": 1.5, "index": 1.0})
        if kind == "index" and dtype != "bool" and self.scope.names:
            return p.IndexValue(gi.pattern_without_division(self.c, self.scope.names, self.scope.spaces), dtype)
        if kind == "index" and dtype == "bool" and self.scope.names:
            return self.index_condition()
        return self.literal(dtype) if kind == "literal" else self.load(dtype)

    def load(self, dtype: str) -> p.Value:
        """An element of a buffer of the type, guarded if the index may be out of bounds."""
        c = self.c
        fitting = [b for b in self.scope.buffers if b.dtype == dtype and b.data not in SPECIAL]
        if not fitting or c.chance(0.15):
            b = self.scope.new_input(dtype, "")
        else:
            b = fitting[-1] if c.chance(0.5) else c.one(fitting)
        return self.load_of(b)

    def load_of(self, b: p.Buffer, names: list[str] | None = None) -> p.Value:
        """A random element of `b`."""
        c = self.c
        indices: list[p.Index] = []
        conds: list[p.IndexCompare] = []
        aligned = self.aligned(b) if names is None and c.chance(1.0 - 0.65 * self.odd) else None
        if aligned is not None:
            return p.Load(b.name, aligned, b.dtype)
        for d in b.shape:
            i, more = gi.guarded(c, self.scope.names if names is None else names, d, self.scope.spaces)
            indices.append(i)
            conds += more
        made = p.Load(b.name, tuple(indices), b.dtype)
        if not conds:
            return made
        cond = conjunction(conds)
        other: p.Value = self.literal(b.dtype) if c.chance(0.6) else p.Literal(False if b.dtype == "bool" else 0, b.dtype)
        if c.chance(0.25):
            return p.Select(p.Not(cond), other, made, c.one(STYLES), b.dtype)
        return p.Select(cond, made, other, c.one(STYLES), b.dtype)

    def aligned(self, b: p.Buffer) -> tuple[p.Index, ...] | None:
        """A distinct axis for each dimension if axes of these extents exist, else None."""
        left = list(self.scope.names)
        out: list[p.Index] = []
        for d in b.shape:
            found = next((n for n in left if self.scope.extents.get(n) == d), None)
            if found is None:
                return None
            left.remove(found)
            out.append(p.Name(found))
        return tuple(out)

    def extreme_quotient(self, dtype: str) -> p.Value:
        """A quotient of two denormal or two huge numbers, whose reciprocals are infinite or denormal respectively."""
        data = self.c.one(["tiny", "huge"])
        names = self.scope.names[: self.c.integer(0, 1)]
        a, b = [self.scope.new_input(dtype, data) for _ in range(2)]
        divisor = p.Load(b.name, tuple([gi.fitting(self.c, names, d, self.scope.spaces) for d in b.shape]), dtype)
        dividend = p.Load(a.name, tuple([gi.fitting(self.c, self.scope.names, d, self.scope.spaces) for d in a.shape]), dtype)
        return p.Binary("/", dividend, divisor, dtype)

    def uniform(self, dtype: str) -> p.Value:
        """An element that is invariant in the innermost loops, or in all loops."""
        names = self.scope.names[: self.c.integer(0, max(0, len(self.scope.names) - 1))]
        fitting = [b for b in self.scope.buffers if b.dtype == dtype and b.data not in SPECIAL]
        if not fitting or self.c.chance(0.5):
            return self.load_of(self.scope.new_input(dtype, ""), names)
        return self.load_of(self.c.one(fitting), names)

    def index_condition(self) -> p.IndexCompare:
        """A comparison of index expressions."""
        c = self.c
        e = gi.pattern_without_division(c, self.scope.names, self.scope.spaces)
        other: p.Index = p.Name(c.one(self.scope.names)) if c.chance(0.3) else p.Num(c.integer(-1, 8))
        return p.IndexCompare(c.one(["<", "<=", ">", ">=", "==", "!="]), e, other)

    # ---- trees

    def value(self, dtype: str, depth: int) -> p.Value:
        """A random expression of the type."""
        c = self.c
        if depth <= 0 or c.chance(0.2):
            return self.leaf(dtype)
        if dtype == "bool":
            return self.condition(depth)
        kinds = {"arithmetic": 8.0, "select": 2.0, "cast": 1.0, "lookup": 1.1, "function": 1.2 if dtype in FLOATS else 0.1}
        match c.weighted(kinds):
            case "arithmetic":
                return self.arithmetic(dtype, depth)
            case "select":
                cond = self.condition(depth - 1)
                return p.Select(cond, self.value(dtype, depth - 1), self.value(dtype, depth - 1), c.one(STYLES), dtype)
            case "cast":
                return p.Cast(self.value(c.weighted({d: w for d, w in DTYPES.items() if d != dtype}), depth - 1), dtype)
            case "lookup":
                return self.indirect_index(dtype)
        return self.function(dtype, depth)

    def arithmetic(self, dtype: str, depth: int) -> p.Value:
        """A random binary operation."""
        c = self.c
        if dtype in FLOATS:
            op = c.weighted({"+": 4.0, "-": 2.0, "*": 3.0, "/": 1.0, "min": 1.0, "max": 1.0})
            if op == "/" and c.chance(0.3):
                return self.extreme_quotient(dtype)
            a = self.value(dtype, depth - 1)
            b = self.uniform(dtype) if op == "/" and c.chance(0.5) else self.value(dtype, depth - 1)
            return p.Binary(op, a, b, dtype)
        op = c.weighted(
            {"+": 4, "-": 2, "*": 3, "//": 1.0, "%": 1.0, "min": 1, "max": 1, "&": 0.3, "|": 0.2, "^": 0.2, "<<": 0.2, ">>": 0.3}
        )
        a = self.value(dtype, depth - 1)
        if op in ("<<", ">>"):
            return p.Binary(op, a, p.Literal(c.integer(0, int(dtype.lstrip("uint")) - 1), dtype), dtype)
        b = self.value(dtype, depth - 1)
        if op in ("//", "%") and (c.chance(0.4) or isinstance(b, p.Literal)):
            b = p.Literal(max(numbers.limits(dtype)[0], c.one([1, 2, 3, 4, 7, -1, -2, -3])) or 5, dtype)
            a = self.load(dtype) if isinstance(a, (p.Literal, p.IndexValue)) else a
        elif op in ("//", "%") and c.chance(0.4):
            return p.Select(p.Compare("!=", b, p.Literal(0, dtype)), p.Binary(op, a, b, dtype), self.literal(dtype), c.one(STYLES), dtype)
        return p.Binary(op, a, b, dtype)

    def condition(self, depth: int) -> p.Value:
        """A random bool expression."""
        c = self.c
        if depth <= 0:
            return self.index_condition() if self.scope.names and c.chance(0.5) else self.leaf("bool")
        match c.weighted({"index": 4.0, "compare": 3.0, "logic": 1.5, "not": 0.8, "leaf": 1.0, "bits": 0.3, "isnan": 0.1}):
            case "index" if self.scope.names:
                return self.index_condition()
            case "compare":
                dtype = c.weighted(DTYPES)
                op = c.one(["<", "<=", ">", ">=", "==", "!="])
                return p.Compare(op, self.value(dtype, depth - 1), self.value(dtype, depth - 1))
            case "logic":
                return p.Logic(c.one(["and", "or"]), self.condition(depth - 1), self.condition(depth - 1))
            case "not":
                return p.Not(self.condition(depth - 1))
            case "bits":
                return p.Binary(c.one(["&", "|", "^", "min", "max"]), self.load("bool"), self.condition(depth - 1), "bool")
            case "isnan":
                return p.Function("isnan", (self.value(c.one(FLOATS), depth - 1),), "bool")
        return self.leaf("bool")

    def function(self, dtype: str, depth: int) -> p.Value:
        """A random call of an intrinsic."""
        c = self.c
        if dtype in INTEGERS:
            return p.Function("abs", (self.value(dtype, depth - 1),), dtype) if dtype.startswith("i") else self.leaf(dtype)
        name = c.one([*numbers.SMOOTH, *numbers.STEPS, "abs", "copysign", "fma"])
        count = {"copysign": 2, "fma": 3}.get(name, 1)
        args = [self.value(dtype, depth - 1) for _ in range(count)]
        if name in ("log", "log2", "sqrt", "rsqrt"):
            args = [p.Binary("+", p.Function("abs", (args[0],), dtype), p.Literal(1.0, dtype), dtype)]
        return p.Function(name, tuple(args), dtype)

    def indirect_index(self, dtype: str) -> p.Value:
        """An indirect access: an element at a loaded index."""
        c = self.c
        tables = [b for b in self.scope.buffers if b.dtype == dtype and b.shape and b.data not in SPECIAL and b.role != "scratch"]
        if self.indirections >= 2 or not tables:
            return self.leaf(dtype)
        self.indirections += 1
        table, at = c.one(tables), self.scope.new_input("int64", "index")
        name, dim = self.scope.fresh("q"), c.integer(0, len(table.shape) - 1)
        extent = table.shape[dim]
        index = self.load_of(at)
        inside: p.Value = p.Binary("%", index, p.IndexValue(extent, "int64"), "int64")
        if isinstance(extent, p.Num) and extent.value >= at.bound and not isinstance(index, p.Select):
            inside = index
        place: p.Index = p.Name(name)
        if c.chance(0.2):
            place = p.Arith("-", gi.add(extent, -1), place)
        rest = [gi.fitting(c, self.scope.names, d, self.scope.spaces) for d in table.shape]
        rest[dim] = place
        body: p.Value = p.Load(table.name, tuple(rest), dtype)
        if c.chance(0.3):
            body = p.Binary(c.one(["max", "min"]), body, self.leaf(dtype), dtype)
        return p.IndirectIndex(inside, extent, name, body, dtype)


def conjunction(conds: list[p.IndexCompare]) -> p.Value:
    """The conjunction of the conditions."""
    out: p.Value = conds[0]
    for x in conds[1:]:
        out = p.Logic("and", out, x)
    return out
