"""Print expressions as C; values that a statement uses more than once become constants before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.codegen.c.dialect import HALVES
from tunesmith.codegen.c.host.halves import double_to_half, float_to_half, half_to_float, rounded_to_half
from tunesmith.codegen.c.host.index import IndexPrinter
from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.codegen.c.host.text import BITS, COMPARISON, LOGIC, PRODUCT, SUM, UNARY, Code, call, choice, computed, infix, number, stored
from tunesmith.codegen.cpu.active_lanes import active_lanes
from tunesmith.codegen.cpu.order import NESTED, needs_branch, operands_first
from tunesmith.codegen.cpu.strided_pieces import STRIDES, strided_pieces
from tunesmith.ir.arith.divisors import is_usual_divisor
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import COMPARISONS, Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.poly import ONE, Poly, poly
from tunesmith.ir.stmt import BindIndex
from tunesmith.ir.visit import substitute
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

_INFIX = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}
_BITWISE = {"bitand": "&", "bitor": "|", "bitxor": "^"}
_ON_MASKS = {"and": "&", "or": "|", **_BITWISE}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_UNARY = ("sqrt", "abs", "floor", "ceil", "trunc", "round")
_LONG = 240
"""Length of an expression from which on a part of it gets a name."""


class ExprPrinter(IndexPrinter):
    """Printer of expressions; what they need before the statement is appended to `lines`.

    Vectors of bools are vectors of integers, 0 or -1, as wide as the values that were compared.

    Attributes:
        function: name of the function, for messages.
        base: C names of the pointers to buffers.
        registers: C names and lanes of the variables that hold the elements of a register buffer, by the first element.
    """

    def __init__(self, function: str, prelude: Prelude) -> None:
        super().__init__(prelude)
        self.function = function
        self.base: dict[Buffer, str] = {}
        self.registers: dict[Buffer, dict[int, tuple[str, int]]] = {}
        self.lines: list[str] = []
        self.indent = 1
        self.loads: dict[Buffer, dict[Any, Code]] = {}
        """Named vector loads, which are valid until a store to the buffer."""
        self.repeated: set[Any] = set()
        """Vector loads that occur more than once in the statements that are printed now."""
        self._known: list[dict[int, tuple[Expr, Code]]] = [{}]
        self._shared: set[int] = set()
        self._depth = 0
        self._temporaries = 0

    # ---- statements that expressions need ------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("  " * self.indent + text)

    def begin(self, *expressions: Expr) -> None:
        """Begin a statement with these expressions: forget the values of the last one, and find what is used more than once."""
        self._known, self._shared = [{}], _shared(expressions)

    def name(self, value: Code, t: str) -> Code:
        """Give a value a name."""
        self._temporaries += 1
        self.line(f"const {t} v{self._temporaries} = {value};")
        return Code(f"v{self._temporaries}")

    # ---- expressions ---------------------------------------------------------------------------------------------------

    def value(self, e: Expr) -> Code:
        """An expression; 16-bit floats are rounded floats, vectors of bools are masks."""
        if isinstance(e, Poly):
            return self.index(e)
        if isinstance(e, Const):
            return number(e.value, e.dtype)
        known = self._find(e)
        if known is not None:
            return known
        self._depth += 1
        deep = self._depth > NESTED
        if deep:
            for part in operands_first(e, lambda x: self._find(x) is not None):
                if not isinstance(part, (Poly, Const)):
                    self._keep(part, self._round(part, self._raw(part)))
        text = self._round(e, self._raw(e))
        self._depth -= 1
        if deep or len(text) > _LONG or id(e) in self._shared:
            return self._keep(e, text)
        return text

    def bits(self, e: Expr) -> Code:
        """A value as it is stored: 16-bit floats as their bits."""
        element, lanes = dt.split(e.dtype)
        if element not in HALVES:
            return self.value(e)
        if type(e) is BufferLoad and self._find(e) is None:
            return self._load(e)
        once = id(e) not in self._shared and type(e) in (Binary, Cast, Call)
        return call(float_to_half(self.prelude, element, lanes), self._raw(e) if once else self.value(e))

    def mask(self, e: Expr, bits: int) -> Code:
        """A vector of bools as a mask of integers with this number of bits."""
        value, natural = self.value(e), _mask_bits(e)
        if natural == bits:
            return value
        return call("__builtin_convertvector", value, self.prelude.type_of(dt.vector(f"int{bits}", dt.lanes(e.dtype))))

    def first_lanes(self, count: Poly, bits: int, lanes: int) -> Code:
        """The mask of leading lanes."""
        return call(self.prelude.first(bits, lanes), self.index(count))

    def _keep(self, e: Expr, text: Code) -> Code:
        if dt.element(e.dtype) == "bool" and dt.lanes(e.dtype) > 1:
            t = self.prelude.type_of(dt.vector(f"int{_mask_bits(e)}", dt.lanes(e.dtype)))
        else:
            t = self.prelude.type_of(computed(e.dtype))
        named = self.name(text, t)
        self._known[-1][id(e)] = e, named
        return named

    def _find(self, e: Any) -> Code | None:
        for table in self._known:
            if id(e) in table:
                return table[id(e)][1]
        return None

    def _round(self, e: Expr, text: Code) -> Code:
        element, lanes = dt.split(e.dtype)
        if element not in HALVES or type(e) not in (Binary, Cast, Call):
            return text
        if (isinstance(e, Binary) and e.op in ("min", "max")) or (isinstance(e, Call) and e.name in ("reinterpret", "abs", "copysign")):
            return text  # exact
        return call(rounded_to_half(self.prelude, element, lanes), text)

    def _raw(self, e: Expr) -> Code:
        """An expression before its result is rounded to a 16-bit float."""
        return _PRINT[type(e)](self, e)

    def _type(self, e: Expr) -> str:
        """The C type of a value that is no vector of bools."""
        return self.prelude.type_of(computed(e.dtype))

    # ---- memory --------------------------------------------------------------------------------------------------------

    def address(self, buffer: Buffer, p: Poly) -> Code:
        """The pointer to an element."""
        name = self.base[buffer]
        return Code(name) if p.const == 0 else Code(f"&{name}[{self.index(p)}]", UNARY)

    def _loaded(self, e: BufferLoad) -> Code:
        element, lanes = dt.split(e.dtype)
        text = self._load(e)
        return call(half_to_float(self.prelude, element, lanes), text) if element in HALVES else text

    def _load(self, e: BufferLoad) -> Code:
        """The bits of elements."""
        b, p, lanes, vector = e.buffer, e.indices[0], e.lanes, stored(e.dtype)
        self.check_scope(b)
        mask = active_lanes(e.mask, lanes)
        if b in self.registers:
            return self.register(b, p, lanes)
        if lanes == 1:
            return Code(f"{self.base[b]}[{self.index(p)}]")
        key = load_key(e)
        known = self.loads.get(b, {}).get(key)
        if known is not None:
            return known
        text = self._load_vector(e, vector, mask)
        if key in self.repeated and len(self._known) == 1:
            text = self.loads.setdefault(b, {})[key] = self.name(text, self.prelude.type_of(vector))
        return text

    def _load_vector(self, e: BufferLoad, vector: str, mask: Poly | None) -> Code:
        at, lanes = self.address(e.buffer, e.indices[0]), e.lanes
        if mask is not None and mask.const == 0:
            return Code(f"({self.prelude.type_of(vector)}){{0}}", UNARY)
        if e.stride == ONE:
            if mask is None:
                return call(self.prelude.load(vector), at)
            return call(self.prelude.load_first(vector), at, self.index(mask))
        step = None if e.stride is None else e.stride.const
        if mask is None and step in STRIDES:
            return self._strided(vector, at, lanes, step)
        count = poly(lanes) if mask is None else mask
        return call(self.prelude.gather(vector), at, self.index(ONE if e.stride is None else e.stride), self.index(count))

    def _strided(self, vector: str, at: Code, lanes: int, step: int) -> Code:
        """Elements with a small stride: contiguous loads and shuffles."""
        load, t = self.prelude.load(vector), self.prelude.type_of(vector)
        out = ""
        for first, picks in strided_pieces(lanes, step):
            place = f"{at.at(UNARY)} {'-' if first < 0 else '+'} {abs(first)}" if first else at
            loaded = self.name(call(load, place), t)
            out = self.name(Code(self.prelude.shuffle(vector, out or loaded, loaded, picks)), t)
        return Code(out)

    def register(self, b: Buffer, p: Poly, lanes: int) -> Code:
        """The variable, or the lane of one, that holds elements of a register buffer."""
        at = p.as_int()
        held = self.registers[b]
        if at in held and held[at][1] == lanes:
            return Code(held[at][0])
        first = max(start for start in held if start <= at)
        return Code(f"{held[first][0]}[{at - first}]")

    def check_scope(self, b: Buffer) -> None:
        """Refuse an access to a buffer that is not in memory.  Raises BuildError."""
        if b not in self.base and b not in self.registers:
            raise BuildError(
                f"{self.function}: the buffer {b.name} of scope {b.scope} needs instructions that C has not. Schedule for the kind llvm"
            )
        if b.dtype == "bool":
            raise BuildError(f"{self.function}: the C backend does not support tensors of bools; run the lowering pipeline first")

    # ---- node by node --------------------------------------------------------------------------------------------------

    def _binary(self, e: Binary) -> Code:
        kind, lanes = dt.split(e.a.dtype)
        if e.op in COMPARISONS:
            flags = max(_mask_bits(e.a), _mask_bits(e.b)) if kind == "bool" and lanes > 1 else 0
            a, b = [self.mask(x, flags) if flags else self.value(x) for x in (e.a, e.b)]
            # True is -1 in a mask, below false.
            text = infix(_COMPARE[_MIRRORED.get(e.op, e.op) if flags else e.op], a, b, COMPARISON)
            if flags == 64:
                return Code(f"({self.prelude.type_of(dt.vector('int64', lanes))})({text})", UNARY)
            if lanes > 1 and dt.bits(computed(kind)) == 64:  # its lanes are `long` or `long long`
                return Code(f"({self.prelude.type_of(dt.vector('int64', lanes))})({text})", UNARY)
            return text
        if e.op in ("and", "or") and lanes == 1:
            return infix("&&" if e.op == "and" else "||", self.value(e.a), self.value(e.b), LOGIC)
        if e.op in _ON_MASKS and kind == "bool" and lanes > 1:
            bits = _mask_bits(e)
            return infix(_ON_MASKS[e.op], self.mask(e.a, bits), self.mask(e.b, bits), BITS)
        dtype, a, b = computed(e.a.dtype), self.value(e.a), self.value(e.b)
        is_float = dt.is_float(dtype)
        if e.op in ("min", "max"):
            return call(self.prelude.extreme(e.op, dtype), a, b)
        if is_float and e.op == "sub" and lanes == 1 and _reads_as_zero(e.a):
            return call(self.prelude.difference(dtype), a, b)
        if is_float and e.op in _INFIX:
            return infix(_INFIX[e.op][0], a, b, _INFIX[e.op][1])
        if is_float:
            raise BuildError(f"{self.function}: the C backend has no code for `{e.op}` on {e.a.dtype}; expand it in lowering first")
        if e.op in ("add", "sub", "mul"):
            if dt.is_unsigned(kind) and (lanes > 1 or dt.bits(kind) >= 32):
                return infix(_INFIX[e.op][0], a, b, _INFIX[e.op][1])
            return call(self.prelude.wrapping(e.op, dtype), a, b)
        if e.op in _BITWISE:
            text = infix(_BITWISE[e.op], a, b, BITS)
            return text if lanes > 1 or dt.bits(kind) >= 32 else Code(f"({self._type(e)})({text})", UNARY)
        if e.op in ("shl", "shr"):
            return call(self.prelude.shift(e.op, dtype), a, b)
        if e.op in ("floordiv", "mod"):
            return call(self.prelude.division(e.op, dtype, is_usual_divisor(e.b, self.range_of)), a, b)
        raise BuildError(f"{self.function}: the C backend has no code for `{e.op}` on {e.a.dtype}; expand it in lowering first")

    def _not(self, e: Not) -> Code:
        return Code(f"{'!' if dt.lanes(e.dtype) == 1 else '~'}{self.value(e.a).at(UNARY)}", UNARY)

    def _is_negative(self, e: IsNegative) -> Code:
        if e.lanes == 1:
            return self._negative(e.index)
        if e.stride == ONE:
            return self.first_lanes(-e.index, 32, e.lanes)
        step = ONE if e.stride is None else e.stride
        return call(self.prelude.negative(e.lanes), self.index(e.index), self.index(step))

    def _negative(self, p: Poly) -> Code:
        """`p < 0`, with the negative terms on the other side."""
        left = [(m, c) for m, c in p.terms if c > 0]
        right = [(m, -c) for m, c in p.terms if c < 0]
        a, b = [self.index(Poly(tuple(terms))) if terms else Code("0") for terms in (left, right)]
        return infix("<", a, b, COMPARISON)

    def _ramp(self, e: Ramp) -> Code:
        return call(self.prelude.ramp(e.lanes), self.index(e.base), self.index(e.stride))

    def _broadcast(self, e: Broadcast) -> Code:
        if e.a.dtype == "bool":
            return call(self.prelude.splat(dt.vector("int32", e.lanes)), Code(f"-{self.value(e.a).at(UNARY)}", UNARY))
        return call(self.prelude.splat(dt.vector(computed(e.a.dtype), e.lanes)), self.value(e.a))

    def _select(self, e: Select) -> Code:
        element, lanes = dt.split(e.dtype)
        bits = _mask_bits(e) if element == "bool" and lanes > 1 else 0
        if dt.lanes(e.cond.dtype) > 1:
            if bits:
                c, a, b = [self.mask(x, bits) for x in (e.cond, e.a, e.b)]
                return Code(f"{c.at(UNARY)} & {a.at(UNARY)} | ~{c.at(UNARY)} & {b.at(UNARY)}", BITS - 1)
            dtype = computed(e.dtype)
            return call(self.prelude.select(dtype), self.mask(e.cond, dt.bits(dtype)), self.value(e.a), self.value(e.b))
        c = self.value(e.cond)
        t = self.prelude.type_of(dt.vector(f"int{bits}", lanes)) if bits else self._type(e)
        if not needs_branch(e, lambda x: self._find(x) is not None):
            a, b = [self.mask(x, bits) if bits else self.value(x) for x in (e.a, e.b)]
            return self._choice(c, a, b, t, lanes)
        sides = [self._side(x, bits) for x in (e.a, e.b)]
        if not any(lines for lines, _ in sides):
            return self._choice(c, sides[0][1], sides[1][1], t, lanes)
        self._temporaries += 1
        result = f"v{self._temporaries}"
        self.line(f"{t} {result};")
        for head, (lines, text) in zip((f"if ({c}) {{", "} else {"), sides, strict=True):
            self.line(head)
            self.lines += lines
            self.line(f"  {result} = {text};")
        self.line("}")
        return Code(result)

    def _choice(self, c: Code, a: Code, b: Code, t: str, lanes: int) -> Code:
        """A choice by a scalar.  Operators on vectors lose attributes of their type, and the sides of a choice need one type."""
        if lanes > 1:
            a, b = [Code(f"({t}){x.at(UNARY)}", UNARY) for x in (a, b)]
        return choice(c, a, b)

    def _side(self, e: Expr, bits: int) -> tuple[list[str], Code]:
        """The lines that one side of a choice needs, and its value; a mask has lanes of this number of bits."""
        outside, self.lines = self.lines, []
        self._known.append({})
        self.indent += 1
        text = self.mask(e, bits) if bits else self.value(e)
        self.indent -= 1
        self._known.pop()
        lines, self.lines = self.lines, outside
        return lines, text

    def _cast(self, e: Cast) -> Code:
        (old, lanes), new = dt.split(e.a.dtype), dt.element(e.dtype)
        if new == "bool":
            a = self.value(e.a)
            zero = number(0, computed(old)) if lanes == 1 else call(self.prelude.splat(computed(e.a.dtype)), number(0, computed(old)))
            return self._compared(infix("!=", a, zero, COMPARISON), computed(old), lanes)
        if old == "float64" and new == "float16":
            return call(double_to_half(self.prelude, lanes), self.value(e.a))
        t = self._type(e)
        if old == "bool" and lanes > 1:
            bits = dt.bits(computed(new))
            flags = Code(f"-{self.mask(e.a, bits).at(UNARY)}", UNARY)  # 0 or 1, and no mask is 64 bits and narrower than float64
            return self._converted(flags, dt.vector(f"int{bits}", lanes), computed(e.dtype))
        a = self.value(e.a)
        if computed(e.a.dtype) == computed(e.dtype):
            return a
        if (new == "bfloat16" and old == "float64") or lanes > 1:
            return self._converted(a, computed(e.a.dtype), computed(e.dtype))
        return Code(f"({t}){a.at(UNARY)}", UNARY)

    def _converted(self, a: Code, old: str, new: str) -> Code:
        if old == new:
            return a
        t = self.prelude.type_of(new)
        return call("__builtin_convertvector", a, t) if dt.lanes(new) > 1 else Code(f"({t}){a.at(UNARY)}", UNARY)

    def _compared(self, text: Code, operand: str, lanes: int) -> Code:
        if lanes > 1 and dt.bits(operand) == 64:
            return Code(f"({self.prelude.type_of(dt.vector('int64', lanes))})({text})", UNARY)
        return text

    def _call(self, e: Call) -> Code:
        dtype = computed(e.dtype)
        if e.name in _UNARY:
            a = self.value(e.args[0])
            return a if e.name == "abs" and dt.is_unsigned(dtype) else call(self.prelude.unary(e.name, dtype), a)
        if e.name in ("fma", "copysign"):
            make = self.prelude.fma if e.name == "fma" else self.prelude.copysign
            return call(make(dtype), *[self.value(a) for a in e.args])
        if e.name == "isnan":
            a = self._named(e.args[0])
            return self._compared(infix("!=", a, a, COMPARISON), computed(dt.element(e.args[0].dtype)), dt.lanes(e.dtype))
        if e.name == "reinterpret":
            return self._reinterpret(e)
        if e.name == "ldexp":
            return call(self.prelude.scaled(dtype), self.value(e.args[0]), self.value(e.args[1]))
        if e.name.startswith("reduce_"):
            source = computed(e.args[0].dtype)
            return call(self.prelude.reduction(e.name.removeprefix("reduce_"), source), self.value(e.args[0]))
        raise BuildError(
            f"{self.function}: the C backend has no code for the intrinsic {e.name!r} on {e.dtype}. Schedule for the kind llvm, or do not "
            "use the tensor intrinsic"
        )

    def _named(self, e: Expr) -> Code:
        """A value that is a name."""
        value = self.value(e)
        return value if value.isidentifier() else self._keep(e, value)

    def _reinterpret(self, e: Call) -> Code:
        """The same bits as another type."""
        (old, lanes), new = dt.split(e.args[0].dtype), dt.element(e.dtype)
        bits, source, target = self.bits(e.args[0]), dt.element(stored(old)), dt.element(stored(new))
        if source == target:
            same = bits
        elif lanes > 1:
            same = Code(f"({self.prelude.type_of(dt.vector(target, lanes))}){bits.at(UNARY)}", UNARY)
        elif not dt.is_float(source) and not dt.is_float(target):
            same = Code(f"({self.prelude.type_of(target)}){bits.at(UNARY)}", UNARY)
        else:
            same = call(self.prelude.reinterpret(source, target), bits)
        return call(half_to_float(self.prelude, new, lanes), same) if new in HALVES else same

    def _indirect_index(self, e: IndirectIndex) -> Code:
        body = substitute(e.body, {e.var: poly(self.indirect_var(e))})
        self._shared |= _shared((body,))
        return self.value(body)

    def indirect_var(self, e: IndirectIndex | BindIndex) -> IndirectVar:
        """A fresh variable with the value of an index."""
        var = IndirectVar(e.var.name)
        value = self.value(e.value)
        self.env[var] = value if value.isidentifier() else self.name(value, "int64_t")
        self.ranges[var] = (0, max(bounds(e.extent, self.ranges)[1] - 1, 0))
        return var


def load_key(e: BufferLoad) -> Any:
    """What identifies the elements of a load."""
    return e.buffer, e.indices[0], e.lanes, e.stride, e.mask


def _mask_bits(e: Expr) -> int:
    """Bits of the lanes of the mask that `ExprPrinter.value` gives for a vector of bools."""
    if isinstance(e, Binary) and e.op in COMPARISONS and dt.element(e.a.dtype) != "bool":
        return dt.bits(computed(dt.element(e.a.dtype)))
    if isinstance(e, Binary):
        return max(_mask_bits(e.a), _mask_bits(e.b))
    if isinstance(e, Select):
        return max(_mask_bits(x) for x in (e.cond, e.a, e.b) if dt.lanes(x.dtype) > 1)
    if isinstance(e, Not):
        return _mask_bits(e.a)
    if isinstance(e, IsNegative):
        return 32 if e.stride == ONE else 64
    if isinstance(e, Cast) or (isinstance(e, Call) and e.name == "isnan"):
        source = e.a if isinstance(e, Cast) else e.args[0]
        return _mask_bits(source) if dt.element(source.dtype) == "bool" else dt.bits(computed(dt.element(source.dtype)))
    if isinstance(e, IndirectIndex):
        return _mask_bits(e.body)
    return 32


def _reads_as_zero(e: Expr) -> bool:
    """Whether compilers may read a value as the constant 0 before they optimise."""
    stack: list[Any] = [e]
    while stack:
        x = stack.pop()
        if type(x) is Select:
            stack += [x.a, x.b]
        elif type(x) in (Binary, Cast):
            x.each_child(stack.append)
        elif type(x) is not Const:
            return False
    return type(e) is not Const or e.value == 0


def _shared(expressions: tuple[Expr, ...]) -> set[int]:
    """Identities of the nodes that occur more than once and take more than a name to write."""
    seen: set[int] = set()
    twice: set[int] = set()
    stack: list[Any] = list(expressions)
    while stack:
        x = stack.pop()
        if type(x) is Poly or type(x) is Const or (type(x) is Broadcast and type(x.a) is Const):
            continue
        if id(x) in seen:
            twice.add(id(x))
            continue
        seen.add(id(x))
        x.each_child(stack.append)
    return twice


_PRINT: dict[type, Callable[[ExprPrinter, Any], Code]] = {
    BufferLoad: ExprPrinter._loaded,
    Binary: ExprPrinter._binary,
    Broadcast: ExprPrinter._broadcast,
    Not: ExprPrinter._not,
    IsNegative: ExprPrinter._is_negative,
    Ramp: ExprPrinter._ramp,
    Select: ExprPrinter._select,
    Cast: ExprPrinter._cast,
    Call: ExprPrinter._call,
    IndirectIndex: ExprPrinter._indirect_index,
}
