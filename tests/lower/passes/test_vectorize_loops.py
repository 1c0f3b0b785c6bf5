"""vectorize_loops, unroll_loops, fuse_multiply_add, renew_binders: vectorized and unrolled loops, contracted sums, unique binders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tunesmith
from tunesmith.codegen.llvm.build import build
from tunesmith.ir.buffer import BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For, Seq
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.fuse_multiply_add import fuse_multiply_add
from tunesmith.lower.passes.unroll_loops import unroll_loops
from tunesmith.lower.passes.vectorize_loops import vectorize_loops
from tunesmith.lower.pipelines import CPU
from tunesmith.lower.renew_binders import renew_binders
from tunesmith.runtime.module import Module

Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]
NARROW = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")
TARGETS = (NARROW, Target("llvm -mcpu=x86-64-v3 -num-cores=1"), Target.detect())


def kinds(func: PrimFunc) -> list[str]:
    """The kinds of the loops, in order."""
    return [n.kind for n in walk(func.body) if type(n) is For]


@T.prim_func
def elementwise(A: T.Buffer((30,), "float32"), B: T.Buffer((3,), "float32"), C: T.Buffer((30,), "float32")):
    for i in T.serial(3):
        for j in T.vectorized(10):
            C[i * 10 + j] = T.max(A[i * 10 + j] * B[i] + T.cast("float32", j), 0.0)


def test_vectorize_loops(lowered: Lowered, assert_golden: Golden) -> None:
    """Full vectors and a masked tail; uniform expressions stay scalar until a vector is needed."""
    assert_golden(str(lowered(elementwise, vectorize_loops)))


@T.prim_func
def strides(A: T.Buffer((10,), "float32"), C: T.Buffer((10,), "float32"), D: T.Buffer((20,), "float32")):
    for k in T.vectorized(10):
        C[k] = A[9 - k]
    for k in T.vectorized(10):
        D[k * 2] = A[k]
    for k in T.vectorized(10):
        D[k * 2 + 1] = A[3]


def test_strides(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(strides, vectorize_loops)))


@T.prim_func
def guards(A: T.Buffer((10,), "float32"), C: T.Buffer((10,), "float32"), D: T.Buffer((10,), "float32")):
    for o in T.serial(2):
        for k in T.vectorized(5):
            C[o * 5 + k] = 0.0
        for k in T.vectorized(5):
            if k < 3:
                if o < 1:
                    C[o * 5 + k] = T.select(k < 2, A[o * 5 + k], T.float32(0.0))
        for k in T.vectorized(5):
            D[o * 5 + k] = T.select(k < 4, A[o * 5 + k], T.float32(5.0)) + T.select(1 < k, T.float32(1.0), T.float32(2.0))


def test_guards_become_masks(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(guards, vectorize_loops)))


@T.prim_func
def reductions(A: T.Buffer((10,), "float32"), B: T.Buffer((10,), "int32"), C: T.Buffer((3,), "float32"), D: T.Buffer((3,), "int32")):
    C[0] = 0.0
    for k in T.vectorized(10):
        C[0] = C[0] + A[k] * A[k]
    C[1] = T.float32(100.0)
    for k in T.vectorized(10):
        C[1] = T.min(C[1], A[k])
    C[2] = T.float32(-100.0)
    for k in T.vectorized(8):
        C[2] = T.max(C[2], A[k])
    D[0] = 7
    for k in T.vectorized(10):
        D[0] = D[0] + B[k]
    D[1] = 100
    for k in T.vectorized(10):
        D[1] = T.min(D[1], B[k])
    D[2] = -100
    for k in T.vectorized(10):
        D[2] = T.max(D[2], B[k])


def test_horizontal_reductions(lowered: Lowered, assert_golden: Golden) -> None:
    """Lanes beyond the end have the identity element of the type."""
    done = lowered(reductions, vectorize_loops)
    assert kinds(done) == []
    assert_golden(str(done))


@T.prim_func
def types(A: T.Buffer((10,), "float64"), B: T.Buffer((10,), "uint8"), C: T.Buffer((10,), "float64"), D: T.Buffer((10,), "uint8")):
    for k in T.vectorized(10):
        C[k] = A[k] + 1.0
    for k in T.vectorized(10):
        D[k] = B[k]
    for k in T.vectorized(10):
        C[k] = C[k] + T.cast("float64", B[k])


def test_the_widest_type_decides_the_lanes(lowered: Lowered) -> None:
    text = str(lowered(types, vectorize_loops))
    assert "A.vload([8], lanes=2" in text and "B.vload([8], lanes=2" in text
    assert "D.vstore([0], B.vload([0], lanes=16, stride=1, mask=10), stride=1, mask=10)" in text


@T.prim_func
def gather(A: T.Buffer((10,), "float32"), C: T.Buffer((10,), "float32")):
    for k in T.vectorized(10):
        C[k] = A[k // 2]


@T.prim_func
def select_of_loads(A: T.Buffer((10,), "float32"), C: T.Buffer((10,), "float32")):
    for k in T.vectorized(10):
        C[k] = T.select(2 < k, A[k - 3], T.float32(0.0))


@T.prim_func
def products(A: T.Buffer((6,), "float32"), C: T.Buffer((1,), "float32")):
    C[0] = 1.0
    for k in T.vectorized(6):
        C[0] = C[0] * A[k]


@T.prim_func
def other_side(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for k in T.vectorized(8):
        if k < 5:
            C[k] = A[k]
        else:
            C[k] = A[k] + 1.0


@pytest.mark.parametrize("func", [gather, select_of_loads, products, other_side], ids=lambda f: f.name)
def test_loops_without_a_vector_form_are_unrolled(lowered: Lowered, func: PrimFunc) -> None:
    assert "unrolled" in kinds(lowered(func, vectorize_loops))
    assert kinds(lowered(func, vectorize_loops, unroll_loops)) == []


@T.prim_func
def triangle(A: T.Buffer((8,), "float32"), C: T.Buffer((64,), "float32")):
    for i in T.serial(8):
        for k in T.vectorized(8):
            C[i * 8 + k] = 0.0
        for k in T.vectorized(i + 1):
            C[i * 8 + k] = A[k]


def test_loops_of_unknown_extent_stay(lowered: Lowered) -> None:
    assert kinds(lowered(triangle, vectorize_loops)) == ["serial", "serial"]


@pytest.mark.parametrize(
    ("extent", "shape"), [(64, ["unrolled"]), (96, ["serial", "unrolled"]), (256, ["serial", "unrolled"]), (67, ["serial"])]
)
def test_long_loops_without_a_vector_form_are_unrolled_in_chunks(lowered: Lowered, extent: int, shape: list[str]) -> None:
    """At most 64 statements, evenly; a prime extent has no chunks."""
    func = parse(f"""
