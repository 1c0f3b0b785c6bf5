"""drop_dead_stores removes intermediate buffers that reach no parameter, and keeps all others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tunesmith.codegen.llvm.build import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.lower.passes.drop_dead_stores import drop_dead_stores
from tunesmith.lower.passes.simplify import simplify
from tunesmith.runtime.module import Module

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=2")

CHAIN = """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    D = T.alloc_buffer((8,), "int32")
    E = T.alloc_buffer((8,), "int32")
    F = T.alloc_buffer((8,), "int32")
    G = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            D[vi] = A[vi]
            F[vi] = A[vi] * 2
            G[vi] = A[vi] - 3
            C[vi] = F[vi] + 1
    for i in T.serial(8):
        with T.block("e"):
            vi = T.axis.spatial(8, i)
            E[vi] = D[vi] + E[7 - vi]
    for i in T.serial(8):
        with T.block("g"):
            vi = T.axis.spatial(8, i)
            if G[vi] > 0:
                C[vi] = 0
"""


def test_buffers_that_reach_a_parameter_stay(assert_golden: Callable[[str], None]) -> None:
    f = parse(CHAIN)
    g = drop_dead_stores(f, TARGET)
    assert [b.name for b in g.allocs] == ["F", "G"]
    assert drop_dead_stores(g, TARGET) is g
    assert_golden(str(g))
    a = np.arange(8, dtype="int32")
    got = np.zeros(8, "int32")
    Module.from_object(build(f, TARGET).data)["f"](a, got)
    np.testing.assert_array_equal(got, run(f, [a])[-1])


def test_an_intermediate_with_one_store() -> None:
    """The buffer is written once and never read."""
    f = parse("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    D = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            D[vi] = A[vi]
            C[vi] = A[vi] + 1
""")
    a, c = np.arange(8, dtype="int32"), np.zeros(8, "int32")
    Module.from_object(build(f, TARGET).data)["f"](a, c)
    assert c.tolist() == list(range(1, 9))


def compiled(f: PrimFunc, *arrays: np.ndarray) -> None:
    Module.from_object(build(f, TARGET).data)[f.name](*arrays)


def test_blocks_that_never_run_are_removed() -> None:
    f = parse("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in T.serial(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            if vi > 20:
                C[vi] = A[vi]
""")
    c = np.full(8, 5, "int32")
    compiled(f, np.zeros(8, "int32"), c)
    assert c.tolist() == [5] * 8


def test_the_init_of_a_block_whose_body_never_runs_stays() -> None:
    f = parse("""
@T.prim_func
def f(A: T.Buffer((8, 4), "int32"), C: T.Buffer((8,), "int32")):
    for i, k in T.grid(8, 4):
        with T.block("b"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 3
            if vk > 20:
                C[vi] += A[vi, vk]
""")
    c = np.zeros(8, "int32")
    compiled(f, np.zeros((8, 4), "int32"), c)
    assert c.tolist() == [3] * 8
    np.testing.assert_array_equal(run(simplify(f, TARGET), [np.zeros((8, 4), "int32")])[-1], c)
