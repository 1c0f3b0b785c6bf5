"""Test reindex and cache_index: copies in the order of iteration variables, and computed indirect indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def conv(X: T.Buffer((7, 3), "float32"), W: T.Buffer((3, 3, 4), "float32"), Y: T.Buffer((4, 4), "float32")):
    """A convolution with stride 2 and padding 1."""
    for i, c, k, u in T.grid(4, 4, 3, 3):
        with T.block("Y"):
            vi, vc, vk, vu = T.axis.remap("SSRR", [i, c, k, u])
            with T.init():
                Y[vi, vc] = 0.0
            Y[vi, vc] = Y[vi, vc] + T.if_then_else(0 < vi * 2 + vk and vi * 2 + vk < 8, X[vi * 2 + vk - 1, vu], 0.0) * W[vk, vu, vc]


@T.prim_func
def flattened(A: T.Buffer((3, 5, 4), "float32"), C: T.Buffer((60,), "float32"), D: T.Buffer((60,), "float32")):
    B = T.alloc_buffer((60,), "float32")
    for i, j, k in T.grid(3, 5, 4):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi * 20 + vk * 5 + vj] = A[vi, vj, vk] * 2.0
    for i, j, k in T.grid(3, 5, 4):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[vi * 20 + vj * 4 + vk] = B[vi * 20 + vj * 4 + vk] + A[vi, vj, vk]
    for i in T.serial(60):
        with T.block("D"):
            vi = T.axis.spatial(60, i)
            D[vi] = B[59 - vi]


@T.prim_func
def sums(A: T.Buffer((4, 5, 6), "float32"), C: T.Buffer((4, 4), "float32"), D: T.Buffer((5,), "float32")):
    for i, j, k in T.grid(4, 5, 6):
        with T.block("D"):
            vi, vj, vk = T.axis.remap("RSR", [i, j, k])
            with T.init():
                D[vj] = 0.0
            D[vj] = D[vj] + A[vi, vj, vk]
    for i, j, k in T.grid(2, 2, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi * 2 + 1, vj + 1] = 0.0
            C[vi * 2 + 1, vj + 1] = C[vi * 2 + 1, vj + 1] + A[vi, 0, vk]


# ---- reindex


def test_reindex(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(conv, lambda s: s.reindex(s.get_block("Y"), "X", "read")).func))


def test_reindex_of_a_write(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(flattened, lambda s: s.reindex(s.get_block("C"), "C", "write")).func))


@pytest.mark.parametrize(("buffer", "kind"), [("W", "read"), ("Y", "write"), ("X", "read")])
def test_reindex_of_a_convolution(apply: Apply, buffer: str, kind: str) -> None:
    apply(conv, lambda s: s.reindex(s.get_block("Y"), buffer, kind))


@pytest.mark.parametrize(("block", "buffer", "kind"), [("B", "B", "write"), ("C", "B", "read"), ("D", "B", "read"), ("B", "A", "read")])
def test_reindex_of_flattened_indices(apply: Apply, block: str, buffer: str, kind: str) -> None:
    apply(flattened, lambda s: s.reindex(s.get_block(block), buffer, kind))


def test_reindex_of_a_part_of_the_output(apply: Apply) -> None:
    """The other elements of C keep the values of the caller."""
    s = apply(sums, lambda s: s.reindex(s.get_block("C"), "C", "write"))
    assert "C[vi * 2 + 1, vj + 1] = C_reindex[vi, vj]" in str(s.func)


def test_reindex_in_the_order_of_the_block(apply: Apply) -> None:
    s = apply(sums, lambda s: s.reindex(s.get_block("D"), "A", "read"))
    assert "A_reindex[vi, vj, vk] = " in str(s.func)


def matmul_of_a_convolution(s: Schedule) -> None:
    """The steps that make a convolution a product of tiles: reindex, pack the copy, and compute each packed tile where it is used."""
    b = s.get_block("Y")
    copy = s.reindex(b, "X", "read")
    i, c, _, _ = s.get_loops(b)
    ti, tc = s.sample_tile(i, 2, "i", [range(1, 9)], waste=9.0) + s.sample_tile(c, 2, "c", [range(1, 9)], waste=9.0)
    s.transform_block_layout(b, [[0, "/", ti], [1, "/", tc], 2, 3, [0, "%", ti], [1, "%", tc]])
    packed = s.cache_read(b, "X_reindex", "workspace", [[0, "/", ti], 1, 2, [0, "%", ti]])
    s.compute_inline(copy)
    s.transform_layout(packed, "X_reindex_copy", [0, 3, 1, 2])
    s.compute_at(packed, s.get_loops(b)[0])


@pytest.mark.parametrize("tiles", [(1, 1), (2, 2), (4, 3), (3, 4), (5, 8)])
def test_convolution_as_a_tiled_product(apply: Apply, tiles: tuple[int, int]) -> None:
    apply(conv, matmul_of_a_convolution, [[x] for x in tiles])


def test_reindex_of_a_packed_buffer(apply: Apply) -> None:
    """An index with a sampled factor, which is 1."""

    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        (t,) = s.sample_tile(s.get_loops(b)[0], 2, "t", [range(1, 9)], waste=9.0)
        s.cache_read(b, "A", "global", [[1, "/", t], 0, 2, [1, "%", t]])
        s.reindex(b, "A_copy", "read")

    for t in (1, 2, 3, 5, 6):
        apply(flattened, steps, [[t]])


def test_reindex_after_steps_that_reorder(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("Y")
        i, c, k, u = s.get_loops(b)
        k_0, k_1 = s.split(k, [None, 2])
        s.reorder([k_0, c, i, k_1, u])
        s.reindex(b, "Y", "write")
        s.reindex(b, "X", "read")

    apply(conv, steps)


# ---- cache_index

GATHER = """
@T.prim_func
def gather(I: T.Buffer((8,), "int32"), X: T.Buffer((7, 5), "float32"), W: T.Buffer((7,), "float32"), C: T.Buffer((6, 5), "float32")):
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.lookup(VALUE, 7, lambda at: X[at, vj] + W[at]) * T.lookup(VALUE, 7, lambda to: X[to, 4 - vj])
"""
CLAMPED = 'T.cast("int64", T.max(T.min(I[vi + 1] * 2 + I[vi], 6), 0))'
CHOSEN = 'T.cast("int64", T.if_then_else(0 < vi, T.max(T.min(I[vi - 1], 6), 0), 3))'
BOTH = 'T.cast("int64", T.max(T.min(I[vi] + I[vj], 6), 0))'


def gather(value: str) -> PrimFunc:
    made = parse(GATHER.replace("VALUE", value))
    assert isinstance(made, PrimFunc)
    return made


def test_cache_index(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(gather(CLAMPED), lambda s: s.cache_index(s.get_block("C"), "global")).func))


@pytest.mark.parametrize("value", [CLAMPED, CHOSEN, BOTH, "vi + 1"])
def test_cache_index_of_values(apply: Apply, value: str) -> None:
    apply(gather(value), lambda s: s.cache_index(s.get_block("C"), "workspace"))


def test_nested_indices_stay(apply: Apply) -> None:
    nested = gather(CLAMPED.replace("I[vi]", f"T.lookup({CHOSEN}, 7, lambda other: I[other])"))
    s = apply(nested, lambda s: s.cache_index(s.get_block("C"), "global"))
    assert "lambda other: I[other]" in str(s.func) and "T.lookup(C_index[vi], 7" in str(s.func)


def test_computed_indices_move_into_loops(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        (index,) = s.cache_index(b, "global")
        i, _ = s.get_loops(b)
        outer, _ = s.split(i, [None, *s.sample_tile(i, 2, "i", [range(1, 9)], waste=9.0)])
        s.compute_at(index, outer)
        s.parallel(outer)

    for t in (1, 2, 4, 6, 7):
        apply(gather(CLAMPED), steps, [[t]])
