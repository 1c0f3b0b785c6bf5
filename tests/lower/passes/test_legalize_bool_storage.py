"""legalize_bool_storage: bools are bytes in memory, also in vectors, under masks and in local buffers; callers see bools."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build
from tunesmith.graph.ir import interpret
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.passes.legalise import prim_func
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.expr import Call
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.syntax import T
from tunesmith.ir.stmt import Evaluate, For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.lower.passes.flatten_buffers import flatten_buffers
from tunesmith.lower.passes.legalize_bool_storage import legalize_bool_storage
from tunesmith.lower.passes.lower_blocks import lower_blocks
from tunesmith.lower.passes.plan_allocations import plan_allocations
from tunesmith.lower.passes.simplify import simplify
from tunesmith.lower.passes.vectorize_loops import vectorize_loops
from tunesmith.lower.pipelines import CPU
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule
from tunesmith.support.errors import RunError
from tunesmith.support.seeds import stream

Lowered = Callable[..., PrimFunc]
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=1")


@T.prim_func
def masks(
    A: T.Buffer((8,), "float32"),
    B: T.Buffer((8,), "bool"),
    any_: T.Buffer((), "bool"),
    C: T.Buffer((8,), "bool"),
    D: T.Buffer((8,), "float32"),
):
    M = T.alloc_buffer((8,), "bool")
    for i in T.serial(8):
        with T.block("M"):
            vi = T.axis.spatial(8, i)
            M[vi] = A[vi] < T.float32(1.0) or B[vi]
    for i in T.vectorized(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = not M[vi]
    for i in T.serial(8):
        with T.block("D"):
            vi = T.axis.spatial(8, i)
            D[vi] = T.select(M[vi], A[vi], T.cast(B[vi], "float32"))
    for i in T.serial(8):
        with T.block("any"):
            vi = T.axis.reduce(8, i)
            with T.init():
                any_[()] = T.bool(False)
            any_[()] = any_[()] or B[vi]


def test_loads_compare_and_stores_convert(lowered: Lowered, assert_golden: Callable[..., None]) -> None:
    done = lowered(masks, simplify, lower_blocks, plan_allocations, simplify, flatten_buffers)
    # Not by `lowered`: parameters become bytes, so the interpreter needs other arguments.
    bytes_ = legalize_bool_storage(done, TARGET)
    assert_golden(str(bytes_))
    assert legalize_bool_storage(bytes_, TARGET) is bytes_
    assert [b.dtype for b in bytes_.params if isinstance(b, Buffer)] == ["float32", "uint8", "uint8", "uint8", "float32"]
    assert_golden(str(vectorize_loops(bytes_, TARGET)), "lower/passes/test_legalize_bool_storage/test_vectors_of_bytes")
    a = np.arange(-4, 4, dtype=np.float32) / 2
    b = np.arange(8) % 3 == 0
    before = run(done, {"A": a, "B": b})
    after = run(bytes_, {"A": a, "B": b.view(np.uint8)})
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x.astype(np.float32), y.astype(np.float32))


@T.prim_func
def denied(A: T.Buffer((8,), "bool"), C: T.Buffer((8,), "bool")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            T.block_attr({"prefetch": 16})
            C[vi] = not A[vi]


def test_bools_are_prefetched_as_bytes() -> None:
    """A prefetch takes an address, not a comparison."""
    done = CPU(denied, TARGET)
    (fetch,) = [n.value for n in walk(done.body) if type(n) is Evaluate]
    assert type(fetch) is Call and type(fetch.args[0]) is BufferLoad and fetch.args[0].buffer is done.params[0]
    a, c = np.arange(8) % 3 == 0, np.zeros(8, bool)
    Module.from_object(build(denied, TARGET).data)["denied"](a, c)
    np.testing.assert_array_equal(c, ~a)


@T.prim_func
def below_diagonal(C: T.Buffer((13, 5), "bool")):
    for i, j in T.grid(13, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = vi < vj + 2


@pytest.mark.parametrize("target", [TARGET, Target("llvm -mcpu=x86-64-v3 -num-cores=1"), Target.detect()], ids=str)
@pytest.mark.parametrize("split", [False, True])
def test_vectors_of_bools_that_unrolling_makes_constant(target: Target, split: bool) -> None:
    """Rows of which all, no or some elements are true."""
    s = Schedule(below_diagonal)
    i, j = s.get_loops(s.get_block("C"))
    if split:
        j = s.split(j, [None, 8])[1]
    s.vectorize(j)
    for loop in s.split(i, [None, 5]):
        s.unroll(loop)
    c = np.zeros((13, 5), bool)
    Module.from_object(build(s.func, target).data)["below_diagonal"](c)
    np.testing.assert_array_equal(c, np.arange(13)[:, None] < np.arange(5) + 2)


@T.prim_func
def floats(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = T.select(A[vi] < T.float32(0.0), A[vi], T.float32(1.0))


def test_functions_without_bools_are_unchanged(lowered: Lowered) -> None:
    done = lowered(floats, simplify, lower_blocks, plan_allocations, flatten_buffers)
    assert legalize_bool_storage(done, TARGET) is done


def logic(n: int) -> GraphFunc:
    """Bools in every kind of memory: parameters, numbers, intermediate results, results of reductions; cast, copied, selected by."""
    b = GraphBuilder("logic")
    x, p, c = b.input("x", (3, n)), b.input("p", (3, n), "bool"), b.input("c", (), "bool")
    q = b.logical_xor(b.logical_or(b.greater(x, b.constant(0.5)), p), c)
    chosen = b.where(b.logical_and(q, p), x, b.cast(q, dtype="float32"))
    moved = b.concat(b.flip(q, axes=1), b.cast(x, dtype="bool"), b.logical_not(p), axis=1)
    return b.finish(q, chosen, moved, b.all(p, axes=1), b.any(q, axes=(0, 1)), b.any(p, axes=0), b.cast(p, dtype="int32"))


@pytest.mark.parametrize(("n", "vectors"), [*[(n, True) for n in range(1, 41)], *[(n, False) for n in (1, 7, 32)]])
def test_compiled(n: int, vectors: bool) -> None:
    """Callers pass and get bools, and every byte of a bool is 0 or 1, also in vectors and their tails."""
    graph = logic(n)
    func = prim_func(graph)
    rng = stream(n, "bools")
    x = (rng.integers(-1, 3, (3, n)) / 2).astype(np.float32)
    p, c = rng.integers(4, size=(3, n)) > 0, np.array(bool(n % 2))
    wanted = interpret.run(graph, [x, p, c])
    results = [np.full(w.shape, True if w.dtype == bool else 77, w.dtype) for w in wanted]
    scheduled = default_schedule(func, TARGET) if vectors else func
    Module.from_object(build([scheduled], TARGET).data)["logic"](x, p, c, *results)
    for r, w in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(r, w)
        if r.dtype == bool:
            assert r.view(np.uint8).max(initial=0) <= 1
    assert is_vectorized(scheduled) == (vectors and n >= 8), "a vector holds 8 floats"


def is_vectorized(func: PrimFunc) -> bool:
    return any(type(s) is For and s.kind == "vectorized" for s in walk(func.body))


def test_callers_pass_bools() -> None:
    func = prim_func(logic(4))
    call = Module.from_object(build([func], TARGET).data)["logic"]
    arrays = [np.zeros((3, 4), np.float32), np.zeros((3, 4), np.uint8), np.array(True)]
    with pytest.raises(RunError, match="bool"):
        call(*arrays, *[np.zeros(2, bool)] * 7)


@T.prim_func
def tails(A: T.Buffer((13,), "float32"), B: T.Buffer((13,), "bool"), C: T.Buffer((13,), "bool")):
    for i_0 in T.serial(2):
        for i_1 in T.vectorized(8):
            with T.block("C"):
                vi = T.axis.spatial(13, i_0 * 8 + i_1)
                T.where(i_0 * 8 + i_1 < 13)
                C[vi] = A[vi] < T.float32(0.0) or B[vi]


def test_masks() -> None:
    """A guard in a vector loop becomes a mask: elements beyond the end are neither read nor written."""
    a, b = np.linspace(-1, 1, 13, dtype=np.float32), np.arange(13) % 4 == 3
    memory = np.ones(32, bool)
    Module.from_object(build([tails], TARGET).data)["tails"](a, b, memory[:13])
    np.testing.assert_array_equal(memory[:13], (a < 0) | b)
    assert memory[13:].all()
