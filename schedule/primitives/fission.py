"""Divide the statements in a loop among two loops: those up to a block, and those after it."""

from __future__ import annotations

from tunesmith.ir.analysis.dependence import LoopAccess, loop_accesses, shared_iterations
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import For, Seq, seq
from tunesmith.ir.visit import substitute
from tunesmith.schedule.dependence_checks import in_order_conditions, pair_conditions, require_one
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def fission(s: ScheduleState, loop: LoopRV, after: BlockRV) -> list[LoopRV]:
    """Replace `loop` by two consecutive loops, which divide its statements after the one that contains the block `after`; returns both.

    This is the inverse of `merge`. To divide a nest, start with its innermost shared loop.

    Args:
        loop: the loop to divide.
        after: a block in the last statement of the first loop.
    Rewrite: `fission(i, B)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
            C[i] = B[i] + 1.0
      ->
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for i in T.serial(16):
            C[i] = B[i] + 1.0
    Requires:
        serial: the loop is serial and carries no annotation.
        statements: the block is in a statement of the loop, and another statement of the loop follows.
        order: no iteration of the second loop accesses an element that a later iteration of the first accesses, if one of them writes it.
            A buffer that holds values of one iteration at a time needs a dimension for the loop.
        loop-exists: the loop is still in the program.
        block-exists: the block is still in the program.
    Keeps: results (sources: fission of Exo; loop distribution of Kennedy and McKinley, 1990).
    """
    target = s.loop(loop)
    if target.kind != "serial" or target.annotations:
        raise s.refuse("serial", f"loop {target.var.name} is {target.kind} or annotated; divide before marking loops", target)
    path = s.path(after)
    body = path[path.index(target) + 1] if target in path else None
    end = body.stmts.index(path[path.index(body) + 1]) + 1 if type(body) is Seq else 0
    if type(body) is not Seq or end == len(body.stmts):
        raise s.refuse("statements", f"no statement of loop {target.var.name} follows one that contains block {after.block}", target)
    parts = [For(target.var, target.extent, seq(stmts)) for stmts in (body.stmts[:end], body.stmts[end:])]
    _check_order(s, target, [loop_accesses(p) for p in parts])
    made = []
    for part in parts:
        var = Var(target.var.name)
        made.append(For(var, part.extent, substitute(part.body, {part.var: poly(var)})))
    s.replace_loop(target.var, lambda _: seq(made))
    return [s.new_loop(f.var) for f in made]


def _check_order(s: ScheduleState, target: For, found: list[list[LoopAccess]]) -> None:
    """Refuse conflicts of an iteration of the second loop with later iterations of the first, which will run before it."""
    first, second = found
    for x in first:
        for y in second:
            if x.buffer is not y.buffer or not (x.is_write or y.is_write) or target.var in shared_iterations(x, y, target.var):
                continue
            a, b = _inside(x, target.var), _inside(y, target.var)
            ways = [*pair_conditions(a, b, target.var), *in_order_conditions(a, b, target.var)]
            message = (
                f"a later iteration of loop {target.var.name} in {_where(x)} may access the same element of {x.buffer.name} as {_where(y)} "
                "in an earlier one, and would run before it. Keep both in one loop, or give the buffer a dimension for the loop"
            )
            require_one(s, ways, "order", message, target)


def _where(a: LoopAccess) -> str:
    return "a plain statement" if a.block is None else f"block {a.block.name}"


def _inside(a: LoopAccess, loop: Var) -> LoopAccess:
    """The access in terms of one iteration of the loop."""
    ranges = {v: high for v, high in a.ranges.items() if v is not loop}
    return LoopAccess(a.buffer, a.indices, a.is_write, ranges, a.loops[1:], a.guards, a.block)
