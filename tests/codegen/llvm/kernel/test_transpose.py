"""Adjacent strided stores become transposed tiles, only if the result is the same."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.cpu.store_groups import Tile, grouped_stores
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")
LANES = 4


def across(columns: int, rows: int, step: int = 1, value: str = "A[w, c] * 2") -> PrimFunc:
    """C[c, step * w] from A[w, c], vectors along c, columns unrolled."""
    func = parse(
        f"""
@T.prim_func
def f(A: T.Buffer(({columns}, {rows}), "float32"), C: T.Buffer(({rows}, {columns * step + 3}), "float32")):
    for i, j in T.grid({columns}, {rows}):
        with T.block("C"):
            w, c = T.axis.remap("SS", [i, j])
            C[c, w * {step}] = {value}
"""
    )
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    i, j = s.get_loops(s.get_block("C"))
    s.vectorize(j)
    s.unroll(i)
    return s.func


def run(func: PrimFunc, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = c.copy()
    Module.from_object(build(func, TARGET).data)["f"](a, out)
    return out


def scatters(func: PrimFunc) -> bool:
    return "masked.scatter.v" in emit_text(func, TARGET)[0]


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("rows", [4, 6, 8, 11])
def test_tiles_of_any_size(columns: int, rows: int) -> None:
    func = across(columns, rows)
    a = np.random.default_rng(columns * 16 + rows).random((columns, rows), np.float32)
    c = np.full((rows, columns + 3), 7, np.float32)
    out = run(func, a, c)
    np.testing.assert_array_equal(out[:, :columns], a.T * 2)
    assert (out[:, columns:] == 7).all()  # nothing outside the tile is written
    assert scatters(func) == (columns % LANES == 1)  # a single column is not transposed


def test_stores_with_gaps_stay_scattered() -> None:
    func = across(4, 8, step=2)
    a = np.random.default_rng(0).random((4, 8), np.float32)
    np.testing.assert_array_equal(run(func, a, np.zeros((8, 11), np.float32))[:, :8:2], a.T * 2)
    assert scatters(func)


def test_values_that_read_the_destination_stay_in_order() -> None:
    """C[c, w] = C[c, 0] + A[w, c]: the first column changes before the others read it."""
    func = across(4, 4, value="C[c, 0] + A[w, c]")
    a = np.random.default_rng(0).random((4, 4), np.float32)
    c = np.ones((4, 7), np.float32)
    expected = c.copy()
    for w in range(4):
        expected[:, w] = expected[:, 0] + a[w]
    np.testing.assert_array_equal(run(func, a, c), expected)
    assert scatters(func)


def test_rows_that_overlap_stay_in_order() -> None:
    """D[2 * c + w]: the lane stride is less than the tile width, and the last store wins."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((4, 4), "float32"), C: T.Buffer((10,), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("C"):
            w, c = T.axis.remap("SS", [i, j])
            C[c * 2 + w] = A[w, c]
