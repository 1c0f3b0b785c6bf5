"""Tighten the bounds of serial loops to the iterations that pass a guard around the whole body.

`for k in range(8): if 8 * o + k < 60: S` becomes `for k in range(min(8, 60 - 8 * o)): S`.  Tails, and the rows of a
convolution window that are padding, then cost nothing.  Statements without the guard that store only to buffers of one iteration do
not prevent this: without the guarded statements their results are not used.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.size_ranges import symbol_ranges
from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv, floordiv, maximum, minimum, poly
from tunesmith.ir.stmt import Allocate, BufferStore, For, If, Seq, Stmt
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


def _guards(body: Stmt, v: Var, private: frozenset[Buffer] = frozenset()) -> list[Poly] | None:
    """Guards on `v` that enclose every statement of `body` with an effect and do not depend on loops inside it; None without effects.

    Stores to `private` buffers, which are allocated inside the loop, are no effects.
    """
    if isinstance(body, Allocate):
        return _guards(body.body, v, private | {body.buffer})
    if isinstance(body, BufferStore):
        return None if body.buffer in private else []
    if isinstance(body, If) and body.orelse is None:
        inside = _guards(body.then, v, private)
        index = body.cond.index if isinstance(body.cond, IsNegative) and body.cond.lanes == 1 else ZERO
        split = coefficient(index, v)
        return inside if inside is None or split is None or not split[0] else [index, *inside]
    if isinstance(body, For) and body.kind != "parallel":
        inside = _guards(body.body, v, private)
        return inside if inside is None else [e for e in inside if body.var not in e.vars]
    if isinstance(body, Seq):
        parts = [p for k in body.stmts if (p := _guards(k, v, private)) is not None]
        return [e for e in dict.fromkeys(parts[0]) if all(e in p for p in parts[1:])] if parts else None
    return []


def _tighten(n: For, s: Simplifier) -> Stmt:
    found = [e for e in dict.fromkeys(_guards(n.body, n.var) or ()) if all(x is n.var or x in s.ranges for x in e.vars)]
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
