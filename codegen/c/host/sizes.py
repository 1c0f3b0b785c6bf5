"""Print size arithmetic in C on 64-bit sizes passed by a caller, with overflow checks; see `codegen.llvm.sizes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.codegen.c.host.text import call
from tunesmith.ir.poly import Atom, Op, Poly, Var

_LARGEST = 1 << 31


class CheckedSizes:
    """Printer of straight-line code; the variable `overflow` is true at its end if any operation overflowed.

    Args:
        env: C names of the sizes, int64_t.
        prefix: prefix of the names of results.
        prelude: receives the functions that the code uses.
    """

    def __init__(self, env: Mapping[Var, str], prefix: str, prelude: Prelude) -> None:
        self.lines: list[str] = []
        self._env, self._prefix, self._prelude = env, prefix, prelude
        self._known: dict[Poly | Atom, str] = {}
        self._count = 0

    def value(self, p: Poly) -> str:
        """The value of an expression of sizes."""
        if p.const is not None:
            return _number(p.const)
        if p not in self._known:
            self._known[p] = self.total([self.product([_number(c), *map(self._atom, m)]) for m, c in p.terms])
        return self._known[p]

    def product(self, values: Iterable[str]) -> str:
        """The product of values."""
        return self._folded("mul", "1", values)

    def total(self, values: Iterable[str]) -> str:
        """The sum of values."""
        return self._folded("add", "0", values)

    def rounded_up(self, value: str, unit: int) -> str:
        """A value rounded up to a multiple of a power of two."""
        return self._named(f"{self.total([value, str(unit - 1)])} & -{unit}")

    def _folded(self, op: str, identity_element: str, values: Iterable[str]) -> str:
        out = identity_element
        for v in values:
            if op == "mul" and "0" in (v, out):
                return "0"
            if v != identity_element:
                out = v if out == identity_element else self._checked(op, out, v)
        return out

    def _checked(self, op: str, a: str, b: str) -> str:
        name = self._fresh()
        self.lines += [f"int64_t {name};", f"overflow |= __builtin_{op}_overflow((int64_t){a}, (int64_t){b}, &{name});"]
        return name

    def _atom(self, a: Atom) -> str:
        if type(a) is not Op:
            return self._env[a]
        if a not in self._known:
            self._known[a] = self._operation(a)
        return self._known[a]

    def _operation(self, a: Op) -> str:
        if a.op in ("min", "max"):
            out, *rest = [self.value(x) for x in a.args]
            for v in rest:
                out = self._named(call(self._prelude.extreme(a.op, "int64"), out, v))
            return out
        x, d = a.args
        op = "mod" if a.op == "mod" else "floordiv"
        if a.op == "ceildiv" and d.const is None:
            return self._named(f"-{call(self._prelude.division(op, 'int64', False), self.value(-x), self.value(d))}")
        dividend = self.total([self.value(x), self.value(d), "-1"]) if a.op == "ceildiv" else self.value(x)
        return self._named(call(self._prelude.division(op, "int64", d.const is not None), dividend, self.value(d)))

    def _named(self, text: str) -> str:
        name = self._fresh()
        self.lines.append(f"const int64_t {name} = {text};")
        return name

    def _fresh(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"


def _number(value: int) -> str:
    return str(value) if abs(value) < _LARGEST else f"INT64_C({value})"
