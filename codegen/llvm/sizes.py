"""Emit size arithmetic in LLVM IR on 64-bit sizes passed by a caller, with overflow checks.

It is used for extents of tensors and sizes of memory.  Addresses inside a kernel need no checks: they are within memory whose size was
computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunesmith.codegen.llvm.kernel.division import divided
from tunesmith.ir.poly import Atom, Op, Poly, Var


class CheckedSizes:
    """Emitter of straight-line instructions; `bad` is an i1 that is true if any operation overflowed.

    Args:
        env: LLVM names of the sizes, i64.
        prefix: prefix of result names.
        declares: receives the required declarations.
    """

    def __init__(self, env: Mapping[Var, str], prefix: str, declares: set[str]) -> None:
        self.lines: list[str] = []
        self.bad = "false"
        self._env, self._prefix, self._declares = env, prefix, declares
        self._count = 0
        self._known: dict[Poly | Atom, str] = {}

    def value(self, p: Poly) -> str:
        """The value of an expression of sizes."""
        if p.const is not None:
            return str(p.const)
        known = self._known.get(p)
        if known is None:
            known = self._known[p] = self.total([self.product([str(c), *map(self._atom, m)]) for m, c in p.terms])
        return known

    def product(self, values: Iterable[str]) -> str:
        """The product of values."""
        return self._folded("smul", "1", values)

    def total(self, values: Iterable[str]) -> str:
        """The sum of values."""
        return self._folded("sadd", "0", values)

    def at_least(self, value: str, low: int) -> str:
        """The maximum of a value and a number."""
        return self._op(f"select i1 {self._op(f'icmp slt i64 {value}, {low}')}, i64 {low}, i64 {value}")

    def rounded_up(self, value: str, unit: int) -> str:
        """A value rounded up to a multiple of a power of two."""
        return self._op(f"and i64 {self.total([value, str(unit - 1)])}, {-unit}")

    def _folded(self, op: str, identity_element: str, values: Iterable[str]) -> str:
        out = identity_element
        for v in values:
            if op == "smul" and "0" in (v, out):
                return "0"
            if v != identity_element:
                out = v if out == identity_element else self._checked(op, out, v)
        return out

    def _checked(self, op: str, a: str, b: str) -> str:
        name = f"llvm.{op}.with.overflow.i64"
        self._declares.add(f"declare {{ i64, i1 }} @{name}(i64, i64)")
        pair = self._op(f"call {{ i64, i1 }} @{name}(i64 {a}, i64 {b})")
        self._note(self._op(f"extractvalue {{ i64, i1 }} {pair}, 1"))
        return self._op(f"extractvalue {{ i64, i1 }} {pair}, 0")

    def _atom(self, a: Atom) -> str:
        if type(a) is not Op:
            return self._env[a]
        known = self._known.get(a)
        if known is None:
            known = self._known[a] = self._operation(a)
        return known

    def _operation(self, a: Op) -> str:
        if a.op in ("min", "max"):
            values = [self.value(x) for x in a.args]
            out = values[0]
            for v in values[1:]:
                wins = self._op(f"icmp {'slt' if a.op == 'min' else 'sgt'} i64 {out}, {v}")
                out = self._op(f"select i1 {wins}, i64 {out}, i64 {v}")
            return out
        x, d = a.args
        divisor = self.value(d)
        if d.const is None:
            dividend = self.value(-x if a.op == "ceildiv" else x)
            result = divided("mod" if a.op == "mod" else "floordiv", "i64", dividend, divisor, False, self._op)
            return self._op(f"sub i64 0, {result}") if a.op == "ceildiv" else result
        dividend = self.total([self.value(x), divisor, "-1"]) if a.op == "ceildiv" else self.value(x)
        q, r = self._op(f"sdiv i64 {dividend}, {divisor}"), self._op(f"srem i64 {dividend}, {divisor}")
        below = self._op(f"ashr i64 {r}, 63")
        if a.op == "mod":
            return self._op(f"add i64 {r}, {self._op(f'and i64 {below}, {divisor}')}")
        return self._op(f"add i64 {q}, {below}")

    def _note(self, flag: str) -> None:
        self.bad = flag if self.bad == "false" else self._op(f"or i1 {self.bad}, {flag}")

    def _op(self, text: str) -> str:
        self._count += 1
        name = f"%{self._prefix}{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name
