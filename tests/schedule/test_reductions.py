"""Test decompose_reduction and rfactor."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def rows(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


@T.prim_func
def everything(A: T.Buffer((30,), "float32"), C: T.Buffer((1,), "float32")):
    for k in T.serial(30):
        with T.block("C"):
            vk = T.axis.reduce(30, k)
            with T.init():
                C[0] = 0.0
            C[0] = C[0] + A[vk]


@T.prim_func
def largest(A: T.Buffer((3, 5, 4), "int32"), C: T.Buffer((3,), "int32")):
    for i, k, r in T.grid(3, 5, 4):
        with T.block("C"):
            vi, vk, vr = T.axis.remap("SRR", [i, k, r])
            with T.init():
                C[vi] = T.int32(-2147483648)
            C[vi] = T.max(C[vi], A[vi, vk, vr])


@T.prim_func
def product(A: T.Buffer((3, 7), "int64"), C: T.Buffer((3,), "int64")):
    for i, k in T.grid(3, 7):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.int64(1)
            C[vi] = C[vi] * A[vi, vk]


# ---- decompose_reduction


def test_decompose_reduction(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        s.decompose_reduction(b, s.get_loops(b)[1])

    assert_golden(str(apply(rows, steps).func))


@pytest.mark.parametrize(("row", "at"), list(itertools.product([(1, 1), (3, 5), (4, 8), (5, 9)], range(4))))
def test_decompose_reduction_of_tiles(apply: Apply, row: tuple[int, int], at: int) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        i, k = [s.split(x, [None, *s.sample_tile(x, 2, n, [range(1, 9)], waste=9.0)]) for n, x in zip("ik", s.get_loops(b), strict=True)]
        loops = [i[0], k[0], i[1], k[1]]
        s.reorder(loops)
        s.decompose_reduction(b, loops[min(at, 1)])

    apply(rows, steps, [[x] for x in row])


def test_decompose_reduction_at_the_outermost_loop(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        s.decompose_reduction(b, s.get_loops(b)[0])

    s = apply(rows, steps)
    assert [b.name for b in s.blocks()] == ["C_init", "C"]


@T.prim_func
def means(A: T.Buffer((4, 8), "float32"), D: T.Buffer((4,), "float32")):
    C = T.alloc_buffer((4,), "float32")
    for i, k in T.grid(4, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]
    for i in T.serial(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            D[vi] = C[vi] / 8.0


def at_the_root(s: Schedule) -> None:
    s.decompose_reduction(s.get_block("C"), s.get_loops(s.get_block("C"))[0])


def in_a_loop(s: Schedule) -> None:
    s.compute_at(s.get_block("C"), s.get_loops(s.get_block("D"))[0])
    s.decompose_reduction(s.get_block("C"), s.get_loops(s.get_block("C"))[2])


def factored(s: Schedule) -> None:
    i, k = s.get_loops(s.get_block("C"))
    s.reorder([k, i])
    s.rfactor(k)


@pytest.mark.parametrize("steps", [at_the_root, in_a_loop, factored], ids=lambda f: f.__name__)
def test_new_statements_are_merged_into_the_sequence(apply: Apply, steps: Callable[[Schedule], None]) -> None:
    """A statement that becomes several is merged into the sequence, not nested, so that the printed program parses back."""
    s = apply(means, steps)
    assert not any(type(x) is Seq for n in walk(s.func.body) if type(n) is Seq for x in n.stmts)
    assert "T.seq" not in str(s.func)
    assert structural.difference(parse(str(s.func)), s.func) is None


def test_decompose_reduction_beside_another_block(apply: Apply) -> None:
    """The same loop contains a copy; its loops are a tiling, so each element is computed once."""

    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        i, k = s.get_loops(b)
        k_0, _ = s.split(k, [None, *s.sample_tile(k, 2, "k", [range(1, 9)], waste=9.0)])
        s.reorder([k_0, i])
        s.compute_at(s.cache_read(b, "A", "workspace"), k_0)
        s.decompose_reduction(b, k_0)

    for tile in (1, 3, 8, 9):
        apply(rows, steps, [[tile]])


# ---- rfactor


def lanes(s: Schedule) -> None:
    """Split the last loop and factor the inner one."""
    loop = s.get_loops(s.get_block("C"))[-1]
    _, lane = s.split(loop, [None, *s.sample_tile(loop, 2, "lane", [range(1, 40)], waste=40.0)])
    s.rfactor(lane)


def test_rfactor(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(everything, lanes, [[8]]).func))


@pytest.mark.parametrize("tile", [1, 4, 7, 30, 31])
def test_rfactor_by_any_factor(apply: Apply, tile: int) -> None:
    """Lanes without an update, because of the guard, have the value of the identity element."""
    apply(everything, lanes, [[tile]])


@pytest.mark.parametrize("func", [largest, product, rows], ids=lambda f: f.name)
def test_rfactor_of_every_kind_of_reduction(apply: Apply, func: object) -> None:
    for tile in (1, 3, 9):
        apply(func, lanes, [[tile]])


@pytest.mark.parametrize("axis", range(-2, 2))
def test_rfactor_factor_axis(apply: Apply, axis: int) -> None:
    def steps(s: Schedule) -> None:
        loop = s.get_loops(s.get_block("C"))[-1]
        _, lane = s.split(loop, [None, *s.sample_tile(loop, 2, "lane", [range(1, 40)], waste=40.0)])
        s.rfactor(lane, factor_axis=axis)

    for tile in (1, 3, 9):
        s = apply(rows, steps, [[tile]])
        assert [e.as_int() for e in s.func.allocs[0].shape] == ([4, tile] if axis % 2 else [tile, 4])


def test_rfactor_of_a_dynamic_extent() -> None:
    """The guard of the split contains the size, which is no loop."""
    func = parse("""
