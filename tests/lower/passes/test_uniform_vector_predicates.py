"""uniform_vector_predicates: guards that all lanes pass or fail together lose the lane; others keep it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import IsNegative
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, floordiv, poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For, If, store
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.uniform_vector_predicates import uniform_vector_predicates

Threaded = Callable[..., PrimFunc]
Golden = Callable[..., None]


@T.prim_func
def rows(A: T.Buffer((3, 76), "float32"), C: T.Buffer((3, 76), "float32"), D: T.Buffer((3, 75), "float32")):
    for r in T.serial(3):
        for x in T.thread_binding(32, "threadIdx.x"):
            for lane in T.vectorized(4):
                if x * 4 + lane < 76:
                    C[r, x * 4 + lane] = T.select(3 < x * 4 + lane, A[r, x * 4 + lane], T.float32(0.0))
            for lane in T.vectorized(4):
                if x * 4 + lane < 75:
                    D[r, x * 4 + lane] = A[r, x * 4 + lane]


def test_uniform_vector_predicates(threaded: Threaded, assert_golden: Golden) -> None:
    assert_golden(str(threaded(rows, uniform_vector_predicates)))


def guarded(cond: Callable[[Poly, Poly], Poly], kind: str = "vectorized", lanes: int = 4) -> PrimFunc:
    a, c, x, lane = Buffer("A", (64,)), Buffer("C", (64,)), Var("x"), Var("lane")
    at = poly(x) * lanes + lane
    body = For(lane, poly(lanes), If(IsNegative(cond(poly(x), poly(lane))), store(c, (at,), a[at])), kind)
    return PrimFunc("f", (a, c), (), For(x, poly(64 // lanes), body, "thread", "threadIdx.x"))


@pytest.mark.parametrize(
    ("cond", "rest"),
    [
        (lambda x, lane: x * 4 + lane - 40, lambda x: x * 4 - 40),
        (lambda x, lane: x * 8 + lane - 16, lambda x: x * 8 - 16),
        (lambda x, lane: 15 - x * 4 - lane, lambda x: 15 - x * 4),
        (lambda x, lane: floordiv(x, 3) * 4 + lane - 8, lambda x: floordiv(x, 3) * 4 - 8),
    ],
)
def test_uniform_guards_lose_the_lane(threaded: Threaded, cond: Callable[[Poly, Poly], Poly], rest: Callable[[Poly], Poly]) -> None:
    done = threaded(guarded(cond), uniform_vector_predicates)
    (found,) = [n.index for n in walk(done.body) if type(n) is IsNegative]
    (x,) = found.vars
    assert found == rest(poly(x))


@pytest.mark.parametrize(
    "func",
    [
        guarded(lambda x, lane: x * 4 + lane - 39),
        guarded(lambda x, lane: x * 2 + lane - 40),
        guarded(lambda x, lane: 16 - x * 4 - lane),
        guarded(lambda x, lane: x * 4 + lane * 2 - 40),
        guarded(lambda x, lane: x * 4 + floordiv(lane, 2) - 40),
        guarded(lambda x, lane: x * 4 - 40),
        guarded(lambda x, lane: x * 4 + lane - 40, "unrolled"),
        guarded(lambda x, lane: x * 4 + lane - 40, lanes=8),
    ],
)
def test_guards_that_split_a_vector_stay(threaded: Threaded, func: PrimFunc) -> None:
    assert threaded(func, uniform_vector_predicates) is func