@T.prim_func
def squares(A: T.Buffer(({extent * extent},), "float32"), C: T.Buffer(({extent},), "float32")):
    for k in T.vectorized({extent}):
        C[k] = A[k * k]
""")
    assert kinds(lowered(func, vectorize_loops)) == shape


# ---- unroll_loops


@T.prim_func
def unrolled_rows(A: T.Buffer((12,), "float32"), C: T.Buffer((12,), "float32")):
    for i in T.unroll(3):
        for j in T.unroll(4):
            if i * 4 + j < 10:
                C[i * 4 + j] = A[i * 4 + j]
            else:
                C[i * 4 + j] = T.float32(0.0)


def test_unroll_loops(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(unrolled_rows, unroll_loops)))


@T.prim_func
def with_memory(A: T.Buffer((2, 13), "float32"), C: T.Buffer((2, 13), "float32")):
    for i in T.unroll(2):
        x = T.allocate((13,), "float32", scope="workspace")
        for j in T.serial(13):
            x[j] = A[i, j] + 1.0
        for j in T.serial(13):
            C[i, j] = x[12 - j]


def test_copies_have_their_own_loops_and_allocations(lowered: Lowered) -> None:
    done = lowered(with_memory, unroll_loops)  # the check rejects a binder that is bound twice
    assert kinds(done) == ["serial"] * 4


@T.prim_func
def nothing_left(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    for k in T.serial(3):
        C[k] = A[k]
        if k < 2:
            for i in T.unroll(1):
                if 0 < i:
                    C[k] = T.float32(9.0)
        else:
            for i in T.unroll(2):
                if i < 0:
                    C[k] = T.float32(9.0)


@T.prim_func
def tile(A: T.Buffer((3, 40), "float32"), B: T.Buffer((40,), "float32"), C: T.Buffer((3, 4), "float32")):
    for i in T.unroll(3):
        for j in T.unroll(4):
            for k in T.serial(T.min(4, 6 - i)):
                C[i, j] = C[i, j] + A[i, k * 10] * B[(k + i * 3) % 4 * 10 + j // 2]


@T.prim_func
def outer_product(A: T.Buffer((2,), "float32"), B: T.Buffer((3,), "float32"), C: T.Buffer((2, 3), "float32")):
    for i in T.unroll(2):
        for j in T.unroll(3):
            C[i, j] = A[i] * B[j]


def test_copies_of_a_tile_share_common_operands(lowered: Lowered) -> None:
    done = lowered(tile, flatten_buffers, unroll_loops)
    assert kinds(done) == ["serial"] * 12
    assert "//" not in str(done)  # operations on unrolled variables are constants
    loads = [n for n in walk(lowered(outer_product, flatten_buffers, unroll_loops).body) if type(n) is BufferLoad]
    assert [sum(n.buffer.name == b for n in loads) for b in "AB"] == [6, 6]
    assert [len({n for n in loads if n.buffer.name == b}) for b in "AB"] == [2, 3]


def test_empty_statements_are_removed(lowered: Lowered) -> None:
    done = lowered(nothing_left, unroll_loops)
    assert not any(type(n) is Seq and not n.stmts for n in walk(done.body))
    assert "if" not in str(done)


def test_renew_binders_leaves_unique_binders_unchanged() -> None:
    assert renew_binders(with_memory.body) is with_memory.body


# ---- fuse_multiply_add


@T.prim_func
def sums(
    A: T.Buffer((8,), "float32"),
    B: T.Buffer((8,), "int32"),
    C: T.Buffer((8,), "float32"),
    D: T.Buffer((8,), "int32"),
    E: T.Buffer((8,), "float32"),
):
    for i in T.serial(8):
        C[i] = A[i] + A[7 - i] * A[0]
        C[i] = A[i] * A[i] + C[i] * A[1] + 1.0
        C[i] = C[i] + A[i] * A[0]
        C[i] = A[1] * A[i] + (C[i] + 1.0 + A[2] * A[3])
        C[i] = C[7 - i] + A[i] * A[0]
        D[i] = D[i] + B[7 - i] * B[0]
        E[i] = A[i] - A[7 - i] * A[0]


def test_fuse_multiply_add(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(sums, fuse_multiply_add)))


def test_only_accumulated_products_are_contracted() -> None:
    """a * a - a * a is 0, as in numpy; a reduction rounds once per step, whether it is vectorized or not."""

    @T.prim_func
    def f(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32"), D: T.Buffer((1,), "float32")):
        for i in T.vectorized(64):
            with T.block("C"):
                vi = T.axis.spatial(64, i)
                C[vi] = A[vi] * A[vi] + B[vi]
        for i in T.vectorized(64):
            with T.block("D"):
                vi = T.axis.reduce(64, i)
                D[0] = D[0] + A[vi] * A[vi]

    a = np.random.default_rng(0).normal(size=64).astype(np.float32)
    c, d = np.ones(64, np.float32), np.zeros(1, np.float32)
    Module.from_object(build(f, Target("llvm")).data)["f"](a, -(a * a), c, d)
    assert not c.any()
    assert abs(d[0] - (a.astype(np.float64) ** 2).sum()) < 1e-5
    assert "fma" in str(CPU(f, Target("llvm")))


def gathered(value: str, table: str) -> PrimFunc:
    """C[i, j] computed with the indirect index I[i]."""
    func = parse(
        f"""
