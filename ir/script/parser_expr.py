"""Parse expressions: convert Python syntax trees to index polynomials and value expressions, without evaluating them.

A bare Python number takes the dtype of the other operand or of the buffer it is stored to.  Two bare numbers are folded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import COMPARISONS, Binary, Cast, Const, Expr, Not, binary, cast, compare, const, select
from tunesmith.ir.indirect_index import IndirectIndex, IndirectVar
from tunesmith.ir.poly import Op, Poly, poly
from tunesmith.ir.script.buffer_view import BufferView, held
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.parser_scope import ScopeParser
from tunesmith.ir.script.printer_expr import SIGNS
from tunesmith.support import dtype as dt

Parsed = Expr | int | float
"""An expression, or a Python number (bool, int, float) without a dtype."""

MAX_TERMS = 256
MAX_DEGREE = 32
MAX_CHAIN = 200
MAX_LANES = 4096
"""Limits for hostile text from logs: terms of an index expression, factors of a term, operands of `a + b + ...`, lanes of a vector."""

OPERATORS: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
    ast.LShift: "shl",
    ast.RShift: "shr",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_BITWISE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
_WORDS: dict[type, str] = {
    ast.Lambda: "lambda",
    ast.ListComp: "list comprehension",
    ast.SetComp: "set comprehension",
    ast.DictComp: "dict comprehension",
    ast.GeneratorExp: "generator expression",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield from",
    ast.JoinedStr: "f-string",
    ast.NamedExpr: "assignment expression `:=`",
    ast.Starred: "starred expression",
    ast.Slice: "slice",
    ast.Dict: "dict",
    ast.Set: "set",
    ast.List: "list",
    ast.Tuple: "tuple",
}
_INDEX_HINT = "An index is integer arithmetic on loop variables, sizes and numbers: + - * // % T.min T.max T.ceildiv."


class ExprParser(ScopeParser):
    """Parser of expressions."""

    # ---- kinds of results ------------------------------------------------------------------------------------------

    def index(self, e: ast.expr) -> Poly:
        """Parse an index expression."""
        v = self.expr(e)
        found = _as_index(v)
        if found is not None:
            return found
        got = f"a value of type {v.dtype}" if isinstance(v, Expr) else f"the {type(v).__name__} {v}"
        is_integer = isinstance(v, Expr) and dt.is_int(v.dtype) and dt.lanes(v.dtype) == 1
        shown = ast.unparse(e)
        hint = f"Write T.lookup({shown}, extent, lambda v: X[v]), with 0 <= {shown} < extent." if is_integer else _INDEX_HINT
        self.fail(e, f"an index expression is needed here, got {got}", hint)

    def value(self, e: ast.expr, dtype: str | None = None) -> Expr:
        """Parse a value; a bare number becomes a literal of `dtype`."""
        return self.typed(e, self.expr(e), dtype)

    def typed(self, at: ast.expr, v: Parsed, dtype: str | None = None) -> Expr:
        """`v` as an expression."""
        if isinstance(v, Expr):
            return Cast(dtype, v) if self.source.tvm and isinstance(v, Poly) and _is_narrow(dtype) else v  # type: ignore[arg-type]
        if dtype is None:
            if isinstance(v, bool):
                return Const(v, "bool")
            if self.source.tvm:
                return self.literal(at, v, "float32" if isinstance(v, float) else "int32")
            self.fail(at, f"the number {v} has no dtype here", f"Write T.float32({v}), T.int32({v}), ..., or T.index({v}) for an index.")
        return self.literal(at, v, dtype)

    def literal(self, at: ast.expr, v: bool | int | float, dtype: str) -> Const:
        """The literal `v` of `dtype`; an error if it does not fit."""
        c = self.make(at, const, v, dtype)
        scalar = c.dtype
        if scalar == "bool" and v not in (0, 1):
            self.fail(at, f"the literal {v} is not a bool", "Write True or False.")
        if dt.is_int(scalar):
            bits = dt.bits(scalar)
            low, high = (0, 2**bits - 1) if dt.is_unsigned(scalar) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            if not low <= c.value <= high:
                self.fail(at, f"the literal {v} does not fit in {scalar}, which holds {low} to {high}")
        return c

    def condition(self, e: ast.expr) -> Expr:
        """Parse a bool expression."""
        c = self.value(e)
        if dt.element(c.dtype) != "bool":
            self.fail(e, f"a condition is needed here, got a value of type {c.dtype}", "Compare it: `x != 0`.")
        return c

    def integer(self, e: ast.expr, what: str, least: int = 1) -> int:
        """Parse a constant integer >= `least`."""
        v = self.index(e).const
        if v is None or v < least:
            self.fail(e, f"{what} must be an integer >= {least}")
        return v

    # ---- expressions -----------------------------------------------------------------------------------------------

    def expr(self, e: ast.expr) -> Parsed:
        """Parse any expression."""
        f = _EXPR.get(type(e))
        if f is None:
            self.fail(e, f"unsupported in a script: {_WORDS.get(type(e), type(e).__name__)}")
        self.enter(e)
        v: Parsed = f(self, e)
        self.leave()
        return self._checked(e, v)

    def _checked(self, e: ast.expr, v: Parsed) -> Parsed:
        """`v` itself if it is within the size limits."""
        if isinstance(v, Poly):
            if len(v.terms) > MAX_TERMS:
                self.fail(e, f"this index expression has more than {MAX_TERMS} terms")
            for m, c in v.terms:
                if len(m) > MAX_DEGREE:
                    self.fail(e, f"a term of this index expression has more than {MAX_DEGREE} factors")
                if not -(2**63) <= c < 2**63:
                    self.fail(e, "this index expression has a coefficient that does not fit in int64")
        elif type(v) is int and not -(2**63) <= v < 2**64:
            self.fail(e, "this number does not fit in 64 bits")
        return v

    def _constant(self, e: ast.Constant) -> Parsed:
        if isinstance(e.value, (int, float)):
            return e.value
        what = "text" if isinstance(e.value, (str, bytes)) else "this literal"
        self.fail(e, f"{what} cannot be a value here; values are numbers and expressions")

    def _name(self, e: ast.Name) -> Parsed:
        v = self.lookup(e)
        if isinstance(v, BufferView) and not v.shape:
            return self.element(e, v, []).load()
        if isinstance(v, (Buffer, BufferView)):
            self.fail(
                e, f"`{e.id}` is a buffer; its elements are values", f"Index it: {e.id}[{', '.join(['...'] * len(v.shape)) or '()'}]."
            )
        if isinstance(v, str):
            self.fail(e, f"`{e.id}` is text, not a value")
        return v

    def combine(self, at: ast.expr | ast.stmt, op: str, a: Parsed, b: Parsed) -> Parsed:
        """`a op b`."""
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            return self._fold(at, op, a, b)
        if self.source.tvm:
            a, b = _of_one_type(a, b), _of_one_type(b, a)
        if isinstance(a, Poly) or isinstance(b, Poly):
            self.spend(at, op, (a, b))
        if op in _BITWISE and any(isinstance(x, float) or (isinstance(x, Expr) and dt.is_float(x.dtype)) for x in (a, b)):
            self.fail(at, f"`{SIGNS[op][0]}` is for integers and bools, not for floats")
        # Literals are checked here, where the position is known.
        x = a if isinstance(a, Expr) else self.literal(at, a, self._like(b))  # type: ignore[arg-type]
        y = b if isinstance(b, Expr) else self.literal(at, b, self._like(a))  # type: ignore[arg-type]
        if (lanes := dt.lanes(x.dtype)) != dt.lanes(y.dtype):
            self.fail(at, f"the operands have {lanes} and {dt.lanes(y.dtype)} lanes", "Write T.Broadcast(value, lanes) for a scalar.")
        return self.make(at, compare if op in COMPARISONS else binary, op, x, y)

    def _like(self, v: Parsed) -> str:
        assert isinstance(v, Expr)
        return v.dtype

    def _fold(self, at: ast.AST, op: str, a: Any, b: Any) -> int | float:
        f = _FOLD.get(op)
        if f is None:
            self.fail(at, f"two numbers cannot be combined with `{SIGNS.get(op, ('**', 0))[0]}` here", "Write the result.")
        try:
            v: int | float = f(a, b)
        except ZeroDivisionError:
            self.fail(at, "division by zero")
        except OverflowError:
            self.fail(at, "this number does not fit in 64 bits")
        return v

    def spend(self, at: ast.AST, op: str, args: Iterable[Parsed]) -> None:
        """Charge the index operation `op` to the budget, before it is computed."""
        ps = [p for p in args if isinstance(p, Poly)]
        sizes = [len(p.terms) + len(p.vars) + 1 for p in ps]
        cost = sum(sizes)
        if op == "mul" and len(ps) == 2:
            cost = sizes[0] * sizes[1]
        elif op in ("min", "max"):  # the normal form compares all pairs, including those of nested min and max
            inner = sum(len(a.args) for p in ps for m, _ in p.terms for a in m if type(a) is Op and a.op == op)
            cost += (len(ps) + inner) ** 2 * max(sizes)
        self.budget.left -= cost
        if self.budget.left < 0:
            self.fail(at, "the index expressions of this text are too large", "Write shorter ones, or several texts.")

    def _chain(self, at: ast.AST, count: int) -> None:
        if count > MAX_CHAIN:
            self.fail(at, f"more than {MAX_CHAIN} operands in one chain")

    def _binary(self, e: ast.BinOp) -> Parsed:
        # The left spine is parsed iteratively: the depth of `a + b + c + ...` is its length.
        spine = [e]
        while isinstance(spine[-1].left, ast.BinOp):
            spine.append(spine[-1].left)
        self._chain(e, len(spine))
        v = self.expr(spine[-1].left)
        for n in reversed(spine):
            op = OPERATORS.get(type(n.op))
            if op is None:
                self.fail(n, "the operator `@` is not supported", "Write the loops and the sum.")
            v = self._checked(n, self.combine(n, op, v, self.expr(n.right)))
        return v

    def _unary(self, e: ast.UnaryOp) -> Parsed:
        if isinstance(e.op, ast.Not):
            return Not(self.condition(e.operand))
        v = self.expr(e.operand)
        if isinstance(e.op, ast.UAdd):
            return v
        if isinstance(e.op, ast.Invert):
            self.fail(e, "the operator `~` is not supported", "Write `not x` for a bool, `x ^ -1` for an integer.")
        if isinstance(v, Expr) and dt.element(v.dtype) == "bool":
            self.fail(e, "a bool cannot be negated with `-`", "Write `not x`.")
        return -v

    def _logic(self, e: ast.BoolOp) -> Parsed:
        self._chain(e, len(e.values))
        op = "and" if isinstance(e.op, ast.And) else "or"
        out = self.condition(e.values[0])
        for v in e.values[1:]:
            out = Binary(op, out, self.condition(v))
        return out

    def _compare(self, e: ast.Compare) -> Parsed:
        self._chain(e, len(e.ops))
        out: Parsed | None = None
        left = self.expr(e.left)
        for sign, right_ast in zip(e.ops, e.comparators, strict=True):
            op = OPERATORS.get(type(sign))
            if op is None:
                self.fail(e, "`in` and `is` are not supported", "Comparisons are < <= > >= == !=.")
            right = self.expr(right_ast)
            one = self.combine(e, op, left, right)
            out = one if out is None else Binary("and", self.typed(e, out), self.typed(e, one))
            left = right
        assert out is not None
        return out

    def _ternary(self, e: ast.IfExp) -> Parsed:
        return self._choose(e, e.test, e.body, e.orelse)

    def _choose(self, at: ast.expr, test: ast.expr, a: ast.expr, b: ast.expr) -> Expr:
        c = self.condition(test)
        self.guards += 1
        x, y = self.expr(a), self.expr(b)
        self.guards -= 1
        if not isinstance(x, Expr) and not isinstance(y, Expr):
            x = self.typed(a, x)
        if self.source.tvm:
            x, y = _of_one_type(x, y), _of_one_type(y, x)
        return self.make(at, select, c, self._other(a, x, y), self._other(b, y, x))

    def _other(self, at: ast.expr, v: Parsed, like: Parsed) -> Expr:
        return v if isinstance(v, Expr) else self.literal(at, v, self._like(like))

    def buffer(self, e: ast.expr, use: str) -> Buffer | BufferView:
        """The buffer or view named by `e`; `use` is a participle for messages."""
        if not isinstance(e, ast.Name):
            self.fail(e, f"only a buffer can be {use}, by its name")
        b = self.lookup(e, "buffer")
        if not isinstance(b, (Buffer, BufferView)):
            self.fail(e, f"`{shorten(e.id)}` is not a buffer and cannot be {use}")
        return b

    def subscript(self, e: ast.Subscript, b: Buffer | BufferView) -> Element:
        """The element, or the vector, of a buffer or a view that `b[...]` names."""
        found: list[Parsed] = []
        lanes, stride = 1, None
        items = e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice]
        for n, x in enumerate(items):
            if self.source.tvm and isinstance(x, ast.Slice) and n == len(items) - 1:
                first, lanes, stride = self._slice(x)
                found.append(first)
            elif self.source.tvm:
                v = self.expr(x)
                is_data = isinstance(v, Expr) and dt.is_int(v.dtype) and dt.lanes(v.dtype) == 1 and _as_index(v) is None
                found.append(v if is_data else self.index(x))
            else:
                found.append(self.index(x))
        return self.element(e, b, found, lanes, stride)

    def _slice(self, x: ast.Slice) -> tuple[Poly, int, Poly]:
        """First index, lanes and stride of `first:end:stride`, TVM's notation for a vector."""
        if x.lower is None or x.upper is None:
            self.fail(x, "a vector of a buffer has a first and a last index", "Write A[i:i + 4].")
        first, stride = self.index(x.lower), 1 if x.step is None else self.integer(x.step, "the stride of a vector")
        count = (self.index(x.upper) - first).const
        if count is None or count < 1 or -(-count // stride) > MAX_LANES:
            self.fail(x, f"a vector of a buffer has a constant number of lanes, at most {MAX_LANES}", "Write A[i:i + 4].")
        return first, -(-count // stride), poly(stride)

    def element(self, e: ast.expr, b: Buffer | BufferView, indices: list[Parsed], lanes: int = 1, stride: Poly | None = None) -> Element:
        """The element of a buffer or a view at some indices; those that are data are bound to variables."""
        if len(indices) != len(b.shape):
            self.fail(
                e, f"buffer {held(b).name} has {len(b.shape)} dimensions and was indexed with {len(indices)}", "Write an index for each."
            )
        buffer = held(b)
        if isinstance(b, BufferView):
            self.check_view(e, b, [_as_index(v) for v in indices])
            indices = [self.visible(x) if isinstance(x, Poly) else x for x in b.place(indices, partial(self.combine, e))]
        bound: list[tuple[IndirectVar, Poly, Expr]] = []
        out: list[Poly] = []
        for v, extent in zip(indices, buffer.shape, strict=True):
            index = _as_index(v)
            if index is None:
                bound.append((IndirectVar("at"), extent, cast(dt.INDEX, v)))  # type: ignore[arg-type]
                index = poly(bound[-1][0])
            out.append(index)
        return Element(buffer, tuple(out), lanes, stride, tuple(bound))

    def check_view(self, e: ast.expr, view: BufferView, indices: list[Poly | None]) -> None:
        """Refuse an index that certainly leaves a view; implemented in parser_local.py."""
        raise NotImplementedError

    def visible(self, p: Poly) -> Poly:
        """An index of a view, which may use variables around the current block; implemented in parser_block.py."""
        raise NotImplementedError

    def _load(self, e: ast.Subscript) -> Parsed:
        return self.subscript(e, self.buffer(e.value, "read")).load()

    def call(self, e: ast.Call) -> Parsed:
        """Parse a call; implemented in parser_calls.py."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a buffer, or a vector of `lanes` elements.

    Attributes:
        bound: the variables of indices that are data, with their extents and values.
    """

    buffer: Buffer
    indices: tuple[Poly, ...]
    lanes: int
    stride: Poly | None
    bound: tuple[tuple[IndirectVar, Poly, Expr], ...]

    def load(self) -> Expr:
        """The value."""
        out: Expr = BufferLoad(self.buffer, self.indices, self.lanes, self.stride)
        for var, extent, value in reversed(self.bound):
            out = IndirectIndex(var, extent, value, out)
        return out


def _as_index(v: Parsed) -> Poly | None:
    """A value that is index arithmetic; None for data."""
    if isinstance(v, Poly):
        return v
    if isinstance(v, int) and not isinstance(v, bool):
        return poly(v)
    return poly(int(v.value)) if isinstance(v, Const) and v.dtype == dt.INDEX else None


def _is_narrow(dtype: str | None) -> bool:
    return dtype is not None and dt.is_int(dtype) and dtype != dt.INDEX


def _of_one_type(v: Parsed, other: Parsed) -> Parsed:
    """An index in the integer type of the other operand, and a literal that the other operand, an index, takes in."""
    if not isinstance(v, Expr) or not isinstance(other, Expr):
        return v
    if isinstance(v, Poly) and type(other) is not Const and _is_narrow(other.dtype) and dt.lanes(other.dtype) == 1:
        return Cast(other.dtype, v)
    return poly(int(v.value)) if isinstance(other, Poly) and isinstance(v, Const) and _is_narrow(v.dtype) else v


_EXPR: Mapping[type, Callable[[ExprParser, Any], Parsed]] = {
    ast.Constant: ExprParser._constant,
    ast.Name: ExprParser._name,
    ast.BinOp: ExprParser._binary,
    ast.UnaryOp: ExprParser._unary,
    ast.BoolOp: ExprParser._logic,
    ast.Compare: ExprParser._compare,
    ast.IfExp: ExprParser._ternary,
    ast.Subscript: ExprParser._load,
    ast.Call: lambda p, e: p.call(e),
}
