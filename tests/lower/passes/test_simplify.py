"""simplify: guards, loops and conditions that the ranges of a concrete program decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith import te
from tunesmith.ir.expr import Binary, Broadcast, Const, Expr, IsNegative, Not, Select, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.target.target import Target
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.simplifier import Simplifier, known_truth, negate, truth
from tunesmith.schedule.schedule import Schedule

Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]


@T.prim_func
def tiles(A: T.Buffer((10, 8), "float32"), C: T.Buffer((10, 8), "float32")):
    for i_0, i_1, j_0, j_1 in T.grid(3, 4, 2, 4):
        for one in T.serial(1):
            with T.block("C"):
                vi = T.axis.spatial(10, i_0 * 4 + i_1 + one)
                vj = T.axis.spatial(8, j_0 * 4 + j_1)
                T.where(i_0 * 4 + i_1 < 10)
                T.where(i_0 * 4 < 10)
                T.where(j_0 * 4 + j_1 < 8)
                T.where(0 <= i_0 * 4 + i_1)
                C[vi, vj] = T.select(vj < 8 and 0 <= vi, A[vi, (vj * 4 + 1) // 4], T.float32(7.0))


def test_guards_loops_and_conditions(lowered: Lowered, assert_golden: Golden) -> None:
    """Guards that are always true or implied by another, unit loops, constant conditions, divisions."""
    assert_golden(str(lowered(tiles, simplify)))


@T.prim_func
def dead(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32"), D: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi]
    for i, j in T.grid(4, 3):
        with T.block("never"):
            vi = T.axis.spatial(4, i)
            T.where(i + j + 4 < 4)
            C[vi] = T.float32(1.0)
    for i in T.serial(4):
        if i < 4:
            D[i] = A[i]
        if 4 < i:
            D[i] = T.float32(0.0)
        else:
            D[i] = A[i] + 1.0


def test_dead_code_is_removed(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(dead, simplify)))


@T.prim_func
def empty(A: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        if i < 0:
            A[i] = T.float32(1.0)


def test_an_empty_function(lowered: Lowered) -> None:
    done = simplify(empty, Target("llvm -mcpu=x86-64-v3 -num-cores=1"))
    assert done.body.fields == ("stmts",) and not done.body.stmts  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("guards", "kept"),
    [
        (["i - 5"], ["i - 5"]),
        (["i - 8"], []),
        (["-1 - i"], []),
        (["i - 5", "i - 5"], ["i - 5"]),
        (["i - 5", "i - 6"], ["i - 5"]),
        (["i - 6", "i - 5"], ["i - 5"]),
        (["i + j - 6", "i - 6 + j", "i - 5"], ["i + j - 6", "i - 5"]),
        (["i + j - 9", "i - 5"], ["i - 5"]),
        (["j - 3", "i - 5", "i + j - 4", "i + j - 3"], ["i + j - 3"]),
    ],
)
def test_guards(guards: list[str], kept: list[str]) -> None:
    """i has 8 iterations, j has 4."""
    i, j = Var("i"), Var("j")
    s = Simplifier({i: (0, 7), j: (0, 3)})
    names = {"i": poly(i), "j": poly(j)}
    found = s.guards(tuple([eval(g, names) for g in guards]))
    assert found == tuple([eval(g, names) for g in kept])


def test_a_guard_that_never_holds() -> None:
    i = Var("i")
    s = Simplifier({i: (0, 7)})
    assert s.guards((poly(i) - 4, poly(i) + 1)) is None


def test_negate() -> None:
    i = Var("i")
    opposite = negate(IsNegative(poly(i) - 3))
    assert isinstance(opposite, IsNegative) and opposite.index == 2 - poly(i)
    assert isinstance(negate(const(True, "bool")), Not)


def test_conditions_of_vectors_stay_vectors() -> None:
    """A condition that is constant in all lanes keeps its number of lanes."""
    x = Var("x")
    s = Simplifier({x: (0, 7)})
    always, never, open_ = IsNegative(poly(x) - 12, 4, poly(1)), IsNegative(poly(x) + 1, 4, poly(1)), IsNegative(poly(x) - 8, 4, poly(1))

    def known(e: Expr) -> bool | None:
        out = s(e)
        assert out.dtype == "boolx4"
        return known_truth(out)

    assert (known(always), known(never), known(open_)) == (True, False, None)
    assert (known(Not(always)), known(Not(never)), known(Not(open_))) == (False, True, None)
    assert known(Binary("and", always, never)) is False and known(Binary("or", never, always)) is True
    assert s(Binary("and", always, open_)) is open_ and s(Binary("or", open_, never)) is open_
    one, two = Broadcast(const(1.0, "float32"), 4), Broadcast(const(2.0, "float32"), 4)
    assert s(Select(always, one, two)) is one and s(Select(never, one, two)) is two
    assert type(truth(True)) is Const and truth(True).dtype == "bool"


def test_guards_of_a_fused_loop_of_dynamic_extent_vanish() -> None:
    """Loops of n rows, fused and split again: the parallel loop has ceildiv(n, 4) * 4 iterations, and no guard asks for it."""
    size = te.var("n")
    x = te.placeholder((4, size), name="X")
    s = Schedule(te.create_prim_func([x, te.compute((4, size), lambda h, i: x[h, i] + 1.0, "Y")]))
    heads, rows = s.get_loops(s.get_block("Y"))
    group = s.split(rows, [None, 4])
    s.split(s.fuse([heads, group[0]]), [None, 1])
    text = str(simplify(s.func, Target("llvm")))
    assert text.count("T.where") == 1 and "% 4" not in text
