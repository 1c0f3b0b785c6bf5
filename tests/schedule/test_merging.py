"""Test merge and reuse_buffer: fused adjacent loops, and intermediate results stored in the output."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.poly import evaluate
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import ScheduleError
from tunesmith.support.seeds import stream

Apply = Callable[..., Schedule]
Golden = Callable[..., None]


@T.prim_func
def chain(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((16,), "float32")
    for i in T.serial(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 2.0
    for j in T.serial(16):
        with T.block("C"):
            vj = T.axis.spatial(16, j)
            C[vj] = B[vj] + 1.0


@T.prim_func
def scaled(X: T.Buffer((5, 13), "float32"), Y: T.Buffer((5, 13), "float32")):
    E = T.alloc_buffer((5, 13), "float32")
    S = T.alloc_buffer((5,), "float32")
    for i, j in T.grid(5, 13):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = X[vi, vj] * 2.0
    for i, j in T.grid(5, 13):
        with T.block("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = 0.0
            S[vi] = S[vi] + E[vi, vj]
    for i, j in T.grid(5, 13):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = E[vi, vj] * S[vi]


def loops(s: Schedule, block: str) -> list[LoopRV]:
    """The loops around the block, outermost first."""
    return s.get_loops(s.get_block(block))


# ---- merge


def test_merge(apply: Apply, assert_golden: Golden) -> None:
    def steps(s: Schedule) -> None:
        s.merge(loops(s, "B")[0], loops(s, "C")[0])

    assert_golden(str(apply(chain, steps).func))


@pytest.mark.parametrize("tile", [1, 3, 4, 16, 17])
def test_merge_of_tiles_of_the_same_factor(apply: Apply, tile: int) -> None:
    """The outer loops of two splits by one factor are merged, for any factor."""

    def steps(s: Schedule) -> None:
        factor = s.sample_tile(loops(s, "B")[0], 2, "t", [range(1, 20)], waste=20.0)
        outer = [s.split(loops(s, b)[0], [None, *factor])[0] for b in "BC"]
        s.merge(*outer)

    s = apply(chain, steps, [[tile]])
    assert [b.name for b in s.blocks()] == ["B", "C"]
    assert loops(s, "B")[0].var is loops(s, "C")[0].var and loops(s, "B")[1].var is not loops(s, "C")[1].var


def test_merge_moves_past_independent_statements(apply: Apply) -> None:
    """The first loop moves to the second one; independent statements between them stay before the merged loop."""

    def steps(s: Schedule) -> None:
        s.decompose_reduction(s.get_block("S"), loops(s, "S")[0])
        s.merge(loops(s, "E")[0], loops(s, "S")[0])

    s = apply(scaled, steps)
    assert [b.name for b in s.blocks()] == ["S_init", "E", "S", "Y"]


def sums_in_the_loop(s: Schedule) -> None:
    """Merge the partial sums with the loop of the elements, and both with their consumer, in one loop over rows."""
    j = loops(s, "S")[-1]
    width = s.sample_tile(j, 2, "width", [range(1, 16)], waste=20.0)
    s.rfactor(s.split(j, [None, *width])[1])
    row = s.split(loops(s, "Y")[0], [None, *s.sample_tile(loops(s, "Y")[0], 2, "rows", [range(1, 6)], waste=20.0)])[1]
    for b in ("S", "S_rf", "E"):
        s.compute_at(s.get_block(b), row)
    s.decompose_reduction(s.get_block("S_rf"), loops(s, "S_rf")[3])
    step, _ = s.split(loops(s, "E")[-1], [None, *width])
    s.merge(loops(s, "E")[2], loops(s, "S_rf")[2])
    s.merge(step, loops(s, "S_rf")[3])


WIDTHS = list(itertools.product([1, 4, 13, 15], [1, 2, 5]))


@pytest.mark.parametrize("row", WIDTHS)
def test_merge_of_loops_inside_merged_loops(apply: Apply, row: tuple[int, int]) -> None:
    s = apply(scaled, sums_in_the_loop, [[x] for x in row])
    assert [b.name for b in s.blocks()] == ["S_rf_init", "E", "S_rf", "S", "Y"]
    assert [x.var for x in loops(s, "E")[:4]] == [x.var for x in loops(s, "S_rf")[:4]]


def inner_outside(s: Schedule) -> None:
    """Reorder the inner loops of the tiles outside: each traverses the whole buffer, unless there is only one tile."""
    made = []
    for b in "BC":
        outer, inner = s.split(loops(s, b)[0], [None, *s.sample_tile(loops(s, b)[0], 2, b, [range(1, 20)], waste=20.0)])
        s.reorder([inner, outer])
        made.append(inner)
    s.merge(*made)


def test_merge_adds_constraints_for_params(apply: Apply) -> None:
    apply(chain, inner_outside, [[17], [17]])
    symbolic = Schedule(chain, parametric=True)
    inner_outside(symbolic)
    kinds = {(c.kind, c.label) for c in symbolic.constraints}
    assert {("eq0", "same-extent"), ("le0", "apart")} <= kinds
    demanded = [c for c in symbolic.constraints if c.label in ("same-extent", "apart")]
    for row in itertools.product(range(1, 20), repeat=2):
        values = [evaluate(c.expr, dict(zip(symbolic.params, row, strict=True))) for c in demanded]
        satisfied = all(v == 0 if c.kind == "eq0" else v <= 0 for c, v in zip(demanded, values, strict=True))
        concrete = Schedule(chain, decisions=[[x] for x in row])
        if satisfied:
            inner_outside(concrete)
        else:
            with pytest.raises(ScheduleError, match=r"merge refused \[(same-extent|apart)\]"):
                inner_outside(concrete)


def test_merge_returns_the_loop_and_consumes_both(apply: Apply) -> None:
    s = Schedule(chain)
    first, second = loops(s, "B")[0], loops(s, "C")[0]
    merged = s.merge(first, second)
    assert [b.block for b in s.get_child_blocks(merged)] == ["B", "C"]
    for old in (first, second):
        with pytest.raises(ScheduleError, match=r"was consumed by merge \(step 4\)"):
            s.split(old, [None, 4])


# ---- reuse_buffer


def test_reuse_buffer(apply: Apply, assert_golden: Golden) -> None:
    s = apply(chain, lambda s: s.reuse_buffer(s.get_block("B"), s.get_block("C")))
    assert_golden(str(s.func))
    assert not s.func.allocs


@pytest.mark.parametrize("row", WIDTHS)
def test_reuse_buffer_in_rows(apply: Apply, row: tuple[int, int]) -> None:
    """Elements are stored in the row of the output and scaled there."""

    def steps(s: Schedule) -> None:
        sums_in_the_loop(s)
        s.reuse_buffer(s.get_block("E"), s.get_block("Y"))

    s = apply(scaled, steps, [[x] for x in row])
    assert [b.name for b in s.func.allocs] == ["S", "S_rf"]


def test_reuse_buffer_of_a_sum(apply: Apply) -> None:
    """A sum is stored in the output too, also per tile, without conflicts between tiles."""

    @T.prim_func
    def means(A: T.Buffer((7, 8), "float32"), D: T.Buffer((7,), "float32")):
        C = T.alloc_buffer((7,), "float32")
        for i, k in T.grid(7, 8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vk]
        for i in T.serial(7):
            with T.block("D"):
                vi = T.axis.spatial(7, i)
                D[vi] = C[vi] / 8.0

    def steps(s: Schedule) -> None:
        i = loops(s, "D")[0]
        s.compute_at(s.get_block("C"), s.split(i, [None, *s.sample_tile(i, 2, "t", [range(1, 9)], waste=9.0)])[0])
        s.reuse_buffer(s.get_block("C"), s.get_block("D"))

    for tile in (1, 3, 7, 8):
        apply(means, steps, [[tile]])


def test_reuse_buffer_leaves_the_rest_of_the_output_alone() -> None:
    """If `into` writes a part of the output, the rest does not change."""

    @T.prim_func
    def part(A: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
        B = T.alloc_buffer((16,), "float32")
        for i in T.serial(9):
            with T.block("B"):
                vi = T.axis.spatial(9, i)
                B[vi] = A[vi] * 2.0
        for i in T.serial(9):
            with T.block("C"):
                vi = T.axis.spatial(9, i)
                C[vi] = B[vi] + 1.0

    s = Schedule(part)
    s.reuse_buffer(s.get_block("B"), s.get_block("C"))
    given = stream(0, "part").integers(-3, 4, (2, 16)).astype("float32")
    after, before = [run(f, {"A": given[0], "C": given[1]})[-1] for f in (s.func, part)]
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(after[9:], given[1][9:])
