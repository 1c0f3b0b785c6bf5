"""Divide the range of a loop into consecutive loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.ir.poly import ZERO, Param, Poly, Var, minimum
from tunesmith.ir.stmt import Block, For, Stmt, seq
from tunesmith.ir.visit import blocks_under, fresh_copy, substitute, transform
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def loop_partition(s: ScheduleState, loop: LoopRV, cuts: Sequence[IntRV | int]) -> list[LoopRV]:
    """Replace `loop` by consecutive loops, which begin at 0 and at each of the cuts; returns them in order.

    A guard that holds in all iterations of a part is removed from it by `simplify`, so that the middle of a padded loop has none.  The
    first part keeps the blocks.  The others contain copies of them: that of block B in part n is named `B_partn`, or `B_partn_1`, ... if
    there is such a block; `get_child_blocks` returns them.

    Args:
        loop: the loop to divide.
        cuts: the first iteration of each part but the first.
    Rewrite: `loop_partition(i, [1, 17])`
        for i in T.serial(18):
            P[i] = T.select(0 < i and i < 17, A[i - 1], 0.0)
      ->
        P[0] = T.select(False, A[-1], 0.0)
        for i_1 in T.serial(16):
            P[i_1 + 1] = A[i_1]
        P[17] = T.select(False, A[16], 0.0)
    Requires:
        serial: the loop is serial and carries no annotation.
        cuts: there is a cut; each is after the one before it, and inside the loop, so that every part has an iteration.  Parts of a loop
            whose extent depends on a dynamic size or on an outer loop may be empty: it may have fewer iterations than a cut.
        loop-exists: the loop is still in the program.
    Keeps: the order of executed block instances (source: TVM's loop_partition, which takes the extents of the parts).
    """
    target = s.loop(loop)
    if target.kind != "serial" or target.annotations:
        raise s.refuse("serial", f"loop {target.var.name} is {target.kind} or annotated; partition before marking loops", target)
    if not cuts:
        raise s.refuse("cuts", "there is no cut", target)
    starts: list[Poly] = [ZERO, *[s.value(c) for c in cuts]]
    ends = [*starts[1:], target.extent]
    dynamic = any(type(v) is not Param for v in target.extent.vars)
    for low, high in zip(starts, ends[:-1] if dynamic else ends, strict=not dynamic):
        what = f"loop {target.var.name} would have an empty part: cuts are ascending, from 1 to its extent {target.extent!r} - 1"
        s.require("le0", low - high + 1, "cuts", what)
    if dynamic:
        ends = [minimum(e, target.extent) for e in ends]
    variables = [Var(f"{target.var.name}_{n}") for n in range(len(starts))]
    parts: list[Stmt] = []
    for n, (v, low, begin, end) in enumerate(zip(variables, starts, [ZERO, *ends[:-1]], ends, strict=True)):
        body = target.body if not n else _renamed(s, fresh_copy(target.body), n)
        parts.append(For(v, end - begin, substitute(body, {target.var: low + v})))
    s.replace_loop(target.var, lambda _: seq(parts))
    return [s.new_loop(v) for v in variables]


def _renamed(s: ScheduleState, body: Stmt, part: int) -> Stmt:
    names = {b.name: s.fresh_name(f"{b.name}_part{part}") for b in blocks_under(body)}

    def on_block(b: Block, recurse: Any) -> Block:
        return b.map_children(recurse).with_(name=names[b.name])

    return transform(body, {Block: on_block})
