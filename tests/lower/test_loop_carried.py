"""Buffers that carry values between iterations of a loop are allocated outside it, other buffers inside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.plan_allocations import plan_allocations
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError

Lowered = Callable[..., PrimFunc]
TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")


@T.prim_func
def window(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):
    B = T.alloc_buffer((17,), "int32")
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 2
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + B[vi - 1] if vi > 0 else B[vi]


@T.prim_func
def running(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):
    B = T.alloc_buffer((1,), "int32")
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.reduce(16, i)
            with T.init():
                B[0] = 0
            B[0] = B[0] + A[vi]
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[0]


@T.prim_func
def ahead(A: T.Buffer((16,), "int32"), C: T.Buffer((16,), "int32")):
    B = T.alloc_buffer((18,), "int32")
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi + 1] = A[vi] * 2
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] if vi > 0 else 7


@T.prim_func
def first_only(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    B = T.alloc_buffer((6,), "int32")
    for i in T.serial(4):
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.where(i < 1)
                B[vj] = A[vi, vj] * 2
        for j in T.serial(6):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vj] + A[vi, vj]


@T.prim_func
def after(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    B = T.alloc_buffer((6,), "int32")
    for j in T.serial(6):
        with T.block("Z"):
            vj = T.axis.spatial(6, j)
            B[vj] = 1
    for i in T.serial(4):
        for j in T.serial(6):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vj]
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[5 - vj] = A[vi, vj]


@T.prim_func
def within(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(4):
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vj + 1] = A[vi, vj] * 2
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vj] if vj > 0 else 0


CARRIED = {"window": window, "running": running, "ahead": ahead, "first_only": first_only}


def loops_inside(func: PrimFunc) -> int:
    """The number of loops around the allocation."""
    (made,) = [n for n in walk(func.body) if type(n) is Allocate]
    return sum(type(n) is For for n in walk(func.body)) - sum(type(n) is For for n in walk(made))


@pytest.mark.parametrize("name", [*CARRIED, "after", "within"])
def test_values_reach_later_iterations(name: str) -> None:
    func = {**CARRIED, "after": after, "within": within}[name]
    args = [np.arange(np.prod(shape), dtype="int32").reshape(shape) for b in func.buffers[:2] for shape in [[e.as_int() for e in b.shape]]]
    want = run(func, args)[-1]
    out = np.zeros_like(args[-1])
    tunesmith.build(func, TARGET)[func.name](args[0], out)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("name", CARRIED)
def test_carried_values_are_allocated_outside_the_loop(name: str, lowered: Lowered) -> None:
    assert loops_inside(lowered(lower_blocks(CARRIED[name], TARGET), plan_allocations)) == 0


@T.prim_func
def private(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4, 6), "int32")):
    B = T.alloc_buffer((6,), "int32")
    for i in T.serial(4):
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vj] = A[vi, vj] * 2
        for j in T.serial(6):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[5 - vj]


def test_values_of_one_iteration_are_allocated_inside_it(lowered: Lowered) -> None:
    assert loops_inside(lowered(lower_blocks(private, TARGET), plan_allocations)) == 1


def test_parallel_loops_must_not_carry_values() -> None:
    s = Schedule(private)
    s.parallel(s.get_loops(s.get_block("C"))[0])
    tunesmith.build(s, TARGET)
    s = Schedule(first_only)
    s.parallel(s.get_loops(s.get_block("C"))[0])
    with pytest.raises(BuildError, match="first_only: the parallel loop i may carry values of the buffer B from one iteration to another"):
        tunesmith.build(s, TARGET)


@T.prim_func
def triangular(A: T.Buffer((6, 6), "int32"), C: T.Buffer((6, 6), "int32")):
    B = T.alloc_buffer((6, 6), "int32")
    for i in T.serial(6):
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2
        for j in T.serial(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj]


def test_memory_of_triangular_loops(lowered: Lowered) -> None:
    done = lowered(lower_blocks(triangular, TARGET), plan_allocations)
    assert loops_inside(done) == 1
    a = np.arange(36, dtype="int32").reshape(6, 6)
    c = np.zeros_like(a)
    tunesmith.build(triangular, TARGET)["triangular"](a, c)
    np.testing.assert_array_equal(c, np.tril(2 * a))


@pytest.mark.parametrize("bound", [13, 16])
def test_a_guard_of_the_read_bounds_what_must_be_written(bound: int) -> None:
    """The loop `at` runs once more than needed: its last iteration writes and reads nothing."""

    source = f"""
