"""Reject programs in which an iteration provably exceeds the bounds of a buffer or of a block's iteration variable.

An access is rejected only if there is a witness: values of all loop variables that satisfy every enclosing loop, predicate and condition,
and for which an index is outside of [0, extent).  Indices that depend on data, on an indirect index or on a dynamic shape have no witness;
`lower.passes.check_bounds` checks them at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tunesmith.ir.arith.enumerate import values_at
from tunesmith.ir.arith.interval import Range, bounds
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.expr import Binary, Const, Expr, IsNegative, Not, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, substitute
from tunesmith.ir.stmt import Allocate, Block, BufferStore, Evaluate, For, If, Seq
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError

_POINTS = 4096
"""Maximum iterations tested per index; larger domains are sampled at their ends and in the middle."""


def check_out_of_bounds(func: PrimFunc) -> None:
    """Raise ScriptError for the first index that is provably out of bounds, naming the iteration."""
    _Walk(func).visit(func.body)


class _Walk:
    """State of the walk: the enclosing loops, conditions and iteration variables."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.loops: list[For] = []
        self.ranges: dict[Var, Range] = {}
        self.conditions: list[tuple[Expr, bool]] = []
        self.values: dict[Var, Poly] = {}
        """Iteration variables as expressions of loop variables."""
        self.path: list[str] = []
        self.advice = "guard it with `if`"

    def visit(self, n: Any) -> None:
        """Check a statement or expression and everything inside it."""
        t = type(n)
        if t is For:
            self._for(n)
        elif t is Block:
            self._block(n)
        elif t is If:
            self.visit(n.cond)
            self._under(n.cond, True, n.then)
            if n.orelse is not None:
                self._under(n.cond, False, n.orelse)
        elif t is Select:
            self.visit(n.cond)
            self._under(n.cond, True, n.a)
            self._under(n.cond, False, n.b)
        elif t is BufferStore:
            self.visit(n.value)
            self._access(n, "store to")
        elif t is BufferLoad:
            self._access(n, "load of")
        elif t is Seq:
            for x in n.stmts:
                self.visit(x)
        elif t is Allocate:
            self.visit(n.body)
        elif t is Binary and n.op in ("and", "or"):
            self.advice = f"both sides of `{n.op}` are evaluated, so guard it with a second `if`"
            n.each_child(self.visit)
            self.advice = "guard it with `if`"
        elif t is not Poly and t is not Evaluate:
            n.each_child(self.visit)

    def _for(self, n: For) -> None:
        known = all(v in self.ranges for v in n.extent.vars)
        high = bounds(n.extent, self.ranges)[1] if known else 1
        if high < 1:
            return
        self.loops.append(n)
        if known:
            self.ranges[n.var] = (0, high - 1)
        self.path.append(n.var.name)
        self.visit(n.body)
        self.path.pop()
        self.ranges.pop(n.var, None)
        self.loops.pop()

    def _block(self, n: Block) -> None:
        outer, mark = self.values, len(self.conditions)
        self.path.append(n.name)
        self.conditions += [(IsNegative(self._inline(p)), True) for p in n.predicate]
        bindings = [self._inline(b) for b in n.bindings]
        for it, b in zip(n.iters, bindings, strict=True):
            self._index(b, self._inline(it.extent), f"the binding of the iteration variable {it.var} of block {n.name}")
        self.values = {**outer, **{it.var: b for it, b in zip(n.iters, bindings, strict=True)}}
        if n.init is not None:
            firsts = [(IsNegative(b - 1), True) for it, b in zip(n.iters, bindings, strict=True) if it.kind == "R"]
            self.conditions += firsts
            self.visit(n.init)
            del self.conditions[len(self.conditions) - len(firsts) :]
        self.visit(n.body)
        del self.conditions[mark:]
        self.values = outer
        self.path.pop()

    def _under(self, cond: Expr, wanted: bool, part: Any) -> None:
        self.conditions.append((cond, wanted))
        self.visit(part)
        self.conditions.pop()

    def _inline(self, p: Poly) -> Poly:
        return substitute(p, self.values) if not p.vars.isdisjoint(self.values) else p

    def _access(self, n: BufferStore | BufferLoad, what: str) -> None:
        if dt.lanes(n.value.dtype if isinstance(n, BufferStore) else n.dtype) != 1:
            return
        for d, (i, extent) in enumerate(zip(n.indices, n.buffer.shape, strict=True)):
            which = f"index {d} of" if len(n.indices) > 1 else "the index of"
            self._index(self._inline(i), extent, f"{which} the {what} {n.buffer.name}")

    # ---- witnesses

    def _index(self, i: Poly, extent: Poly, what: str) -> None:
        """Raise if an index is outside of [0, extent) in an executed iteration."""
        if not all(v in self.ranges for v in i.vars | extent.vars):
            return
        if bounds(i, self.ranges)[0] >= 0 and bounds(i - extent, self.ranges)[1] < 0:
            return
        points, size = self._points(i.vars | extent.vars)
        values, extents = values_at(i, points, size), values_at(extent, points, size)
        bad = (values < 0) | (values >= extents)
        for n in self.loops:
            bad &= self._at(n.extent, points, size, -1) > (points[n.var] if n.var in points else 0)
        for cond, wanted in self.conditions:
            if not bad.any():
                return
            bad &= self._truth(cond, points, size)[0 if wanted else 1]
        found = np.flatnonzero(bad)
        if found.size:
            k = found[0]
            where = ", ".join([f"{v} = {points[v][k]}" for v in points])
            raise ScriptError(
                f"{what} is out of bounds: it is {values[k]}{f' where {where}' if where else ''}, and the extent is {extents[k]}; "
                f"{self.advice}, or change the extent\nin function {self.func.name}, at /{'/'.join(self.path)}"
            )

    def _points(self, needed: frozenset[Var]) -> tuple[dict[Var, np.ndarray], int]:
        """The tested iterations, as values of the loop variables that `needed` depends on."""
        for cond, _ in self.conditions:
            needed = needed | _index_vars(cond)
        needed = frozenset([v for p in needed for v in self._inline(Poly((((p,), 1),))).vars])
        used = [n.var for n in self.loops if n.var in self.ranges and (n.var in needed or n.extent.const is None)]
        for n in self.loops:
            used += [v for v in n.extent.vars if v in self.ranges and v not in used]
        used.sort(key=lambda v: v.key)
        spans = [self.ranges[v][1] + 1 for v in used]
        for few in (None, 9, 5, 3, 2, 1):
            if prod([n if few is None else min(n, few) for n in spans]) <= _POINTS or few == 1:
                break
        choices = [
            np.arange(n) if few is None or n <= few else np.unique([(n - 1) * k // max(few - 1, 1) for k in range(few)]) for n in spans
        ]
        grid = np.meshgrid(*choices, indexing="ij") if used else []
        size = prod([len(c) for c in choices])
        return {v: g.reshape(-1) for v, g in zip(used, grid, strict=True)}, size

    def _at(self, p: Poly, points: Mapping[Var, np.ndarray], size: int, unknown: int) -> np.ndarray:
        p = self._inline(p)
        return values_at(p, points, size) if all(v in points for v in p.vars) else np.full(size, unknown)

    def _truth(self, e: Expr, points: Mapping[Var, np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
        """Where a condition provably holds, and where it provably does not."""
        nowhere = np.zeros(size, bool)
        if type(e) is Const:
            return (~nowhere, nowhere) if e.value else (nowhere, ~nowhere)
        if type(e) is IsNegative and e.lanes == 1:
            p = self._inline(e.index)
            if not all(v in points for v in p.vars):
                return nowhere, nowhere
            below = values_at(p, points, size) < 0
            return below, ~below
        if type(e) is Not:
            yes, no = self._truth(e.a, points, size)
            return no, yes
        if type(e) is Binary and e.op in ("and", "or"):
            (a, not_a), (b, not_b) = self._truth(e.a, points, size), self._truth(e.b, points, size)
            return (a & b, not_a | not_b) if e.op == "and" else (a | b, not_a & not_b)
        return nowhere, nowhere


def _index_vars(e: Expr) -> frozenset[Var]:
    """The variables of the index conditions inside a condition."""
    if type(e) is IsNegative:
        return e.index.vars
    if type(e) is Not:
        return _index_vars(e.a)
    if type(e) is Binary and e.op in ("and", "or"):
        return _index_vars(e.a) | _index_vars(e.b)
    return frozenset()


__all__ = ["check_out_of_bounds"]
