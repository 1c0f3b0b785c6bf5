"""Rename loop variables and allocations of duplicated statements, so that each is bound once (TVM RenewDefs).

Code generation caches addresses by buffer and index: two allocations of one buffer would share the addresses of the first.
"""

from __future__ import annotations

from typing import Any

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.poly import substitute as substitute_poly
from tunesmith.ir.stmt import Allocate, BufferStore, Evaluate, For, Stmt
from tunesmith.ir.visit import substitute, transform


def renew_binders(body: Stmt) -> Stmt:
    """`body` with every loop variable and every allocated buffer bound once; `body` itself when that already holds."""
    loops: set[Var] = set()
    buffers: set[Buffer] = set()
    renamed: dict[Var, Poly] = {}

    def on_for(n: For, recurse: Any) -> For:
        if n.var not in loops:
            loops.add(n.var)
            same: For = n.map_children(recurse)
            return same
        extent = recurse(n.extent)
        outer, var = renamed.get(n.var), Var(n.var.name)
        renamed[n.var] = poly(var)
        body = recurse(n.body)
        if outer is None:
            del renamed[n.var]
        else:
            renamed[n.var] = outer
        return For(var, extent, body, n.kind, n.thread, n.annotations)

    def on_allocate(n: Allocate, recurse: Any) -> Allocate:
        if n.buffer not in buffers:
            buffers.add(n.buffer)
            same: Allocate = n.map_children(recurse)
            return same
        new = n.buffer.like()
        return Allocate(new, recurse(substitute(n.body, {}, {n.buffer: new})))

    def on_poly(p: Poly, _: Any) -> Poly:
        return substitute_poly(p, renamed) if renamed else p

    def on_leaf(n: Stmt, recurse: Any) -> Stmt:
        return n.map_children(recurse) if renamed else n  # most copies rename nothing: skip their expressions

    return transform(body, {For: on_for, Allocate: on_allocate, BufferStore: on_leaf, Evaluate: on_leaf, Poly: on_poly})
