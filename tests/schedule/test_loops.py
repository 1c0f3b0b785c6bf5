"""Test split, fuse, reorder, parallel, vectorize and unroll: rewrites and guarantees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For
from tunesmith.ir.visit import walk
from tunesmith.schedule.schedule import Schedule

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def row(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 2.0


@T.prim_func
def grid(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
    for i, j in T.grid(4, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1.0


@T.prim_func
def sums(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vk]


def kinds(func: PrimFunc) -> list[tuple[str, str]]:
    """(variable, kind) of the loops, outermost first."""
    return [(n.var.name, n.kind) for n in walk(func.body) if type(n) is For]


# ---- split


def test_split(apply: Apply, assert_golden: Golden) -> None:
    s = apply(row, lambda s: s.split(s.get_loops(s.get_block("B"))[0], [None, 4]))
    assert_golden(str(s.func))


def split_by(n: int, first: int | None = None) -> Callable[[Schedule], object]:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        factors = s.sample_tile(loop, n, "t", [range(1, 40)] * (n - 1), waste=40.0)
        s.split(loop, [first, *factors])

    return steps


@pytest.mark.parametrize("decision", [[1], [3], [7], [16], [17], [1, 1], [2, 3], [16, 1], [5, 17], [3, 1, 2]])
def test_split_by_any_factor(apply: Apply, decision: list[int]) -> None:
    apply(row, split_by(len(decision) + 1), [decision])


def test_split_checks_a_given_first_factor_and_does_not_use_it(apply: Apply) -> None:
    s = apply(row, split_by(2, 9), [[4]])
    assert [n.extent.as_int() for n in walk(s.func.body) if type(n) is For] == [4, 4]


def test_split_with_one_factor_renames_the_loop(apply: Apply) -> None:
    s = apply(row, lambda s: s.split(s.get_loops(s.get_block("B"))[0], [None]))
    assert kinds(s.func) == [("i_0", "serial")]


def test_split_of_a_part_attaches_another_guard(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        outer, inner = s.split(loop, [None, *s.sample_tile(loop, 2, "a", waste=9.0)])
        s.split(inner, [None, *s.sample_tile(inner, 2, "b", waste=9.0)])
        s.split(outer, [None, *s.sample_tile(outer, 2, "c", waste=9.0)])

    assert_golden(str(apply(row, steps, [[5], [3], [3]]).func))


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("decision", [[1, 1], [2, 3], [5, 7], [16, 1], [1, 17], [3, 2]])
def test_split_derives_the_factor_that_is_none(apply: Apply, at: int, decision: list[int]) -> None:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        factors: list[Any] = s.sample_tile(loop, 3, "t", [range(1, 40)] * 2, waste=40.0)
        s.split(loop, [*factors[:at], None, *factors[at:]])

    s = apply(row, steps, [decision])
    extents = [n.extent.as_int() for n in walk(s.func.body) if type(n) is For]
    assert extents == [*decision[:at], -(-16 // (decision[0] * decision[1])), *decision[at:]]


def test_split_with_an_inner_none_still_covers_the_domain(apply: Apply) -> None:
    """Steps that must prove that the loops run every instance accept the result, also for sampled factors."""

    def steps(s: Schedule) -> None:
        i, k = s.get_loops(s.get_block("C"))
        a, b = s.sample_tile(i, 3, "a", [range(1, 9)] * 2, waste=9.0)
        s.split(i, [a, None, b])
        k_0, _ = s.split(k, [*s.sample_tile(k, 2, "b", [range(1, 9)], waste=9.0), None])
        s.rfactor(k_0)
        s.cache_write(s.get_block("C"), "workspace")

    for decisions in ([[2, 2], [4]], [[1, 3], [1]], [[3, 1], [7]]):
        apply(sums, steps, decisions)


@pytest.mark.parametrize(("mark", "expected"), [("parallel", "psss"), ("vectorize", "sssv"), ("unroll", "uuuu")])
def test_split_keeps_the_mark(apply: Apply, mark: str, expected: str) -> None:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        getattr(s, mark)(loop)
        outer, _ = s.split(loop, [None, *s.sample_tile(loop, 2, "t", [range(1, 40)], waste=40.0)])
        if mark != "vectorize":
            s.split(s.get_loops(s.get_block("B"))[1], [None, 3])
            return
        s.split(outer, [None, 2, 2])

    for tile in (1, 5, 16):
        found = kinds(apply(row, steps, [[tile]]).func)
        assert "".join(k[0] for _, k in found) == (expected if mark == "vectorize" else expected[: len(found)])


@T.prim_func
def below_if(A: T.Buffer((16,), "float32"), B: T.Buffer((16, 4), "float32")):
    for i in T.serial(16):
        if A[i] > 0.5:
            for j in T.serial(4):
                with T.block("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi] * 2.0
        A[i] = A[i] + 1.0


@pytest.mark.parametrize("tile", [3, 4, 16])
def test_split_of_statements_outside_of_blocks(apply: Apply, tile: int) -> None:
    """A factor that divides the extent leaves the guard of the others."""

    def steps(s: Schedule) -> None:
        i, _ = s.get_loops(s.get_block("B"))
        s.split(i, [None, *s.sample_tile(i, 2, "t", [(3, 4, 16)], waste=9.0)])

    apply(below_if, steps, [[tile]])


def test_split_of_reductions(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        k = s.get_loops(s.get_block("C"))[1]
        s.split(k, [None, *s.sample_tile(k, 3, "k", waste=9.0)])

    for decision in ([1, 1], [4, 1], [2, 2], [7, 1]):
        apply(sums, steps, [decision])


# ---- fuse


def test_fuse(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(grid, lambda s: s.fuse(s.get_loops(s.get_block("B")))).func))


def test_fuse_one_loop(apply: Apply) -> None:
    s = apply(grid, lambda s: s.fuse(s.get_loops(s.get_block("B"))[1:]))
    assert kinds(s.func) == [("i", "serial"), ("j_fused", "serial")]


@pytest.mark.parametrize("row", [(1, 1), (3, 5), (4, 8), (5, 9), (1, 8), (4, 1)])
def test_fuse_of_guarded_tiles(apply: Apply, row: tuple[int, int]) -> None:
    """A fused loop over tiles of extent 1 has no remainder, in both modes."""

    def steps(s: Schedule) -> None:
        i, j = s.get_loops(s.get_block("B"))
        i_0, i_1 = s.split(i, [None, *s.sample_tile(i, 2, "i", waste=9.0)])
        j_0, j_1 = s.split(j, [None, *s.sample_tile(j, 2, "j", waste=9.0)])
        s.reorder([i_0, j_0, i_1, j_1])
        s.fuse([i_0, j_0])
        s.fuse([i_1, j_1])

    apply(grid, steps, [[row[0]], [row[1]]])


# ---- reorder


def test_reorder(apply: Apply, assert_golden: Golden) -> None:
    assert_golden(str(apply(grid, lambda s: s.reorder(s.get_loops(s.get_block("B"))[::-1])).func))


def test_reorder_leaves_loops_that_are_not_named(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        i, j = s.get_loops(s.get_block("B"))
        i_0, _i_1 = s.split(i, [None, 2])
        s.reorder([j, i_0])

    s = apply(grid, steps)
    assert [v for v, _ in kinds(s.func)] == ["j", "i_1", "i_0"]


def test_reorder_moves_reductions_out(apply: Apply) -> None:
    """The init still runs first for every element."""
    s = apply(sums, lambda s: s.reorder(s.get_loops(s.get_block("C"))[::-1]))
    assert [v for v, _ in kinds(s.func)] == ["k", "i"]


def test_reorder_of_nothing(apply: Apply) -> None:
    s = apply(grid, lambda s: s.reorder([]))
    assert s.func is grid


# ---- kinds of loops


@pytest.mark.parametrize("kind", ["parallel", "vectorize", "unroll"])
def test_marks(apply: Apply, assert_golden: Golden, kind: str) -> None:
    def steps(s: Schedule) -> None:
        getattr(s, kind)(s.get_loops(s.get_block("B"))[1])

    assert_golden(str(apply(grid, steps).func))


def test_marking_a_loop_twice_changes_nothing(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        (loop,) = s.get_loops(s.get_block("B"))
        s.parallel(loop)
        s.parallel(loop)

    assert kinds(apply(row, steps).func) == [("i", "parallel")]


def test_a_reduction_without_init_may_be_vectorized(apply: Apply) -> None:
    def steps(s: Schedule) -> None:
        b = s.get_block("C")
        k = s.get_loops(b)[1]
        s.decompose_reduction(b, k)
        s.vectorize(k)

    assert ("k", "vectorized") in kinds(apply(sums, steps).func)


def test_length_limits_become_constraints() -> None:
    """A condition that a concrete schedule checks is a constraint of a parametric one."""
    s = Schedule(row, parametric=True)
    (loop,) = s.get_loops(s.get_block("B"))
    (t,) = s.sample_tile(loop, 2, "t")
    _, inner = s.split(loop, [None, t])
    s.vectorize(inner, 8)
    found = [c for c in s.constraints if c.label == "length"]
    assert [(c.kind, c.expr) for c in found] == [("le0", t.expr - 8)]
