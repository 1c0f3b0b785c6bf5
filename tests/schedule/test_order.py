"""Test moves past blocks that access the same buffers but not the same elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]


@T.prim_func
def in_place(A: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = F[vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            F[vi] = B[vi] + 1.0


def test_an_update_in_place_of_the_same_element(apply: Apply) -> None:
    for steps in (lambda s: s.compute_inline(s.get_block("B")), lambda s: s.reverse_compute_inline(s.get_block("C"))):
        s = apply(in_place, steps)
        assert len(s.blocks()) == 2


@T.prim_func
def updated(A: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = A[vi] + 1.0
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            F[vi] = F[vi] + B[vi]


@pytest.mark.parametrize("tile", [1, 3, 8, 9])
def test_an_update_that_runs_once(apply: Apply, tile: int) -> None:
    def steps(s: Schedule) -> None:
        (i,) = s.get_loops(s.get_block("B"))
        outer, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", [range(1, 10)], waste=9.0)])
        s.reverse_compute_at(s.get_block("C"), outer)

    apply(updated, steps, [[tile]])


@T.prim_func
def rows(A: T.Buffer((6, 8), "float32"), D: T.Buffer((6, 8), "float32")):
    S = T.alloc_buffer((6,), "float32")
    E = T.alloc_buffer((6, 8), "float32")
    for i in T.serial(6):
        for u in T.serial(1):
            with T.block("S_init"):
                vi = T.axis.spatial(6, i + u)
                S[vi] = 0.0
        for k in T.serial(8):
            with T.block("S"):
                vi, vk = T.axis.remap("SR", [i, k])
                S[vi] = S[vi] + A[vi, vk]
        for j in T.serial(8):
            with T.block("E"):
                vi, vj = T.axis.remap("SS", [i, j])
                E[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(6, 8):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = E[vi, vj] - S[vi]


@pytest.mark.parametrize("tile", [1, 3, 8, 9])
def test_a_block_before_the_loop_is_ready(apply: Apply, tile: int) -> None:
    """The sum of a row is computed before the loop that the block moves into, and the block reads this sum."""

    def steps(s: Schedule) -> None:
        _, j = s.get_loops(s.get_block("E"))
        outer, _ = s.split(j, [None, *s.sample_tile(j, 2, "j", [range(1, 10)], waste=9.0)])
        s.reverse_compute_at(s.get_block("D"), outer)

    apply(rows, steps, [[tile]])


@T.prim_func
def tiles(A: T.Buffer((9,), "float32"), D: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((9,), "float32")
    C = T.alloc_buffer((8,), "float32")
    for t in T.serial(4):
        for u, k in T.grid(3, 2):
            with T.block("B"):
                vi = T.axis.spatial(9, t * 2 + u)
                vk = T.axis.reduce(2, k)
                with T.init():
                    B[vi] = 0.0
                B[vi] = B[vi] + A[vi] * T.select(vk < 1, T.float32(2.0), T.float32(3.0))
        for u in T.serial(2):
            with T.block("C"):
                vi = T.axis.spatial(8, t * 2 + u)
                C[vi] = B[vi] - B[vi + 1] * 2.0
        for u in T.serial(2):
            with T.block("D"):
                vi = T.axis.spatial(8, t * 2 + u)
                D[vi] = C[vi] + 1.0


MOVES: dict[str, Callable[[Schedule], None]] = {
    "compute_at": lambda s: s.compute_at(s.get_block("C"), s.get_loops(s.get_block("D"))[1]),
    "reverse_compute_at": lambda s: s.reverse_compute_at(s.get_block("D"), s.get_loops(s.get_block("C"))[1]),
    "compute_inline": lambda s: s.compute_inline(s.get_block("C")),
    "reverse_compute_inline": lambda s: s.reverse_compute_inline(s.get_block("D")),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_under_a_loop_around_both(apply: Apply, name: str) -> None:
    """Adjacent tiles recompute shared elements of B with the same values."""
    apply(tiles, MOVES[name])


@T.prim_func
def shifted(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32")):
    E = T.alloc_buffer((4, 6), "float32")
    B = T.alloc_buffer((4, 6), "float32")
    for t in T.serial(4):
        for i in T.serial(6):
            with T.block("E"):
                vt, vi = T.axis.remap("SS", [t, i])
                E[vt, vi] = A[vt, vi] * 3.0
        for i in T.serial(6):
            with T.block("B"):
                vt, vi = T.axis.remap("SS", [t, i])
                B[vt, vi] = E[vt, vi] + 1.0
        for i in T.serial(6):
            with T.block("C"):
                vt, vi = T.axis.remap("SS", [t, i])
                C[vt, vi] = B[vt, vi] + T.select(0 < vt, B[vt - 1, vi], T.float32(0.0))


def test_unchanged_elements_of_earlier_iterations(apply: Apply) -> None:
    """Elements of earlier iterations are recomputed from unchanged data."""
    apply(shifted, lambda s: s.compute_at(s.get_block("B"), s.get_loops(s.get_block("C"))[1]))
    apply(shifted, lambda s: s.compute_inline(s.get_block("B")))


@T.prim_func
def stages(A: T.Buffer((20,), "float32"), D: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((20,), "float32")
    C = T.alloc_buffer((18,), "float32")
    for i in T.serial(20):
        with T.block("B"):
            vi = T.axis.spatial(20, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(18):
        with T.block("C"):
            vi = T.axis.spatial(18, i)
            C[vi] = B[vi] + B[vi + 2]
    for i in T.serial(16):
        with T.block("D"):
            vi = T.axis.spatial(16, i)
            D[vi] = C[vi] + C[vi + 2]


@pytest.mark.parametrize("tile", [1, 3, 16])
def test_a_move_out_of_the_nest_of_its_producer(apply: Apply, tile: int) -> None:
    """The producer was moved there with a halo, and is not moved with the block."""

    def steps(s: Schedule) -> None:
        s.compute_at(s.get_block("B"), s.get_loops(s.get_block("C"))[0])
        (i,) = s.get_loops(s.get_block("D"))
        outer, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", [range(1, 20)], waste=9.0)])
        s.compute_at(s.get_block("C"), outer)

    apply(stages, steps, [[tile]])


@T.prim_func
def followed(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32"), D: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi] + 1.0
        with T.block("D"):
            vj = T.axis.spatial(8, i)
            D[vj] = C[vj] * 3.0


def test_a_consumer_leaves_a_nest_with_a_reader(apply: Apply) -> None:
    """A reader after the block in its nest reads the same elements after the block has moved out of the nest."""
    apply(followed, lambda s: s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[0]))
