"""Unroll loops marked `unrolled`, and simplify the copies of their bodies.

A register tile of a windowed operator can have hundreds of copies of a statement, so each statement is analysed once.  The result is
a plan: a function without arguments that makes the copy for the current values of the unrolled variables.  Most indices only
get another constant, and operands that do not depend on all variables are made once and shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.ir.analysis.size_ranges import Range, symbol_ranges
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.arith.simplify import simplify as simplify_poly
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, poly, shifted, substitute
from tunesmith.ir.stmt import Allocate, BufferStore, For, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.renew_binders import renew_binders
from tunesmith.lower.simplifier import Simplifier

Plan = Callable[[], Any]


@function_pass(requires="FLAT", provides="VECTOR")
def unroll_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Unroll loops marked `unrolled`; guards that become constant are removed."""
    unroller = _Unroller(symbol_ranges(func))
    body = unroller(func.body)
    return with_body(func, seq([]) if body is None else renew_binders(body) if unroller.copied_memory else body)


class _Unroller(Simplifier):
    """Simplify with constants for the variables of unrolled loops.

    Plans are valid during one visit of a remaining loop, because ranges do not change inside it.

    Attributes:
        values: the values of the unrolled variables around the current statement.
        copied_memory: whether an allocation was duplicated.
    """

    def __init__(self, ranges: Mapping[Var, Range]) -> None:
        super().__init__(ranges)
        del self._table[BufferStore]  # copies differ, so the cache of unchanged stores does not apply
        self.values: dict[Var, int] = {}
        self.copied_memory = False
        self._plans: dict[Any, Plan] = {}
        self._renamed: dict[Var, Poly] = {}
        self._bound: set[Var | Buffer] = set()

    def __call__(self, n: Any) -> Any:
        return self._plan(n)()

    def index(self, p: Poly) -> Poly:
        """`p` with constants for the unrolled variables, simplified."""
        found: Poly = self._plan(p)()
        return found

    def loop(self, n: For) -> Stmt | None:
        """The copies of the body, or the remaining loop with a unique variable."""
        extent = self.index(n.extent)
        count = extent.const
        if count is not None and (n.kind == "unrolled" or (count == 1 and n.kind != "thread")):
            copies: list[Stmt | None] = []
            for i in range(count):
                self.values[n.var] = i
                copies.append(self(n.body))
            self.values.pop(n.var, None)
            remaining = [c for c in copies if c is not None]
            return seq(remaining) if remaining else None
        high = self.bounds(extent)[1]
        if high <= 0:
            return None
        var = n.var
        if var in self._bound:
            var = Var(var.name)
            self._renamed[n.var] = poly(var)
        self._bound.add(var)
        outside, self._plans = self._plans, {}
        self.ranges[var] = (0, high - 1)
        body = self(n.body)
        del self.ranges[var]
        self._plans = outside
        self._renamed.pop(n.var, None)
        if body is None or (body is n.body and extent is n.extent and var is n.var):
            return None if body is None else n
        return n.with_(var=var, extent=extent, body=body)

    def _allocate(self, n: Allocate, recurse: Any) -> Stmt | None:
        self.copied_memory |= n.buffer in self._bound
        self._bound.add(n.buffer)
        return super()._allocate(n, recurse)

    # ---- plans ---------------------------------------------------------------------------------------------------------

    def _plan(self, n: Any) -> Plan:
        if type(n) is Poly and n.vars.isdisjoint(self.values) and n.vars.isdisjoint(self._renamed):
            return lambda: n
        known = self._plans.get(n)
        if known is None:
            known = self._plans[n] = self._index_plan(n) if type(n) is Poly else self._node_plan(n)
        return known

    def _node_plan(self, n: Any) -> Plan:
        handler = self._table.get(type(n))
        make = self._copying(n) if handler is None else lambda: handler(n, self)
        if not isinstance(n, Expr):
            return make
        variables = [v for v in self.values if v in _variables(n)]
        if len(variables) == len(self.values):
            return make
        made: dict[tuple[int, ...], Expr] = {}

        def shared() -> Expr:
            key = tuple([self.values[v] for v in variables])
            if key not in made:
                made[key] = make()
            return made[key]

        return shared

    def _copying(self, n: Any) -> Plan:
        """Rebuild a node from the plans of its children."""
        children: dict[int, Plan] = {}
        n.each_child(lambda k: children.setdefault(id(k), self._plan(k)))
        return lambda: n.map_children(lambda k: children[id(k)]())

    def _index_plan(self, p: Poly) -> Plan:
        """The plan of an index: only a new constant, unless an unrolled variable is inside one of its operations."""
        p = substitute(p, self._renamed)
        values, variables = self.values, [v for v in self.values if v in p.vars]
        rest: Poly | None = p
        steps: list[tuple[Var, int]] = []
        for v in variables:
            split = None if rest is None else coefficient(rest, v)
            c, rest = (0, None) if split is None else split
            steps.append((v, c))
        made: dict[Any, Poly] = {}

        def simplified() -> Poly:
            key = tuple([values[v] for v in variables])
            if key not in made:
                made[key] = simplify_poly(substitute(p, {v: poly(values[v]) for v in variables}), self.ranges)
            return made[key]

        if rest is None:
            return simplified
        fixed = rest

        def offset_index() -> Poly:
            offset = 0
            for v, c in steps:
                offset += c * values[v]
            found = made.get(offset)
            if found is None:
                found = made[offset] = shifted(fixed, offset)
            return found

        return offset_index


def _variables(n: Any) -> set[Var]:
    """The variables of an expression."""
    found: set[Var] = set()

    def go(k: Any) -> None:
        if type(k) is Poly:
            found.update(k.vars)
        else:
            k.each_child(go)

    go(n)
    return found
