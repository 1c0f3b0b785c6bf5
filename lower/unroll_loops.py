"""unroll_loops: loops marked `unrolled` are written out."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import poly
from tunesmith.ir.stmt import For, If, Seq, Stmt, seq
from tunesmith.ir.target import Target
from tunesmith.ir.visit import substitute, transform, with_body
from tunesmith.lower.own_binders import own_binders
from tunesmith.lower.passes import function_pass
from tunesmith.lower.simplify import Simplifier, symbol_ranges


@function_pass(needs="FLAT", gives="VECTOR")
def unroll_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Outer copies first, so that the copies of an inner loop see numbers; guards that become constant disappear."""
    s = Simplifier(symbol_ranges(func))

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind != "unrolled" or n.extent.const is None:
            s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
            out: For = n.map_children(recurse)
            del s.ranges[n.var]
            return out.body if _is_empty(out.body) else out
        copies = [_prune(substitute(n.body, {n.var: poly(i)}), s) for i in range(n.extent.const)]
        return seq([recurse(c) for c in copies if c is not None])

    def on_seq(n: Seq, recurse: Any) -> Stmt:
        out = n.map_children(recurse)
        return n if out is n else seq(out.stmts)

    def on_if(n: If, recurse: Any) -> Stmt:
        out: If = n.map_children(recurse)
        if out.orelse is not None and _is_empty(out.orelse):
            out = If(out.cond, out.then)
        return out.then if out.orelse is None and _is_empty(out.then) else out

    table: dict[type, Any] = {For: on_for, Seq: on_seq, If: on_if}
    return with_body(func, own_binders(transform(func.body, table)))


def _is_empty(n: Stmt) -> bool:
    return type(n) is Seq and not n.stmts


def _prune(n: Stmt, s: Simplifier) -> Stmt | None:
    return s(n)
