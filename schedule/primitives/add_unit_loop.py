"""Add a loop with one iteration around another loop, so that it can be bound to a thread axis."""

from __future__ import annotations

from tunesmith.ir.poly import ONE, Var
from tunesmith.ir.stmt import For
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def add_unit_loop(s: ScheduleState, loop: LoopRV) -> LoopRV:
    """Put a loop with one iteration around `loop`, and return the new loop.

    Rewrite: `add_unit_loop(i); bind(u, "blockIdx.x")`
        for i in T.serial(16):
            C[i] = A[i]
      ->
        for u in T.thread_binding(1, "blockIdx.x"):
            for i in T.serial(16):
                C[i] = A[i]
    Requires:
        loop-exists: the loop is still in the program.
    Keeps: everything (source: TVM's add_unit_loop).
    """
    target = s.loop(loop)
    var = Var("u")
    s.replace_loop(target.var, lambda f: For(var, ONE, f))
    return s.new_loop(var)
