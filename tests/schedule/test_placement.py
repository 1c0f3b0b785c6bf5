"""Test compute_at, reverse_compute_at, compute_inline and reverse_compute_inline: positions of blocks and unchanged results."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tunesmith.ir.script.syntax import T
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def chain(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((16,), "float32")
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(16):
        with T.block("C"):
            vi = T.axis.spatial(16, i)
            C[vi] = B[vi] + 1.0


@T.prim_func
def stencil(A: T.Buffer((19,), "float32"), C: T.Buffer((9,), "float32")):
    B = T.alloc_buffer((19,), "float32")
    for i in T.serial(19):
        with T.block("B"):
            vi = T.axis.spatial(19, i)
            B[vi] = A[vi] * 2.0
    for i, r in T.grid(9, 3):
        with T.block("C"):
            vi, vr = T.axis.remap("SR", [i, r])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + B[vi * 2 + vr]


@T.prim_func
def padded(A: T.Buffer((6,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((6,), "float32")
    for i in T.serial(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.select(0 < vi and vi < 7, B[vi - 1], T.float32(0.0))


@T.prim_func
def dense(
    A: T.Buffer((5, 6), "float32"),
    W: T.Buffer((6, 7), "float32"),
    bias: T.Buffer((7,), "float32"),
    D: T.Buffer((5, 7), "float32"),
):
    C = T.alloc_buffer((5, 7), "float32")
    for i, j, k in T.grid(5, 7, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * W[vk, vj]
    for i, j in T.grid(5, 7):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj] + bias[vj], 0.0)


@T.prim_func
def window_of_sums(A: T.Buffer((9, 6), "float32"), E: T.Buffer((9,), "float32")):
    C = T.alloc_buffer((9,), "float32")
    D = T.alloc_buffer((9,), "float32")
    for i, k in T.grid(9, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
    for i in T.serial(9):
        with T.block("D"):
            vi = T.axis.spatial(9, i)
            D[vi] = C[vi] * 0.5
    for i in T.serial(9):
        with T.block("E"):
            vi = T.axis.spatial(9, i)
            E[vi] = T.select(vi >= 1, D[vi - 1], 0.0) + D[vi]


def tiled(s: Schedule, block: str, names: str) -> list[list[LoopRV]]:
    """Split every loop of the block in two by a sampled factor; returns (outer, inner) for each."""
    return [
        s.split(loop, [None, *s.sample_tile(loop, 2, name, [range(1, 30)], waste=20.0)])
        for name, loop in zip(names, s.get_loops(s.get_block(block)), strict=True)
    ]


# ---- compute_at


def test_compute_at(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        ((outer, _),) = tiled(s, "C", "i")
        s.compute_at(s.get_block("B"), outer)

    assert_golden(str(apply(chain, steps, [[4]]).func))


@pytest.mark.parametrize(("tile", "at"), list(itertools.product((1, 2, 4, 9, 10), (0, 1))))
def test_compute_at_with_a_halo(apply: Apply, tile: int, at: int) -> None:
    """Adjacent iterations recompute shared elements."""

    def steps(s: Schedule) -> None:
        (i, r) = tiled(s, "C", "ir")
        s.compute_at(s.get_block("B"), [*i, *r][at])

    apply(stencil, steps, [[tile], [2]])


@pytest.mark.parametrize("at", range(2))
def test_compute_at_under_a_padded_reader(apply: Apply, at: int) -> None:
    """The reader requests an element before the start of the buffer and selects 0 instead; the producer must not compute it."""

    def steps(s: Schedule) -> None:
        ((*loops,),) = tiled(s, "C", "i")
        s.compute_at(s.get_block("B"), loops[at])

    for tile in (1, 3, 8, 9):
        apply(padded, steps, [[tile]])


def test_compute_at_moves_guards(apply: Apply) -> None:
    """The producer is split before the move."""

    def steps(s: Schedule) -> None:
        tiled(s, "B", "b")
        ((outer, _),) = tiled(s, "C", "i")
        s.compute_at(s.get_block("B"), outer)

    for row in itertools.product((1, 3, 16, 17), (1, 5, 16)):
        apply(chain, steps, [[x] for x in row])


def test_compute_at_moves_a_reduction(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        (i, j) = tiled(s, "D", "ij")
        s.reorder([i[0], j[0], i[1], j[1]])
        s.compute_at(s.get_block("C"), j[0])

    for row in itertools.product((1, 2, 5), (3, 7, 8)):
        apply(dense, steps, [[x] for x in row])


@pytest.mark.parametrize("second", range(2))
def test_compute_at_moves_a_block_a_second_time(apply: Apply, second: int) -> None:
    """The first move adds guards of the block's domain, which the second move replaces."""

    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("C"))
        outer, rest = s.split(loop, [None, *s.sample_tile(loop, 2, "outer", [range(1, 17)], waste=16.0)])
        middle, inner = s.split(rest, [None, *s.sample_tile(rest, 2, "inner", [range(1, 17)], waste=16.0)])
        for at in (outer, (middle, inner)[second]):
            s.compute_at(s.get_block("B"), at)

    for row in itertools.product((1, 4, 5, 16), (1, 3, 4, 16)):
        apply(chain, steps, [[x] for x in row])


