"""Fuse two adjacent loops into one loop that contains both bodies."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.dependence import LoopAccess, loop_accesses
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import Block, For, Seq, Stmt, seq
from tunesmith.ir.visit import substitute, transform
from tunesmith.schedule.dependence_checks import pair_conditions, require_one
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def merge(s: ScheduleState, first: LoopRV, second: LoopRV) -> LoopRV:
    """Run each iteration of `first` directly before the same iteration of `second`, in one loop that replaces `second`.

    Statements between the two loops stay before the new loop.

    Rewrite: `merge(i, j)`
        B = T.alloc_buffer((16,))
        for i in T.serial(16):
            B[i] = A[i] * 2.0
        for j in T.serial(16):
            C[j] = B[j] + 1.0
      ->
        B = T.alloc_buffer((16,))
        for j in T.serial(16):
            B[j] = A[j] * 2.0
            C[j] = B[j] + 1.0
    Requires:
        siblings: both loops are statements of one sequence, `first` before `second`.
        serial: both loops are serial and carry no annotation.
        same-extent: both have the same number of iterations.
        between: no statement between them accesses buffers that `first` writes, or writes buffers that it reads.
        apart: if one loop writes a buffer that the other accesses, different iterations access different elements.  In some
            dimension iteration i stays within [c * i + base, c * i + base + c), as in loops that were split by the same c.
        loop-exists: the loops are still in the program.
    Keeps: results (sources: compute_with of Halide; merge of TVM; loop fusion of Exo).
    """
    a, b = s.loop(first), s.loop(second)
    siblings = _sequence(s.func.body, a, b)
    if siblings is None:
        message = f"loop {a.var.name} is not before loop {b.var.name} in the same sequence of statements"
        raise s.refuse("siblings", message, a)
    for f in (a, b):
        if f.kind != "serial" or f.annotations:
            raise s.refuse("serial", f"loop {f.var.name} is {f.kind} or annotated; merge before marking loops", f)
    s.require(
        "eq0",
        a.extent - b.extent,
        "same-extent",
        f"loops {a.var.name} and {b.var.name} have different extents, {a.extent!r} and {b.extent!r}",
    )
    start, end = siblings.stmts.index(a), siblings.stmts.index(b)
    first_accesses = loop_accesses(a)
    for stmt in siblings.stmts[start + 1 : end]:
        conflicts = [x for x in loop_accesses(stmt) if any(_conflict(x, y) for y in first_accesses)]
        if conflicts:
            raise s.refuse("between", f"{conflicts[0].buffer.name} is used between loops {a.var.name} and {b.var.name}", stmt)
    var = Var(b.var.name)
    bodies: list[Stmt] = [substitute(f.body, {f.var: poly(var)}) for f in (a, b)]
    _check_independent(s, b, var, loop_accesses(bodies[0]), loop_accesses(bodies[1]))
    merged = For(var, b.extent, seq(bodies))

    def on_seq(n: Seq, recurse: Any) -> Stmt:
        if n is not siblings:
            return n.map_children(recurse)
        return seq([merged if x is b else x for x in n.stmts if x is not a])

    s.set_body(transform(s.func.body, {Seq: on_seq, Block: lambda n, _: n}))
    return s.new_loop(var)


def _sequence(n: Any, a: For, b: For) -> Seq | None:
    """The sequence that contains `a` before `b`."""
    if type(n) is For:
        return _sequence(n.body, a, b)
    if type(n) is not Seq:
        return None
    held = [x for x in n.stmts if x is a or x is b]
    if len(held) > 1:
        return n if held[0] is a else None
    return next((r for k in n.stmts if (r := _sequence(k, a, b)) is not None), None)


def _conflict(a: LoopAccess, b: LoopAccess) -> bool:
    return a.buffer is b.buffer and (a.is_write or b.is_write)


def _check_independent(s: ScheduleState, at: For, var: Var, early: list[LoopAccess], late: list[LoopAccess]) -> None:
    """Refuse conflicts between different iterations: an iteration of the second loop will run before later ones of the first."""
    for x in early:
        for y in late:
            if _conflict(x, y):
                message = f"different iterations of the loops may access the same element of {x.buffer.name}"
                require_one(s, pair_conditions(x, y, var), "apart", message, at)