@T.prim_func
def gathered(I: T.Buffer((4,), "int64"), X: T.Buffer({table}, "int32"), C: T.Buffer((4, 8), "int32")):
    for i in T.serial(4):
        for j in T.vectorized(8):
            C[i, j] = {value}
"""
    )
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_indirect_indices_under_a_select(target: Target) -> None:
    """An unselected side must not evaluate its indirect index; a select inside an indirect index becomes a mask."""
    numbers, out = np.array([3, 1, 11, 0]), np.zeros((4, 8), np.int32)
    Module.from_object(build(gathered("T.select(j < 5, T.lookup(I[i], 12, lambda q: X[q]), 0)", "(12,)"), target).data)["gathered"](
        numbers, np.arange(12, dtype=np.int32), out
    )
    np.testing.assert_array_equal(out, np.where(np.arange(8) < 5, numbers[:, None], 0))
    rows = np.arange(60, dtype=np.int32).reshape(12, 5)
    Module.from_object(build(gathered("T.lookup(I[i], 12, lambda q: T.select(j < 5, X[q, j], 0))", "(12, 5)"), target).data)["gathered"](
        numbers, rows, out
    )
    np.testing.assert_array_equal(out, np.pad(rows[numbers], ((0, 0), (0, 3))))


def test_an_indirect_index_that_no_lane_uses_is_not_evaluated() -> None:
    """I[3] is not a row of X, and no lane of the last row uses it."""
    func = gathered("T.select(j < 5 - i * 2, T.lookup(I[i], 12, lambda q: X[q]), 0)", "(12,)")
    x, numbers = np.arange(12, dtype=np.int32), np.array([3, 1, 11, 2**40])
    for target in TARGETS:
        out = np.zeros((4, 8), np.int32)
        Module.from_object(build(func, target).data)["gathered"](numbers, x, out)
        np.testing.assert_array_equal(out, np.where(np.arange(8) < np.array([[5], [3], [1], [-1]]), numbers[:, None], 0))


@T.prim_func
def rows_of_few(R: T.Buffer((3,), "float32"), C: T.Buffer((40,), "float32")):
    for i in T.unroll(5):
        for j in T.vectorized(8):
            if j < 20 - i * 8:
                C[i * 8 + j] = R[i] + T.float32(1.0)


def test_uniform_loads_are_not_read_without_an_active_lane(lowered: Lowered) -> None:
    """Rows 3 and 4 have no lane below 20, and R has no such element: the interpreter reports a read of it."""
    done = lowered(rows_of_few, vectorize_loops, unroll_loops)
    loads = [n.indices[0].const for n in walk(done.body) if type(n) is BufferLoad]
    assert loads and set(loads) == {0, 1, 2}


def test_vectors_of_one_lane_are_scalars() -> None:
    """A target with one double per vector: the loop and its guards stay."""
    narrow = Target("llvm -mcpu=x86-64-v3 -vector-bits=64 -num-cores=1")
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((8, 10), "float64"), C: T.Buffer((8, 10), "float64")):
    for i in T.serial(8):
        for j in T.vectorized(10):
            if j - i < 3:
                C[i, j] = A[i, j] * T.float64(2.0)
"""
    )
    assert isinstance(func, PrimFunc)
    assert kinds(vectorize_loops(flatten_buffers(func, narrow), narrow)) == ["serial", "unrolled"]
    a, c = np.arange(80.0).reshape(8, 10), np.zeros((8, 10))
    Module.from_object(build(func, narrow).data)["f"](a, c)
    np.testing.assert_array_equal(c, np.where(np.arange(10) - np.arange(8)[:, None] < 3, a * 2, 0))


