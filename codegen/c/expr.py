"""Print expressions in C: a scalar as text, a vector as the list of its lanes (CUDA C has no vector arithmetic).

Vectors are loaded and stored whole if their address is known to be aligned, else lane by lane.  Loads needed by only one side of a
select are emitted in the branch of that side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.codegen.c.dialect import HALVES, Dialect
from tunesmith.codegen.c.division import floor_division
from tunesmith.codegen.c.text import closes
from tunesmith.ir.arith.divisors import is_usual_divisor
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Atom, Monomial, Op, Poly, Var, poly
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError, InternalError

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "bitand": "&",
    "bitor": "|",
    "bitxor": "^",
    "shl": "<<",
    "shr": ">>",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "and": "&&",
    "or": "||",
}
_ONCE = 1 << 31
_ANYTHING = (-_ONCE, _ONCE)
_WRAPPING = ("add", "sub", "mul", "shl")


class CExpr:
    """Printer of expressions; statements that an expression needs are appended to `lines`.

    Attributes:
        names: C names of buffers and variables.
        ranges: value ranges of the variables in scope.
    """

    def __init__(self, what: str, dialect: Dialect) -> None:
        self.what = what
        self.dialect = dialect
        self.names: dict[Any, str] = {}
        self.ranges: dict[Var, tuple[int, int]] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.helpers: set[str] = set()
        self.wide = False
        """Whether indices are 64 bits wide."""
        self._temps = 0
        self._spans: dict[Monomial, tuple[int, int]] = {}

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("  " * self.indent + text)

    def temp(self, prefix: str = "v") -> str:
        """A fresh name."""
        self._temps += 1
        return f"{prefix}{self._temps}"

    def ctype(self, dtype: str) -> str:
        """The C type that a value is computed in."""
        return "float" if dtype in HALVES else self.dialect.types[dtype]

    def counter(self, last: int) -> str:
        """The C type of a variable with values up to `last`."""
        return self.dialect.types["int64" if self.wide or last >= _ONCE else "int32"]

    # ---- indices -------------------------------------------------------------------------------------------------------

    def bind(self, v: Var, low: int, high: int) -> None:
        """Bring a variable with a value range into scope."""
        if self.ranges.get(v, (low, high)) != (low, high):
            self._spans.clear()
        self.ranges[v] = low, high

    def index(self, p: Poly) -> str:
        """An index as C text, in parentheses unless it is a name or a number."""
        return self._index(p, self._overflows(p.terms))

    def _index(self, p: Poly, wide: bool) -> str:
        if p.const is not None:
            return str(p.const) if p.const >= 0 else f"({p.const})"
        text = self._sum(p.terms, wide)
        return text if p.as_atom() is not None else f"({text})"

    def _total(self, terms: Any) -> str:
        return self._sum(terms, self._overflows(terms)) if terms else "0"

    def _sum(self, terms: Any, wide: bool) -> str:
        """A sum; if it is 64 bits wide, narrower variables are cast."""
        out = ""
        for m, c in sorted(terms, key=lambda t: (t[1] < 0, not t[0])):
            factors = [self._atom(a, wide) for a in m]
            if abs(c) != 1 or not m:
                factors.append(str(abs(c)))
            sign = (" - " if out else "-") if c < 0 else (" + " if out else "")
            out += sign + " * ".join(factors)
        return out

    def _atom(self, a: Atom, wide: bool) -> str:
        if type(a) is Op:
            x = [self._index(p, wide) for p in a.args]
            kind = "int64" if wide else "int32"
            if a.op in ("min", "max"):
                out = x[0]
                for y in x[1:]:
                    out = f"({out} {'<' if a.op == 'min' else '>'} {y} ? {out} : {y})"
                return out
            if a.args[1].const is None and self.bounds(a.args[1])[0] < 1:
                if a.op == "ceildiv":
                    return f"(-{self._floored('floordiv', f'(-{x[0]})', x[1], kind, False)})"
                return self._floored(a.op, x[0], x[1], kind, False)
            if a.op == "ceildiv":
                above = a.args[0] + a.args[1] - 1
                numerator = self._index(above, wide)
                return f"({numerator} / {x[1]})" if self.bounds(above)[0] >= 0 else self._floored("floordiv", numerator, x[1], kind)
            if self.bounds(a.args[0])[0] >= 0:
                return f"({x[0]} {'/' if a.op == 'floordiv' else '%'} {x[1]})"
            return self._floored(a.op, x[0], x[1], kind)
        if a not in self.names:
            raise BuildError(f"{self.what}: the variable {a!r} is not bound in the kernel")
        return f"({self.dialect.types['int64']}){self.names[a]}" if wide and not self.wide else self.names[a]

    def _overflows(self, terms: Any) -> bool:
        """Whether a sum must be computed in 64 bits: a term, or a part of one, may need more than 32."""
        if self.wide:
            return True
        low = high = 0
        for m, c in terms:
            lo, hi = self._span(m)
            if c < 0:
                lo, hi = hi, lo
            low += min(c * lo, 0)  # bounds of every partial sum, whatever the order of the terms
            high += max(c * hi, 0)
        return low <= -_ONCE or high >= _ONCE

    def _span(self, m: Monomial) -> tuple[int, int]:
        """Lowest and highest value of a product; `_ANYTHING` if a factor needs more than 32 bits."""
        found = self._spans.get(m)
        if found is None:
            low = high = 1
            for a in m:
                lo, hi = self.ranges.get(a, (0, _ONCE)) if type(a) is not Op else self._span_of(a)
                corners = (low * lo, low * hi, high * lo, high * hi)
                low, high = min(corners), max(corners)
                if low <= -_ONCE or high >= _ONCE:
                    low, high = _ANYTHING
                    break
            found = self._spans[m] = low, high
        return found

    def _span_of(self, a: Op) -> tuple[int, int]:
        parts = (*a.args, a.args[0] + a.args[1] - 1) if a.op == "ceildiv" else a.args
        return _ANYTHING if any([self._overflows(p.terms) for p in parts]) else self.bounds(poly(a))

    def _floored(self, op: str, x: str, y: str, kind: str, usual: bool = True) -> str:
        """Floor division of operands that may be negative; `usual` is False if the divisor may be 0 or -1."""
        name, helper = floor_division(op, kind, self.dialect, usual)
        self.helpers.add(helper)
        return f"{name}({x}, {y})"

    def bounds(self, p: Poly) -> tuple[int, int]:
        """Lowest and highest value; unknown variables are only assumed to be at least 0."""
        missing = {v: (0, _ONCE) for v in p.vars if v not in self.ranges}
        return bounds(p, {**self.ranges, **missing} if missing else self.ranges)

    def condition(self, p: Poly) -> str:
        """`p < 0`, with negative terms moved to the right side."""
        left = [(m, c) for m, c in p.terms if c > 0]
        right = [(m, -c) for m, c in p.terms if c < 0]
        return f"{self._total(left)} < {self._total(right)}"

    # ---- scalars -------------------------------------------------------------------------------------------------------

    def scalar(self, e: Expr) -> str:
        """The text of a scalar."""
        if isinstance(e, Poly):
            text = self.index(e)
            return text if self.wide and e.const is None else f"({self.dialect.types[dt.INDEX]}){text}"
        if isinstance(e, Const):
            return self.dialect.number(e.value, e.dtype)
        if isinstance(e, BufferLoad):
            return self.load(e.buffer, self.address(e.buffer, e.indices[0]))
        if isinstance(e, IsNegative):
            return f"({self.condition(e.index)})"
        if isinstance(e, Select):
            return self._choice(e)
        if isinstance(e, IndirectIndex):
            return self._indirect_index(e, self.scalar)
        if isinstance(e, Call) and INTRINSICS[e.name].reduces:
            return self._reduced(e)
        args = [self.scalar(k) for k in _operands(e)]
        return self.operation(e, args)

    def _indirect_index(self, e: IndirectIndex, make: Callable[[Expr], Any]) -> Any:
        """The result of `make` on the body, with the loaded index bound to its variable."""
        last = max(self.bounds(e.extent)[1] - 1, 0)
        self.bind(e.var, 0, last)
        outer, self.names = self.names, {**self.names, e.var: f"({self.counter(last)}){self.scalar(e.value)}"}
        made = make(e.body)
        self.names = outer
        return made

    def operation(self, e: Expr, args: list[str]) -> str:
        """The operation of a node on one lane of its operands."""
        t = type(e)
        if isinstance(e, Binary):
            dtype = dt.element(e.a.dtype)
            if e.op in ("floordiv", "mod") and dt.is_int(dtype) and not is_usual_divisor(e.b, self.bounds):
                return self._floored(e.op, args[0], args[1], dtype, False)
            return self._binary(e.op, dtype, args[0], args[1])
        if isinstance(e, Not):
            return f"(!{args[0]})"
        if isinstance(e, Cast):
            return self._cast(dt.element(e.a.dtype), dt.element(e.dtype), args[0])
        if isinstance(e, Call):
            return self._call(e, args)
        raise InternalError(f"{self.what}: cannot print a {t.__name__} in device code")

    def rounded(self, dtype: str, text: str) -> str:
        """A value of a 16-bit type, rounded after an operation in float."""
        return f"ts_round_{dtype}({text})" if dtype in HALVES else text

    def _binary(self, op: str, dtype: str, a: str, b: str) -> str:
        if op in ("min", "max"):
            return self._extreme(op, dtype, a, b)
        if op == "pow":
            return self.rounded(dtype, f"{self.dialect.functions['pow', dtype == 'float64']}({a}, {b})")
        if op in ("floordiv", "mod"):
            if dt.is_float(dtype):
                return self.rounded(dtype, self._floored_float(op, "float64" if dtype == "float64" else "float32", a, b))
            if dt.is_unsigned(dtype):
                return f"({a} {'/' if op == 'floordiv' else '%'} {b})"
            return self._floored(op, a, b, dtype)
        if op in ("shl", "shr") and not (b.isdigit() and int(b) < dt.bits(dtype)):
            word = self.dialect.types["uint64" if dt.bits(dtype) == 64 else "uint32"]
            none = "0" if op == "shl" or dt.is_unsigned(dtype) else f"({a} < 0 ? -1 : 0)"
            plain = self._binary(op, dtype, a, "0").replace(" 0)", f" ({b}))")
            return f"(({word})({b}) < {dt.bits(dtype)}u ? {plain} : {none})"
        if op in _WRAPPING and (dtype in ("int32", "int64") or (op, dtype) == ("mul", "uint16")):  # signed overflow is undefined in C
            word = self.dialect.types["uint64" if dtype == "int64" else "uint32"]
            return f"({self.dialect.types[dtype]})(({word}){a} {_INFIX[op]} {b if op == 'shl' else f'({word}){b}'})"
        text = f"({a} {_INFIX[op]} {b})"
        if dt.is_int(dtype) and dt.bits(dtype) < 32 and op in _WRAPPING:
            return f"({self.dialect.types[dtype]}){text}"  # C promotes to int
        return self.rounded(dtype, text) if op in ("add", "sub", "mul", "div") else text

    def _floored_float(self, op: str, kind: str, a: str, b: str) -> str:
        """Floored quotient or remainder with numpy's semantics: the quotient is that of exact arithmetic."""
        texts = self.dialect.floored(kind)
        self.helpers.update(texts[:1] if op == "mod" else texts)
        return f"ts_{'mod' if op == 'mod' else 'quotient'}_{kind}({a}, {b})"

    def _extreme(self, op: str, dtype: str, a: str, b: str) -> str:
        """Minimum or maximum; NaN if either operand is."""
        kind = self.ctype(dtype)
        name = f"ts_{op}_{kind.replace(' ', '_')}"
        test = f"a {'<' if op == 'min' else '>'} b" + (" || a != a" if dt.is_float(dtype) else "")
        self.helpers.add(f"TS_INLINE {kind} {name}({kind} a, {kind} b) {{ return {test} ? a : b; }}")
        return f"{name}({a}, {b})"

    def _cast(self, old: str, new: str, a: str) -> str:
        if new == "bool":
            return f"({a} != 0)"
        if new in HALVES:
            if old == "float64":
                self.helpers.add(self.dialect.to_odd())
                return self.rounded(new, f"ts_to_odd({a})")
            return self.rounded(new, a if old in HALVES or old == "float32" else f"(float)({a})")
        return a if self.ctype(old) == self.ctype(new) and old != "bool" else f"({self.ctype(new)})({a})"

    def _call(self, e: Call, args: list[str]) -> str:
        dtype = dt.element(e.args[0].dtype if e.args else e.dtype)
        known = INTRINSICS[e.name]
        if known.shuffle:
            if self.dialect.name != "cuda":
                raise BuildError(f"{self.what}: {self.dialect.name} has no warp shuffles; lower the function for this target")
            return f"__shfl_xor_sync(0xffffffffu, {args[0]}, {known.shuffle})"
        if e.name == "isnan":
            return f"({args[0]} != {args[0]})"
        if e.name == "sigmoid":
            one = self.dialect.number(1.0, dtype)
            return self.rounded(dtype, f"({one} / ({one} + {self.dialect.functions['exp', dtype == 'float64']}(-({args[0]}))))")
        if e.name == "abs" and dt.is_int(dtype):
            return f"({self.dialect.types[dtype]})({args[0]} < 0 ? {self._binary('sub', dtype, '0', args[0])} : {args[0]})"
        if e.name == "ldexp":
            return self.rounded(dtype, f"{self.dialect.functions['ldexp', dtype == 'float64']}({args[0]}, (int)({args[1]}))")
        name = self.dialect.functions.get((e.name, dtype == "float64"))
        if name is None:
            raise BuildError(f"{self.what}: the intrinsic {e.name} is not available in device code")
        return self.rounded(dtype, f"{name}({', '.join(args)})")

    def _choice(self, e: Select) -> str:
        cond = self.scalar(e.cond)
        if not any(dt.lanes(x.dtype) > 1 for side in (e.a, e.b) for x in walk_objects(side) if isinstance(x, Expr) and type(x) is not Poly):
            return f"({cond} ? {self.scalar(e.a)} : {self.scalar(e.b)})"
        name = self.temp()
        self.line(f"{self.ctype(e.dtype)} {name};")
        for head, side in ((f"if ({cond}) {{", e.a), ("} else {", e.b)):
            self.line(head)
            self.indent += 1
            self.line(f"{name} = {self.scalar(side)};")
            self.indent -= 1
        self.line("}")
        return name

    def _reduced(self, e: Call) -> str:
        op = e.name.removeprefix("reduce_")
        parts = self.lanes(e.args[0])
        dtype = dt.element(e.dtype)
        while len(parts) > 1:
            pairs = [self._binary(op, dtype, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
        return parts[0]

    # ---- memory --------------------------------------------------------------------------------------------------------

    def address(self, b: Buffer, index: Poly, lane: Poly | int = 0) -> str:
        """An element as an lvalue of the storage type."""
        at = index + lane
        return f"{self.names[b]}[{self._total(at.terms)}]"

    def load(self, b: Buffer, element: str) -> str:
        """The value of an element."""
        return f"ts_from_{b.dtype}({element})" if b.dtype in HALVES else element

    def stored(self, dtype: str, value: str) -> str:
        """A value converted to its storage type."""
        if dtype not in HALVES:
            return value
        loaded = f"ts_from_{dtype}("
        if value.startswith(loaded) and closes(value, len(loaded) - 1):
            return value[len(loaded) : -1]  # a copy needs no conversion
        head = f"ts_round_{dtype}("
        inner = value[len(head) : -1] if value.startswith(head) and closes(value, len(head) - 1) else value
        return f"ts_to_{dtype}({inner})"

    def whole(self, b: Buffer, index: Poly, lanes: int, stride: Poly | None, mask: Poly | None) -> str | None:
        """A vector in memory as an lvalue if contiguous and aligned, else None; elements below 32 bits are grouped into words."""
        if b.scope in ("local", "register") or mask is not None or (stride is not None and stride != 1):
            return None
        if any(c % lanes for _, c in index.terms):
            return None
        size = lanes * dt.nbytes(b.dtype)
        dtype, count = (b.dtype, lanes) if dt.bits(b.dtype) >= 32 else ("uint32", size // 4)
        address = f"{self.names[b]} + {self.index(index)}"
        constant = self.is_constant(b)
        if count == 1 and size == 4:
            space = self.dialect.spaces.get(b.scope, "")
            return f"*({space}{'const ' if constant else ''}{self.dialect.types[dtype]}*)({address})"
        if (dtype, count) not in self.dialect.vectors:
            return None
        return self.dialect.pointer(dtype, count, b.scope, address, constant)

    def is_constant(self, b: Buffer) -> bool:
        """Whether the kernel never stores to the buffer."""
        raise NotImplementedError

    # ---- vectors -------------------------------------------------------------------------------------------------------

    def lanes(self, e: Expr) -> list[str]:
        """The texts of the lanes of a vector."""
        n = dt.lanes(e.dtype)
        if n == 1:
            return [self.scalar(e)]
        if isinstance(e, Broadcast):
            return [self._named(e.a)] * n
        if isinstance(e, BufferLoad):
            return self._load(e, None)
        if isinstance(e, Ramp):
            return [self.scalar(e.base + e.stride * i) for i in range(n)]
        if isinstance(e, IsNegative):
            stride = 1 if e.stride is None else e.stride
            return [f"({self.condition(e.index + stride * i)})" for i in range(n)]
        if isinstance(e, Select):
            return self._choices(e, n)
        if isinstance(e, IndirectIndex):
            return self._indirect_index(e, self.lanes)
        parts = [self.lanes(k) for k in _operands(e)]
        return [self.operation(e, [p[i] for p in parts]) for i in range(n)]

    def _named(self, e: Expr) -> str:
        """A scalar used by several lanes: computed once, into a variable."""
        if type(e) is Const:
            return self.scalar(e)
        text = self.scalar(e)
        if type(e) is BufferLoad and e.buffer.scope in ("local", "register"):
            return text
        name = self.temp()
        self.line(f"const {self.ctype(e.dtype)} {name} = {text};")
        return name

    def _load(self, e: BufferLoad, cond: str | None) -> list[str]:
        """A vector load; zeros where `cond` fails."""
        b, index, n = e.buffer, e.indices[0], e.lanes
        place = self.whole(b, index, n, e.stride, e.mask)
        zero = self.dialect.number(0, b.dtype)
        if place is not None:
            return self._split(b.dtype, n, place, cond)
        out = []
        for i in range(n):
            text = self.load(b, self.address(b, index, (1 if e.stride is None else e.stride) * i))
            conds = ([cond] if cond else []) + ([] if e.mask is None else [f"{i} < {self.index(e.mask)}"])
            out.append(f"({' && '.join(conds)} ? {text} : {zero})" if conds else text)
        return out

    def _split(self, dtype: str, n: int, place: str, cond: str | None) -> list[str]:
        """Lanes of a vector loaded by one instruction."""
        name = self.temp()
        words = dt.bits(dtype) < 32
        kind, count = ("uint32", n * dt.nbytes(dtype) // 4) if words else (dtype, n)
        vector = self.dialect.vectors.get((kind, count), self.dialect.types[kind])
        zero = self.dialect.number(0, kind)
        none = self.dialect.vector(kind, [zero] * count) if count > 1 else zero
        self.line(f"const {vector} {name} = {f'{cond} ? {place} : {none}' if cond else place};")
        parts = [f"{name}.{'xyzw'[i]}" for i in range(count)] if count > 1 else [name]
        return [self._of_word(dtype, parts, i) for i in range(n)] if words else parts

    def _of_word(self, dtype: str, words: list[str], lane: int) -> str:
        each = 32 // dt.bits(dtype)
        word, at = words[lane // each], lane % each * dt.bits(dtype)
        part = f"({word} >> {at})" if at else word
        if dtype in HALVES:
            return f"ts_from_{dtype}(({self.dialect.types[dtype]}){part})"
        return f"({self.dialect.types[dtype]}){part}"

    def _choices(self, e: Select, n: int) -> list[str]:
        if dt.lanes(e.cond.dtype) > 1:
            conds = self.lanes(e.cond)
            if not any(type(x) is BufferLoad for side in (e.a, e.b) for x in walk_objects(side)):
                a, b = self.lanes(e.a), self.lanes(e.b)
                return [f"({c} ? {x} : {y})" for c, x, y in zip(conds, a, b, strict=True)]
            return self._branches(e, n, conds)
        cond = self.scalar(e.cond)
        if type(e.a) is BufferLoad and type(e.b) is Broadcast and type(e.b.a) is Const and e.b.a.value == 0:
            return self._load(e.a, cond)
        return self._branches(e, n, [cond])

    def _branches(self, e: Select, n: int, conds: list[str]) -> list[str]:
        """Lanes of a select, each side computed in its branch."""
        names = [self.temp() for _ in range(n)]
        self.line(f"{self.ctype(dt.element(e.dtype))} {', '.join(names)};")
        for i, cond in enumerate(conds):
            targets = names if len(conds) == 1 else [names[i]]
            for head, side in ((f"if ({cond}) {{", e.a), ("} else {", e.b)):
                self.line(head)
                self.indent += 1
                values = self.lanes(side) if len(conds) == 1 else [self.lane(side, i)]
                for name, value in zip(targets, values, strict=True):
                    self.line(f"{name} = {value};")
                self.indent -= 1
            self.line("}")
        return names

    def lane(self, e: Expr, i: int) -> str:
        """One lane of a vector whose other lanes may be unsafe to compute."""
        if dt.lanes(e.dtype) == 1:
            return self.scalar(e)
        if isinstance(e, BufferLoad):
            text = self.load(e.buffer, self.address(e.buffer, e.indices[0], (1 if e.stride is None else e.stride) * i))
            zero = self.dialect.number(0, e.buffer.dtype)
            return text if e.mask is None else f"({i} < {self.index(e.mask)} ? {text} : {zero})"
        if isinstance(e, Select):
            return f"({self.lane(e.cond, i)} ? {self.lane(e.a, i)} : {self.lane(e.b, i)})"
        if isinstance(e, (Broadcast, Ramp, IsNegative)):
            return self.lanes(e)[i]
        if isinstance(e, IndirectIndex):
            return self._indirect_index(e, lambda body: self.lane(body, i))
        return self.operation(e, [self.lane(k, i) for k in _operands(e)])


def _operands(e: Expr) -> list[Expr]:
    out: list[Any] = []
    e.each_child(out.append)
    return out
