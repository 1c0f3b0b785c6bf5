"""pad_shared_tiles: guarded tile copies zero-pad the tile, and computation on tiles loses its guards; unsupported tiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.expr import IsNegative, Select
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import BufferStore, If
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.pad_shared_tiles import pad_shared_tiles

Threaded = Callable[..., PrimFunc]
Golden = Callable[..., None]


def guards(func: PrimFunc) -> int:
    """The number of remaining branches."""
    return sum(type(n) is If for n in walk(func.body))


@T.prim_func
def matmul(A: T.Buffer((13, 7), "float32"), B: T.Buffer((7, 5), "float32"), C: T.Buffer((13, 5), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        P = T.allocate((8, 4), "float32", scope="shared")
        Q = T.allocate((4, 8), "float32", scope="shared")
        for y in T.thread_binding(4, "threadIdx.y"):
            for x in T.thread_binding(8, "threadIdx.x"):
                L = T.allocate((2,), "float32", scope="local")
                for r in T.unroll(2):
                    if b * 8 + y * 2 + r < 13:
                        if x < 5:
                            L[r] = 0.0
                for k in T.serial(2):
                    if b * 8 + x < 13:
                        if k * 4 + y < 7:
                            P[x, y] = A[b * 8 + x, k * 4 + y]
                    for u in T.unroll(2):
                        if u * 32 + y * 8 + x < 32:
                            if k * 4 + (u * 32 + y * 8 + x) // 8 < 7:
                                if (u * 32 + y * 8 + x) % 8 < 5:
                                    Q[(u * 32 + y * 8 + x) // 8, (u * 32 + y * 8 + x) % 8] = B[
                                        k * 4 + (u * 32 + y * 8 + x) // 8, (y * 8 + x) % 8
                                    ]
                    for r, j in T.grid(2, 4):
                        if b * 8 + y * 2 + r < 13:
                            if x < 5:
                                if k * 4 + j < 7:
                                    L[r] = L[r] + P[y * 2 + r, j] * Q[j, x]
                for r in T.unroll(2):
                    if b * 8 + y * 2 + r < 13:
                        if x < 5:
                            C[b * 8 + y * 2 + r, x] = L[r]


def test_pad_shared_tiles(threaded: Threaded, assert_golden: Golden) -> None:
    """Guards of operands become selects, the guard that fits the copy to the tile stays; sums and their inits lose their guards."""
    assert_golden(str(threaded(matmul, pad_shared_tiles)))


# ---- guards that must stay


@T.prim_func
def sparse(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """Every other element of the tile is written."""
    for b in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((8,), "float32", scope="shared")
        for x in T.thread_binding(4, "threadIdx.x"):
            if b * 4 + x < 7:
                S[x * 2] = A[b * 4 + x]
            if b * 4 + x < 7:
                C[b * 4 + x] = S[x * 2]


@T.prim_func
def overlapping(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """An element of the tile is written by two threads."""
    for b in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((4,), "float32", scope="shared")
        for x in T.thread_binding(8, "threadIdx.x"):
            if b * 4 + x < 4:
                S[x % 4] = A[x]
            if b * 4 + x < 4:
                C[x] = S[x]


@T.prim_func
def beyond(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """The copy exceeds the tile without its guard and does not cover it with the guard, which depends on the block."""
    for b in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((6,), "float32", scope="shared")
        for x in T.thread_binding(8, "threadIdx.x"):
            if b * 2 + x < 6:
                S[x] = A[x]
            if b * 2 + x < 6:
                C[x] = S[x]


@T.prim_func
def twice(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """Two stores write the tile."""
    for b in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((4,), "float32", scope="shared")
        for x in T.thread_binding(4, "threadIdx.x"):
            if b * 4 + x < 7:
                S[x] = A[b * 4 + x]
            if x < 2:
                S[x] = S[x] + 1.0
            if b * 4 + x < 7:
                C[b * 4 + x] = S[x]


@T.prim_func
def read_inside(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """The tile is read inside the loop that copies it, so the values depend on the iteration."""
    for _b in T.thread_binding(1, "blockIdx.x"):
        S = T.allocate((8,), "float32", scope="shared")
        for x in T.thread_binding(1, "threadIdx.x"):
            for i in T.serial(8):
                if i < 7:
                    S[i] = A[i]
                if i < 7:
                    C[i] = S[i] + S[x]


@T.prim_func
def otherwise(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """A branch with an else side, and a branch on values."""
    for b in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((4,), "float32", scope="shared")
        R = T.allocate((4,), "float32", scope="shared")
        for x in T.thread_binding(4, "threadIdx.x"):
            if b * 4 + x < 7:
                S[x] = A[b * 4 + x]
            else:
                S[x] = 2.0
            if A[x] < 1.0:
                R[x] = A[x]
            C[b * 4 + x] = S[x]
            if A[x] < 1.0:
                C[b * 4 + x] = R[x]


@T.prim_func
def by_values(A: T.Buffer((8,), "float32"), K: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    """The sum reads global memory, which is out of range where the guard fails."""
    for b in T.thread_binding(2, "blockIdx.x"):
        for x in T.thread_binding(4, "threadIdx.x"):
            L = T.allocate((1,), "float32", scope="local")
            if b * 4 + x < 7:
                L[0] = K[b * 4 + x]
            if b * 4 + x < 7:
                L[0] = L[0] + A[b * 4 + x]
            if b * 4 + x < 7:
                C[b * 4 + x] = L[0]


@pytest.mark.parametrize("func", [sparse, overlapping, beyond, twice, read_inside, otherwise, by_values], ids=lambda f: f.name)
def test_incomplete_tiles_keep_their_guards(threaded: Threaded, func: PrimFunc) -> None:
    assert threaded(func, pad_shared_tiles) is func


def sums(term: str, op: str = "sum") -> PrimFunc:
    """Sums in thread-local memory of tiles P and Q, with 7 operands in 8 elements, and R, with 8."""
    both = f"L[0] + {term}" if op == "sum" else f"T.{op}(L[0], {term})"
    return parse(f"""
