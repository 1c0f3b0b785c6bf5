"""Fuse nested loops into one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tunesmith.ir.poly import Poly, Var, floordiv, mod, poly, product
from tunesmith.ir.stmt import For
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def fuse(s: ScheduleState, loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse consecutive nested loops, outermost first, into one.

    Rewrite: `fuse([i, j])`
        for i, j in T.grid(4, 8):
            C[i, j] = A[i, j]
      ->
        for i_j_fused in T.serial(32):
            C[i_j_fused // 8, i_j_fused % 8] = A[i_j_fused // 8, i_j_fused % 8]
    Requires:
        at-least-one: there is a loop to fuse.
        nested: each loop is the only statement of the one before it.
        serial: every loop is serial and carries no annotation.
        independent: no extent depends on another of the loops.
        loop-exists: the loops are still in the program.
    Keeps: the order of executed block instances.
    """
    fs = [s.loop(x) for x in loops]
    if not fs:
        raise s.refuse("at-least-one", "no loops were given")
    for outer, inner in itertools.pairwise(fs):
        if outer.body is not inner:
            raise s.refuse("nested", f"loop {inner.var.name} is not the only statement of loop {outer.var.name}", outer)
    for f in fs:
        if f.kind != "serial" or f.annotations:
            raise s.refuse("serial", f"loop {f.var.name} is {f.kind} or annotated; fuse before marking loops", f)
    inside = {f.var for f in fs}
    for f in fs:
        if not f.extent.vars.isdisjoint(inside):
            raise s.refuse("independent", f"the extent of loop {f.var.name} depends on another loop that is fused", f)
    var = Var("_".join(f.var.name for f in fs) + "_fused")
    values: dict[Var, Poly] = {}
    rest = poly(var)
    for f in reversed(fs[1:]):
        values[f.var] = mod(rest, f.extent)
        rest = floordiv(rest, f.extent)
    values[fs[0].var] = rest
    body = substitute(fs[-1].body, values)
    s.replace_loop(fs[0].var, lambda _: For(var, product([f.extent for f in fs]), body))
    return s.new_loop(var)