def test_a_guard_does_not_widen_a_short_horizontal_sum() -> None:
    """A loop of two iterations on vectors of four: its guard passes more lanes than iterations."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((n,), "float32"), C: T.Buffer((1,), "float32"), n: T.int64):
    for i_0, i_1 in T.grid(T.ceildiv(n, 8), 4):
        for i_2 in T.vectorized(2):
            if i_0 * 8 + i_1 * 2 + i_2 < n:
                C[0] = C[0] + A[i_0 * 8 + i_1 * 2 + i_2]
"""
    )
    assert isinstance(func, PrimFunc)
    for target in TARGETS:
        call = Module.from_object(build(func, target).data)["f"]
        for n in (1, 2, 3, 4, 7, 8, 13):
            a, c = np.arange(1, n + 1, dtype=np.float32), np.zeros(1, np.float32)
            call(a, c, n)
            assert c[0] == n * (n + 1) / 2


def test_a_uniform_load_is_selected_by_lane() -> None:
    """The result is not a masked vector, whose other lanes would be zero."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((4,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.vectorized(8):
        C[i] = T.select(i < 3, A[2], T.float32(0.0))
"""
    )
    assert isinstance(func, PrimFunc)
    for target in TARGETS:
        c = np.ones(8, np.float32)
        Module.from_object(build(func, target).data)["f"](np.full(4, 5, np.float32), c)
        np.testing.assert_array_equal(c, [5, 5, 5, 0, 0, 0, 0, 0])


def test_a_vectorized_loop_may_be_inside_an_indirect_index() -> None:
    text = """
@T.prim_func
def put(I: T.Buffer((1,), "int64"), X: T.Buffer((8,), "float32"), Y: T.Buffer((n, 8), "float32"), n: T.int64):
    with T.block("Y"):
        with T.lookup(I[0], n) as v:
            for u in T.vectorized(8):
                Y[v, u] = X[u]
"""
    f = parse(text)
    assert isinstance(f, PrimFunc)
    x, y = np.arange(8, dtype=np.float32), np.zeros((3, 8), np.float32)
    tunesmith.build(f)["put"](np.array([1]), x, y, 3)
    np.testing.assert_array_equal(y, [x * 0, x, x * 0])
