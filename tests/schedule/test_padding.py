"""Test decompose_padding and pad_einsum: results and programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def image(A: T.Buffer((4, 5), "float32"), C: T.Buffer((4, 5), "float32")):
    P = T.alloc_buffer((6, 7), "float32")
    for i, j in T.grid(6, 7):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            P[vi, vj] = T.select(0 < vi and vi < 5 and 0 < vj and vj < 6, A[vi - 1, vj - 1], T.float32(0.0))
    for i, j, r, t in T.grid(4, 5, 3, 3):
        with T.block("C"):
            vi, vj, vr, vt = T.axis.remap("SSRR", [i, j, r, t])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + P[vi + vr, vj + vt]


@T.prim_func
def reversed_choice(A: T.Buffer((4,), "int32"), P: T.Buffer((9,), "int32")):
    for i in T.serial(9):
        with T.block("P"):
            vi = T.axis.spatial(9, i)
            P[vi] = T.if_then_else(vi < 2 or 5 < vi, T.cast("int32", vi) * 3, A[vi - 2] * 5)


# ---- decompose_padding


def test_decompose_padding(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        s.decompose_padding(s.get_block("P"), s.get_loops(s.get_block("P"))[1])

    assert_golden(str(apply(image, steps).func))


@pytest.mark.parametrize("func", [image, reversed_choice], ids=lambda f: f.name)
@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("tile", [1, 2, 5, 9])
def test_decompose_padding_of_tiles(apply: Apply, func: PrimFunc, at: int, tile: int) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("P")
        parts = [s.split(x, [None, *s.sample_tile(x, 2, "a", [range(1, 20)], waste=20.0)]) for x in s.get_loops(b)]
        loops = [p[0] for p in parts] + [p[1] for p in parts]
        s.reorder(loops)
        s.decompose_padding(b, loops[min(at, len(loops) - 1)])

    apply(func, steps, [[tile]] * (2 if func is image else 1))


def test_decompose_padding_inside_a_loop_of_the_consumer(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        i = s.get_loops(s.get_block("C"))[0]
        i_0, _ = s.split(i, [None, *s.sample_tile(i, 2, "a", [range(1, 20)], waste=20.0)])
        s.compute_at(s.get_block("P"), i_0)
        fill = s.decompose_padding(s.get_block("P"), s.get_loops(s.get_block("P"))[1])
        s.vectorize(s.get_loops(fill)[-1])
        s.parallel(i_0)

    for tile in (1, 3, 4, 5):
        apply(image, steps, [[tile]])


def test_decompose_padding_of_a_packed_copy(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        (f,) = s.sample_tile(s.get_loops(s.get_block("C"))[0], 2, "a", [range(1, 20)], waste=20.0)
        copy = s.cache_read(s.get_block("C"), "P", "workspace", [[0, "/", f], 1, [0, "%", f]])
        s.decompose_padding(copy, s.get_loops(copy)[0])

    for tile in (1, 4, 6, 7):
        apply(image, steps, [[tile]])


# ---- pad_einsum


@T.prim_func
def product(A: T.Buffer((5, 6), "int8"), B: T.Buffer((7, 6), "int8"), D: T.Buffer((5, 7), "int32")):
    C = T.alloc_buffer((5, 7), "int32")
    for i, j, k in T.grid(5, 7, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + T.cast("int32", A[vi, vk]) * T.cast("int32", B[vj, vk])
    for i, j in T.grid(5, 7):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = C[vi, vj] + 1


@T.prim_func
def norms(A: T.Buffer((5, 6), "float32"), w: T.Buffer((5,), "float32"), C: T.Buffer((5,), "float32")):
    for k, i in T.grid(6, 5):
        with T.block("C"):
            vk, vi = T.axis.remap("RS", [k, i])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk] * A[vi, vk] * w[vi] * 0.5


def pad_by(*fixed: int | None) -> Callable[[Schedule], None]:
    """Pad by these factors; None is a sampled one."""

    def steps(s: Schedule) -> None:
        factors = [s.sample_categorical([1, 2, 4, 8]) if f is None else f for f in fixed]
        s.pad_einsum(s.get_block("C"), factors)

    return steps


def test_pad_einsum(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(product, pad_by(4, 1, 4)).func))


@pytest.mark.parametrize("row", list(itertools.product((1, 4), (2, 8), (1, 2, 4))))
def test_pad_einsum_by_sampled_factors(apply: Apply, row: tuple[int, ...]) -> None:
    s = apply(product, pad_by(None, None, None), [[x] for x in row])
    assert [b.name for b in s.blocks()] == ["A_pad", "B_pad", "C", "C_crop", "D"]


def test_pad_einsum_of_one_variable(apply: Apply) -> None:
    s = apply(norms, pad_by(1, 4))
    assert [b.name for b in s.blocks()] == ["A_pad", "w_pad", "C", "C_crop"]


def test_pad_einsum_then_tiles_without_guards(apply: Apply) -> None:
    """The tiles divide the padded extents."""

    def steps(s: Schedule) -> None:
        (t,) = s.sample_tile(s.get_loops(s.get_block("C"))[0], 2, "t", [range(1, 9)], waste=9.0)
        a, b, crop = s.pad_einsum(s.get_block("C"), [t, 4, 1])
        i, j, k = s.get_loops(s.get_block("C"))
        i_0, i_1 = s.split(i, [None, t])
        j_0, j_1 = s.split(j, [None, 4])
        s.reorder([i_0, j_0, k, i_1, j_1])
        s.vectorize(j_1)
        s.compute_inline(a)
        s.compute_at(b, j_0)
        s.reverse_compute_at(crop, j_0)

    for tile in (1, 2, 3, 5, 6):
        apply(product, steps, [[tile]])


def test_pad_einsum_of_an_operand_that_is_read_twice(apply: Apply) -> None:
    @T.prim_func
    def gram(A: T.Buffer((5, 6), "float32"), C: T.Buffer((5, 5), "float32")):
        for i, j, k in T.grid(5, 5, 6):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0.0
                C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]

    def steps(s: Schedule) -> None:
        f = s.sample_categorical([1, 4])
        s.pad_einsum(s.get_block("C"), [f, f, 4])

    for tile in (1, 2, 4):
        s = apply(gram, steps, [[tile]])
    assert [b.name for b in s.blocks()] == ["A_pad", "C", "C_crop"]


@T.prim_func
def convolution(X: T.Buffer((9, 3), "int8"), W: T.Buffer((5, 2, 3), "int8"), C: T.Buffer((4, 5), "int32")):
    for i, o, r, c in T.grid(4, 5, 2, 3):
        with T.block("C"):
            vi, vo, vr, vc = T.axis.remap("SSRR", [i, o, r, c])
            with T.init():
                C[vi, vo] = 0
            C[vi, vo] = C[vi, vo] + T.cast("int32", X[vi * 2 + vr, vc]) * T.cast("int32", W[vo, vr, vc])


@pytest.mark.parametrize("row", list(itertools.product((1, 2, 8), (1, 4), (1, 4))))
def test_pad_einsum_of_sums(apply: Apply, row: tuple[int, ...]) -> None:
    """Positions of a convolution are padded: the image has zeros where they exceed it."""

    def steps(s: Schedule) -> None:
        i, o, c = [s.sample_categorical([1, 2, 4, 8]) for _ in range(3)]
        s.pad_einsum(s.get_block("C"), [i, o, 1, c])

    s = apply(convolution, steps, [[x] for x in row])
    assert [b.name for b in s.blocks()] == ["X_pad", "W_pad", "C", "C_crop"]


def test_pad_einsum_keeps_dimensions_that_are_large_enough(apply: Apply) -> None:
    s = apply(convolution, pad_by(1, 1, 1, 4))
    assert [str(s.func.buffers[n].shape) for n in range(3, 5)] == ["(9, 4)", "(5, 2, 4)"]
