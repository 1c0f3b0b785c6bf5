"""verify_thread_access: refused accesses of thread-local memory, and of elements that several threads compute."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.interpreter.threads import run_threads
from tunesmith.ir.script.syntax import T
from tunesmith.ir.target.target import Target
from tunesmith.lower.pipelines import GPU
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import BuildError

TARGET = Target("opencl")


@T.prim_func
def stencil(A: T.Buffer((65, 8), "float32"), C: T.Buffer((64,), "float32")):
    P = T.alloc_buffer((65,), "float32")
    for i in T.serial(65):
        with T.block("P"):
            vi = T.axis.spatial(65, i)
            P[vi] = A[vi, 0] * 2.0
    for i in T.serial(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = P[vi] + P[vi + 1]


@T.prim_func
def sums(A: T.Buffer((65, 8), "float32"), C: T.Buffer((64,), "float32")):
    P = T.alloc_buffer((65,), "float32")
    for i, k in T.grid(65, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                P[vi] = 0.0
            P[vi] += A[vi, vk]
    for i in T.serial(64):
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = P[vi] + P[vi + 1]


def computed(func: PrimFunc, at: int, scope: str, shared: bool) -> PrimFunc:
    """P computed in the block loop (0) or the thread loop (1) of C; `shared` distributes its elements over threads in the block loop."""
    s = Schedule(func)
    o, t = s.split(s.get_loops(s.get_block("C"))[0], [None, 32])
    s.bind(o, "blockIdx.x")
    p = s.get_block("P")
    s.compute_at(p, (o, t)[at])
    if scope != "global":
        s.set_scope(p, scope)
    own = s.get_loops(p)[at + 1]
    if shared:
        _, own = s.split(own, [None, 32])
        s.bind(own, "threadIdx.x")
    s.bind(t, "threadIdx.x")
    return s.func


@pytest.mark.parametrize(("at", "scope", "shared"), [(1, "local", False), (0, "shared", True), (0, "shared", False), (1, "shared", False)])
@pytest.mark.parametrize("func", [stencil, sums], ids=["map", "reduction"])
def test_valid_accesses(func: PrimFunc, at: int, scope: str, shared: bool) -> None:
    lowered = GPU(computed(func, at, scope, shared), TARGET)
    rng = np.random.default_rng(0)
    arguments = [rng.integers(-4, 5, (65, 8)).astype(np.float32), np.full(64, np.nan, np.float32)]
    expected = run(func, arguments)[1]
    np.testing.assert_array_equal(run_threads(lowered, [a.reshape(-1).copy() for a in arguments], check_races=True)[1], expected)


@pytest.mark.parametrize("func", [stencil, sums], ids=["map", "reduction"])
def test_local_memory_that_other_threads_write_is_refused(func: PrimFunc) -> None:
    with pytest.raises(
        BuildError, match=r"buffer P of scope local is private to a thread, but P\[.*\] reads elements that this thread does not"
    ):
        GPU(computed(func, 0, "local", True), TARGET)


@pytest.mark.parametrize(("at", "shared"), [(0, True), (0, False), (1, False)])
def test_elements_with_several_accumulating_threads_are_refused(at: int, shared: bool) -> None:
    """One block would initialize elements to which its neighbour already adds."""
    with pytest.raises(BuildError, match="buffer P of scope global is set and added to by several threads or blocks at P"):
        GPU(computed(sums, at, "global", shared), TARGET)


@T.prim_func
def carried(C: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((6,), "int32")
    for i in T.serial(6):
        with T.block("B"):
            v = T.axis.spatial(6, i)
            B[v] = 1
        with T.block("C"):
            v = T.axis.spatial(6, i)
            C[v] = B[0]


def test_values_carried_between_virtual_threads_are_refused() -> None:
    """The same program is valid on a CPU, where the loops are serial."""
    s = Schedule(carried)
    s.set_scope(s.get_block("B"), "shared")
    s.bind(s.get_loops(s.get_block("C"))[0], "vthread.x")
    with pytest.raises(BuildError, match=r"B\[0\] may be read in one iteration of the vthread.x loop i and written only in another"):
        GPU(s.func, TARGET)
    c = np.zeros(6, np.int32)
    Module.from_object(build(s.func, Target("llvm")).data)["carried"](c)
    assert c.tolist() == [1] * 6


def test_values_exchanged_between_blocks_are_refused() -> None:
    s = Schedule(carried)
    s.bind(s.get_loops(s.get_block("C"))[0], "blockIdx.x")
    with pytest.raises(BuildError, match=r"B\[0\] of scope global may read in one thread block what another block writes"):
        GPU(s.func, TARGET)


@T.prim_func
def one_element(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
    B = T.alloc_buffer((1,), "float32")
    for i in T.serial(64):
        with T.block("B"):
            vi = T.axis.spatial(64, i)
            B[0] = A[vi] * 2.0
        with T.block("C"):
            vi = T.axis.spatial(64, i)
            C[vi] = B[0] + 1.0


@pytest.mark.parametrize("axis", ["threadIdx.x", "blockIdx.x"])
@pytest.mark.parametrize("scope", ["global", "shared", "local"])
def test_elements_with_different_values_of_threads_are_refused(scope: str, axis: str) -> None:
    """One iteration's value is enough for a serial loop; threads need a copy each, and blocks have one of shared memory."""
    s = Schedule(one_element)
    s.set_scope(s.get_block("B"), scope)
    s.bind(s.get_loops(s.get_block("C"))[0], axis)
    if scope == "local" or (scope == "shared" and axis == "blockIdx.x"):
        arguments = [np.arange(64, dtype=np.float32), np.zeros(64, np.float32)]
        np.testing.assert_array_equal(run_threads(GPU(s.func, TARGET), arguments, check_races=True)[1], np.arange(64) * 2.0 + 1.0)
        return
    with pytest.raises(BuildError, match=rf"buffer B of scope {scope} gets different values from several threads or blocks at B\[0\]"):
        GPU(s.func, TARGET)
