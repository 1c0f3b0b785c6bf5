"""compact_local_buffers splits dimensions of thread-local buffers at strides with unused elements between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly, Var, mod, poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Allocate, For, Seq, store
from tunesmith.lower.pass_infra import function_pass
from tunesmith.lower.passes.compact_local_buffers import compacted

Lowered = Callable[..., PrimFunc]
Golden = Callable[..., None]


@function_pass(requires="OPAQUE")
def compacting(func: PrimFunc, target: object) -> PrimFunc:
    """Compact the outermost allocation."""
    assert type(func.body) is Allocate
    body = compacted(func.body)
    return func if body is func.body else func.with_(body=body)


@T.prim_func
def columns(A: T.Buffer((1024,), "float32"), B: T.Buffer((1024,), "float32")):
    L = T.allocate((3, 900), "float32", scope="local")
    for r, c, x in T.grid(3, 2, 4):
        L[r, c * 512 + x] = A[c * 512 + x + r * 4]
    for c, s, x in T.grid(2, 3, 4):
        B[c * 512 + s * 128 + x] = A[x]
    for r, c, x in T.grid(3, 2, 4):
        B[c * 512 + x + r * 4] = L[r, c * 512 + x] + 1.0


def test_compact_local_buffers(lowered: Lowered, assert_golden: Golden) -> None:
    assert_golden(str(lowered(columns, compacting)))


@T.prim_func
def twice(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
    L = T.allocate((3000,), "float32", scope="local")
    for a, b, x in T.grid(3, 2, 4):
        L[a * 1024 + b * 64 + x] = A[a * 1024 + b * 64 + x]
    for a, b, x in T.grid(3, 2, 4):
        B[a * 1024 + b * 64 + x] = L[a * 1024 + b * 64 + x]


def test_nested_gaps(lowered: Lowered) -> None:
    """24 elements of 3000."""
    done = lowered(twice, compacting)
    assert type(done.body) is Allocate
    assert [e.as_int() for e in done.body.buffer.shape] == [3, 2, 4]


Index = Callable[[Poly, Poly], Poly]


@pytest.mark.parametrize(
    "indices",
    [
        [lambda i, j: i * 4 + j],  # no gap: j is below 4
        [lambda i, j: i * 2 + j],  # rows overlap
        [lambda i, j: i * 8 + j, lambda i, j: i * 3 + j],  # another access uses the elements between
        [lambda i, j: i * 8 + j + 1],  # a term that is not a variable
        [lambda i, j: i * 8 + mod(j, 3)],
        [lambda i, j: 24 - i * 8 + j],  # negative coefficient
    ],
)
def test_buffers_without_gaps_are_unchanged(indices: list[Index]) -> None:
    b = Buffer("L", (32,), scope="local")
    stores = []
    for index in indices:
        i, j = Var("i"), Var("j")
        stores.append(
            For(i, poly(4), For(j, poly(4), store(b, (index(poly(i), poly(j)),), b[0] if not stores else b[index(poly(i), poly(j))])))
        )
    n = Allocate(b, Seq(tuple(stores)))
    assert compacted(n) is n


def test_outer_variables_prevent_compaction() -> None:
    b, t, i = Buffer("L", (64,), scope="local"), Var("t"), Var("i")
    n = Allocate(b, For(i, poly(4), store(b, (poly(t) + poly(i) * 16,), b[poly(t) + poly(i) * 16])))
    assert compacted(n) is n
