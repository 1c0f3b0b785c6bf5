"""Test refusals of schedules that would change results: block instances reordered, run in parallel, or omitted.

Most tests also contain a similar program that satisfies the condition and is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError

Refuse = Callable[..., None]


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


@T.prim_func
def scan(A: T.Buffer((4, 12), "int32"), B: T.Buffer((4, 12), "int32")):
    for i, j in T.grid(4, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = (B[vi, vj - 1] if vj > 0 else 0) + A[vi, vj]


@T.prim_func
def wavefront(A: T.Buffer((5, 7), "int32"), B: T.Buffer((5, 7), "int32")):
    for i, j in T.grid(5, 7):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = (B[vi - 1, vj + 1] if vi > 0 and vj < 6 else 0) + A[vi, vj]


@T.prim_func
def horner(A: T.Buffer((3, 8), "int32"), C: T.Buffer((3,), "int32")):
    for i, k in T.grid(3, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] * 2 + A[vi, vk]


@T.prim_func
def doubled(A: T.Buffer((3, 8), "int32"), C: T.Buffer((3,), "int32")):
    for i, k in T.grid(3, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + (C[vi] + A[vi, vk])


@T.prim_func
def repeated(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for _r, i in T.grid(3, 8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = C[vi] + A[vi]


@T.prim_func
def restarted(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4,), "int32")):
    for _r, i, k in T.grid(3, 4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def pairs(A: T.Buffer((8,), "int32"), C: T.Buffer((4,), "int32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi // 2] = A[vi]


@T.prim_func
def running(A: T.Buffer((16,), "int32"), C: T.Buffer((1,), "int32"), D: T.Buffer((4,), "int32")):
    for ko in T.serial(4):
        for ki in T.serial(4):
            with T.block("C"):
                vk = T.axis.reduce(16, ko * 4 + ki)
                with T.init():
                    C[0] = 0
                C[0] = C[0] + A[vk]
        with T.block("D"):
            vi = T.axis.spatial(4, ko)
            D[vi] = C[0]


@T.prim_func
def guarded(A: T.Buffer((12,), "int32"), C: T.Buffer((12,), "int32")):
    B = T.alloc_buffer((12,), "int32")
    for i in T.serial(12):
        with T.block("B"):
            vi = T.axis.spatial(12, i)
            T.where(i < 8)
            B[vi] = A[vi] * 2
    for i in T.serial(12):
        with T.block("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] if vi < 8 else 5


@T.prim_func
def cut(A: T.Buffer((12,), "int32"), C: T.Buffer((12,), "int32")):
    B = T.alloc_buffer((12,), "int32")
    for i in T.serial(12):
        with T.block("B"):
            vi = T.axis.spatial(12, i)
            B[vi] = A[vi] * 2
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] + 1


@T.prim_func
def padded(A: T.Buffer((8,), "int32"), C: T.Buffer((12,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2
    for i in T.serial(12):
        with T.block("C"):
            vi = T.axis.spatial(12, i)
            C[vi] = B[vi] if vi < 8 else 5


@T.prim_func
def strided(A: T.Buffer((8,), "int32"), C: T.Buffer((16,), "int32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi * 2] = A[vi]


@T.prim_func
def in_place(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = C[7 - vi] + B[vi]


@T.prim_func
def late_init(A: T.Buffer((4, 8), "int32"), C: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.reduce(8, 7 - k)
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def skipped_init(A: T.Buffer((4, 8), "int32"), C: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(k > 2)
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def one_of_many(A: T.Buffer((4,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(4):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] if vi < 4 else 1


@T.prim_func
def scanned(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = (B[vi - 1] if vi > 0 else 0) + A[vi]
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] + 1


@T.prim_func
def added_twice(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2
    for _r, i in T.grid(2, 8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = C[vi] + B[vi]


@T.prim_func
def restarted_inside(A: T.Buffer((8,), "int32"), C: T.Buffer((1,), "int32")):
    for k, _r in T.grid(8, 2):
        with T.block("C"):
            vk = T.axis.reduce(8, k)
            with T.init():
                C[0] = 0
            C[0] = C[0] + A[vk]


@T.prim_func
def init_of_more(A: T.Buffer((4, 3, 8), "int32"), C: T.Buffer((4,), "int32")):
    for i, j, k in T.grid(4, 1, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi] = A[vi, vj + 1, 0]
            C[vi] = C[vi] + A[vi, vj, vk]


@T.prim_func
def diagonal(A: T.Buffer((4,), "int32"), C: T.Buffer((4, 4), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in T.serial(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi] * 2
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi] * B[vj]


def same(s: Schedule, func: PrimFunc) -> None:
    """Check that the interpreter computes the same results with and without the schedule."""
    rng = np.random.default_rng(0)
    args = [rng.integers(0, 9, [e.as_int() for e in p.shape]).astype("int32") for p in func.params]  # type: ignore[union-attr]
    for want, got in zip(run(func, args), run(s.func, args), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- parallel loops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parallel", "vectorize", "bind"])
def test_a_scan_is_independent_along_its_rows_only(name: str, refuse: Refuse) -> None:
    s = Schedule(scan)
    i, j = loops(s, "B")
    step = {"parallel": s.parallel, "vectorize": s.vectorize, "bind": lambda x: s.bind(x, "threadIdx.x")}[name]
    what = "different iterations of loop j may access one element of B: block B writes B[i, j] and block B reads B[i, -1 + j]"
    if name == "parallel":
        refuse("parallel", "independent", what, s, lambda: s.parallel(j))
    elif name == "vectorize":
        refuse("vectorize", "independent", what, s, lambda: s.vectorize(j))
    else:
        refuse("bind", "independent", what, s, lambda: s.bind(j, "threadIdx.x"))
    if name == "vectorize":
        s.reorder([j, i])
    step(i)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("func", "block", "at"), [(repeated, "C", 0), (restarted, "C", 0), (pairs, "C", 0)])
def test_parallel_over_repeated_instances(func: PrimFunc, block: str, at: int) -> None:
    s = Schedule(func)
    with pytest.raises(ScheduleError, match=r"parallel refused \[independent\]: different iterations of loop \w+ may access one element"):
        s.parallel(loops(s, block)[at])


@T.prim_func
def halo(A: T.Buffer((20,), "int32"), C: T.Buffer((16,), "int32")):
    B = T.alloc_buffer((20,), "int32")
    for i in T.serial(20):
        with T.block("B"):
            vi = T.axis.spatial(20, i)
            B[vi] = A[vi] * 2
    for i in T.serial(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + B[vi + 4]


def test_the_same_value_may_be_written_twice(refuse: Refuse) -> None:
    """Footprints of adjacent iterations overlap, but the buffer is private and the overlapping values are equal."""
    s = Schedule(halo)
    outer, _ = s.split(loops(s, "C")[0], [None, 4])
    s.compute_at(s.get_block("B"), outer)
    s.parallel(outer)
    same(s, halo)


def test_fused_and_split_loops_are_analysed() -> None:
    """After split, fuse and reorder, each spatial loop can still be parallel."""
    for take in range(4):
        s = Schedule(restarted)
        _, i, k = loops(s, "C")
        parts = s.split(i, [None, 3])
        if take < 2:
            s.parallel(parts[take])
        elif take == 2:
            s.reorder([parts[1], parts[0], k])
            s.parallel(parts[1])
        else:
            s.parallel(s.split(s.fuse(parts), [None, 5])[1])
        same(s, restarted)


# ---- reordered loops ------------------------------------------------------------------------------------------------------


def test_reorder_dependences(refuse: Refuse) -> None:
    s = Schedule(wavefront)
    i, j = loops(s, "B")
    what = "instances of block B depend on each other along i, j, which must keep their order"
    refuse("reorder", "dependences", what, s, lambda: s.reorder([j, i]))
    s = Schedule(scan)
    i, j = loops(s, "B")
    s.reorder([j, i])
    same(s, scan)


@pytest.mark.parametrize("func", [horner, doubled])
def test_updates_that_are_no_reduction_keep_their_order(func: PrimFunc) -> None:
    s = Schedule(func)
    i, k = loops(s, "C")
    k_0, k_1 = s.split(k, [None, 4])
    with pytest.raises(ScheduleError, match=r"reorder refused \[dependences\]"):
        s.reorder([k_1, k_0])
    with pytest.raises(ScheduleError, match=r"rfactor refused \[reduction\].*does not read C"):
        s.rfactor(k_1)
    s.reorder([k_0, i, k_1])
    s.reorder([k_0, k_1, i])
    s.decompose_reduction(s.get_block("C"), k_0)
    with pytest.raises(ScheduleError, match=r"vectorize refused \[data-parallel\]"):
        s.vectorize(k_1)
    same(s, func)


def test_a_restarted_reduction_keeps_its_order() -> None:
    s = Schedule(restarted)
    r, i, k = loops(s, "C")
    with pytest.raises(ScheduleError, match=r"reorder refused \[dependences\]"):
        s.reorder([k, r])
    s.reorder([i, r, k])
    same(s, restarted)


def test_rfactor_running(refuse: Refuse) -> None:
    s = Schedule(running)
    _, ki = loops(s, "C")
    what = "block D accesses C while block C accumulates into it"
    refuse("rfactor", "running", what, s, lambda: s.rfactor(ki))


# ---- omitted and additional instances ---------------------------------------------------------------------------------------


def test_compute_inline_guard(refuse: Refuse) -> None:
    s = Schedule(guarded)
    what = "block B has a guard other than those of its own extents, which would be lost"
    refuse("compute_inline", "guard", what, s, lambda: s.compute_inline(s.get_block("B")))


def test_reverse_compute_inline_guard(refuse: Refuse) -> None:
    s = Schedule(guarded)
    what = "block B has a guard other than those of its own extents, which would be lost"
    refuse("reverse_compute_inline", "guard", what, s, lambda: s.reverse_compute_inline(s.get_block("C")))


def test_reverse_compute_inline_of_a_part() -> None:
    s = Schedule(cut)
    with pytest.raises(ScheduleError, match=r"same-domain\]: the loops around block C may not cover its domain"):
        s.reverse_compute_inline(s.get_block("C"))


def test_reverse_compute_at_domain(refuse: Refuse) -> None:
    s = Schedule(padded)
    (i,) = loops(s, "B")
    what = "block C runs for elements that block B does not write"
    refuse("reverse_compute_at", "domain", what, s, lambda: s.reverse_compute_at(s.get_block("C"), i))
    s = Schedule(guarded)
    (i,) = loops(s, "B")
    with pytest.raises(ScheduleError, match=r"domain\]: .* the loops around B may not cover its domain"):
        s.reverse_compute_at(s.get_block("C"), i)


def test_reverse_compute_at_independent(refuse: Refuse) -> None:
    s = Schedule(in_place)
    (i,) = loops(s, "B")
    s.parallel(i)
    what = "different iterations of loop i may access one element of C: block C writes C[i + ax0] and block C reads C[7 + -1*i + -1*ax0]"
    refuse("reverse_compute_at", "independent", what, s, lambda: s.reverse_compute_at(s.get_block("C"), i))


def test_cache_write_whole(refuse: Refuse) -> None:
    s = Schedule(strided)
    what = "block C may not write all elements of C; the others would be overwritten"
    refuse("cache_write", "whole", what, s, lambda: s.cache_write(s.get_block("C"), "global"))
    s = Schedule(cut)
    with pytest.raises(ScheduleError, match=r"cache_write refused \[whole\]"):
        s.cache_write(s.get_block("C"), "global")
    s = Schedule(restarted)
    _, i, _ = loops(s, "C")
    s.split(s.split(i, [None, 3])[1], [None, 2])
    s.cache_write(s.get_block("C"), "global")
    same(s, restarted)


def test_compute_at_domain(refuse: Refuse) -> None:
    s = Schedule(one_of_many)
    what = "the loops around block B may not cover its domain; the new loops would run all of it"
    refuse("compute_at", "domain", what, s, lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0]))


# ---- inits that would not run first ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("func", [late_init, skipped_init])
def test_rfactor_first(func: PrimFunc, refuse: Refuse) -> None:
    s = Schedule(func)
    what = {
        "late_init": "the reduction of block C may not start in the first iteration of its loops, or may start more than once",
        "skipped_init": "the guard 2 + -1*k < 0 of block C may exclude the first step of its reduction",
    }[func.name]
    refuse("rfactor", "first", what, s, lambda: s.rfactor(loops(s, "C")[1]))


@pytest.mark.parametrize("func", [late_init, skipped_init])
def test_cache_reduction_first(func: PrimFunc, refuse: Refuse) -> None:
    s = Schedule(func)
    what = {
        "late_init": "the reduction of block C may not start in the first iteration of its loops, or may start more than once",
        "skipped_init": "the guard 2 + -1*k < 0 of block C may exclude the first step of its reduction",
    }[func.name]
    refuse("cache_reduction", "first", what, s, lambda: s.cache_reduction(s.get_block("C"), loops(s, "C")[1], "global"))


def test_reductions_that_restart_inside_are_not_divided() -> None:
    s = Schedule(restarted_inside)
    with pytest.raises(ScheduleError, match=r"rfactor refused \[first\]"):
        s.rfactor(loops(s, "C")[0])


def test_compute_at_own_values(refuse: Refuse) -> None:
    s = Schedule(scanned)
    what = "block B reads elements of B that its other instances write"
    refuse("compute_at", "own-values", what, s, lambda: s.compute_at(s.get_block("B"), loops(s, "C")[0]))


def test_updates_that_are_repeated_are_not_moved() -> None:
    s = Schedule(added_twice)
    with pytest.raises(ScheduleError, match=r"reverse_compute_at refused \[once\]: block C reads the buffer it writes, and its loops"):
        s.reverse_compute_at(s.get_block("C"), loops(s, "B")[0])


def test_an_init_of_more_than_the_element() -> None:
    s = Schedule(init_of_more)
    with pytest.raises(ScheduleError, match=r"cache_reduction refused \[reduction\]: the init of block C depends on iteration variables"):
        s.cache_reduction(s.get_block("C"), loops(s, "C")[0], "global")


def test_a_consumer_of_all_pairs_is_not_moved_to_one_element() -> None:
    s = Schedule(diagonal)
    with pytest.raises(ScheduleError, match=r"reverse_compute_at refused \[domain\]"):
        s.reverse_compute_at(s.get_block("C"), loops(s, "B")[0])


def test_a_fused_loop_that_restarts_a_reduction() -> None:
    s = Schedule(restarted)
    r, i, _ = loops(s, "C")
    fused = s.fuse([r, i])
    with pytest.raises(ScheduleError, match=r"decompose_reduction refused \[once\]"):
        s.decompose_reduction(s.get_block("C"), fused)
