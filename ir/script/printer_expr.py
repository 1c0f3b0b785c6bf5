"""Print value expressions with the fewest parentheses that preserve the tree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Binary, Broadcast, Call, Cast, Const, Expr, IsNegative, Not, Ramp, Select
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.poly import Poly
from tunesmith.ir.script.diagnostics import CLOSE, OPEN
from tunesmith.ir.script.naming import identifier
from tunesmith.ir.script.printer_index import (
    AND,
    ATOM,
    BITAND,
    BITOR,
    BITXOR,
    COMPARE,
    NOT,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    IndexPrinter,
    Text,
    parens,
)
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

SIGNS = {
    "or": ("or", OR),
    "and": ("and", AND),
    "lt": ("<", COMPARE),
    "le": ("<=", COMPARE),
    "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
    "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE),
    "bitor": ("|", BITOR),
    "bitxor": ("^", BITXOR),
    "bitand": ("&", BITAND),
    "shl": ("<<", SHIFT),
    "shr": (">>", SHIFT),
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "floordiv": ("//", PRODUCT),
    "mod": ("%", PRODUCT),
}
FOLDED = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max", "lt", "le", "gt", "ge", "eq", "ne"})
"""Operators that `binary` and `compare` fold to an index polynomial if both operands are index polynomials."""


def call_dtype(name: str, first: str) -> str:
    """The default dtype in scripts of intrinsic `name` with a first argument of dtype `first`."""
    if name == "isnan":
        return dt.vector("bool", dt.lanes(first))
    known = INTRINSICS.get(name)
    if known is not None and known.concatenates:
        return dt.vector(dt.element(first), dt.lanes(first) * known.arity)
    return dt.element(first) if known is not None and known.reduces else first


class ExprPrinter(IndexPrinter):
    """Printer of value expressions; `marks` are the ids of the nodes to underline."""

    def __init__(self, marks: frozenset[int]) -> None:
        super().__init__()
        self.marks = marks

    def value(self, e: Expr) -> str:
        """The text of `e`."""
        return self.expr(e)[0]

    def expr(self, e: Expr) -> Text:
        """The text of `e` with its precedence."""
        f = _EXPR.get(type(e))
        if f is None:
            raise ScriptError(f"the expression {type(e).__name__} has no script form")
        text: Text = f(self, e)
        return (f"{OPEN}{text[0]}{CLOSE}", text[1]) if id(e) in self.marks else text

    def buffer_name(self, b: Buffer) -> str:
        """The assigned name of `b`; its own name if it is not declared."""
        return self.names.name.get(b) or identifier(b.name)

    def indices(self, indices: tuple[Poly, ...]) -> str:
        """The text between the brackets of an access."""
        if not indices:
            return "()"
        if self.marks:
            return ", ".join([f"{OPEN}{self.index(i)}{CLOSE}" if id(i) in self.marks else self.index(i) for i in indices])
        return ", ".join([self.index(i) for i in indices])

    def lane_arguments(self, lanes: int, stride: Poly | None, mask: Poly | None = None) -> str:
        """The keyword arguments for lanes, stride and mask."""
        out = f", lanes={lanes}" if lanes != 1 else ""
        if stride is not None:
            out += f", stride={self.index(stride)}"
        return out if mask is None else f"{out}, mask={self.index(mask)}"

    def _poly(self, e: Poly) -> Text:
        # As a value, a bare number would take the dtype of the other operand.
        return self.poly(e) if e.const is None else (f"T.index({e.const})", ATOM)

    def _const(self, e: Const) -> Text:
        if dt.is_float(e.dtype):
            v = float(e.value)
            text = repr(v) if math.isfinite(v) else f'"{v}"'
        else:
            text = str(bool(e.value) if dt.element(e.dtype) == "bool" else int(e.value))
        return (f"T.{e.dtype}({text})" if dt.lanes(e.dtype) == 1 else f'T.const({text}, "{e.dtype}")', ATOM)

    def _binary(self, e: Binary) -> Text:
        if e.op in FOLDED and isinstance(e.a, (Poly, Const)) and isinstance(e.b, (Poly, Const)) and e.a.dtype == dt.INDEX:
            return (f'T.binary("{e.op}", {self.value(e.a)}, {self.value(e.b)})', ATOM)
        if e.op == "and":
            same = self._equality(e)
            if same is not None:
                return (f"{same[0]} == {same[1]}", COMPARE)
        sign = SIGNS.get(e.op)
        if sign is None:
            return (f"T.{e.op}({self.value(e.a)}, {self.value(e.b)})", ATOM)
        text, level = sign
        # Comparisons chain in Python, so a comparison as an operand needs parentheses.
        left = level + 1 if level == COMPARE else level
        return (f"{parens(self.expr(e.a), left)} {text} {parens(self.expr(e.b), level + 1)}", level)

    def _equality(self, e: Expr) -> tuple[str, str] | None:
        """The sides of `a == b` on indices, which is represented as two inequalities; None for other expressions."""
        if not (type(e) is Binary and e.op == "and" and type(e.a) is IsNegative and type(e.b) is IsNegative):
            return None
        a, b = e.a, e.b
        if a.lanes != 1 or b.lanes != 1 or a.stride is not None or b.stride is not None or a.index + b.index != -2:
            return None
        return None if a.index.const is not None or self.marks & {id(a), id(b)} else self.zero(a.index + 1)

    def _not(self, e: Not) -> Text:
        same = None if id(e.a) in self.marks else self._equality(e.a)
        if same is not None:
            return (f"{same[0]} != {same[1]}", COMPARE)
        return (f"not {parens(self.expr(e.a), NOT)}", NOT)

    def _is_negative(self, e: IsNegative) -> Text:
        if e.lanes == 1 and e.stride is None and e.index.const is None:
            return (self.negative(e.index), COMPARE)
        return (f"T.lt0({self.index(e.index)}{self.lane_arguments(e.lanes, e.stride)})", ATOM)

    def _select(self, e: Select) -> Text:
        return (f"T.select({self.value(e.cond)}, {self.value(e.a)}, {self.value(e.b)})", ATOM)

    def _cast(self, e: Cast) -> Text:
        return (f'T.cast("{e.dtype}", {self.value(e.a)})', ATOM)

    def _call(self, e: Call) -> Text:
        args = [self.value(a) for a in e.args]
        if call_dtype(e.name, e.args[0].dtype if e.args else "int32") != e.dtype:
            args.append(f'dtype="{e.dtype}"')
        return (f"T.{e.name}({', '.join(args)})", ATOM)

    def _broadcast(self, e: Broadcast) -> Text:
        return (f"T.Broadcast({self.value(e.a)}, {e.lanes})", ATOM)

    def _ramp(self, e: Ramp) -> Text:
        return (f"T.Ramp({self.index(e.base)}, {self.index(e.stride)}, {e.lanes})", ATOM)

    def _load(self, e: BufferLoad) -> Text:
        name = self.buffer_name(e.buffer)
        if e.lanes == 1 and e.stride is None and e.mask is None:
            return (f"{name}[{self.indices(e.indices)}]", ATOM)
        where = ", ".join([self.index(i) for i in e.indices])
        return (f"{name}.vload([{where}]{self.lane_arguments(e.lanes, e.stride, e.mask)})", ATOM)

    def _indirect_index(self, e: IndirectIndex) -> Text:
        extent, value = self.index(e.extent), self.value(e.value)
        name = self.bind_var(e.var)
        text = f"T.lookup({value}, {extent}, lambda {name}: {self.value(e.body)})"
        self.names.release([e.var])
        return (text, ATOM)


_EXPR: dict[type, Callable[[ExprPrinter, Any], Text]] = {
    Poly: ExprPrinter._poly,
    Const: ExprPrinter._const,
    Binary: ExprPrinter._binary,
    Not: ExprPrinter._not,
    IsNegative: ExprPrinter._is_negative,
    Select: ExprPrinter._select,
    Cast: ExprPrinter._cast,
    Call: ExprPrinter._call,
    Broadcast: ExprPrinter._broadcast,
    Ramp: ExprPrinter._ramp,
    BufferLoad: ExprPrinter._load,
    IndirectIndex: ExprPrinter._indirect_index,
}
