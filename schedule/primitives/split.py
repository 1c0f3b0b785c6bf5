"""Split a loop into a nest of loops."""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.expr import IsNegative
from tunesmith.ir.poly import ZERO, Poly, Var, ceildiv, poly, product
from tunesmith.ir.stmt import Block, For, If, Stmt
from tunesmith.ir.visit import substitute, transform
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.outside import acts_outside_of_blocks
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import MAX_INTEGER, ScheduleState

MAX_LANES = 512
"""Limit of the iterations of a vectorized loop, which becomes straight-line code."""


@primitive
def split(s: ScheduleState, loop: LoopRV, factors: Sequence[IntRV | int | None]) -> list[LoopRV]:
    """Split `loop` into nested loops, outermost first.

    Args:
        loop: the loop to split.
        factors: extents from outer to inner.  One of them may be None, as in TVM: ceildiv(extent, product of the others).  If none is
            None, the first is only checked against this value, which is used.
    Rewrite: `split(i, [None, 4])`
        for i in T.serial(18):
            C[i] = A[i]
      ->
        for i_0, i_1 in T.grid(5, 4):
            if i_0 * 4 + i_1 < 18:
                C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1]
    Requires:
        serial: the loop is not bound to a thread and carries no annotation.
        one-unknown: there is a factor, and at most one is None.
        positive: every factor is at least 1.
        bounded: every factor is at most 2**31 - 1, and that of the innermost loop of a vectorized one at most 512.
        covers: a given first factor is large enough for the extent.
        loop-exists: the loop is still in the program.
    Keeps: the order of executed block instances, and the mark of the loop: the outermost new loop of a parallel loop is parallel, the
        innermost of a vectorized loop is vectorized, and all of an unrolled loop are unrolled.  Blocks get the guard even if the factors
        divide the extent; `simplify` removes it from the concrete program.  Statements outside of blocks are guarded by an `if`.
    """
    target = s.loop(loop)
    if target.kind == "thread" or target.annotations:
        raise s.refuse("serial", f"loop {target.var.name} is {target.kind} or annotated; split before marking loops", target)
    if not factors or sum(f is None for f in factors) > 1:
        raise s.refuse("one-unknown", "at most one factor may be None, and there must be a factor", target)
    unknown = next((n for n, f in enumerate(factors) if f is None), 0)
    known = {n: s.value(f) for n, f in enumerate(factors) if f is not None and n != unknown}
    for n, f in known.items():
        s.require("le0", 1 - f, "positive", "a factor must be at least 1", f)
        most = MAX_LANES if target.kind == "vectorized" and n == len(factors) - 1 else MAX_INTEGER
        s.require_at_most(f, most, "bounded", f"a factor must be at most {most}")
    derived = ceildiv(target.extent, product(known.values()))
    given = factors[unknown]
    if given is not None:
        what = f"the factors do not cover the loop: the first must be at least {derived!r}"
        s.require("le0", derived - s.value(given), "covers", what, s.value(given))
    extents = [known.get(n, derived) for n in range(len(factors))]
    literal = not any(isinstance(f, IntRV) for f in factors)
    return [s.new_loop(v) for v in split_loop(s, target, extents, literal=literal)]


def split_loop(s: ScheduleState, target: For, extents: Sequence[Poly], *, guarded: bool = True, literal: bool = True) -> list[Var]:
    """Replace `target` by a nest of loops with these extents, which cover it.  Returns their variables, outermost first.

    Without `guarded` the product of the extents is that of the loop, so that every iteration is one of the loop.  Statements outside of
    blocks need no guard if `literal` extents divide the loop; a sampled factor divides it for some of its values only, and all have the
    same program.
    """
    new = [Var(f"{target.var.name}_{i}") for i in range(len(extents))]
    index = ZERO
    for v, e in zip(new, extents, strict=True):
        index = index * e + v
    guard = index - target.extent

    def add_guard(b: Block, _: object) -> Block:
        return b.with_(predicate=(*b.predicate, guard))

    def make(old: For) -> Stmt:
        body = substitute(old.body, {old.var: index})
        is_exact = literal and target.extent.const is not None and product(extents) == target.extent
        if acts_outside_of_blocks(body) and not is_exact:
            body = If(IsNegative(guard), body)
        elif guarded:
            body = transform(body, {Block: add_guard})
        for n, (v, e) in reversed(list(enumerate(zip(new, extents, strict=True)))):
            body = For(v, poly(e), body, old.kind if n in marked else "serial")
        return body

    marked = {"parallel": (0,), "vectorized": (len(new) - 1,)}.get(target.kind, range(len(new)))
    s.replace_loop(target.var, make)
    return new
