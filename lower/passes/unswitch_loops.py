"""unswitch_loops: a condition inside written-out loops that does not depend on them is tested once, in front of them.

The tile that starts from zero in the first block of a cut reduction and from memory in the others becomes two tiles and
one branch, instead of a branch for every vector.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.expr import Const, IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.indirect_index import IndirectIndex
from tunesmith.ir.poly import Poly, Var
from tunesmith.ir.stmt import For, If, Stmt, seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, walk, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.renew_binders import renew_binders
from tunesmith.lower.simplifier import Simplifier, symbol_ranges

MAX_HOISTED = 3
"""Conditions taken out of one nest: each doubles it."""


@function_pass(needs="OPAQUE")
def unswitch_loops(func: PrimFunc, target: Target, *, most: int = MAX_HOISTED) -> PrimFunc:
    """Unswitch unrolled and vectorized loops; see the module's text.

    Args:
        func: the function.
        target: not used.
        most: conditions taken out of one nest.

    A second run finds nothing to do unless `most` stopped the first: a branch in front of a nest does not tell who put it there,
    so each run takes out as many again.  A pipeline holds this pass once.
    """
    s = Simplifier(symbol_ranges(func))

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind in ("unrolled", "vectorized"):
            return _hoist(n, s, most)
        s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
        out: Stmt = n.map_children(recurse)
        del s.ranges[n.var]
        return out

    return with_body(func, renew_binders(transform(func.body, {For: on_for})))


def _hoist(n: For, s: Simplifier, left: int) -> Stmt:
    inside: set[Var] = {x.var for x in walk(n) if type(x) is For or type(x) is IndirectIndex}
    found: Poly | None = next(
        (x.index for x in walk(n) if type(x) is IsNegative and x.lanes == 1 and x.index.vars.isdisjoint(inside)), None
    )
    if found is None or left == 0:
        return n
    cond = found

    def decided(value: bool) -> Stmt | None:
        table: dict[type, Any] = {IsNegative: lambda x, _: Const(value, "bool") if x.lanes == 1 and x.index == cond else x}
        out = s(transform(n, table))
        return _hoist(out, s, left - 1) if type(out) is For else out

    yes, no = decided(True), decided(False)
    if yes is None:
        return seq([]) if no is None else If(IsNegative(-cond - 1), no)
    return If(IsNegative(cond), yes, no)