@T.prim_func
def f(A: T.Buffer((n,), "float32"), C: T.Buffer((1,), "float32"), n: T.int64):
    for k in T.serial(n):
        with T.block("C"):
            vk = T.axis.reduce(n, k)
            with T.init():
                C[0] = 0.0
            C[0] = C[0] + A[vk]
""")
    s = Schedule(func)
    s.rfactor(s.split(s.get_loops(s.get_block("C"))[0], [None, 8])[1])
    artifact = build(s.func, Target("llvm -mcpu=x86-64-v3 -num-cores=1"))
    for n in (1, 7, 8, 30):
        a, c = np.arange(n, dtype="float32"), np.empty(1, "float32")
        Module.from_object(artifact.data)[artifact.functions[0]](a, c, n)
        assert c[0] == a.sum()


def test_rfactor_of_the_middle_of_three(apply: Apply) -> None:
    """The first lanes exceed the extent although the whole tile does not."""

    def steps(s: Schedule) -> None:
        (k,) = s.get_loops(s.get_block("C"))
        parts = s.split(k, [None, *s.sample_tile(k, 3, "k", [range(1, 40)] * 2, waste=40.0)])
        s.rfactor(parts[1])

    for decision in ([3, 4], [6, 20], [1, 30], [5, 7]):
        apply(everything, steps, [decision])


def test_rfactor_of_an_outer_loop_and_of_its_result(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        k = s.fuse(s.get_loops(s.get_block("C"))[1:])
        a, b, c = s.split(k, [None, *s.sample_tile(k, 3, "k", [range(1, 20)] * 2, waste=9.0)])
        s.rfactor(a)
        s.rfactor(c)
        assert b.name

    for decision in ([1, 1], [3, 4], [2, 7]):
        apply(largest, steps, [decision])


def test_rfactor_returns_the_partial_block(apply: Apply) -> None:
    s = Schedule(rows)
    part = s.rfactor(s.get_loops(s.get_block("C"))[1])
    assert part.block == "C_rf" and [b.name for b in s.blocks()] == ["C_rf", "C"]


# ---- the index of an extreme


def index_of_extreme(dtype: str, choice: str, update: str, start: int = 0) -> PrimFunc:
    made = parse(f"""
@T.prim_func
def f(A: T.Buffer((3, 13), "{dtype}"), C: T.Buffer((3,), "{dtype}"), P: T.Buffer((3,), "int32")):
    for i, k in T.grid(3, 13):
        with T.block("C"):
            vi = T.axis.spatial(3, i)
            vk = T.axis.reduce(13, k)
            with T.init():
                C[vi] = T.{dtype}({start})
                P[vi] = -1
            P[vi] = {choice}
            C[vi] = {update}
""")
    assert isinstance(made, PrimFunc)
    return made


CHOICES = {
    "max": ('T.select(A[vi, vk] > C[vi], T.cast("int32", vk), P[vi])', "T.max(C[vi], A[vi, vk])"),
    "max, old first": ('T.select(C[vi] >= A[vi, vk], P[vi], T.cast("int32", vk))', "T.max(C[vi], A[vi, vk])"),
    "min": ('T.select(C[vi] > A[vi, vk], T.cast("int32", vk), P[vi])', "T.min(C[vi], A[vi, vk])"),
}


def lanes_of(at: int) -> Callable[[Schedule], None]:
    def steps(s: Schedule) -> None:
        loop = s.get_loops(s.get_block("C"))[-1]
        parts = s.split(loop, [None, *s.sample_tile(loop, 2, "lane", [range(1, 40)], waste=40.0)])
        s.rfactor(parts[at], factor_axis=at)

    return steps


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("dtype", "start"), [("int32", -9), ("float32", -9), ("int32", 0), ("int16", 2)])
@pytest.mark.parametrize("name", CHOICES)
def test_rfactor_of_the_index_of_an_extreme(apply: Apply, name: str, dtype: str, start: int, at: int) -> None:
    """The terms are small integers, so that most extremes occur several times; the first one, or the init, is chosen."""
    for tile in (1, 2, 5, 13, 14):
        apply(index_of_extreme(dtype, *CHOICES[name], start), lanes_of(at), [[tile]])


def test_rfactor_of_the_index_of_an_extreme_as_text(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(index_of_extreme("float32", *CHOICES["max"]), lanes_of(1), [[4]]).func))


def test_partial_indices_of_extremes_in_parallel(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        loop = s.get_loops(s.get_block("C"))[-1]
        k_0, k_1 = s.split(loop, [None, 4])
        part = s.rfactor(k_1)
        i, _, lane = s.get_loops(part)
        s.parallel(i)
        s.vectorize(lane)
        assert k_0.name

    s = apply(index_of_extreme("float32", *CHOICES["max"], -9), steps)
    artifact = build(s.func, Target("llvm -mcpu=x86-64-v3 -num-cores=2"))
    a = np.random.default_rng(0).integers(-3, 4, (3, 13)).astype("float32")
    c, p = np.empty(3, "float32"), np.empty(3, "int32")
    Module.from_object(artifact.data)[artifact.functions[0]](a, c, p)
    np.testing.assert_array_equal(c, a.max(axis=1))
    np.testing.assert_array_equal(p, a.argmax(axis=1))
