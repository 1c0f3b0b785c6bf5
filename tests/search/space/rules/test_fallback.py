"""The fallback rule on functions with dynamic shapes."""

from __future__ import annotations

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.fallback import sketches

TWO_BLOCKS = """
@T.prim_func
def f(A: T.Buffer((n,), "float32"), C: T.Buffer((n,), "float32"), n: T.int64):
    B = T.alloc_buffer((n, 8), "float32")
    for i in T.serial(n):
        for j in T.serial(8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = B[vi, 0] + B[vi, 7]
"""


def test_a_loop_over_a_dynamic_size_with_two_blocks_is_scheduled() -> None:
    """Its bounds are needed to find out whether the intermediate carries values."""
    func = parse(TWO_BLOCKS)
    assert isinstance(func, PrimFunc)
    ((_, schedule),) = sketches(func, Target("llvm -mcpu=x86-64-v3 -num-cores=2"))[:1]
    s = Schedule(func)
    schedule(s)
    assert s.loops_of("C")[0].kind == "parallel"
