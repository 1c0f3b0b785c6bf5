"""tighten_loop_bounds, version_loops, unswitch_loops: guards of a tile move out of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.arith.linear import coefficient
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import Op, Var, floordiv, mod, poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For, If
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.tighten_loop_bounds import tighten_loop_bounds
from tunesmith.lower.passes.unswitch_loops import unswitch_loops
from tunesmith.lower.passes.version_loops import MAX_VERSIONS, version_loops

Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]


def ifs(func: PrimFunc) -> int:
    """The number of branches."""
    return sum(type(n) is If for n in walk(func.body))


def guarded_inside(func: PrimFunc) -> int:
    """The conditions inside unrolled and vectorized loops."""
    return sum(
        type(x) is IsNegative for n in walk(func.body) if type(n) is For and n.kind in ("unrolled", "vectorized") for x in walk(n.body)
    )


# ---- tighten_loop_bounds


@T.prim_func
def tail(A: T.Buffer((10, 3), "float32"), C: T.Buffer((10, 3), "float32")):
    for o, k, j in T.grid(3, 4, 3):
        if o * 4 + k < 10:
            C[o * 4 + k, j] = A[o * 4 + k, j]


def test_tighten_loop_bounds(lowered: Lowered, assert_golden: Golden) -> None:
    done = lowered(tail, tighten_loop_bounds)
    assert ifs(done) == 0
    assert_golden(str(done))


@T.prim_func
def window(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        C[i] = 0.0
        for r in T.serial(3):
            if 0 < i + r:
                if i + r < 9:
                    C[i] = C[i] + A[i + r - 1]


def test_guards_at_both_ends(lowered: Lowered) -> None:
    """A loop that starts late is shifted to start at 0."""
    done = lowered(window, tighten_loop_bounds)
    assert ifs(done) == 0 and "T.max(" in str(done)


@T.prim_func
def not_clipped(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32"), D: T.Buffer((16,), "float32")):
    for p in T.parallel(16):
        if p < 12:
            C[p] = A[p]
    for k in T.serial(16):
        if k < 9:
            D[k] = A[k]
        if k < 5:
            C[k] = A[k] + 1.0
    for k in T.serial(16):
        if k < 9:
            D[k] = A[k]
        else:
            D[k] = T.float32(0.0)
    for k in T.serial(16):
        for j in T.serial(16):
            if k + j < 9:
                C[k + j] = A[k]


def test_loops_that_are_not_tightened(lowered: Lowered) -> None:
    """Parallel loops, statements under different guards, a branch with an else side; a guard on two loops tightens the inner one."""
    done = lowered(not_clipped, tighten_loop_bounds)
    assert ifs(done) == 4


@T.prim_func
def unguarded_init(A: T.Buffer((16, 4), "float32"), C: T.Buffer((16,), "float32")):
    for p in T.parallel(4):
        for k in T.serial(5):
            B = T.allocate((4,), "float32", scope="workspace")
            for j in T.serial(4):
                B[j] = T.float32(0.0)
            if p * 5 + k < 16:
                for j in T.serial(4):
                    B[j] = B[j] + A[p * 5 + k, j]
            if p * 5 + k < 16:
                C[p * 5 + k] = B[0] + B[1] + B[2] + B[3]


@T.prim_func
def kept_init(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.allocate((4,), "float32")
    for k in T.serial(16):
        B[k % 4] = A[k]
        if k < 9:
            C[k] = B[0]
    for k in T.serial(16):
        D = T.allocate((1,), "float32", scope="workspace")
        D[0] = A[k]
        if k < 9:
            D[0] = D[0] + 1.0


def test_stores_to_memory_of_one_iteration_need_no_guard(lowered: Lowered) -> None:
    done = lowered(unguarded_init, tighten_loop_bounds)
    assert ifs(done) == 0
    a = np.arange(64, dtype="float32").reshape(16, 4)
    np.testing.assert_array_equal(run(done, [a])[-1], a.sum(1))


def test_stores_to_memory_of_several_iterations_need_their_guard(lowered: Lowered) -> None:
    """The buffer B keeps its values; a loop with no effect at all has no guard to be tightened to."""
    assert ifs(lowered(kept_init, tighten_loop_bounds)) == 2


def test_coefficient() -> None:
    i, j = Var("i"), Var("j")
    assert coefficient(poly(i) * 3 + j - 1, i) == (3, poly(j) - 1)
    assert coefficient(poly(j), i) == (0, poly(j))
    assert coefficient(poly(i) * j, i) is None
    assert coefficient(poly(i) + mod(i, 3), i) is None
    assert coefficient(floordiv(i, 2), i) is None


# ---- version_loops


@T.prim_func
def register_tile(A: T.Buffer((10, 7), "float32"), C: T.Buffer((10, 7), "float32")):
    for i_0, j_0 in T.grid(3, 2):
        for i_1 in T.unroll(4):
            for j_1 in T.vectorized(4):
                if i_0 * 4 + i_1 < 10:
                    if j_0 * 4 + j_1 < 7:
                        C[i_0 * 4 + i_1, j_0 * 4 + j_1] = A[i_0 * 4 + i_1, j_0 * 4 + j_1]


def test_version_loops(lowered: Lowered, assert_golden: Golden) -> None:
    """Full tiles have no guard; partial tiles have a constant number of rows and columns."""
    assert_golden(str(lowered(register_tile, version_loops)))


@T.prim_func
def padded_tile(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i_0, r in T.grid(2, 3):
        for i_1 in T.unroll(4):
            if 0 < i_0 * 4 + r + i_1:
                if i_0 * 4 + r + i_1 < 9:
                    C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1 + r - 1]


def test_guards_from_both_sides(lowered: Lowered) -> None:
    done = lowered(padded_tile, version_loops)
    assert guarded_inside(done) < guarded_inside(padded_tile) * ifs(done)


@T.prim_func
def many(A: T.Buffer((600,), "float32"), C: T.Buffer((600,), "float32")):
    for i, j, k, m, n, o in T.grid(7, 7, 7, 7, 7, 7):
        for u in T.unroll(4):
            if i * 5 + j + u < 31:
                if j * 5 + k + u < 31:
                    if k * 5 + m + u < 31:
                        if m * 5 + n + u < 31:
                            if n * 5 + o + u < 31:
                                C[i * 5 + j * 7 + k * 11 + m * 13 + n * 17 + o * 19 + u] = A[i]


def test_copies_are_bounded() -> None:
    """Beyond the limit guards stay in the tile, which is slow but small."""
    from tunesmith.ir.target.target import Target

    done = version_loops(many, Target("llvm -mcpu=x86-64-v3 -num-cores=1"))
    verify(done)
    copies = sum(type(n) is For and n.kind == "unrolled" for n in walk(done.body))
    assert 1 < copies <= 3 * MAX_VERSIONS
    assert guarded_inside(done) > 0


@T.prim_func
def plain(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i_0, i_1 in T.grid(2, 4):
        if i_0 * 4 + i_1 < 7:
            C[i_0 * 4 + i_1] = A[i_0 * 4 + i_1]


@pytest.mark.parametrize("which", [version_loops, unswitch_loops], ids=lambda p: p.name)
def test_loops_that_are_not_unrolled_are_unchanged(lowered: Lowered, which: object) -> None:
    assert lowered(plain, which) is plain


# ---- unswitch_loops


@T.prim_func
def blocks_of_k(A: T.Buffer((3, 8), "float32"), C: T.Buffer((8,), "float32")):
    for k in T.serial(3):
        for i in T.unroll(2):
            for j in T.vectorized(4):
                C[i * 4 + j] = T.select(k < 1, T.float32(0.0), C[i * 4 + j]) + A[k, i * 4 + j]


def test_unswitch_loops(lowered: Lowered, assert_golden: Golden) -> None:
    done = lowered(blocks_of_k, unswitch_loops)
    assert guarded_inside(done) == 0
    assert_golden(str(done))


@T.prim_func
def never_inside(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    for k in T.serial(3):
        for i in T.unroll(4):
            if 1 < k:
                C[i] = A[i]


@T.prim_func
def rows_of_a_tile(A: T.Buffer((9, 16), "float32"), C: T.Buffer((9, 16), "float32")):
    for o in T.serial(3):
        for i in T.unroll(3):
            for j in T.vectorized(16):
                if o * 3 + i < 8:
                    C[o * 3 + i, j] = A[o * 3 + i, j]


def test_guards_of_rows_leave_the_loops_over_vectors(lowered: Lowered) -> None:
    done = lowered(rows_of_a_tile, unswitch_loops)
    (guard,) = [n for n in walk(done.body) if type(n) is If]
    assert type(guard.then) is For and guard.then.kind == "vectorized" and type(guard.then.body) is not If
    (loop,) = [n for n in walk(done.body) if type(n) is For and n.kind == "unrolled"]
    assert loop.body is guard


def test_an_empty_branch(lowered: Lowered) -> None:
    done = lowered(never_inside, unswitch_loops)
    assert ifs(done) == 1 and guarded_inside(done) == 0


def test_operations_in_conditions_are_supported(lowered: Lowered) -> None:
    @T.prim_func
    def fused(A: T.Buffer((4,), "float32"), C: T.Buffer((24,), "float32")):
        for f in T.serial(6):
            for i in T.unroll(4):
                C[f * 4 + i] = T.select(f % 3 < 1, T.float32(0.0), A[i])

    done = lowered(fused, unswitch_loops)
    assert guarded_inside(done) == 0
    assert any(type(a) is Op for n in walk(done.body) if type(n) is IsNegative for m, _ in n.index.terms for a in m)
