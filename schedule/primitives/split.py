"""Split a loop into a nest of loops."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.expr import IsNegative
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv, poly, product
from tunesmith.ir.stmt import Block, For, If, Stmt, nest
from tunesmith.ir.visit import substitute, transform
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.outside import acts_outside_of_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import MAX_INTEGER, ScheduleState


@primitive
def split(s: ScheduleState, loop: LoopRV, factors: Sequence[IntRV | int | None]) -> list[LoopRV]:
    """Split `loop` into nested loops, outermost first.

    Args:
        loop: the loop to split.
        factors: extents from outer to inner.  The outermost extent is always ceildiv(extent, product of the others): the first factor
            is None, as in TVM, or a number that is only checked against it.
    Rewrite: `split(i, [None, 4])`
        for i in T.serial(18):
            C[i] = A[i]
      ->
        for i_0, i_1 in T.grid(5, 4):
            if i_0 * 4 + i_1 < 18:
                C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1]
    Requires:
        serial: the loop is serial and carries no annotation.
        one-unknown: only the first factor is None.
        positive: every factor is at least 1.
        bounded: every factor is at most 2**31 - 1.
        covers: a given first factor is large enough for the extent.
        loop-exists: the loop is still in the program.
    Keeps: the order of executed block instances.  Blocks get the guard even if the factors divide the extent; `simplify` removes it
        from the concrete program.  Statements outside of blocks are guarded by an `if`.
    """
    target = s.loop(loop)
    if target.kind != "serial" or target.annotations:
        raise s.refuse("serial", f"loop {target.var.name} is {target.kind} or annotated; split before marking loops", target)
    if not factors or any(f is None for f in factors[1:]):
        raise s.refuse("one-unknown", "only the first factor may be None, and there must be a factor", target)
    inner = [s.value(f) for f in factors[1:] if f is not None]
    for f in inner:
        s.require("le0", 1 - f, "positive", "a factor must be at least 1", f)
        s.require_at_most(f, MAX_INTEGER, "bounded", f"a factor must be at most {MAX_INTEGER}")
    extents = [ceildiv(target.extent, product(inner)), *inner]
    if factors[0] is not None:
        first = s.value(factors[0])
        what = f"the factors do not cover the loop: the first must be at least {extents[0]!r}"
        s.require("le0", extents[0] - first, "covers", what, first)
    return [s.new_loop(v) for v in split_loop(s, target, extents)]


def split_loop(s: ScheduleState, target: For, extents: Sequence[Poly]) -> list[Var]:
    """Replace `target` by a nest of loops with these extents, which cover it.  Returns their variables, outermost first."""
    new = [Var(f"{target.var.name}_{i}") for i in range(len(extents))]
    index = ZERO
    for v, e in zip(new, extents, strict=True):
        index = index * e + v
    guard = index - target.extent

    def add_guard(b: Block, _: object) -> Block:
        return b.with_(predicate=(*b.predicate, guard))

    def make(old: For) -> Stmt:
        body = substitute(old.body, {old.var: index})
        is_exact = target.extent.const is not None and product(extents) == target.extent
        if acts_outside_of_blocks(body) and not is_exact:
            body = If(IsNegative(guard), body)
        else:
            body = transform(body, {Block: add_guard})
        return nest([(v, poly(e)) for v, e in zip(new, extents, strict=True)], body)

    s.replace_loop(target.var, make)
    return new
