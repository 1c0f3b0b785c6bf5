"""Test refusals of merge and reuse_buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

On = Callable[[str], Schedule]
Refuse = Callable[..., None]


@T.prim_func
def neighbours(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for j in T.serial(8):
        with T.block("C"):
            vj = T.axis.spatial(8, j)
            C[vj] = T.select(vj < 7, B[vj + 1], T.float32(0.0))


@T.prim_func
def ring(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for j in T.serial(8):
        with T.block("C"):
            vj = T.axis.spatial(8, j)
            C[vj] = B[(vj - 1) % 8]


@T.prim_func
def later(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32"), D: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for j in T.serial(8):
        with T.block("C"):
            vj = T.axis.spatial(8, j)
            C[vj] = B[vj] + 1.0
    for k in T.serial(8):
        with T.block("D"):
            vk = T.axis.spatial(8, k)
            D[vk] = B[vk] * 3.0


@T.prim_func
def triangles(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    for i in T.serial(4):
        for j in T.serial(i + 1):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]
        for k in T.serial(4):
            with T.block("C"):
                wi, wk = T.axis.remap("SS", [i, k])
                C[wi, wk] = A[wi, wk]


@T.prim_func
def outputs(
    A: T.Buffer((4, 4), "float32"),
    C: T.Buffer((4, 4), "float32"),
    D: T.Buffer((4, 4), "float32"),
    F: T.Buffer((4, 5), "float32"),
    G: T.Buffer((4, 4), "float64"),
    H: T.Buffer((4, 4), "float32"),
    R: T.Buffer((4,), "float32"),
):
    B = T.alloc_buffer((4, 4), "float32")
    P = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(4, 4):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi, vj] + B[vj, vi]
    for i, j in T.grid(4, 4):
        with T.block("F"):
            vi, vj = T.axis.remap("SS", [i, j])
            F[vi, vj] = B[vi, vj]
    for i, j in T.grid(4, 4):
        with T.block("G"):
            vi, vj = T.axis.remap("SS", [i, j])
            G[vi, vj] = T.cast(B[vi, vj], "float64")
    for i, j in T.grid(4, 4):
        with T.block("R"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                R[vi] = 0.0
            R[vi] = R[vi] + B[vi, vj]
    for i, j in T.grid(4, 4):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            P[vi, vj] = C[vi, vj] * 3.0
    for i, j in T.grid(4, 4):
        with T.block("H"):
            vi, vj = T.axis.remap("SS", [i, j])
            H[vi, vj] = P[vi, vj] + B[vi, vj]


@T.prim_func
def repeated(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32"), D: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    E = T.alloc_buffer((8,), "float32")
    for _r in T.serial(2):
        for i in T.serial(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] * 2.0
        for i in T.serial(8):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                C[vi] = B[vi] + 1.0
    for i in T.serial(8):
        with T.block("E"):
            vi = T.axis.spatial(8, i)
            E[vi] = A[vi] * 2.0
    for _r in T.serial(2):
        for i in T.serial(8):
            with T.block("D"):
                vi = T.axis.spatial(8, i)
                D[vi] = E[vi] + 1.0


@T.prim_func
def parts(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32"), D: T.Buffer((8,), "float32"), F: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    E = T.alloc_buffer((8,), "float32")
    G = T.alloc_buffer((8,), "float32")
    for i in T.serial(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(6):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = B[vi] + 1.0
    for i in T.serial(8):
        with T.block("E"):
            vi = T.axis.spatial(8, i)
            E[vi] = A[vi] * 2.0
    for i in T.serial(8):
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            T.where(i < 6)
            D[vi] = E[vi] + 1.0
    for i in T.serial(8):
        with T.block("F"):
            vi = T.axis.spatial(8, i)
            F[vi] = G[vi] + 1.0
    for i in T.serial(8):
        with T.block("G"):
            vi = T.axis.spatial(8, i)
            G[vi] = A[vi] * 2.0


@T.prim_func
def before(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 6), "float32"), D: T.Buffer((4, 6), "float32")):
    B = T.alloc_buffer((4, 6), "float32")
    for i in T.serial(4):
        for j in T.serial(6):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
        for j in T.serial(6):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.select(0 < vi, B[vi - 1, vj], T.float32(0.0))
        for j in T.serial(6):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] + 1.0


@T.prim_func
def means(A: T.Buffer((4, 8), "float32"), D: T.Buffer((4,), "float32")):
    C = T.alloc_buffer((4,), "float32")
    for i in T.serial(4):
        for k in T.serial(8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            D[vi] = C[vi] / 8.0


def loops(s: Schedule, block: str) -> list[Any]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


def reuse(s: Schedule, block: str, into: str) -> Callable[[], None]:
    return lambda: s.reuse_buffer(s.get_block(block), s.get_block(into))


# ---- merge


@pytest.mark.parametrize(("first", "second"), [("C", "B"), ("B", "B")])
def test_merge_siblings(on: On, refuse: Refuse, first: str, second: str) -> None:
    s = on("chain")
    message = "loop i is not before loop i in the same sequence of statements"
    refuse("merge", "siblings", message, s, lambda: s.merge(loops(s, first)[0], loops(s, second)[0]))


def test_merge_siblings_2(on: On, refuse: Refuse) -> None:
    s = on("chain")
    message = "loop i is not before loop j in the same sequence of statements"
    refuse("merge", "siblings", message, s, lambda: s.merge(loops(s, "B")[0], loops(s, "C")[1]))


def test_merge_serial(on: On, refuse: Refuse) -> None:
    s = on("chain")
    s.parallel(loops(s, "B")[0])
    message = "loop i is parallel or annotated; merge before marking loops"
    refuse("merge", "serial", message, s, lambda: s.merge(loops(s, "B")[0], loops(s, "C")[0]))


def test_merge_same_extent(on: On, refuse: Refuse) -> None:
    s = on("half")
    message = "loops i and i have different extents, 8 and 4"
    refuse("merge", "same-extent", message, s, lambda: s.merge(loops(s, "B")[0], loops(s, "C")[0]))


def test_merge_same_extent_2(refuse: Refuse) -> None:
    s = Schedule(triangles)
    message = "loops j and k have different extents, 1 + i and 4: -3 + i depends on a loop variable"
    refuse("merge", "same-extent", message, s, lambda: s.merge(loops(s, "B")[1], loops(s, "C")[1]))


def test_merge_between(on: On, refuse: Refuse) -> None:
    s = on("chain")
    message = "B is used between loops i and i"
    refuse("merge", "between", message, s, lambda: s.merge(loops(s, "B")[0], loops(s, "D")[0]))


@pytest.mark.parametrize("func", [neighbours, ring], ids=lambda f: f.name)
def test_merge_apart(refuse: Refuse, func: PrimFunc) -> None:
    """The next element, and the previous one modulo the extent."""
    s = Schedule(func)
    message = "different iterations of the loops may access the same element of B"
    refuse("merge", "apart", message, s, lambda: s.merge(loops(s, "B")[0], loops(s, "C")[0]))


def test_merge_apart_of_tiles_of_other_factors(on: On, refuse: Refuse) -> None:
    s = on("chain")
    outer = [s.split(loops(s, b)[1], [2, f])[0] for b, f in (("B", 3), ("C", 4))]
    s.merge(loops(s, "B")[0], loops(s, "C")[0])
    message = "different iterations of the loops may access the same element of B"
    refuse("merge", "apart", message, s, lambda: s.merge(*outer))


def test_merge_apart_of_a_sum(on: On, refuse: Refuse) -> None:
    s = on("scaled")
    merged = s.merge(loops(s, "S")[0], loops(s, "D")[0])
    assert [b.block for b in s.get_child_blocks(merged)] == ["S", "D"]
    message = "different iterations of the loops may access the same element of S"
    refuse("merge", "apart", message, s, lambda: s.merge(loops(s, "S")[1], loops(s, "D")[1]))


def test_merge_loop_exists(on: On, refuse: Refuse) -> None:
    s = on("chain")
    first, second = loops(s, "B")[0], loops(s, "C")[0]
    s.merge(first, second)
    refuse("merge", "loop-exists", "was consumed by merge (step 4)", s, lambda: s.merge(first, second))


# ---- reuse_buffer


def test_reuse_buffer_intermediate(refuse: Refuse) -> None:
    s = Schedule(outputs)
    refuse("reuse_buffer", "intermediate", "block C does not write a single intermediate buffer in memory", s, reuse(s, "C", "H"))


def test_reuse_buffer_intermediate_2(refuse: Refuse) -> None:
    s = Schedule(outputs)
    s.set_scope(s.get_block("B"), "register")
    refuse("reuse_buffer", "intermediate", "block B does not write a single intermediate buffer in memory", s, reuse(s, "B", "C"))


def test_reuse_buffer_intermediate_3(on: On, refuse: Refuse) -> None:
    s = on("dense")
    s.decompose_reduction(s.get_block("C"), loops(s, "C")[2])
    refuse("reuse_buffer", "intermediate", "C has another writer", s, reuse(s, "C", "D"))


def test_reuse_buffer_output(refuse: Refuse) -> None:
    s = Schedule(outputs)
    refuse("reuse_buffer", "output", "block R is not a single store without reduction", s, reuse(s, "B", "R"))


def test_reuse_buffer_output_2(refuse: Refuse) -> None:
    """C is read again."""
    s = Schedule(outputs)
    refuse("reuse_buffer", "output", "C is not a parameter that only block C accesses", s, reuse(s, "B", "C"))


def test_reuse_buffer_output_3(refuse: Refuse) -> None:
    s = Schedule(outputs)
    refuse("reuse_buffer", "output", "P is not a parameter that only block P accesses", s, reuse(s, "B", "P"))


@pytest.mark.parametrize("into", ["F", "G"])
def test_reuse_buffer_same_shape(refuse: Refuse, into: str) -> None:
    s = Schedule(outputs)
    refuse("reuse_buffer", "same-shape", f"B and {into} differ in shape or type", s, reuse(s, "B", into))


def test_reuse_buffer_in_place(refuse: Refuse) -> None:
    s = Schedule(outputs)
    refuse("reuse_buffer", "in-place", "block D does not read B exactly where it writes D", s, reuse(s, "B", "D"))


def test_reuse_buffer_in_place_2(refuse: Refuse) -> None:
    s = Schedule(parts)
    refuse("reuse_buffer", "in-place", "block F does not read B exactly where it writes F", s, reuse(s, "B", "F"))


def test_reuse_buffer_order(refuse: Refuse) -> None:
    s = Schedule(parts)
    refuse("reuse_buffer", "order", "block G comes after block F", s, reuse(s, "G", "F"))


@pytest.mark.parametrize("together", [False, True])
def test_reuse_buffer_order_of_readers(refuse: Refuse, together: bool) -> None:
    """D reads after C, in its own nest or in that of B and C."""
    s = Schedule(later)
    if together:
        s.merge(s.merge(loops(s, "B")[0], loops(s, "C")[0]), loops(s, "D")[0])
    message = "B is used outside the loops around B and C, or not before C"
    refuse("reuse_buffer", "order", message, s, reuse(s, "B", "C"))


def test_reuse_buffer_order_of_readers_outside(refuse: Refuse) -> None:
    s = Schedule(later)
    s.merge(loops(s, "B")[0], loops(s, "C")[0])
    message = "B is used outside the loops around B and C, or not before C"
    refuse("reuse_buffer", "order", message, s, reuse(s, "B", "C"))


def test_reuse_buffer_order_of_a_reader_beside_it(refuse: Refuse) -> None:
    """D reads in the nest of C."""
    s = Schedule(later)
    s.merge(loops(s, "C")[0], loops(s, "D")[0])
    refuse("reuse_buffer", "order", "B is used outside the loops around B and C, or not before C", s, reuse(s, "B", "C"))


def test_reuse_buffer_apart(refuse: Refuse) -> None:
    """Each element is computed twice."""
    s = Schedule(repeated)
    refuse("reuse_buffer", "apart", "different iterations of loop _r may access the same element of B", s, reuse(s, "B", "C"))


def test_reuse_buffer_apart_of_readers(refuse: Refuse) -> None:
    """D reads the previous row, which is already replaced."""
    s = Schedule(before)
    refuse("reuse_buffer", "apart", "different iterations of loop i may access the same element of B", s, reuse(s, "B", "C"))


def test_reuse_buffer_once(refuse: Refuse) -> None:
    s = Schedule(repeated)
    refuse("reuse_buffer", "once", "the loops of block D do not visit each element of D once", s, reuse(s, "E", "D"))


def test_reuse_buffer_guard(refuse: Refuse) -> None:
    s = Schedule(parts)
    refuse("reuse_buffer", "guard", "block D writes only where -6 + i < 0", s, reuse(s, "E", "D"))


def test_reuse_buffer_covers(refuse: Refuse) -> None:
    s = Schedule(parts)
    refuse("reuse_buffer", "covers", "block C does not overwrite all elements of C that would hold values of B", s, reuse(s, "B", "C"))


def test_reuse_buffer_block_exists(refuse: Refuse) -> None:
    s = Schedule(parts)
    b, c = s.get_block("B"), s.get_block("C")
    s.compute_inline(b)
    refuse("reuse_buffer", "block-exists", "there is no block 'B'", s, lambda: s.reuse_buffer(b, c))


def test_cache_reduction_read_after_in_place(refuse: Refuse) -> None:
    """D updates the sum in place, before the cache would be written back."""
    s = Schedule(means)
    s.reuse_buffer(s.get_block("C"), s.get_block("D"))
    i, _ = loops(s, "C")
    message = "D is used by D inside loop i"
    refuse("cache_reduction", "read-after", message, s, lambda: s.cache_reduction(s.get_block("C"), i, "workspace"))