"""
    )
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    i, j = s.get_loops(s.get_block("C"))
    s.vectorize(j)
    s.unroll(i)
    a = np.arange(16, dtype=np.float32).reshape(4, 4)
    expected = np.zeros(10, np.float32)
    for w in range(4):
        for c in range(4):
            expected[c * 2 + w] = a[w, c]
    np.testing.assert_array_equal(run(s.func, a, np.zeros(10, np.float32)), expected)


TARGETS = (TARGET, Target("llvm -mcpu=x86-64-v3 -num-cores=1"), Target.detect())


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_columns_of_two_blocks_stay_in_order(target: Target) -> None:
    """Block two writes the column that block one writes next; its guard gives its vectors another mask."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), C: T.Buffer((8, 9), "float32")):
    for i in T.serial(8):
        for j in T.serial(8):
            with T.block("one"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vj, vi] = A[vj]
        for j in T.serial(8):
            with T.block("two"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.where(j < 5)
                C[vj, vi + 1] = A[vj] + 100.0
"""
    )
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    i, j = s.get_loops(s.get_block("one"))
    s.vectorize(j)
    s.vectorize(s.get_loops(s.get_block("two"))[-1])
    s.unroll(i)
    a, c = np.arange(8, dtype=np.float32), np.zeros((8, 9), np.float32)
    Module.from_object(build(s.func, target).data)["f"](a, c)
    np.testing.assert_array_equal(c[:, :8], np.repeat(a[:, None], 8, 1))
    np.testing.assert_array_equal(c[:, 8], np.where(a < 5, a + 100, 0))


FILLED = """
@T.prim_func
def f(A: T.Buffer((10, 6), "float64"), C: T.Buffer((10, 6), "float64")):
    for j, i in T.grid(6, 10):
        with T.block("fill"):
            vj, vi = T.axis.remap("SS", [j, i])
            C[vi, vj] = 7.0
    for j, i in T.grid(6, 10):
        with T.block("over"):
            vj, vi = T.axis.remap("SS", [j, i])
            C[vi, vj] = A[vi, vj]
"""


@pytest.mark.parametrize("factor", [2, 3, 5])
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_overwritten_elements_stay_overwritten(factor: int, target: Target) -> None:
    func = parse(FILLED)
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    j, i = s.get_loops(s.get_block("fill"))
    s.vectorize(i)
    s.unroll(j)
    j, i = s.get_loops(s.get_block("over"))
    outer, inner = s.split(i, [None, factor])
    s.vectorize(inner)
    s.unroll(outer)
    s.unroll(j)
    a, c = np.arange(60, dtype=np.float64).reshape(10, 6), np.zeros((10, 6))
    Module.from_object(build(s.func, target).data)["f"](a, c)
    np.testing.assert_array_equal(c, a)


MEMORY = Buffer("C", (1024,))


def placed(offset: int, stride: int = 16, mask: int | None = None) -> BufferStore:
    """A vector of four lanes at an offset."""
    value = BufferLoad(Buffer("A", (4,)), (poly(0),), 4, poly(1))
    return BufferStore(MEMORY, (poly(offset),), value, poly(stride), None if mask is None else poly(mask))


def test_blocks_of_channels_become_separate_tiles() -> None:
    """Stores alternate between two disjoint blocks of four channels: two tiles."""
    stores = [placed(w + first) for w in range(4) for first in (0, 64)]
    tiles = grouped_stores(stores)
    assert [(type(t), [s.indices[0].as_int() for s in t.stores]) for t in tiles if type(t) is Tile] == [
        (Tile, [0, 1, 2, 3]),
        (Tile, [64, 65, 66, 67]),
    ]
    # Of the first five of eight channels the second vector holds one: it does not write other channels.
    stores = [placed(w + first, mask=mask) for w in range(4) for first, mask in ((0, 4), (64, 1))]
    assert [len(t.stores) for t in grouped_stores(stores) if type(t) is Tile] == [4, 4]


@pytest.mark.parametrize(
    "stores",
    [
        [placed(0), placed(1), placed(0)],
        [placed(0), placed(16, mask=3), placed(1)],  # lanes of the second overlap lanes of the first
        [placed(48, -16), placed(32, -16)],
        [placed(0), placed(0, 17)],  # another stride: disjointness is unknown
        [BufferStore(s.buffer, (s.indices[0] + Var("x"),), s.value, s.stride) for s in (placed(0), placed(1))],
    ],
)
def test_stores_that_may_overlap_keep_their_order(stores: list[BufferStore]) -> None:
    flat = [s for t in grouped_stores(stores) for s in (t.stores if type(t) is Tile else (t,))]
    assert flat == stores


def test_a_mask_of_more_than_all_lanes() -> None:
    """A guard with a count above the number of lanes."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((8,), "int64"), C: T.Buffer((3, 8), "int64")):
    for a, b, j in T.grid(2, 2, 8):
        with T.block("C"):
            vi = T.axis.spatial(3, a * 2 + b)
            vj = T.axis.spatial(8, j)
            T.where(a * 2 + b < 3)
            C[vi, vj] = A[vj]
"""
    )
    assert isinstance(func, PrimFunc)
    for target in TARGETS:
        s = Schedule(func)
        first, second, third = s.get_loops(s.get_block("C"))
        a0, a1 = s.split(first, [None, 3])
        b0, b1 = s.split(second, [None, 5])
        s.reorder([a0, b0, third, a1, b1])
        s.vectorize(b1)
        s.unroll(a1)
        a, c = np.arange(8), np.zeros((3, 8), np.int64)
        Module.from_object(build(s.func, target).data)["f"](a, c)
        np.testing.assert_array_equal(c, np.tile(a, (3, 1)))
