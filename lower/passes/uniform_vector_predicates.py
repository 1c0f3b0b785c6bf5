"""Remove the lane from guards that all lanes of a vector pass or fail together.

`4 * x + lane < 76` with lane below 4 becomes `4 * x < 76`.  GPUs have no masked vector loads.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import ZERO, Poly, Var, substitute
from tunesmith.ir.stmt import For, Stmt
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import transform, with_body
from tunesmith.lower.pass_infra import function_pass


@function_pass(requires="OPAQUE", level=2)
def uniform_vector_predicates(func: PrimFunc, target: Target) -> PrimFunc:
    """Remove the lane from uniform guards of vectorized loops."""

    def on_for(n: For, recurse: Any) -> Stmt:
        m: For = n.map_children(recurse)
        if m.kind != "vectorized" or m.extent.const is None:
            return m
        lanes = m.extent.const
        body = transform(m.body, {IsNegative: lambda c, _: _uniform(c, m.var, lanes)})
        return m if body is m.body else m.with_(body=body)

    return with_body(func, transform(func.body, {For: on_for}))


def _uniform(cond: IsNegative, lane: Var, lanes: int) -> IsNegative:
    if cond.lanes != 1 or lane not in cond.index.vars:
        return cond
    split = coefficient(cond.index, lane)
    if split is None:
        return cond
    c, rest = split
    # rest + lane < 0 for a multiple of the lanes; or lane > rest, where rest + 1 is a multiple: -(x + lane) - 1 < 0.
    if (c == 1 and _is_multiple(rest, lanes)) or (c == -1 and _is_multiple(rest + 1, lanes)):
        return IsNegative(substitute(cond.index, {lane: ZERO}))
    return cond


def _is_multiple(p: Poly, n: int) -> bool:
    return all(c % n == 0 for _, c in p.terms)
