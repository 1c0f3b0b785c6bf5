"""Test loop_partition: results, names of copied blocks, and guards of the middle part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith import build, te
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.simplify import simplify
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

Apply = Callable[..., Schedule]
Golden = Callable[..., None]
TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


@T.prim_func
def padded(A: T.Buffer((16, 3), "float32"), P: T.Buffer((18, 3), "float32")):
    for i, j in T.grid(18, 3):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            P[vi, vj] = T.select(0 < vi and vi < 17, A[vi - 1, vj], T.float32(0.0))


@T.prim_func
def means(A: T.Buffer((5, 12), "float32"), D: T.Buffer((5,), "float32")):
    C = T.alloc_buffer((5,), "float32")
    for i in T.serial(5):
        for k in T.serial(12):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]
        with T.block("D"):
            vi = T.axis.spatial(5, i)
            D[vi] = C[vi] / 12.0
        D[i] = D[i] * 2.0


def test_loop_partition(apply: Apply, assert_golden: Golden) -> None:
    s = apply(padded, lambda s: s.loop_partition(s.get_loops(s.get_block("P"))[0], [1, 17]))
    assert [b.name for b in s.blocks()] == ["P", "P_part1", "P_part2"]
    assert_golden(str(simplify(s.func, TARGET)))


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_loop_partition_of_a_reduction(apply: Apply, cut: int) -> None:
    """Only the first part starts it."""

    def steps(s: Schedule) -> None:
        s.loop_partition(s.get_loops(s.get_block("C"))[1], [s.sample_categorical([1, 2, 5, 11])])

    apply(means, steps, [[cut]])


def test_loop_partition_of_several_statements(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        i, _ = s.get_loops(s.get_block("C"))
        first, second, _ = s.loop_partition(i, [s.sample_categorical([1, 2]), 4])
        assert [b.block for b in s.get_child_blocks(second)] == ["C_part1", "D_part1"]
        s.loop_partition(s.get_loops(s.get_block("C_part1"))[1], [7])
        s.parallel(first)

    for cut in (1, 3):
        s = apply(means, steps, [[cut]])
    names = [n.name for n in walk(s.func.body) if type(n) is Block]
    assert len(names) == len(set(names))


def test_loop_partition_of_tiles(apply: Apply) -> None:
    """The last tile, which the guard cuts, is a loop of its own."""

    def steps(s: Schedule) -> None:
        i, _ = s.get_loops(s.get_block("P"))
        i_0, _ = s.split(i, [None, s.sample_categorical([2, 4, 5])])
        parts = s.loop_partition(i_0, [3])
        s.vectorize(s.get_loops(s.get_child_blocks(parts[0])[0])[-1])

    for tile in (2, 4, 5):
        apply(padded, steps, [[tile]])


@T.prim_func
def lower_triangle(A: T.Buffer((6, 6), "float32"), C: T.Buffer((6,), "float32"), D: T.Buffer((6, 6), "float32")):
    for i in T.serial(6):
        for j in T.serial(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vj]
    for i in T.serial(6):
        for j in T.serial(i + 1):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = A[vi, vj] / C[vi]


@pytest.mark.parametrize("cuts", [[1], [2, 5], [9]], ids=str)
def test_loop_partition_of_a_triangle(apply: Apply, cuts: list[int]) -> None:
    """A row that is shorter than a cut leaves the parts after it empty."""

    def steps(s: Schedule) -> None:
        for name in ("C", "D"):
            s.loop_partition(s.get_loops(s.get_block(name))[1], cuts)

    apply(lower_triangle, steps)


def test_names_that_exist_are_not_used_again(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        i, _ = s.get_loops(s.get_block("P"))
        first, _ = s.loop_partition(i, [9])
        s.loop_partition(first, [4])

    assert [b.name for b in apply(padded, steps).blocks()] == ["P", "P_part1_1", "P_part1"]


@pytest.mark.parametrize("cuts", [[1], [2, 5]], ids=str)
def test_parts_of_a_dynamic_loop_may_be_empty(cuts: list[int]) -> None:
    """A loop of n iterations, n from 0 on, has the parts that n leaves."""
    n = te.var("n")
    x = te.placeholder((n, 3), name="x")
    func = te.create_prim_func([x, te.scan((n, 3), lambda before, i, j: before + x[i, j], 0.0, axis=0, name="Y")], "running")
    s = Schedule(func)
    parts = s.loop_partition(s.get_loops(s.get_block("Y"))[0], cuts)
    assert str(s.loop(parts[0]).extent) == f"min({cuts[0]}, n)"
    for size in (0, 1, 2, 3, 6):
        a, y = np.random.default_rng(size).random((size, 3), "float32"), np.full((size, 3), np.nan, "float32")
        build(s.func, "llvm")["running"](a, y, size)
        np.testing.assert_allclose(y, np.cumsum(a, 0), rtol=1e-5)


def test_cuts_of_a_dynamic_loop_ascend() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="x")
    s = Schedule(te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, "Y")], "f"))
    with pytest.raises(ScheduleError, match="cuts are ascending"):
        s.loop_partition(s.get_loops(s.get_block("Y"))[0], [4, 4])
