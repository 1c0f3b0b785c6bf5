"""unify_thread_bindings, and allocations in kernels: one loop per thread axis around the body of a kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import For, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.compact_local_buffers import compact_local_buffers
from tunesmith.lower.passes.hoist_shared_allocations import hoist_shared_allocations
from tunesmith.lower.passes.plan_allocations import plan_allocations
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.passes.unify_thread_bindings import unify_thread_bindings
from tunesmith.lower.passes.verify_thread_access import verify_thread_access
from tunesmith.support.errors import BuildError

Threaded = Callable[..., PrimFunc]
Golden = Callable[..., None]
GPU = Target("opencl")


@T.prim_func
def shared(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32"), D: T.Buffer((2,), "float32")):
    S = T.alloc_buffer((4, 8), "float32", scope="shared")
    L = T.alloc_buffer((2,), "float32", scope="local")
    for b in T.thread_binding(2, "blockIdx.x"):
        D[b] = A[b, 0]
        for y in T.thread_binding(4, "threadIdx.y"):
            for x in T.thread_binding(8, "threadIdx.x"):
                for y2 in T.thread_binding(4, "threadIdx.y"):
                    for x2 in T.thread_binding(8, "threadIdx.x"):
                        S[y2, x2] = A[y2, x2]
                L[0] = 1.0
                if b < 1:
                    B[y, x] = S[3 - y, 7 - x] + L[0]
            L[1] = S[y, 2]
            for x in T.thread_binding(8, "threadIdx.x"):
                if 0 < b:
                    B[y, x] = L[1] + S[0, x]


def test_unify_thread_bindings(threaded: Threaded, assert_golden: Golden) -> None:
    """Statements outside all loops of an axis run in every thread along it; only the first thread stores to common memory."""
    assert_golden(str(threaded(shared, unify_thread_bindings)))


@T.prim_func
def gathered(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
    for _b in T.thread_binding(1, "blockIdx.x"):
        for y in T.thread_binding(4, "threadIdx.y"):
            for x in T.thread_binding(8, "threadIdx.x"):
                B[y, x] = A[y, x]
    for i in T.serial(4):
        B[i, 0] = A[i, 1]


def test_unified_functions_are_unchanged(threaded: Threaded) -> None:
    """Also a root statement without thread loops, which one thread executes."""
    assert threaded(gathered, unify_thread_bindings) is gathered


@T.prim_func
def kernels(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for o in T.serial(2):
        for x in T.thread_binding(4, "threadIdx.x"):
            B[o * 4 + x] = A[o * 4 + x]
    for x in T.thread_binding(8, "threadIdx.x"):
        for o in T.serial(2):
            if o < 1:
                B[x] = B[x] + A[7 - x]
    for _x in T.thread_binding(1, "threadIdx.x"):
        for y in T.thread_binding(2, "threadIdx.y"):
            B[y] = B[y] + 1.0
        B[2] = B[2] + 1.0


def test_each_kernel_has_its_own_threads(threaded: Threaded) -> None:
    done = threaded(kernels, unify_thread_bindings)
    extents = [(n.thread, n.extent.as_int()) for n in walk(done.body) if type(n) is For and n.thread]
    assert extents == [("threadIdx.x", 4), ("threadIdx.x", 8), ("threadIdx.y", 2), ("threadIdx.x", 1)]


@T.prim_func
def serial(A: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        A[i] = 1.0


def test_programs_without_threads_are_unchanged(threaded: Threaded) -> None:
    assert threaded(serial, unify_thread_bindings) is serial


# ---- refusals


def loops(*tags: str, extents: tuple[int, ...] = (4, 4, 4)) -> PrimFunc:
    """Nested loops; a tag without a dot is the kind of a loop."""
    a = Buffer("A", (4,))
    body: object = store(a, (0,), a[0])
    for n, tag in reversed(list(enumerate(tags))):
        how = ("thread", tag) if "." in tag else (tag, None)
        body = For(Var(f"v{n}"), poly(extents[n]), body, *how)  # type: ignore[arg-type]
    return PrimFunc("f", (a,), (), body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (
            loops("threadIdx.x", "blockIdx.x"),
            "f: the loop v1 of blockIdx.x is inside another statement. Block loops must be outermost",
        ),
        (loops("serial", "blockIdx.y"), "f: the loop v1 of blockIdx.y is inside another statement"),
        (loops("blockIdx.x", "parallel"), "f: the loop v1 is parallel, which only CPUs support. Bind it to blocks or threads of a GPU"),
        (
            loops("blockIdx.x", "threadIdx.x", "threadIdx.x", extents=(2, 4, 8)),
            "f: loops of threadIdx.x have the extents 4 and 8; all must be the same constant",
        ),
    ],
)
def test_refusals(func: PrimFunc, message: str) -> None:
    with pytest.raises(BuildError) as caught:
        unify_thread_bindings(func, GPU)
    assert message in str(caught.value)


@T.prim_func
def not_alike(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4, 4), "float32")):
    for _ in T.thread_binding(1, "blockIdx.x"):
        for i in T.thread_binding(4, "threadIdx.x"):
            for j in T.thread_binding(4, "threadIdx.x"):
                C[i, j] = A[i, j] + 1.0


@T.prim_func
def some_left_out(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for _ in T.thread_binding(1, "blockIdx.x"):
        for i in T.thread_binding(8, "threadIdx.x"):
            if i < 5:
                for j in T.thread_binding(8, "threadIdx.x"):
                    C[j] = A[j] + 1.0


@pytest.mark.parametrize("func", [not_alike, some_left_out], ids=lambda f: f.name)
def test_work_that_depends_on_the_outer_thread_is_refused(func: PrimFunc) -> None:
    with pytest.raises(BuildError, match="the loop j of threadIdx.x is inside another loop of threadIdx.x"):
        unify_thread_bindings(func, GPU)


def test_a_dynamic_number_of_threads_is_refused() -> None:
    a, n, x = Buffer("A", (4,)), Var("n"), Var("x")
    func = PrimFunc("f", (a, n), (), For(Var("i"), poly(2), For(x, poly(n), store(a, (x,), a[x]), "thread", "threadIdx.x")))
    with pytest.raises(BuildError, match="loops of threadIdx.x have the extents n and n; all must be the same constant"):
        unify_thread_bindings(func, GPU)


# ---- allocations


@T.prim_func
def placed(A: T.Buffer((64, 48), "float32"), B: T.Buffer((64, 48), "float32")):
    S = T.alloc_buffer((64, 48), "float32", scope="shared", pad=4)
    L = T.alloc_buffer((64, 48), "float32", scope="local")
    W = T.alloc_buffer((64, 48), "float32")
    for i, j in T.grid(64, 48):
        W[i, j] = A[i, j]
    for b in T.thread_binding(8, "blockIdx.x"):
        for y in T.thread_binding(4, "threadIdx.y"):
            for x in T.thread_binding(8, "threadIdx.x"):
                for k in T.serial(3):
                    for u in T.unroll(4):
                        S[b * 8 + y * 2 + u // 2, k * 16 + x * 2 + u % 2] = W[b * 8 + y * 2 + u // 2, k * 16 + x * 2 + u % 2]
                    for u, v in T.grid(2, 2):
                        L[b * 8 + u * 4 + y, k * 16 + v * 8 + x] = S[b * 8 + u * 4 + y, k * 16 + v * 8 + x]
                    for u, v in T.grid(2, 2):
                        B[b * 8 + u * 4 + y, k * 16 + v * 8 + x] = L[b * 8 + u * 4 + y, k * 16 + v * 8 + x] + 1.0


def test_allocations_in_kernels(threaded: Threaded, assert_golden: Golden) -> None:
    """Shared memory has the footprint of all threads, outside their loops; local memory that of one thread, without gaps; global memory
    is allocated around all kernels."""
    assert_golden(str(threaded(placed, plan_allocations, compact_local_buffers, hoist_shared_allocations, simplify)))


@T.prim_func
def foreign(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    L = T.alloc_buffer((8,), "float32", scope="local")
    for _b in T.thread_binding(1, "blockIdx.x"):
        for x in T.thread_binding(8, "threadIdx.x"):
            L[x] = A[x]
            B[x] = L[7 - x]


def test_memory_of_another_thread_is_refused() -> None:
    with pytest.raises(BuildError) as caught:
        verify_thread_access(plan_allocations(foreign, GPU), GPU)
    assert "foreign: the buffer L of scope local is private to a thread, but its index depends on the thread: L[" in str(caught.value)
    assert "Bind the loops that write and read it in the same way, or give it the scope shared (set_scope)" in str(caught.value)


@T.prim_func
def own_rows(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "float32")):
    L = T.alloc_buffer((8, 4), "float32", scope="local")
    for _b in T.thread_binding(1, "blockIdx.x"):
        for x in T.thread_binding(8, "threadIdx.x"):
            for u in T.serial(4):
                L[x, u] = A[x, u]
            B[x] = L[x, 0] + L[x, 3]


def test_memory_indexed_by_the_thread_is_local(threaded: Threaded) -> None:
    done = threaded(own_rows, plan_allocations)
    assert "L = T.allocate((1, 4)" in str(done)
