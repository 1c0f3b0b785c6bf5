"""Permute the loops of a nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.stmt import Block, For, Seq
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.independence import check_order
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def reorder(s: ScheduleState, loops: Sequence[LoopRV]) -> None:
    """Put `loops`, which form one perfect nest, into the given order; other loops between them keep their positions.

    Rewrite: `reorder([j, i])`
        for i, j in T.grid(4, 8):
            C[i, j] = A[i, j]
      ->
        for j, i in T.grid(8, 4):
            C[i, j] = A[i, j]
    Requires:
        distinct: no loop is named twice.
        nest: the loops belong to one nest, without other statements between them.
        single-block: the nest contains one block, so that no other block depends on the order.
        independent: no extent depends on another loop of the nest.
        dependences: instances of the block keep their order if they access one element and one of them writes it, unless they are
            updates of a reduction that can be reassociated.
        init-first: if the block has an init, loops that bind both a spatial and a reduction variable (after fuse) keep their order,
            because the init must run before all other updates of an element.
        loop-exists: the loops are still in the program.
    Keeps: the set of executed block instances; reductions are reassociated.
    """
    wanted = [s.loop(x) for x in loops]
    order = {f.var for f in wanted}
    if len(order) != len(wanted):
        raise s.refuse("distinct", "a loop is named twice")
    if not wanted:
        return
    chain: list[For] = []
    at: Any = _outermost(s.func.body, order)
    top = at
    left = set(order)
    while left:
        if type(at) is not For:
            missing = ", ".join(sorted(v.name for v in left))
            raise s.refuse("nest", f"the loops are not one perfect nest: {missing} cannot be reached", top)
        chain.append(at)
        left.discard(at.var)
        at = at.body
    rest: Any = at
    while type(rest) is For:
        rest = rest.body
    if type(rest) is not Block:
        raise s.refuse("single-block", "the nest contains more than one block", top)
    inside = {f.var for f in chain}
    for f in chain:
        if not f.extent.vars.isdisjoint(inside):
            raise s.refuse("independent", f"the extent of loop {f.var.name} depends on another loop of the nest", f)
    renewed = iter(wanted)
    new = [next(renewed) if f.var in order else f for f in chain]
    mixed = _mixed(rest)
    if rest.init is not None and [f for f in chain if f.var in mixed] != [f for f in new if f.var in mixed]:
        raise s.refuse("init-first", f"block {rest.name} would update elements before their init", rest)
    if new != chain:
        check_order(s, rest, chain, new, "dependences")
    body = at
    for f in reversed(new):
        body = f.with_(body=body)
    s.replace_loop(top.var, lambda _: body)


def _mixed(b: Block) -> set[Any]:
    """Loops that bind both a spatial and a reduction variable."""
    parts: dict[str, set[Any]] = {"S": set(), "R": set()}
    for it, e in zip(b.iters, b.bindings, strict=True):
        parts[it.kind] |= e.vars
    return parts["S"] & parts["R"]


def _outermost(n: Any, wanted: set[Any]) -> Any:
    if type(n) is For:
        return n if n.var in wanted else _outermost(n.body, wanted)
    if type(n) is Seq:
        return next((r for k in n.stmts if (r := _outermost(k, wanted)) is not None), None)
    return None
