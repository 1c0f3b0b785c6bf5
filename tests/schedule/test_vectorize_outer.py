"""Test vectorize of loops that are not innermost: vectors inside serial loops, in the interpreter and compiled."""

from __future__ import annotations

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
from tunesmith.support.errors import ScheduleError

Apply = Callable[..., Schedule]
Golden = Callable[..., None]
TARGETS = (Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1"), Target.detect())


@T.prim_func
def matmul(A: T.Buffer((3, 6), "float32"), B: T.Buffer((6, 11), "float32"), C: T.Buffer((3, 11), "float32")):
    for i, j, k in T.grid(3, 11, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def scaled(A: T.Buffer((11, 5), "float32"), B: T.Buffer((5,), "float32"), C: T.Buffer((11, 5), "float32")):
    for i, j in T.grid(11, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] / B[vj]


@T.prim_func
def scan(A: T.Buffer((7, 9), "float32"), C: T.Buffer((7, 9), "float32")):
    for j, i in T.grid(9, 7):
        with T.block("C"):
            vj, vi = T.axis.remap("SS", [j, i])
            C[vi, vj] = T.if_then_else(vi > 0, C[vi - 1, vj], T.float32(0.0)) + A[vi, vj]


def outer(block: str, at: int) -> Callable[[Schedule], None]:
    """Tile loop `at` of the block, vectorize the inner part where it is, and tile a loop inside."""

    def steps(s: Schedule) -> None:
        loops = s.get_loops(s.get_block(block))
        _, lanes = s.split(loops[at], [None, *s.sample_tile(loops[at], 2, "a", [range(1, 20)], waste=20.0)])
        inner = s.get_loops(s.get_block(block))[-1]
        s.split(inner, [None, *s.sample_tile(inner, 2, "b", [range(1, 20)], waste=20.0)])
        s.vectorize(lanes)

    return steps


def same(func: PrimFunc, scheduled: PrimFunc, target: Target) -> None:
    written = {n.buffer.name for n in walk(func.body) if type(n) is BufferStore}
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.integers(1, 5, [e.as_int() for e in b.shape]).astype("float32") for b in func.params}
    expected = run(func, {n: a for n, a in arrays.items() if n not in written})
    artifact = build(scheduled, target)
    given = [a if n not in written else np.full_like(a, np.nan) for n, a in arrays.items()]
    Module.from_object(artifact.data)[artifact.functions[0]](*given)
    for a, b in zip(given, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(("func", "at"), [(matmul, 1), (matmul, 0), (scaled, 0), (scan, 0)], ids=lambda x: getattr(x, "name", str(x)))
@pytest.mark.parametrize("decisions", [[[4], [2]], [[5], [4]], [[1], [1]], [[16], [9]]], ids=str)
def test_an_outer_loop(apply: Apply, func: PrimFunc, at: int, decisions: list[list[int]]) -> None:
    s = apply(func, outer("C", at), decisions)
    for target in TARGETS:
        same(func, s.func, target)


def test_serial_loops_around_vectors(assert_golden: Golden) -> None:
    """The reduction loop is serial around vectors of j; nothing is scalar."""
    s = Schedule(matmul)
    _, j, _ = s.get_loops(s.get_block("C"))
    s.vectorize(j)
    assert_golden(str(CPU(s.func, TARGETS[0])))


def test_a_quotient_of_an_inner_loop_stays_in_it() -> None:
    """The divisor is uniform over the lanes but not over the loop between them, so its reciprocal is not hoisted."""
    s = Schedule(scaled)
    i, _ = s.get_loops(s.get_block("C"))
    s.vectorize(i)
    same(scaled, s.func, TARGETS[0])


def test_a_block_moved_into_the_loop_is_not_run_in_lockstep() -> None:
    """Lanes recompute shared elements of a reduction, which must be complete in one lane before another starts it."""

    @T.prim_func
    def windows(A: T.Buffer((10, 4), "float32"), D: T.Buffer((8, 3), "float32")):
        S = T.alloc_buffer((10,), "float32")
        for i, k in T.grid(10, 4):
            with T.block("S"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = 0.0
                S[vi] = S[vi] + A[vi, vk]
        for i, r in T.grid(8, 3):
            with T.block("D"):
                vi, vr = T.axis.remap("SS", [i, r])
                D[vi, vr] = S[vi + vr]

    for at in (0, 1):
        s = Schedule(windows)
        loops = s.get_loops(s.get_block("D"))
        s.vectorize(loops[0])
        s.compute_at(s.get_block("S"), loops[at])
        for target in TARGETS:
            same(windows, s.func, target)


@T.prim_func
def two_outputs(A: T.Buffer((6, 11), "float32"), C: T.Buffer((6, 11), "float32"), D: T.Buffer((6, 11), "float32")):
    B = T.alloc_buffer((6, 11), "float32")
    for i, j in T.grid(6, 11):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(6, 11):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(6, 11):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi, vj] - A[vi, vj]


def all_in_one(s: Schedule) -> None:
    """All blocks in one loop nest, without loops of their own."""
    i, j = s.get_loops(s.get_block("B"))
    tiles = s.split(j, [None, *s.sample_tile(j, 2, "j", [range(1, 20)], waste=20.0)])
    s.reorder([i, tiles[0], tiles[1]])
    for name in "CD":
        s.reverse_compute_at(s.get_block(name), tiles[1], preserve_unit_loops=False)
    s.vectorize(tiles[1])


@pytest.mark.parametrize("tile", [1, 4, 8, 12])
def test_several_blocks(apply: Apply, tile: int) -> None:
    s = apply(two_outputs, all_in_one, [[tile]])
    for target in TARGETS:
        same(two_outputs, s.func, target)


def test_several_blocks_become_vectors(assert_golden: Golden) -> None:
    """The intermediate is allocated outside of the vectorized loop, with an element for each lane."""
    s = Schedule(two_outputs, decisions=[[8]])
    all_in_one(s)
    assert_golden(str(CPU(s.func, TARGETS[0])))


def test_blocks_that_exchange_elements_between_lanes_are_refused() -> None:
    @T.prim_func
    def shifted(A: T.Buffer((9,), "float32"), B: T.Buffer((9,), "float32"), C: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("B"):
                v = T.axis.spatial(8, i)
                B[v] = A[v]
            with T.block("C"):
                v = T.axis.spatial(8, i)
                C[v] = B[v + 1]

    s = Schedule(shifted)
    with pytest.raises(ScheduleError, match=r"vectorize refused \[independent\]"):
        s.vectorize(s.get_loops(s.get_block("C"))[0])
