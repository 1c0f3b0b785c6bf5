"""Test how intermediate buffers are stored (transform_layout, storage_align, unsafe_set_dtype), and transform_block_layout."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.pipelines import CPU
from tunesmith.schedule.schedule import Schedule

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")
Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def chain(A: T.Buffer((5, 7), "float32"), C: T.Buffer((5, 7), "float32"), D: T.Buffer((5,), "float32")):
    B = T.alloc_buffer((5, 7), "float32")
    for i, j in T.grid(5, 7):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(5, 7):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[4 - vi, 6 - vj]
    for i, k in T.grid(5, 7):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi] = B[vi, 0]
            D[vi] = D[vi] + B[vi, vk]


@T.prim_func
def sums(A: T.Buffer((5, 6), "float32"), W: T.Buffer((6, 7), "float32"), D: T.Buffer((5, 7), "float32")):
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
            D[vi, vj] = C[vi, vj] + 1.0


@T.prim_func
def padded(A: T.Buffer((9,), "float32"), C: T.Buffer((9,), "float32")):
    B = T.alloc_buffer((9,), "float32")
    for i in T.serial(9):
        with T.block("B"):
            vi = T.axis.spatial(9, i)
            B[vi] = A[vi]
    for i in T.serial(9):
        with T.block("C"):
            vi = T.axis.spatial(9, i)
            C[vi] = T.if_then_else(vi > 0, B[vi - 1], 0.0) + T.if_then_else(vi < 8, B[vi + 1], 0.0)


@T.prim_func
def outside(A: T.Buffer((6,), "float32"), C: T.Buffer((6,), "float32")):
    B = T.alloc_buffer((6,), "float32")
    for i in T.serial(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi] = A[vi]
    B[2] = 7.0
    for i in T.serial(6):
        if B[5 - i] > 0.0:
            with T.block("C"):
                vi = T.axis.spatial(6, i)
                C[vi] = B[vi]
        else:
            C[i] = 0.0


def shape(func: PrimFunc, name: str) -> list[int]:
    """The extents of the allocation with that name."""
    return [e.as_int() for b in func.allocs if b.name == name for e in b.shape]


def tiled(s: Schedule) -> None:
    b = s.get_block("B")
    (t,) = s.sample_tile(s.get_loops(b)[1], 2, "t", [range(1, 20)], waste=9.0)
    s.transform_layout(b, "B", [[1, "/", t], 0, [1, "%", t]])


# ---- transform_layout


def test_transform_layout(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(chain, tiled, [[4]]).func))


@pytest.mark.parametrize("tile", [1, 2, 3, 5, 7, 8, 11])
def test_transform_layout_by_any_factor(apply: Apply, tile: int) -> None:
    assert shape(apply(chain, tiled, [[tile]]).func, "B") == [-(-7 // tile), 5, tile]


@pytest.mark.parametrize("order", list(itertools.permutations([[0, "/", 2], [0, "%", 2], [1, "/", 3], [1, "%", 3]])))
def test_every_order_of_a_layout(apply: Apply, order: tuple[object, ...]) -> None:
    apply(chain, lambda s: s.transform_layout(s.get_block("D"), "B", list(order)))


def test_layout_of_a_reduction(apply: Apply) -> None:
    s = apply(sums, lambda s: s.transform_layout(s.get_block("D"), "C", [1, [0, "/", 2], [0, "%", 2]]))
    assert "C[vj, vi // 2, vi % 2] = C[vj, vi // 2, vi % 2] + " in str(s.func)


def test_layout_of_a_buffer_read_under_conditions(apply: Apply) -> None:
    """The side that is not taken has an index before the buffer, which is not evaluated."""
    apply(padded, lambda s: s.transform_layout(s.get_block("B"), "B", [[0, "%", 4], [0, "/", 4]]))


def test_accesses_outside_of_blocks_change_too(apply: Apply) -> None:
    s = apply(outside, lambda s: s.transform_layout(s.get_block("B"), "B", [[0, "%", 4], [0, "/", 4]]))
    assert "B[2, 0] = " in str(s.func) and "if B[" in str(s.func)


def test_a_layout_of_a_layout(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        tiled(s)
        s.transform_layout(s.get_block("C"), "B", [1, [0, "/", 2], 2, [0, "%", 2]])

    s = apply(chain, steps, [[4]])
    assert shape(s.func, "B") == [5, 1, 4, 2]


def test_padding_has_the_value(apply: Apply, assert_golden: Golden) -> None:
    s = apply(
        chain, lambda s: s.transform_layout(s.get_block("B"), "B", [[0, "/", 4], [1, "/", 3], [0, "%", 4], [1, "%", 3]], pad_value=-1.5)
    )
    assert_golden(str(s.func))


@pytest.mark.parametrize("tile", [1, 2, 4, 9, 10])
def test_all_of_the_padding_is_stored(tile: int) -> None:
    s = Schedule(padded)
    s.transform_layout(s.get_block("B"), "B", [[0, "/", tile], [0, "%", tile]], pad_value=5.0)
    (b,) = s.func.allocs
    shown = s.func.with_(params=(*s.func.params, b), allocs=())
    values = np.arange(9, dtype=np.float32)
    stored = run(shown, {"A": values})[2].reshape(-1)
    assert stored[:9].tolist() == values.tolist() and set(stored[9:]) <= {5.0}


def test_padding_of_integers(apply: Apply) -> None:
    @T.prim_func
    def integers(A: T.Buffer((5,), "int8"), C: T.Buffer((5,), "int8")):
        B = T.alloc_buffer((5,), "int8")
        for i in T.serial(5):
            with T.block("B"):
                vi = T.axis.spatial(5, i)
                B[vi] = A[vi]
        for i in T.serial(5):
            with T.block("C"):
                vi = T.axis.spatial(5, i)
                C[vi] = B[vi]

    s = apply(integers, lambda s: s.transform_layout(s.get_block("B"), "B", [[0, "/", 4], [0, "%", 4]], -128))
    assert "= T.int8(-128)" in str(s.func)


# ---- transform_block_layout


@T.prim_func
def scan(A: T.Buffer((6, 5), "float32"), C: T.Buffer((6, 5), "float32")):
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(vi > 0, C[vi - 1, vj], 0.0) + A[vi, vj]


def tiled_block(s: Schedule) -> None:
    b = s.get_block("C")
    i, j, k = s.get_loops(b)
    sizes = [s.sample_tile(loop, 2, name, [range(1, 20)], waste=9.0)[0] for loop, name in ((i, "i"), (j, "j"), (k, "k"))]
    (ti, tj, tk) = sizes
    s.transform_block_layout(b, [[1, "/", tj], [0, "/", ti], [2, "/", tk], [0, "%", ti], [2, "%", tk], [1, "%", tj]])


def test_transform_block_layout(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(sums, tiled_block, [[2], [4], [3]]).func))


@pytest.mark.parametrize("tiles", list(itertools.product((1, 2, 5, 8), (1, 3, 7), (1, 4, 6, 7))))
def test_transform_block_layout_by_any_factor(apply: Apply, tiles: tuple[int, int, int]) -> None:
    apply(sums, tiled_block, [[x] for x in tiles])


def test_a_scan_keeps_its_order(apply: Apply) -> None:
    apply(scan, lambda s: s.transform_block_layout(s.get_block("C"), [1, [0, "/", 4], [0, "%", 4]]))


def test_a_transformed_block_can_be_scheduled(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("D")
        s.transform_block_layout(b, [[1, "/", 4], 0, [1, "%", 4]])
        outer, _, inner = s.get_loops(b)
        s.vectorize(inner)
        s.parallel(outer)
        s.transform_layout(b, "C", [[1, "/", 4], 0, [1, "%", 4]])

    assert "C[vj_0 + vj_1 // 4, vi, vj_1 % 4]" in str(apply(sums, steps).func)


@pytest.mark.parametrize(("factor", "guarded"), [(2, False), (3, False), (4, True), (8, True)])
def test_an_int_that_divides_the_extent_needs_no_guard(apply: Apply, factor: int, guarded: bool) -> None:
    f = apply(scan, lambda s: s.transform_block_layout(s.get_block("C"), [1, [0, "/", factor], [0, "%", factor]])).func
    assert ("T.where" in str(f)) == guarded


# ---- storage_align


@T.prim_func
def cube(A: T.Buffer((4, 6, 10), "float32"), C: T.Buffer((4, 6, 10), "float32")):
    B = T.alloc_buffer((4, 6, 10), "float32")
    for i, j, k in T.grid(4, 6, 10):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = A[vi, vj, vk] * 2.0
    for i, j, k in T.grid(4, 6, 10):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[vi, vj, vk] = B[vi, vj, vk] + B[3 - vi, vj, 9 - vk]


@T.prim_func
def simple_cube(A: T.Buffer((4, 6, 10), "float32"), C: T.Buffer((4, 6, 10), "float32")):
    B = T.alloc_buffer((4, 6, 10), "float32")
    for i, j, k in T.grid(4, 6, 10):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = A[vi, vj, vk] * 2.0
    for i, j, k in T.grid(4, 6, 10):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[vi, vj, vk] = B[vi, vj, vk] + 1.0


def aligned(s: Schedule) -> None:
    b = s.get_block("C")
    s.storage_align(b, "B", 1, s.sample_categorical((1, 8, 16), "rows"), 0)
    s.storage_align(b, "B", -3, 64, s.sample_categorical((0, 4), "planes"))


def test_storage_align(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(cube, aligned, [[16], [4]]).func))


@pytest.mark.parametrize(("rows", "planes"), list(itertools.product((1, 8, 16), (0, 4))))
def test_strides_have_the_remainder(apply: Apply, rows: int, planes: int) -> None:
    s = apply(cube, aligned, [[rows], [planes]])
    (b,) = s.func.allocs
    plane, row, _ = [x.as_int() for x in b.strides]
    assert row % rows == 0 and row >= 10 and plane % 64 == planes and plane >= 6 * row
    assert b.size.as_int() == 4 * plane
    lowered = CPU(s.func, TARGET)
    assert [n.buffer.shape[0].as_int() for n in walk(lowered.body) if type(n) is Allocate] == [4 * plane]


def test_the_tile_of_a_loop_is_aligned(apply: Apply) -> None:
    """Lowering keeps six rows of five columns of B, whose stride has the remainder."""

    def steps(s: Schedule) -> None:
        c = s.get_block("C")
        s.storage_align(c, "B", -2, 16, 7)
        i, j, k = s.get_loops(c)
        k_0, k_1 = s.split(k, [None, 5])
        s.reorder([i, k_0, j, k_1])
        s.set_scope(s.get_block("B"), "workspace")
        s.compute_at(s.get_block("B"), k_0)

    func = apply(simple_cube, steps).func
    (made,) = [n.buffer for n in walk(CPU(func, TARGET).body) if type(n) is Allocate]
    assert made.shape[0].as_int() == 6 * 7


def test_an_alignment_is_replaced() -> None:
    s = Schedule(cube)
    for factor in (8, 32):
        s.storage_align(s.get_block("B"), "B", 1, factor)
    assert [a.factor for a in s.func.allocs[0].align] == [32]


# ---- unsafe_set_dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_unsafe_set_dtype_of_small_integers(apply: Apply, dtype: str) -> None:
    """The inputs are integers from -3 to 3, which all of these types hold."""
    for func, block in ((chain, "B"), (sums, "C")):
        s = apply(func, lambda s, block=block: s.unsafe_set_dtype(s.get_block(block), dtype))
        assert f'"{dtype}")\n' in str(s.func)


def test_unsafe_set_dtype(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(sums, lambda s: s.unsafe_set_dtype(s.get_block("C"), "bfloat16")).func))


def test_unsafe_set_dtype_rounds_stores() -> None:
    s = Schedule(padded)
    s.unsafe_set_dtype(s.get_block("B"), "float16")
    values = np.full(9, 1 + 2.0**-12, np.float32)
    assert run(s.func, {"A": values})[1][4] == 2.0 and run(padded, {"A": values})[1][4] == 2 + 2.0**-11


def test_unsafe_set_dtype_of_vectors(apply: Apply) -> None:
    func = parse("""
@T.prim_func
def vectors(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(2):
        with T.block("B"):
            vi = T.axis.spatial(2, i)
            B.vstore([vi * 4], A.vload([vi * 4], 4))
    for i in T.serial(2):
        with T.block("C"):
            vi = T.axis.spatial(2, i)
            C.vstore([vi * 4], B.vload([vi * 4], 4))
""")
    apply(func, lambda s: s.unsafe_set_dtype(s.get_block("B"), "float16"))
