"""parallel, vectorize, unroll: how a loop is executed."""

from __future__ import annotations

from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import Block, For
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


def _mark(s: ScheduleState, target: For, kind: str) -> None:
    if target.kind not in ("serial", kind):
        raise s.refuse("serial", f"loop {target.var.name} is already {target.kind}", target)
    s.replace_loop(target.var, lambda f: f.with_(kind=kind))


def _used_by_reduction(b: Block, target: For) -> bool:
    return any(it.kind == "R" and target.var in e.vars for it, e in zip(b.iters, b.bindings, strict=True))


@primitive
def parallel(s: ScheduleState, loop: LoopRV) -> None:
    """Run the iterations of `loop` on several threads.

    Requires:
        serial: the loop is not marked otherwise.
        data-parallel: no block inside uses the loop for a reduction.
        loop-exists: the loop is still in the program.
    Keeps: results, because iterations touch different elements.
    """
    target = s.loop(loop)
    for b in blocks_under(target):
        if _used_by_reduction(b, target):
            raise s.refuse("data-parallel", f"block {b.name} reduces over loop {target.var.name}; use rfactor first", target)
    _mark(s, target, "parallel")


@primitive
def vectorize(s: ScheduleState, loop: LoopRV, max_lanes: int = 512) -> None:
    """Run the iterations of `loop` as vector operations; lowering cuts it into the target's vectors.

    A loop over a reduction is allowed when the block has no init any more: it becomes a horizontal reduction.

    Requires:
        serial: the loop is not marked otherwise.
        length: the extent is at most `max_lanes`.
        innermost: the loop holds one block and no other loop.
        data-parallel: the block does not initialise and reduce over the loop at once; use decompose_reduction first.
        loop-exists: the loop is still in the program.
    Keeps: results; a horizontal reduction is reassociated.
    """
    target = s.loop(loop)
    if type(target.body) is not Block:
        raise s.refuse("innermost", f"loop {target.var.name} must directly hold one block", target)
    if _used_by_reduction(target.body, target) and target.body.init is not None:
        raise s.refuse("data-parallel", f"block {target.body.name} initialises and reduces over loop {target.var.name}", target)
    _length(s, target.extent, max_lanes)
    _mark(s, target, "vectorized")


def _length(s: ScheduleState, extent: Poly, limit: int) -> None:
    s.require("le0", extent - limit, "length", "the loop is too long for vector registers")


@primitive
def unroll(s: ScheduleState, loop: LoopRV, max_copies: int = 512) -> None:
    """Write out the iterations of `loop`.

    Requires:
        serial: the loop is not marked otherwise.
        length: the extent is at most `max_copies`.
        loop-exists: the loop is still in the program.
    Keeps: the order of executed block instances.
    """
    target = s.loop(loop)
    s.require("le0", target.extent - max_copies, "length", "the loop is too long to unroll")
    _mark(s, target, "unrolled")
