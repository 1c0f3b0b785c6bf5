"""merge: two loops that stand side by side become one."""

from __future__ import annotations

from typing import Any

from tunesmith.ir.analysis.dependence import LoopAccess, loop_accesses
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import Block, For, Seq, Stmt, seq
from tunesmith.ir.visit import substitute, transform
from tunesmith.schedule.dependence_checks import require_one, separation_conditions
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def merge(s: ScheduleState, first: LoopRV, second: LoopRV) -> LoopRV:
    """Run each iteration of `first` directly before the same iteration of `second`, in one loop at the place of `second`.

    What stands between the two stays there, in front of the loop.

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
        siblings: both loops stand in one sequence of statements, `first` before `second`.
        serial: no loop is marked or annotated.
        same-extent: both have the same number of iterations.
        between: nothing between them touches what `first` writes, or writes what it reads.
        apart: of what one of them writes and the other touches, different iterations touch different elements.  In some
            dimension each stays within [c * i + base, c * i + base + c), as loops that were split by the same c do.
        loop-exists: the loops are still in the program.
    Keeps: results (sources: compute_with of Halide; merge of TVM; loop fusion of Exo).
    """
    a, b = s.loop(first), s.loop(second)
    row = _sequence(s.func.body, a, b)
    if row is None:
        message = f"loop {a.var.name} does not stand before loop {b.var.name} in the same sequence of statements"
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
    start, end = row.stmts.index(a), row.stmts.index(b)
    mine = loop_accesses(a)
    for stmt in row.stmts[start + 1 : end]:
        met = [t for t in loop_accesses(stmt) if any(_conflict(t, m) for m in mine)]
        if met:
            raise s.refuse("between", f"{met[0].buffer.name} is used between loops {a.var.name} and {b.var.name}", stmt)
    var = Var(b.var.name)
    bodies: list[Stmt] = [substitute(f.body, {f.var: poly(var)}) for f in (a, b)]
    _check_apart(s, b, var, loop_accesses(bodies[0]), loop_accesses(bodies[1]))
    merged = For(var, b.extent, seq(bodies))

    def on_seq(n: Seq, recurse: Any) -> Stmt:
        if n is not row:
            return n.map_children(recurse)
        return seq([merged if x is b else x for x in n.stmts if x is not a])

    s.set_body(transform(s.func.body, {Seq: on_seq, Block: lambda n, _: n}))
    return s.new_loop(var)


def _sequence(n: Any, a: For, b: For) -> Seq | None:
    """The sequence in which `a` stands before `b`."""
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


def _check_apart(s: ScheduleState, at: For, var: Var, early: list[LoopAccess], late: list[LoopAccess]) -> None:
    """An iteration of the second loop comes before later ones of the first: they must not meet."""
    for x in early:
        for y in late:
            if _conflict(x, y):
                message = f"different iterations of the loops may touch the same element of {x.buffer.name}"
                require_one(s, separation_conditions(x, y, var), "apart", message, at)
