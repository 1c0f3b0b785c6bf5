"""Test rolling_buffer: results of the interpreter and of compiled code, and programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError

Apply = Callable[..., Schedule]
Golden = Callable[..., None]
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


@T.prim_func
def pools(A: T.Buffer((11, 12), "int32"), D: T.Buffer((9, 10), "int32")):
    B = T.alloc_buffer((11, 10), "int32")
    for i, j, r in T.grid(11, 10, 3):
        with T.block("B"):
            vi, vj, vr = T.axis.remap("SSR", [i, j, r])
            with T.init():
                B[vi, vj] = 0
            B[vi, vj] = B[vi, vj] + A[vi, vj + vr]
    for i, j, r in T.grid(9, 10, 3):
        with T.block("D"):
            vi, vj, vr = T.axis.remap("SSR", [i, j, r])
            with T.init():
                D[vi, vj] = 0
            D[vi, vj] = D[vi, vj] + B[vi + vr, vj]


@T.prim_func
def chain(A: T.Buffer((20,), "int32"), D: T.Buffer((7,), "int32")):
    B = T.alloc_buffer((20,), "int32")
    C = T.alloc_buffer((16,), "int32")
    for i in T.serial(20):
        with T.block("B"):
            vi = T.axis.spatial(20, i)
            B[vi] = A[vi] * 2
    for i in T.serial(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + B[vi + 4]
    for i in T.serial(7):
        with T.block("D"):
            vi = T.axis.spatial(7, i)
            D[vi] = C[vi * 2] - C[vi * 2 + 1] + C[vi * 2 + 3]


@T.prim_func
def padded(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.if_then_else(vi > 0, B[vi - 1], 5) + B[vi] + T.if_then_else(vi < 7, B[vi + 1], 7)


def compiled_alike(func: PrimFunc, scheduled: PrimFunc) -> None:
    written = {n.buffer.name for n in walk(func.body) if type(n) is BufferStore}
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.integers(-9, 9, [e.as_int() for e in b.shape]).astype(b.dtype) for b in func.params}
    expected = run(func, {n: a for n, a in arrays.items() if n not in written})
    artifact = build(scheduled, TARGET)
    given = [a if n not in written else np.full_like(a, 99) for n, a in arrays.items()]
    Module.from_object(artifact.data)[artifact.functions[0]](*given)
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def roll_rows(s: Schedule) -> None:
    """A row of B slides along the tiles of rows, inside a parallel loop over tiles of columns."""
    i, j, r = s.get_loops(s.get_block("D"))
    i_0, i_1 = s.split(i, [None, *s.sample_tile(i, 2, "i", [range(1, 20)], waste=20.0)])
    j_0, j_1 = s.split(j, [None, *s.sample_tile(j, 2, "j", [range(1, 20)], waste=20.0)])
    s.reorder([j_0, i_0, i_1, r, j_1])
    s.compute_at(s.get_block("B"), i_0)
    s.rolling_buffer(s.get_block("B"), "B")
    s.parallel(j_0)


def test_rolling_buffer(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(pools, roll_rows, [[2], [4]]).func))


@pytest.mark.parametrize("row", list(itertools.product((1, 2, 4, 8, 9, 10), (1, 3, 10))))
def test_rolling_buffer_of_tiles(apply: Apply, row: tuple[int, ...]) -> None:
    compiled_alike(pools, apply(pools, roll_rows, [[x] for x in row]).func)


@pytest.mark.parametrize("tile", [1, 2, 3, 7, 8])
def test_rolling_buffers_of_a_chain(apply: Apply, tile: int) -> None:
    """The consumer is rolled first; its producer is still computed for the whole footprint of the consumer."""

    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("D"))
        i_0, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", [range(1, 20)], waste=20.0)])
        s.compute_at(s.get_block("C"), i_0)
        s.compute_at(s.get_block("B"), i_0)
        s.rolling_buffer(s.get_block("C"), "C")
        s.rolling_buffer(s.get_block("B"), "B")

    s = apply(chain, steps, [[tile]])
    assert [e.as_int() for b in s.func.allocs for e in b.shape] == [2 * tile + 6, 2 * tile + 2]
    compiled_alike(chain, s.func)


@pytest.mark.parametrize("tile", [1, 2, 5, 8])
def test_elements_outside_of_the_buffer_are_not_computed(apply: Apply, tile: int) -> None:
    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("C"))
        i_0, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", [range(1, 20)], waste=20.0)])
        s.compute_at(s.get_block("B"), i_0)
        s.rolling_buffer(s.get_block("B"), "B")

    compiled_alike(padded, apply(padded, steps, [[tile]]).func)


def test_the_first_iteration_apart(apply: Apply, assert_golden: Golden) -> None:
    """In the others the guard is that of the new element, and the loop over elements has one iteration."""

    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("C"))
        s.compute_at(s.get_block("B"), i)
        s.rolling_buffer(s.get_block("B"), "B")
        s.loop_partition(i, [1])

    s = apply(padded, steps)
    compiled_alike(padded, s.func)
    assert_golden(str(CPU(s.func, TARGET)))


def test_a_loop_that_carries_elements_is_not_parallel() -> None:
    s = Schedule(padded)
    (i,) = s.get_loops(s.get_block("C"))
    s.compute_at(s.get_block("B"), i)
    s.rolling_buffer(s.get_block("B"), "B")
    s.parallel(i)
    with pytest.raises(BuildError, match="loop i may carry values of the buffer B from one iteration to another"):
        build(s.func, TARGET)
