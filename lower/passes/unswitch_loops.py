"""Move loop-invariant conditions out of unrolled and vectorized loops, with one copy of the loops per outcome.

For example, a register tile that starts from zero in the first block of a split reduction and from memory in the others
becomes two tiles and one branch, instead of one branch per vector.  A guard of a row of the tile is moved out of the loop over the row's
vectors.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.expr import Const, IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import TENSORIZED, For, If, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.renew_binders import renew_binders
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support.arguments import as_count

MAX_HOISTED = 3
"""Limit on the conditions moved out of a loop nest: each doubles the nest."""


@function_pass(requires="OPAQUE", level=2)
def unswitch_loops(func: PrimFunc, target: Target, *, most: int = MAX_HOISTED) -> PrimFunc:
    """Unswitch unrolled, vectorized and tensorized loops.

    Args:
        func: the function.
        target: not used.
        most: limit on the conditions moved out of a loop nest.

    A second run changes nothing unless `most` stopped the first: the result has no record of the pass, so each run moves up to
    `most` conditions.  A pipeline contains this pass once.
    """
    as_count("most", most, 0, "unswitch_loops moves at least 0 conditions")
    s = Simplifier(symbol_ranges(func))

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind in ("unrolled", "vectorized", TENSORIZED):
            return _unswitch(n, s, most)
        s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
        out: Stmt = n.map_children(recurse)
        del s.ranges[n.var]
        return out

    return with_body(func, renew_binders(transform(func.body, {For: on_for})))


def _unswitch(n: For, s: Simplifier, left: int) -> Stmt:
    inside: set[Var] = {x.var for x in walk(n) if type(x) is For or type(x) is IndirectIndex}
    found: Poly | None = next(
        (x.index for x in walk(n) if type(x) is IsNegative and x.lanes == 1 and x.index.vars.isdisjoint(inside)), None
    )
    if found is None or left == 0:
        return _hoist_guards(n)
    cond = found

    def specialized(value: bool) -> Stmt | None:
        table: dict[type, Any] = {IsNegative: lambda x, _: Const(value, "bool") if x.lanes == 1 and x.index == cond else x}
        out = s(transform(n, table))
        return _unswitch(out, s, left - 1) if type(out) is For else out

    yes, no = specialized(True), specialized(False)
    if yes is None:
        return seq([]) if no is None else If(IsNegative(-cond - 1), no)
    return If(IsNegative(cond), yes, no)


def _hoist_guards(n: For) -> Stmt:
    """The nest, with guards around the innermost loops that they do not depend on; these guards depend on an outer loop of the nest."""

    def on_for(x: For, recurse: Any) -> Stmt:
        out: For = x.map_children(recurse)
        guard = out.body
        if x is n or type(guard) is not If or guard.orelse is not None or type(guard.cond) is not IsNegative or guard.cond.lanes != 1:
            return out
        return out if x.var in guard.cond.index.vars else If(guard.cond, out.with_(body=guard.then))

    return transform(n, {For: on_for})
