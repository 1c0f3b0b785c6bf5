"""Parse expressions: convert Python syntax trees to index polynomials and value expressions, without evaluating them.

A bare Python number takes the dtype of the other operand or of the buffer it is stored to.  Two bare numbers are folded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tunesmith.ir.buffer import Buffer, load
from tunesmith.ir.expr import COMPARISONS, Binary, Const, Expr, Not, binary, compare, const, select
from tunesmith.ir.poly import Op, Poly, poly
from tunesmith.ir.script.diagnostics import shorten
from tunesmith.ir.script.parser_scope import ScopeParser
from tunesmith.ir.script.printer_expr import SIGNS
from tunesmith.support import dtype as dt

Parsed = Expr | int | float
"""An expression, or a Python number (bool, int, float) without a dtype."""

MAX_TERMS = 256
MAX_DEGREE = 32
MAX_CHAIN = 200
"""Limits for hostile text from logs: terms of an index expression, factors of a term, operands of `a + b + ...`."""

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
        if isinstance(v, Poly):
            return v
        if isinstance(v, int) and not isinstance(v, bool):
            return poly(v)
        if isinstance(v, Const) and v.dtype == dt.INDEX:
            return poly(int(v.value))
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
            return v
        if dtype is None:
            if isinstance(v, bool):
                return Const(v, "bool")
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
        if isinstance(v, Buffer):
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
        if isinstance(a, Poly) or isinstance(b, Poly):
            self.spend(at, op, (a, b))
        if op in _BITWISE and any(isinstance(x, float) or (isinstance(x, Expr) and dt.is_float(x.dtype)) for x in (a, b)):
            self.fail(at, f"`{SIGNS[op][0]}` is for integers and bools, not for floats")
        # Literals are checked here, where the position is known.
        x = a if isinstance(a, Expr) else self.literal(at, a, self._like(b))  # type: ignore[arg-type]
        y = b if isinstance(b, Expr) else self.literal(at, b, self._like(a))  # type: ignore[arg-type]
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
        c, x, y = self.condition(test), self.expr(a), self.expr(b)
        if not isinstance(x, Expr) and not isinstance(y, Expr):
            x = self.typed(a, x)
        return self.make(at, select, c, self._other(a, x, y), self._other(b, y, x))

    def _other(self, at: ast.expr, v: Parsed, like: Parsed) -> Expr:
        return v if isinstance(v, Expr) else self.literal(at, v, self._like(like))

    def buffer(self, e: ast.expr, use: str) -> Buffer:
        """The buffer named by `e`; `use` is a participle for messages."""
        if not isinstance(e, ast.Name):
            self.fail(e, f"only a buffer can be {use}, by its name")
        b = self.lookup(e, "buffer")
        if not isinstance(b, Buffer):
            self.fail(e, f"`{shorten(e.id)}` is not a buffer and cannot be {use}")
        return b

    def subscript(self, e: ast.Subscript) -> list[Poly]:
        """The indices between the brackets."""
        return [self.index(x) for x in (e.slice.elts if isinstance(e.slice, ast.Tuple) else [e.slice])]

    def _load(self, e: ast.Subscript) -> Parsed:
        b = self.buffer(e.value, "read")
        return self.make(e, load, b, *self.subscript(e))

    def call(self, e: ast.Call) -> Parsed:
        """Parse a call; implemented in parser_calls.py."""
        raise NotImplementedError


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
