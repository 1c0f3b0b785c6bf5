"""Divide vectors by a uniform divisor: one scalar division, then multiplications, which cost a tenth.

`x * (1 / b)` is at most 1.5 ulp off where the reciprocal is a normal number.  It is wrong where b is denormal (1 / b is infinite) or huge
(1 / b loses digits), so a loop over vectors gets two versions, one with products and one with divisions, selected by the reciprocal:

    for j in range(n): C[16 j : 16 j + 16] = A[16 j : 16 j + 16] / b
  ->
    r = 1 / b
    if 2**-126 <= |r| <= 2**126: for j in range(n): C[16 j : 16 j + 16] = A[16 j : 16 j + 16] * r
    else: for j in range(n): C[16 j : 16 j + 16] = A[16 j : 16 j + 16] / b

A quotient that the function rounds to an integer, compares or reinterprets as bits stays a division: there an error of one ulp can
change the result completely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import COMPARISONS, Binary, Broadcast, Call, Cast, Const, Expr, call, cast, compare, conjunction, const
from tunesmith.ir.node import Node
from tunesmith.ir.poly import ZERO, Poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Stmt, seq
from tunesmith.ir.visit import fresh_copy, walk
from tunesmith.support import dtype as dt

_ROUNDING = frozenset({"floor", "ceil", "trunc", "round", "reinterpret"})
_NORMAL = {"float32": 126, "float64": 1022}
"""n by type: numbers of magnitude 2**-n to 2**n have a normal reciprocal."""


class UniformDivision:
    """Vector quotients in one loop; float16 and bfloat16 are multiplied in float32 and rounded once.

    Args:
        loop: the loop whose iterations become lanes.
        versions: whether two versions are allowed; if not, only quotients that need no second version become products.
        exact: buffers whose quotients must be rounded correctly.
    """

    def __init__(self, loop: Stmt, versions: bool, exact: Collection[Buffer]) -> None:
        self.exact = exact
        self._written = {n.buffer for n in walk(loop) if type(n) is BufferStore}
        self._reciprocals: dict[Expr, BufferLoad] = {}
        self._by_product = versions

    def __call__(self, x: Expr, b: Expr, is_hoistable: Callable[[Expr], bool]) -> Expr:
        """`x / b`.

        Args:
            x: a vector.
            b: a scalar of its element type.
            is_hoistable: whether an expression may be computed before everything else in the loop, whenever the loop runs.
        """
        if has_normal_reciprocal(b):
            return _product(x, _reciprocal(b))
        known = self._reciprocals.get(b)
        if known is None and self._by_product and not self._changes(b) and is_hoistable(b):
            known = BufferLoad(Buffer("reciprocal", (1,), _wide(b.dtype), "register"), (ZERO,))
            self._reciprocals[b] = known
        return _product(x, known) if known is not None and self._by_product else Binary("div", x, Broadcast(b, dt.lanes(x.dtype)))

    def _changes(self, b: Expr) -> bool:
        return any(type(n) is BufferLoad and n.buffer in self._written for n in walk(b))

    def versions(self, make: Callable[[], Stmt]) -> Versions | Stmt:
        """The result of `make` with these quotients, in two versions if any needs them."""
        fast = make()
        if not self._reciprocals:
            return fast
        self._by_product = False
        return Versions(self._reciprocals, fast, fresh_copy(make()))


@dataclass(frozen=True, slots=True)
class Versions:
    """One statement with products and with divisions.

    Attributes:
        reciprocals: for each divisor, the register that holds its reciprocal.
        fast: the version for normal reciprocals.
        exact: the version for other reciprocals.
    """

    reciprocals: Mapping[Expr, BufferLoad]
    fast: Stmt
    exact: Stmt

    def under(self, loop: For) -> Versions | None:
        """The versions of a loop that runs at least once and contains only this statement; None if the loop changes a divisor."""
        variables = {v for b in self.reciprocals for n in walk(b) if type(n) is Poly for v in n.vars}
        if loop.kind not in ("serial", "unrolled") or loop.var in variables:
            return None
        return Versions(self.reciprocals, loop.with_(body=self.fast), fresh_copy(loop.with_(body=self.exact)))

    def stmt(self) -> Stmt:
        """The statement that computes the reciprocals and selects a version."""
        normal = conjunction(tuple([c for r in self.reciprocals.values() for c in _is_normal(r)]))
        first = [BufferStore(r.buffer, (ZERO,), _reciprocal(b)) for b, r in self.reciprocals.items()]
        out = seq([*first, If(normal, self.fast, self.exact)])
        for r in self.reciprocals.values():
            out = Allocate(r.buffer, out)
        return out


def requires_exact_operands(e: Expr) -> bool:
    """Whether the result of an operation may change completely when its operand changes by one ulp."""
    if type(e) is Cast:
        return not dt.is_float(e.dtype)
    return (type(e) is Call and e.name in _ROUNDING) or (type(e) is Binary and e.op in (*COMPARISONS, "floordiv", "mod"))


def exact_buffers(root: Stmt) -> set[Buffer]:
    """Buffers whose elements reach the operand of such an operation, also through other buffers; empty if nothing is divided."""
    if not any(type(n) is Binary and n.op == "div" for n in walk(root)):
        return set()

    def loaded(n: Node) -> set[Buffer]:
        return {x.buffer for x in walk(n) if type(x) is BufferLoad}

    found = {b for n in walk(root) if isinstance(n, Expr) and requires_exact_operands(n) for b in loaded(n)}
    stores = [n for n in walk(root) if type(n) is BufferStore]
    while more := {b for n in stores if n.buffer in found for b in loaded(n.value)} - found:
        found |= more
    return found


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _product(x: Expr, reciprocal: Expr) -> Expr:
    lanes = dt.lanes(x.dtype)
    return cast(x.dtype, Binary("mul", cast(dt.vector(reciprocal.dtype, lanes), x), Broadcast(reciprocal, lanes)))


def _reciprocal(b: Expr) -> Expr:
    wide = cast(_wide(b.dtype), b)
    return Binary("div", const(1, wide.dtype), wide)


def _is_normal(r: Expr) -> tuple[Expr, Expr]:
    size, n = call("abs", r), _NORMAL[r.dtype]
    return compare("ge", size, 2.0**-n), compare("le", size, 2.0**n)


def has_normal_reciprocal(b: Expr) -> bool:
    """Whether 1 / b, in float32 for 16-bit types, is known to be normal, or zero, infinite or NaN like the exact reciprocal."""
    if b.dtype == "float16":
        return True
    n = _NORMAL[_wide(b.dtype)]
    if isinstance(b, Const):
        v = abs(float(b.value))
        return not 0 < v < float("inf") or 2.0**-n <= v <= 2.0**n
    if isinstance(b, Cast):
        a = b.a
        return not dt.is_float(a.dtype) or a.dtype == "float16" or (b.dtype == "float64" and a.dtype != "float64")
    return isinstance(b, Call) and b.name in ("sqrt", "rsqrt")