@T.prim_func
def packed(A: T.Buffer((5, {bound}), "int32"), C: T.Buffer((4, {bound}), "int32")):
    B = T.alloc_buffer((1, 5, 16), "int32", scope="workspace")
    for i in T.parallel(4):
        for at in T.serial(2):
            for k, j in T.grid(5, 16):
                with T.block("B"):
                    v = T.axis.spatial(1, at)
                    vk, vj = T.axis.remap("SS", [k, j])
                    T.where(at < 1)
                    B[v, vk, vj] = T.select(vj < {bound}, A[vk, vj], 0)
            for j in T.serial(16):
                with T.block("C"):
                    vi = T.axis.spatial(4, i)
                    vj = T.axis.spatial({bound}, at * 16 + j)
                    T.where(at * 16 + j < {bound})
                    C[vi, vj] = B[vj // 16, vi, vj % 16]
"""
    func = parse(source)
    a, c = np.arange(5 * bound, dtype="int32").reshape(5, bound), np.zeros((4, bound), "int32")
    tunesmith.build(func, TARGET)["packed"](a, c)
    np.testing.assert_array_equal(c, a[:4])
    unguarded = parse(source.replace("T.where(at < 1)", "T.where(at * 16 + j + k < 16)"))
    with pytest.raises(BuildError, match="may carry values of the buffer B"):
        tunesmith.build(unguarded, TARGET)


@pytest.mark.parametrize("bound", [1, 2])
def test_a_guard_on_a_loop_of_the_read_bounds_what_must_be_written(bound: int) -> None:
    """A vector of 16 rows of which one is needed: the one that the iteration of the parallel loop wrote."""
    source = f"""
@T.prim_func
def rows(A: T.Buffer((4, 32), "int32"), C: T.Buffer((128, 16), "int32")):
    B = T.alloc_buffer((4, 32), "int32", scope="workspace")
    for i in T.parallel(128):
        with T.block("B"):
            vi = T.axis.spatial(4, i // 32)
            vj = T.axis.spatial(32, i % 32)
            B[vi, vj] = A[vi, vj] + 1
        for j in T.vectorized(16):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.where(i % 32 + j < 32)
                T.where(j < {bound})
                C[vi, vj] = B[vi // 32, vi % 32 + vj] * 2
"""
    if bound == 2:
        with pytest.raises(BuildError, match="may carry values of the buffer B"):
            tunesmith.build(parse(source), TARGET)
        return
    a, c = np.arange(128, dtype="int32").reshape(4, 32), np.zeros((128, 16), "int32")
    tunesmith.build(parse(source), TARGET)["rows"](a, c)
    np.testing.assert_array_equal(c[:, 0], 2 * a.reshape(128) + 2)


@pytest.mark.parametrize(("last", "carries"), [("T.ceildiv(n, 2)", False), ("T.ceildiv(n, 2) + 1", True)])
def test_a_guard_on_a_quotient_is_a_guard_on_its_dividend(last: str, carries: bool) -> None:
    """i // d < 1 holds where i < d, but not for i = d: there, C would read what another iteration wrote."""
    func = parse(f"""
@T.prim_func
def pairs(A: T.Buffer((1, n), "int32"), C: T.Buffer((1, n), "int32"), n: T.int64):
    T.func_attr({{"size_ranges": "n=5..16"}})
    B = T.alloc_buffer((1, n), "int32", scope="register")
    for i in T.parallel(T.ceildiv(n, 2) + 3):
        for one in T.serial(1):
            for j in T.serial(2):
                with T.block("B"):
                    v = T.axis.spatial(1, i // T.ceildiv(n, 2) + one)
                    vj = T.axis.spatial(n, i % T.ceildiv(n, 2) * 2 + j)
                    T.where(i // T.ceildiv(n, 2) + one < 1)
                    T.where(i % T.ceildiv(n, 2) * 2 + j < n)
                    B[v, vj] = A[v, vj] + 1
        for j in T.serial(2):
            with T.block("C"):
                v = T.axis.spatial(1, i // T.ceildiv(n, 2))
                vj = T.axis.spatial(n, i % T.ceildiv(n, 2) * 2 + j)
                T.where(i % T.ceildiv(n, 2) * 2 + j < n)
                T.where(i < {last})
                C[v, vj] = B[v, vj] * 2
""")
    if carries:
        with pytest.raises(BuildError, match="may carry values of the buffer B"):
            tunesmith.build(func, TARGET)
        return
    a, c = np.arange(11, dtype="int32").reshape(1, 11), np.zeros((1, 11), "int32")
    tunesmith.build(func, TARGET)["pairs"](a, c, 11)
    np.testing.assert_array_equal(c, 2 * a + 2)


@pytest.mark.parametrize(("extent", "carries"), [("n * 6", False), ("n * 7", True)])
def test_the_extent_of_a_loop_bounds_a_guard_on_its_quotient(extent: str, carries: bool) -> None:
    """The reads have no guard on the batch: 2 * i + k < 12 * n follows from the extent of i, also for unknown n."""
    func = parse(f"""
@T.prim_func
def heads(A: T.Buffer((2, 12, n), "int32"), C: T.Buffer((2, 12, n), "int32"), n: T.int64):
    T.func_attr({{"size_ranges": "n=5..16"}})
    B = T.alloc_buffer((1,), "int32", scope="register")
    for i in T.parallel({extent}):
        for k in T.serial(2):
            with T.block("B"):
                v = T.axis.spatial(2, (i * 2 + k) // n // 12)
                vh = T.axis.spatial(12, (i * 2 + k) // n % 12)
                vj = T.axis.spatial(n, (i * 2 + k) % n)
                T.where((i * 2 + k) // n // 12 < 1)
                B[0] = A[v, vh, vj] + 1
            with T.block("C"):
                v = T.axis.spatial(2, (i * 2 + k) // n // 12)
                vh = T.axis.spatial(12, (i * 2 + k) // n % 12)
                vj = T.axis.spatial(n, (i * 2 + k) % n)
                C[v, vh, vj] = B[0] * 2
""")
    if carries:
        with pytest.raises(BuildError, match="may carry values of the buffer B"):
            tunesmith.build(func, TARGET)
        return
    a, c = np.arange(24 * 11, dtype="int32").reshape(2, 12, 11), np.zeros((2, 12, 11), "int32")
    tunesmith.build(func, TARGET)["heads"](a, c, 11)
    np.testing.assert_array_equal(c[0], 2 * a[0] + 2)


WINDOWS = """
@T.prim_func
def windows(A: T.Buffer((4, 8), "int32"), W: T.Buffer((3,), "int32"), C: T.Buffer((4, 8), "int32")):
    B = T.alloc_buffer((12,), "int32", scope="workspace")
    for i in T.parallel(4):
        for j in T.serial(8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vj + 1] = A[vi, vj] * 2
        for j, r in T.grid(8, 3):
            with T.block("C"):
                vi, vj, vr = T.axis.remap("SSR", [i, j, r])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] = C[vi, vj] + T.select(1 <= vj + vr and vj + vr < 9, B[vj + vr], 0) * W[vr]
"""


def test_conditions_of_the_read_bound_it_below_and_above() -> None:
    """A window reads one element before the start and one after the end of the row unless conditions exclude them."""
    a, c = np.arange(32, dtype="int32").reshape(4, 8), np.zeros((4, 8), "int32")
    tunesmith.build(parse(WINDOWS), TARGET)["windows"](a, np.array([1, 3, 5], "int32"), c)
    padded = np.pad(2 * a, ((0, 0), (1, 1)))
    np.testing.assert_array_equal(c, padded[:, :-2] + 3 * padded[:, 1:-1] + 5 * padded[:, 2:])


@pytest.mark.parametrize("condition", ["1 <= vj + vr", "vj + vr < 9", "0 <= vj + vr and vj + vr < 9", "1 <= vj + vr and vj + vr < 10"])
def test_conditions_that_bound_the_read_less_are_not_enough(condition: str) -> None:
    source = WINDOWS.replace("1 <= vj + vr and vj + vr < 9", condition)
    with pytest.raises(BuildError, match="may carry values of the buffer B"):
        tunesmith.build(parse(source), TARGET)


def test_a_guard_that_holds_in_a_later_iteration_of_another_loop() -> None:
    """`c + w > 0` leaves out element 0 for c = 0 only: element 0 of c = 1 is read in the next iteration of p."""
    func = parse("""
@T.prim_func
def later(X: T.Buffer((3, 2, 2), "float32"), O: T.Buffer((3, 2, 2), "float32")):
    B = T.alloc_buffer((2,), "float32")
    for p in T.serial(3):
        for c in T.serial(2):
            for w in T.serial(2):
                if c + w > 0:
                    B[w] = X[p, c, w]
            for r in T.serial(2):
                O[p, c, r] = 0.0
                if p + c + r > 0:
                    O[p, c, r] = B[r]
""")
    assert loops_inside(plan_allocations(func, TARGET)) == 0
    x, found = np.arange(1, 13, dtype=np.float32).reshape(3, 2, 2), np.zeros((3, 2, 2), np.float32)
    tunesmith.build(func, TARGET)["later"](x, found)
    np.testing.assert_array_equal(found, run(func, [x])[-1])
