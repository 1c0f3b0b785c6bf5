"""Print index arithmetic in C: 64-bit sums of products, floor divisions, minima and maxima."""

from __future__ import annotations

from typing import Any

from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.codegen.c.host.text import ATOM, PRODUCT, SUM, UNARY, Code, call, infix
from tunesmith.ir.arith.interval import Range, bounds
from tunesmith.ir.poly import Op, Poly, Var
from tunesmith.support.errors import InternalError

_UNKNOWN = (-(1 << 63), (1 << 63) - 1)


class IndexPrinter:
    """Printer of index arithmetic.

    Attributes:
        prelude: receives the functions that the code uses.
        env: C names of the variables in scope.
        ranges: lowest and highest value of variables, as far as they are known.
    """

    def __init__(self, prelude: Prelude) -> None:
        self.prelude = prelude
        self.env: dict[Var, str] = {}
        self.ranges: dict[Var, tuple[int, int]] = {}

    def index(self, p: Poly) -> Code:
        """An index, of type int64_t or int."""
        out: Code | None = None
        order = {v: n for n, v in enumerate(self.env)}
        last = len(order)
        for m, c in sorted(p.terms, key=lambda t: (t[1] < 0, min([order.get(v, last) for a in t[0] for v in a.vars], default=last + 1))):
            factors = [self._atom(a) for a in m]
            if abs(c) != 1 or not m:
                factors.append(_number(abs(c)))
            term = factors[0]
            for f in factors[1:]:
                term = infix("*", term, f, PRODUCT)
            if out is not None:
                out = infix("-" if c < 0 else "+", out, term, SUM)
            else:
                out = Code(f"-{term.at(UNARY)}", UNARY) if c < 0 else term
        return Code("0") if out is None else out

    def range_of(self, p: Poly) -> Range:
        """Lowest and highest value, as far as known."""
        return bounds(p, self.ranges) if all(v in self.ranges for v in p.vars) else _UNKNOWN

    def _at_least(self, x: Poly, low: int) -> bool:
        return x.const >= low if x.const is not None else self.range_of(x)[0] >= low

    def _atom(self, a: Any) -> Code:
        if type(a) is Op:
            return self._operation(a)
        if a not in self.env:
            raise InternalError(f"loop variable {a.name} is used outside its loop")
        return Code(self.env[a])

    def _operation(self, a: Op) -> Code:
        if a.op in ("min", "max"):
            out, *rest = [self.index(x) for x in a.args]
            for value in rest:
                out = call(self.prelude.extreme(a.op, "int64"), out, value)
            return out
        x, d = a.args
        if not self._at_least(d, 1):
            if a.op == "ceildiv":
                floor = call(self.prelude.division("floordiv", "int64", False), self.index(-x), self.index(d))
                return Code(f"-{floor}", UNARY)
            return call(self.prelude.division(a.op, "int64", False), self.index(x), self.index(d))
        x, op = (x + d - 1, "floordiv") if a.op == "ceildiv" else (x, a.op)
        if self._at_least(x, 0):
            return infix("/" if op == "floordiv" else "%", self.index(x), self.index(d), PRODUCT)
        return call(self.prelude.division(op, "int64", True), self.index(x), self.index(d))


def _number(value: int) -> Code:
    return Code(str(value) if value < 1 << 31 else f"INT64_C({value})", ATOM)
