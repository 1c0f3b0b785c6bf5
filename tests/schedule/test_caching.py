"""Test cache_read, cache_write, cache_reduction and set_scope: copies of inputs and outputs, packed layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def row(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi] + 1.0


@T.prim_func
def matmul(A: T.Buffer((5, 6), "float32"), B: T.Buffer((6, 7), "float32"), C: T.Buffer((5, 7), "float32")):
    for i, j, k in T.grid(5, 7, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def from_bias(A: T.Buffer((5, 6), "float32"), bias: T.Buffer((5,), "float32"), C: T.Buffer((5,), "float32")):
    for i, k in T.grid(5, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = bias[vi]
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def chain(A: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32"), D: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((6,), "float32")
    for i in T.serial(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi] = A[vi] * 2.0
    for i in T.serial(6):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            C[vi] = B[vi] + 1.0
    for i in T.serial(6):
        with T.block("D"):
            vi = T.axis.spatial(6, i)
            D[vi] = B[vi] - B[5 - vi]


def alloc(func: PrimFunc, name: str) -> Buffer:
    """The allocation with that name."""
    return next(b for b in func.allocs if b.name == name)


# ---- cache_read


def test_cache_read(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(row, lambda s: s.cache_read(s.get_block("C"), "A", "global")).func))


def pack(s: Schedule) -> None:
    b = s.get_block("C")
    _i, j, _k = s.get_loops(b)
    (t,) = s.sample_tile(j, 2, "t", [range(1, 20)], waste=9.0)
    s.split(j, [None, t])
    s.cache_read(b, "B", "workspace", [[1, "/", t], 0, [1, "%", t]])


def test_cache_read_packs(apply: Apply, assert_golden: Golden) -> None:
    s = apply(matmul, pack, [[4]])
    assert_golden(str(s.func))
    assert alloc(s.func, "B_copy").scope == "workspace"


@pytest.mark.parametrize("tile", [1, 2, 3, 5, 7, 8, 11])
def test_packing_by_any_factor(apply: Apply, tile: int) -> None:
    apply(matmul, pack, [[tile]])


@pytest.mark.parametrize("order", list(itertools.permutations([0, [1, "/", 3], [1, "%", 3]])))
def test_every_order_of_a_layout(apply: Apply, order: tuple[object, ...]) -> None:
    apply(matmul, lambda s: s.cache_read(s.get_block("C"), "B", "global", list(order)))


def test_both_dimensions_packed(apply: Apply) -> None:
    layout = [[0, "/", 4], [1, "/", 3], [0, "%", 4], [1, "%", 3]]
    s = apply(matmul, lambda s: s.cache_read(s.get_block("C"), "B", "global", layout))
    assert [e.as_int() for e in alloc(s.func, "B_copy").shape] == [2, 3, 4, 3]


def test_cache_read_of_the_input_of_an_init(apply: Apply) -> None:
    s = apply(from_bias, lambda s: s.cache_read(s.get_block("C"), "bias", "workspace"))
    assert "= bias_copy[vi]" in str(s.func)


@T.prim_func
def gram(A: T.Buffer((5, 6), "float32"), C: T.Buffer((5, 5), "float32")):
    for i, j, k in T.grid(5, 5, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]


@pytest.mark.parametrize("access", [0, 1])
def test_cache_read_of_one_access(apply: Apply, access: int) -> None:
    s = apply(gram, lambda s: s.cache_read(s.get_block("C"), "A", "global", [[0, "/", 4], 1, [0, "%", 4]], access))
    product = ("A[vi, vk] * A_copy[vj // 4, vk, vj % 4]", "A_copy[vi // 4, vk, vi % 4] * A[vj, vk]")[1 - access]
    assert product in str(s.func)


def test_cache_read_of_an_intermediate_changes_one_reader(apply: Apply) -> None:
    s = apply(chain, lambda s: s.cache_read(s.get_block("D"), "B", "workspace"))
    text = str(s.func)
    assert "D[vi] = B_copy[vi] - B_copy[5 - vi]" in text and "C[vi] = B[vi]" in text


def test_copies_of_one_buffer_have_different_names(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        first = s.cache_read(s.get_block("C"), "B", "workspace")
        second = s.cache_read(s.get_block("D"), "B", "workspace")
        assert (first.block, second.block) == ("B_copy", "B_copy_1")

    apply(chain, steps)


# ---- cache_write


def test_cache_write(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(row, lambda s: s.cache_write(s.get_block("C"), "workspace")).func))


def test_cache_write_of_a_reduction(apply: Apply, assert_golden: Golden) -> None:
    """Init and update write to the cache, and the update reads it."""
    assert_golden(str(apply(matmul, lambda s: s.cache_write(s.get_block("C"), "register")).func))


def test_cache_write_in_another_order(apply: Apply) -> None:
    s = apply(matmul, lambda s: s.cache_write(s.get_block("C"), "register", [1, 0]))
    assert [e.as_int() for e in alloc(s.func, "C_register").shape] == [7, 5]
    assert "C_register[vj, vi] = C_register[vj, vi] + " in str(s.func)


def test_cache_write_of_an_intermediate(apply: Apply) -> None:
    s = apply(chain, lambda s: s.cache_write(s.get_block("B"), "workspace"))
    assert [b.name for b in s.blocks()] == ["B", "B_write", "C", "D"]


# ---- cache_reduction


@T.prim_func
def sums(A: T.Buffer((4, 16), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 16):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


def blocked(s: Schedule) -> None:
    b = s.get_block("C")
    i, k = s.get_loops(b)
    k_0, k_1 = s.split(k, [None, *s.sample_tile(k, 2, "k", [range(1, 20)], waste=9.0)])
    s.reorder([k_0, i, k_1])
    s.cache_reduction(b, i, "workspace")


def test_cache_reduction(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(sums, blocked, [[8]]).func))


@pytest.mark.parametrize("tile", [1, 3, 5, 16, 17])
def test_cache_reduction_by_any_factor(apply: Apply, tile: int) -> None:
    apply(sums, blocked, [[tile]])


@pytest.mark.parametrize("row", list(itertools.product((1, 2, 6), (1, 3, 8), (1, 4, 7))))
def test_cache_reduction_of_tiles(apply: Apply, row: tuple[int, int, int]) -> None:
    """For tiles that exceed the extent, filling and writing do not access elements of other tiles."""

    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        parts = []
        for name, loop in zip("ijk", s.get_loops(b), strict=True):
            parts.append(s.split(loop, [None, *s.sample_tile(loop, 2, name, [range(1, 20)], waste=9.0)]))
        (i_0, i_1), (j_0, j_1), (k_0, k_1) = parts
        s.reorder([k_0, j_0, i_0, k_1, i_1, j_1])
        s.cache_reduction(b, i_0, "register")

    apply(matmul, steps, [[x] for x in row])


def test_cache_reduction_starts_from_any_init(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        i, k = s.get_loops(b)
        k_0, k_1 = s.split(k, [None, 4])
        s.reorder([k_0, i, k_1])
        s.cache_reduction(b, k_0, "workspace")

    apply(from_bias, steps)


@pytest.mark.parametrize("tile", [1, 3, 5, 16, 17])
@pytest.mark.parametrize("at", ["k_0", "i"])
def test_cache_reduction_after_another_block_initialised_the_result(apply: Apply, tile: int, at: str) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        i, k = s.get_loops(b)
        k_0, k_1 = s.split(k, [None, *s.sample_tile(k, 2, "k", [range(1, 20)], waste=9.0)])
        s.reorder([k_0, i, k_1])
        s.decompose_reduction(b, k_0)
        fill, write = s.cache_reduction(b, {"k_0": k_0, "i": i}[at], "workspace")
        assert len(s.get_loops(fill)) == len(s.get_loops(write))

    s = apply(sums, steps, [[tile]])
    assert [b.name for b in s.blocks()] == ["C_init", "C_fill", "C", "C_write"]


# ---- set_scope


def test_set_scope(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(chain, lambda s: s.set_scope(s.get_block("B"), "workspace")).func))
