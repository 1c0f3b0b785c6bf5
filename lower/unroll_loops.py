"""unroll_loops: loops marked `unrolled` are written out."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, poly
from tunesmith.ir.stmt import For, Stmt, seq
from tunesmith.ir.target import Target
from tunesmith.ir.visit import substitute, transform, with_body
from tunesmith.lower.passes import function_pass
from tunesmith.lower.simplify import Simplifier, symbol_ranges


@function_pass(needs="FLAT", gives="VECTOR")
def unroll_loops(func: PrimFunc, target: Target) -> PrimFunc:
    """Outer copies first, so that the copies of an inner loop see numbers; guards that become constant disappear."""
    s = Simplifier(symbol_ranges(func))

    def on_for(n: For, recurse: Any) -> Stmt:
        if n.kind != "unrolled" or n.extent.const is None:
            s.ranges[n.var] = (0, max(s.bounds(n.extent)[1] - 1, 0))
            out: Stmt = n.map_children(recurse)
            del s.ranges[n.var]
            return out
        copies = [_prune(substitute(n.body, {n.var: poly(i)}), s) for i in range(n.extent.const)]
        return seq([recurse(c) for c in copies if c is not None])

    return with_body(func, transform(func.body, {For: on_for, Poly: lambda n, _: n}))


def _prune(n: Stmt, s: Simplifier) -> Stmt | None:
    return s(n)
