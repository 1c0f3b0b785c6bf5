"""Test read_at, write_at and caches of caches: copies inside loops and unchanged results."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def matmul(A: T.Buffer((5, 6), "float32"), B: T.Buffer((6, 7), "float32"), D: T.Buffer((5, 7), "float32")):
    C = T.alloc_buffer((5, 7), "float32")
    for i, j, k in T.grid(5, 7, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(5, 7):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + 1.0


@T.prim_func
def padded(A: T.Buffer((6, 3), "int32"), C: T.Buffer((8, 3), "int32")):
    for i, j in T.grid(8, 3):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(0 < vi and vi < 7, A[vi - 1, vj], 0) + T.if_then_else(vi < 6, A[vi, 2 - vj], 9)


def tiled(s: Schedule, block: str) -> list[list[object]]:
    """Split every loop of the block in two by a sampled factor, the outer loops outside."""
    made = [
        s.split(loop, [None, *s.sample_tile(loop, 2, f"t{n}", [range(1, 30)], waste=20.0)])
        for n, loop in enumerate(s.get_loops(s.get_block(block)))
    ]
    s.reorder([*[m[0] for m in made], *[m[1] for m in made]])
    return made


ROWS = list(itertools.product((1, 2, 6), (3, 7, 8), (1, 4)))


def test_read_at(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        _, _, (k, _) = tiled(s, "C")
        s.read_at(k, s.get_block("C"), "A", "workspace")

    assert_golden(str(apply(matmul, steps, [[2], [4], [3]]).func))


@pytest.mark.parametrize("row", ROWS)
def test_read_at_of_every_operand_and_level(apply: Apply, row: tuple[int, ...]) -> None:
    def steps(s: Schedule) -> None:
        i, j, k = tiled(s, "C")
        c = s.get_block("C")
        for loop, scope in ((j[0], "workspace"), (k[0], "global"), (i[1], "register")):
            s.read_at(loop, c, "A", scope)
            s.read_at(loop, c, "B", scope)

    s = apply(matmul, steps, [[x] for x in row])
    assert [b.name for b in s.blocks()][:2] == ["A_copy", "B_copy"]


@pytest.mark.parametrize("tile", [1, 3, 8, 9])
def test_read_at_of_padded_reads(apply: Apply, tile: int) -> None:
    """Elements outside of the buffer are part of the footprint and are not copied."""

    def steps(s: Schedule) -> None:
        (i, _), _ = tiled(s, "C")
        s.read_at(i, s.get_block("C"), "A", "workspace")

    apply(padded, steps, [[tile], [2]])


def test_read_at_copies_what_an_earlier_block_of_the_nest_has_made(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        (i, _), _ = tiled(s, "D")
        s.compute_at(s.get_block("C"), i)
        s.read_at(i, s.get_block("D"), "C", "register")

    s = apply(matmul, steps, [[2], [4]])
    assert [b.name for b in s.blocks()] == ["C", "C_copy", "D"]


def test_a_cache_of_a_cache(apply: Apply, assert_golden: Golden) -> None:
    """Both steps name the buffer of the program."""

    def steps(s: Schedule) -> None:
        _, (j, _), (k, _) = tiled(s, "C")
        c = s.get_block("C")
        shared = s.cache_read(c, "B", "workspace", [1, 0])
        local = s.cache_read(c, "B", "global")
        s.compute_at(local, k)
        s.compute_at(shared, j)

    assert_golden(str(apply(matmul, steps, [[2], [4], [3]]).func))


def test_write_at(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        (_, (j, _), _) = tiled(s, "C")
        s.write_at(j, s.get_block("C"), "C", "workspace")

    assert_golden(str(apply(matmul, steps, [[2], [4], [6]]).func))


@pytest.mark.parametrize("row", ROWS)
def test_write_at_of_every_tile(apply: Apply, row: tuple[int, ...]) -> None:
    def steps(s: Schedule) -> None:
        (_, (j, _), _) = tiled(s, "C")
        s.write_at(j, s.get_block("C"), "C", "register")

    apply(matmul, steps, [[x] for x in row])
