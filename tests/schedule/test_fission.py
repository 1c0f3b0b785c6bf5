"""Test fission: results of divided loops, bounds of dependences, and the inverse of merge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith import build
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def normalised(A: T.Buffer((5, 12), "float32"), D: T.Buffer((5, 12), "float32")):
    C = T.alloc_buffer((5,), "float32")
    for i in T.serial(5):
        for k in T.serial(12):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]
        for j in T.serial(12):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = A[vi, vj] - C[vi]


@T.prim_func
def stages(A: T.Buffer((6, 8), "float32"), B: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32"), D: T.Buffer((6, 8), "float32")):
    for i, j in T.grid(6, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] * B[vi, vj]


@T.prim_func
def window(A: T.Buffer((9,), "float32"), B: T.Buffer((9,), "float32"), C: T.Buffer((9,), "float32")):
    for i in T.serial(9):
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            B[vi] = A[vi] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(9, i)
            C[vi] = T.select(vi < 2, B[vi], B[vi - 2] + B[vi])


@T.prim_func
def descending(A: T.Buffer((9,), "float32"), B: T.Buffer((9,), "float32"), C: T.Buffer((9,), "float32")):
    """Iteration i writes B[8 - i], and reads B[9 - i], which the iteration before wrote."""
    for i in T.serial(9):
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            B[8 - vi] = A[vi] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(9, i)
            C[vi] = T.select(vi < 1, B[8 - vi], B[9 - vi])


@T.prim_func
def triangle(A: T.Buffer((6, 6), "float32"), B: T.Buffer((6, 6), "float32"), C: T.Buffer((6,), "float32")):
    for i in T.serial(6):
        for j in T.serial(i + 1):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = B[vi, 0] + 1.0


def divide(s: Schedule, block: str, depth: int) -> list[object]:
    b = s.get_block(block)
    return list(s.fission(s.get_loops(b)[depth], b))


def test_fission(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(normalised, lambda s: divide(s, "C", 0)).func))


def test_a_nest_is_divided_from_the_inside(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        for block in "BC":
            for depth in (1, 0):
                divide(s, block, depth)
        for block in "BCD":
            s.parallel(s.fuse(s.get_loops(s.get_block(block))))

    s = apply(stages, steps)
    assert len(s.root_stmts()) == 3


def test_only_the_statements_after_the_block_move(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        first, second = s.fission(s.get_loops(b)[1], b)
        assert [x.block for x in s.get_child_blocks(first)] == ["B", "C"]
        assert [x.block for x in s.get_child_blocks(second)] == ["D"]

    apply(stages, steps)


@pytest.mark.parametrize("func", [window, descending, triangle], ids=lambda f: f.name)
def test_earlier_iterations_may_be_read(apply: Apply, func: object) -> None:
    apply(func, lambda s: divide(s, "B", 0))


@pytest.mark.parametrize("tile", [1, 2, 4, 5, 16])
def test_tiles_are_divided(apply: Apply, tile: int) -> None:
    """The outer loop of a split by any factor, whose iterations are apart."""

    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        i, _ = s.get_loops(b)
        (size,) = s.sample_tile(i, 2, "t", [range(1, 20)], waste=20.0)
        s.split(i, [None, size])
        for depth in (1, 0):
            s.fission(s.get_loops(b)[depth], b)
        s.merge(s.get_loops(b)[0], s.get_loops(s.get_block("D"))[0])

    apply(normalised, steps, [[tile]])


def test_fission_is_the_inverse_of_merge() -> None:
    s = Schedule(normalised)
    before = str(s.func)
    first, second = s.fission(s.get_loops(s.get_block("C"))[0], s.get_block("C"))
    s.merge(first, second)
    assert str(s.func) == before
    a, d = np.random.default_rng(0).random((5, 12), "float32"), np.empty((5, 12), "float32")
    build(s.func, "llvm -num-cores=2")["normalised"](a, d)
    np.testing.assert_allclose(d, a - a.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