@T.prim_func
def f(A: T.Buffer((7,), "float32"), B: T.Buffer((7,), "float32"), D: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for b in T.thread_binding(1, "blockIdx.x"):
        P = T.allocate((8,), "float32", scope="shared")
        Q = T.allocate((8,), "float32", scope="shared")
        R = T.allocate((8,), "float32", scope="shared")
        for x in T.thread_binding(8, "threadIdx.x"):
            L = T.allocate((1,), "float32", scope="local")
            L[0] = 1.0
            R[x] = D[x]
            if x < 7:
                P[x] = A[x]
            if x < 7:
                Q[x] = B[x]
            for k in T.serial(8):
                if k < 7:
                    L[0] = {both}
            C[x] = L[0]
""")


@pytest.mark.parametrize(
    ("term", "op", "left"),
    [
        ("P[k] * Q[k]", "sum", 0),
        ("P[k]", "sum", 0),
        ("P[k] * P[k] * Q[k]", "sum", 0),
        ('T.cast("float32", P[k]) * Q[k]', "sum", 0),
        # 0 is not the identity element.
        ("(P[k] + 1.0)", "sum", 1),
        ("T.exp(P[k])", "sum", 1),
        ("P[k]", "max", 1),
        ("(P[k] - Q[k])", "sum", 1),
        # Half of the product is 0, the other may be infinite.
        ("P[k] * R[k]", "sum", 1),
        ("P[k] * P[(k + 1) % 7]", "sum", 1),
        ("P[6 - k % 7]", "sum", 1),
    ],
)
def test_terms_that_are_zero_on_padding(threaded: Threaded, term: str, op: str, left: int) -> None:
    done = threaded(sums(term, op), pad_shared_tiles)
    assert guards(done) == left
    assert sum(type(n) is Select for n in walk(done.body)) == 2


@T.prim_func
def beginning_inside(A: T.Buffer((7,), "float32"), C: T.Buffer((8,), "float32")):
    for _b in T.thread_binding(1, "blockIdx.x"):
        P = T.allocate((8,), "float32", scope="shared")
        for x in T.thread_binding(8, "threadIdx.x"):
            L = T.allocate((1,), "float32", scope="local")
            if x < 7:
                P[x] = A[x]
            for k in T.serial(8):
                if k < 1:
                    L[0] = 0.0
                if k < 7:
                    L[0] = L[0] + P[k]
            C[x] = L[0]


def test_the_guard_of_an_init_stays(threaded: Threaded) -> None:
    """A sum without decomposition runs its init in the first iteration: without the guard each iteration would run it."""
    done = threaded(beginning_inside, pad_shared_tiles)
    first = [n for n in walk(done.body) if type(n) is If and any(type(s) is BufferStore and s.buffer.name == "L" for s in walk(n))]
    assert [type(n.cond) for n in first] == [IsNegative]