@pytest.mark.parametrize(("first", "second"), list(itertools.product((3, 4, 16), (1, 2, 5, 16))))
def test_compute_at_ignores_the_overhang_of_a_split_of_a_split(apply: Apply, first: int, second: int) -> None:
    """A tile of 4 elements that is split by 16 again reads 4 elements, not 16."""

    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("C"))
        outer, rest = s.split(loop, [None, *s.sample_tile(loop, 2, "outer", [range(1, 17)], waste=16.0)])
        s.split(rest, [None, *s.sample_tile(rest, 2, "inner", [range(1, 17)], waste=16.0)])
        s.compute_at(s.get_block("B"), outer)

    s = apply(chain, steps, [[first], [second]])
    (_, made) = s.get_loops(s.get_block("B"))
    assert s.loop(made).extent == first


@pytest.mark.parametrize("tile", (1, 3, 4, 9))
def test_compute_at_over_whole_dimensions(apply: Apply, tile: int) -> None:
    """The reader requests an element before the start of the buffer; the loop runs over the elements of the buffer only."""

    def steps(s: Schedule) -> None:
        ((outer, _),) = tiled(s, "C", "i")
        s.compute_at(s.get_block("B"), outer, whole=(0,))

    s = apply(padded, steps, [[tile]])
    (_, made) = s.get_loops(s.get_block("B"))
    assert s.loop(made).extent == s.block(s.get_block("B")).iters[0].extent


def test_a_reduction_is_decomposed_at_a_position_with_an_offset(apply: Apply) -> None:
    """The accumulators of a tile begin one element before the tile: the first element of the loops is not 0, for any tile."""

    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("E"))
        outer, _ = s.split(loop, [None, *s.sample_tile(loop, 2, "i", [range(1, 9)], waste=20.0)])
        s.compute_at(s.get_block("D"), outer)
        d = s.get_loops(s.get_block("D"))[1]
        over, _ = s.split(d, [None, *s.sample_tile(d, 2, "d", [range(1, 5)], waste=20.0)])
        s.compute_at(s.get_block("C"), over)
        s.decompose_reduction(s.get_block("C"), s.get_loops(s.get_block("C"))[-1])

    for row in itertools.product((1, 3, 7), (1, 2, 4)):
        apply(window_of_sums, steps, [[x] for x in row])


# ---- reverse_compute_at


def test_reverse_compute_at(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        ((outer, _),) = tiled(s, "B", "i")
        s.reverse_compute_at(s.get_block("C"), outer)

    assert_golden(str(apply(chain, steps, [[4]]).func))


@pytest.mark.parametrize("row", list(itertools.product((1, 2, 5, 6), (1, 3, 7, 8), (1, 4))))
def test_reverse_compute_at_of_an_epilogue(apply: Apply, row: tuple[int, int, int]) -> None:
    def steps(s: Schedule) -> None:
        i, j, k = tiled(s, "C", "ijk")
        s.reorder([i[0], j[0], *k, i[1], j[1]])
        s.reverse_compute_at(s.get_block("D"), j[0])

    apply(dense, steps, [[x] for x in row])


def test_reverse_compute_at_skips_the_iterations_of_a_tile_that_is_split_twice(apply: Apply) -> None:
    """Nested tiles exceed the extent: an iteration that computes nothing must not copy elements of others."""

    def steps(s: Schedule) -> None:
        (i, j, k) = tiled(s, "C", "ijk")
        (a,) = s.sample_tile(j[0], 2, "a", [range(1, 9)], waste=9.0)
        j_00, j_01 = s.split(j[0], [None, a])
        s.reorder([j_01, *i, j_00, *k, j[1]])
        s.reverse_compute_at(s.get_block("D"), j_00)

    for row in itertools.product((1, 2), (1, 3), (6,), (1, 2, 3, 4)):
        apply(dense, steps, [[x] for x in row])


# ---- inlining


def test_compute_inline(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(chain, lambda s: s.compute_inline(s.get_block("B"))).func))


def test_compute_inline_into_shifted_reads(apply: Apply) -> None:
    s = apply(stencil, lambda s: s.compute_inline(s.get_block("B")))
    assert "A[vi * 2 + vr] * T.float32(2.0)" in str(s.func) and not s.func.allocs


