"""inject_virtual_threads: one thread interleaves the work of virtual threads, and does common work once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import BufferStore, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.passes.inject_virtual_threads import inject_virtual_threads
from tunesmith.lower.pipelines import GPU
from tunesmith.schedule.schedule import Schedule

Threaded = Callable[..., PrimFunc]
Golden = Callable[..., None]


@T.prim_func
def sums(A: T.Buffer((8, 6), "float32"), B: T.Buffer((6,), "float32"), C: T.Buffer((8,), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        S = T.allocate((2,), "float32", scope="shared")
        for x in T.thread_binding(2, "threadIdx.x"):
            for v in T.thread_binding(2, "vthread.x"):
                L = T.allocate((1,), "float32", scope="local")
                M = T.allocate((1,), "float32", scope="local")
                L[0] = 0.0
                for k in T.serial(3):
                    S[x] = B[k * 2 + x]
                    T.evaluate(T.barrier())
                    if b < 1:
                        M[0] = B[k] * 2.0
                    for j in T.serial(2):
                        if b < 1:
                            L[0] = L[0] + A[b * 4 + v * 2 + x, k * 2 + j] * S[j] + M[0]
                        else:
                            L[0] = L[0] + A[b * 4 + v * 2 + x, k * 2 + j] * S[j]
                    T.evaluate(T.barrier())
                if v < 1:
                    C[b * 4 + x] = L[0]
                else:
                    C[b * 4 + 2 + x] = L[0]


def test_virtual_threads(assert_golden: Golden) -> None:
    """The tile, the barrier and M are common; L gets one copy per virtual thread."""
    done = inject_virtual_threads(sums, None)  # type: ignore[arg-type]
    a, b = np.arange(48, dtype=np.float32).reshape(8, 6) % 7, np.arange(6, dtype=np.float32)
    got = run_threads(done, [a, b, np.zeros(8, np.float32)])[2]
    more = 2 * 2 * b[:3].sum() * (np.arange(8) < 4)
    np.testing.assert_array_equal(got, a @ b + more)
    assert_golden(str(done))


@T.prim_func
def nested(A: T.Buffer((24,), "float32"), C: T.Buffer((24,), "float32")):
    for x in T.thread_binding(4, "threadIdx.x"):
        for v in T.thread_binding(2, "vthread.y"):
            for w in T.thread_binding(3, "vthread.x"):
                L = T.allocate((2,), "float32", scope="local")
                L[0] = A[v * 12 + w * 4 + x]
                L[1] = A[v]
                for _k in T.serial(w + 1):
                    L[0] = L[0] + L[1]
                C[v * 12 + w * 4 + x] = L[0]


def test_virtual_threads_of_two_axes(threaded: Threaded) -> None:
    """Memory is replicated along both axes; a loop with a varying extent stays inside."""
    done = threaded(nested, inject_virtual_threads)
    assert not any(n.thread and n.thread.startswith("vthread") for n in walk(done.body) if type(n) is For)
    assert {tuple(e.as_int() for e in n.buffer.shape) for n in walk(done.body) if type(n) is BufferStore and n.buffer.name == "L"} == {
        (2, 3, 2)
    }


@T.prim_func
def one(A: T.Buffer((4,), "float32"), C: T.Buffer((8,), "float32")):
    for x in T.thread_binding(4, "threadIdx.x"):
        for v in T.thread_binding(1, "vthread.x"):
            for u in T.serial(2):
                C[v * 8 + u * 4 + x] = A[x]


def test_a_single_virtual_thread(threaded: Threaded) -> None:
    threaded(one, inject_virtual_threads)


@T.prim_func
def shared_by_all(A: T.Buffer((4,), "float32"), C: T.Buffer((8,), "float32")):
    for x in T.thread_binding(4, "threadIdx.x"):
        for v in T.thread_binding(2, "vthread.x"):
            L = T.allocate((1,), "float32", scope="local")
            L[0] = A[x] * 2.0
            C[v * 4 + x] = L[0]


def test_memory_that_does_not_vary_is_written_once(threaded: Threaded) -> None:
    done = threaded(shared_by_all, inject_virtual_threads)
    stores = [n for n in walk(done.body) if type(n) is BufferStore and n.buffer.name == "L"]
    assert [len(n.buffer.shape) for n in stores] == [1]
    assert sum(type(n) is For and n.kind == "unrolled" for n in walk(done.body)) == 1


@T.prim_func
def none(A: T.Buffer((4,), "float32")):
    for x in T.thread_binding(4, "threadIdx.x"):
        A[x] = 1.0


def test_programs_without_virtual_threads_are_unchanged(threaded: Threaded) -> None:
    assert threaded(none, inject_virtual_threads) is none


@T.prim_func
def turned(A: T.Buffer((10, 8), "float32"), C: T.Buffer((10, 8), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in T.serial(10):
        for k in T.serial(8):
            with T.block("B"):
                x, y = T.axis.remap("SS", [i, k])
                B[y] = A[x, y] + 1.0
        for k in T.serial(8):
            with T.block("C"):
                x, y = T.axis.remap("SS", [i, k])
                C[x, y] = B[7 - y]


@T.prim_func
def totals(A: T.Buffer((10, 8), "float32"), C: T.Buffer((10, 8), "float32")):
    for i in T.serial(10):
        for k in T.serial(8):
            with T.block("C"):
                x, y = T.axis.remap("SR", [i, k])
                with T.init():
                    C[x, 0] = 0.0
                C[x, 0] += A[x, y]


@pytest.mark.parametrize("factors", [(2,), (4,), (6,), (3, 2)], ids=str)
@pytest.mark.parametrize("func", [turned, totals], ids=lambda f: f.name)
def test_memory_of_a_block_is_replicated(func: PrimFunc, factors: tuple[int, ...]) -> None:
    """Values that virtual threads exchange with other threads: a scratch buffer of the block or partial sums of a reduction."""
    s = Schedule(func)
    if func is turned:
        s.set_scope(s.get_block("B"), "shared")
    grid, *virtual = s.split(s.get_loops(s.get_block("C"))[0], [None, *factors])
    s.bind(grid, "blockIdx.x")
    for loop, axis in zip(virtual, "xy", strict=False):
        s.bind(loop, f"vthread.{axis}")
    for b in s.blocks():
        s.bind(s.get_loops(s.get_block(b.name))[-1], "threadIdx.x")
    a = np.arange(80, dtype=np.float32).reshape(10, 8)
    expected = a[:, ::-1] + 1 if func is turned else a.sum(1)
    for target in (Target("nvidia/h200"), Target("opencl")):
        got = run_threads(GPU(s.func, target), [a.reshape(-1), np.zeros(80, np.float32)])[1].reshape(10, 8)
        np.testing.assert_array_equal(got if func is turned else got[:, 0], expected)
