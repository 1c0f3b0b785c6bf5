"""Tighten the bounds of serial loops to the iterations that pass a guard around the whole body.

`for k in range(8): if 8 * o + k < 60: S` becomes `for k in range(min(8, 60 - 8 * o)): S`.  Tails, and the rows of a
convolution window that are padding, then cost nothing.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv, floordiv, maximum, minimum, poly
from tunesmith.ir.stmt import For, If, Seq, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute, transform, with_body
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.simplifier import Simplifier


@function_pass(requires="OPAQUE")
def tighten_loop_bounds(func: PrimFunc, target: Target) -> PrimFunc:
    """Tighten serial loops, innermost first."""
    s = Simplifier(symbol_ranges(func))

    def on_for(n: For, recurse: Any) -> Stmt:
        s.ranges[n.var] = (0, s.bounds(n.extent)[1] - 1)
        body = recurse(n.body)
        del s.ranges[n.var]
        n = n if body is n.body else n.with_(body=body)
        return _tighten(n, s) if n.kind == "serial" else n

    return with_body(func, transform(func.body, {For: on_for}))


def _guards(body: Stmt, v: Var) -> list[Poly]:
    """Guards on `v` that enclose every statement of `body` and do not depend on loops inside it."""
    if type(body) is If and body.orelse is None:
        guards: list[Poly] = []
        if type(body.cond) is IsNegative and body.cond.lanes == 1:
            split = coefficient(body.cond.index, v)
            if split is not None and split[0]:
                guards.append(body.cond.index)
        return [*guards, *_guards(body.then, v)]
    if type(body) is For and body.kind != "parallel":
        return [e for e in _guards(body.body, v) if body.var not in e.vars]
    if type(body) is Seq:
        parts = [_guards(k, v) for k in body.stmts]
        return [e for e in dict.fromkeys(parts[0]) if all(e in p for p in parts[1:])]
    return []


def _tighten(n: For, s: Simplifier) -> Stmt:
    found = [e for e in dict.fromkeys(_guards(n.body, n.var)) if all(x is n.var or x in s.ranges for x in e.vars)]
    if not found:
        return n

    def on_if(x: If, recurse: Any) -> Stmt:
        if type(x.cond) is IsNegative and x.cond.lanes == 1 and x.cond.index in found:
            return recurse(x.then)
        return x.map_children(recurse)

    body = transform(n.body, {If: on_if})
    low, high = ZERO, n.extent
    for e in found:
        split = coefficient(e, n.var)
        assert split is not None
        c, rest = split
        if c > 0:  # c * v < -rest
            high = minimum(high, ceildiv(-rest, c))
        else:  # v > rest / -c
            low = maximum(low, floordiv(rest, -c) + 1)
    low, high = s.index(low), s.index(high)
    extent = s.index(maximum(high - low, 0)) if s.bounds(high - low)[0] < 0 else s.index(high - low)
    if low.const != 0:
        body = substitute(body, {n.var: poly(n.var) + low})
    return For(n.var, extent, body, n.kind, n.thread, n.annotations)