@T.prim_func
def started(A: T.Buffer((4, 5), "float32"), b: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    S = T.alloc_buffer((4,), "float32")
    for i in T.serial(4):
        with T.block("S"):
            vi = T.axis.spatial(4, i)
            S[vi] = b[vi] + 1.0
    for i, k in T.grid(4, 5):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = S[vi]
            C[vi] = C[vi] + A[vi, vk]


def test_compute_inline_into_an_init(apply: Apply) -> None:
    s = apply(started, lambda s: s.compute_inline(s.get_block("S")))
    assert "C[vi] = b[vi] + T.float32(1.0)" in str(s.func)


def test_reverse_compute_inline(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(chain, lambda s: s.reverse_compute_inline(s.get_block("C"))).func))


@T.prim_func
def transposed(A: T.Buffer((4, 5), "float32"), b: T.Buffer((4,), "float32"), C: T.Buffer((5, 4), "float32")):
    B = T.alloc_buffer((4, 5), "float32")
    for i, j in T.grid(4, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(5, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vj, vi] + b[vj]


def test_reverse_compute_inline_of_a_transposition(apply: Apply) -> None:
    s = apply(transposed, lambda s: s.reverse_compute_inline(s.get_block("C")))
    assert "C[vj, vi] = A[vi, vj] * T.float32(2.0) + b[vi]" in str(s.func)


# ---- positions and unit loops


@T.prim_func
def diamond(A: T.Buffer((6, 5), "float32"), E: T.Buffer((6, 5), "float32")):
    B = T.alloc_buffer((6, 5), "float32")
    C = T.alloc_buffer((6, 5), "float32")
    D = T.alloc_buffer((6, 5), "float32")
    for i, j in T.grid(6, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] - 1.0
    for i, j in T.grid(6, 5):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj] + 3.0
    for i, j in T.grid(6, 5):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = B[vi, vj] * C[vi, vj] + D[vi, vj]


@pytest.mark.parametrize(("index", "order"), [(-2, "CBE"), (0, "CBE"), (1, "BCE"), (-1, "BCE")])
def test_compute_at_index(apply: Apply, index: int, order: str) -> None:
    def steps(s: Schedule) -> None:
        (i, _) = tiled(s, "E", "ij")
        s.compute_at(s.get_block("B"), i[0])
        s.compute_at(s.get_block("C"), i[0], index=index)

    assert [b.name for b in apply(diamond, steps, [[4], [2]]).blocks()] == ["D", *order]


@pytest.mark.parametrize(("index", "order"), [(-2, "BDC"), (1, "BDC"), (2, "BCD"), (-1, "BCD")])
def test_reverse_compute_at_index(apply: Apply, index: int, order: str) -> None:
    @T.prim_func
    def fork(A: T.Buffer((9,), "float32"), C: T.Buffer((9,), "float32"), D: T.Buffer((9,), "float32")):
        B = T.alloc_buffer((9,), "float32")
        for i in T.serial(9):
            with T.block("B"):
                vi = T.axis.spatial(9, i)
                B[vi] = A[vi] * 2.0
        for i in T.serial(9):
            with T.block("C"):
                vi = T.axis.spatial(9, i)
                C[vi] = B[vi] + 1.0
        for i in T.serial(9):
            with T.block("D"):
                vi = T.axis.spatial(9, i)
                D[vi] = B[vi] - 1.0

    def steps(s: Schedule) -> None:
        (i,) = tiled(s, "B", "i")
        s.reverse_compute_at(s.get_block("C"), i[0])
        s.reverse_compute_at(s.get_block("D"), i[0], index=index)

    assert [b.name for b in apply(fork, steps, [[4]]).blocks()] == list(order)


def test_compute_at_without_unit_loops(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        (i, j) = tiled(s, "D", "ij")
        s.reorder([i[0], j[0], i[1], j[1]])
        s.compute_at(s.get_block("C"), i[1], preserve_unit_loops=False)

    assert_golden(str(apply(dense, steps, [[3], [4]]).func))


def test_reverse_compute_at_without_unit_loops(apply: Apply) -> None:
    s = apply(chain, lambda s: s.reverse_compute_at(s.get_block("C"), s.get_loops(s.get_block("B"))[0], preserve_unit_loops=False))
    assert len(s.loops_of("C")) == 1


def test_without_unit_loops_a_sampled_extent_is_at_least_2() -> None:
    """A loop that a configuration leaves out would be missing in its program only."""
    s = Schedule(chain, parametric=True)
    ((outer, _),) = tiled(s, "C", "i")
    s.compute_at(s.get_block("B"), outer, preserve_unit_loops=False)
    (t,) = s.params
    assert [(c.kind, c.expr) for c in s.constraints if c.label == "box"] == [("le0", 2 - t.as_expr())]
