"""Register buffers: vectors that exceed them, masks, and their conversion to SSA values."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tunesmith.codegen.cpu.arena import STACK_BYTES
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

NARROW = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")
WIDE = Target("llvm -mcpu=x86-64-v3 -num-cores=1")
TARGETS = (NARROW, WIDE, Target.detect())
SCOPES = ("register", "workspace", "global")


def parsed(text: str) -> PrimFunc:
    """The function in a script."""
    func = parse(text)
    assert isinstance(func, PrimFunc)
    return func


def tile(dtype: str, size: int, vector: int, interleaved: bool = False) -> PrimFunc:
    """A sum over rows, accumulated in a register tile that is initialised, updated and read in vectors of one length."""
    func = parsed(
        f"""
@T.prim_func
def f(A: T.Buffer((6, {size}), "{dtype}"), C: T.Buffer(({size},), "{dtype}")):
    for k, i in T.grid(6, {size}):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.{dtype}({0.0 if dtype.startswith("f") else 0})
            C[vi] = C[vi] + A[vk, vi]
"""
    )
    s = Schedule(func)
    block = s.get_block("C")
    k, _ = s.get_loops(block)
    k0, _ = s.split(k, [None, 2])
    for b in (*s.cache_reduction(block, k0, "register"), block):
        if b is block and interleaved:
            s.vectorize(s.get_loops(b)[-1])
        else:
            outer, inner = s.split(s.get_loops(b)[-1], [None, vector])
            s.vectorize(inner)
            s.unroll(outer)
    s.unroll(s.get_loops(block)[-2 if interleaved else -3])
    return s.func


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "size", "vector"), [("int64", 16, 4), ("int64", 16, 5), ("int64", 16, 7), ("float32", 32, 8), ("int8", 21, 6)]
)
@pytest.mark.parametrize("interleaved", [False, True])
def test_tiles_with_vectors_beyond_their_end(dtype: str, size: int, vector: int, interleaved: bool, target: Target) -> None:
    """The last vectors of a tile exceed it; their elements inside the tile are kept."""
    a = (np.arange(6 * size) % 19).reshape(6, size).astype(dtype)
    c = np.full(size, 77, dtype)
    Module.from_object(build(tile(dtype, size, vector, interleaved), target).data)["f"](a, c)
    np.testing.assert_array_equal(c, a.sum(0))


def shifted(scope: str, value: str = "B[vi] + 1", rows: int = 1) -> PrimFunc:
    """B is filled, then overwritten from its third element, then read: vectors of eight, the second one exceeds B."""
    s = Schedule(
        parsed(
            f"""
@T.prim_func
def f(A: T.Buffer((6,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in T.serial(8):
        with T.block("Z"):
            vi = T.axis.spatial(8, i)
            B[vi] = -1
    for i in T.serial(6):
        with T.block("B"):
            vi = T.axis.spatial(6, i)
            B[vi + 2] = A[vi] * 2 + 1
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = {value}
"""
        )
    )
    s.set_scope(s.get_block("B"), scope)
    for name in ("Z", "B", "C"):
        s.vectorize(s.get_loops(s.get_block(name))[0])
    return s.func


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_store_beyond_the_end_keeps_the_elements_inside(scope: str, target: Target) -> None:
    a, c = np.arange(6, dtype=np.int32), np.full(8, 77, np.int32)
    Module.from_object(build(shifted(scope), target).data)["f"](a, c)
    np.testing.assert_array_equal(c, [0, 0, *(a * 2 + 2)])


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_inactive_lanes_are_zero(scope: str, target: Target) -> None:
    """A select between an element and 0 is a masked load, in every scope."""
    a, c = np.arange(6, dtype=np.int32), np.full(8, 77, np.int32)
    Module.from_object(build(shifted(scope, "B[vi + 3] if vi + 3 < 8 else 0"), target).data)["f"](a, c)
    np.testing.assert_array_equal(c, [*(a * 2 + 1)[1:], 0, 0, 0])


def test_padding_is_added_only_for_vectors_that_need_it() -> None:
    """Tiles of whole vectors have their own size, and plain loads and stores."""
    for size, vector, elements in ((32, 8, 32), (16, 8, 16), (12, 8, 16)):
        text = emit_text(tile("float32", size, vector), WIDE)[0]
        assert re.findall(r"alloca \[(\d+) x float\]", text) == [str(elements)]
        assert not re.search(r"masked\.\w+\.v8f32.*%r", text)
    text = emit_text(shifted("register"), WIDE)[0]
    assert re.findall(r"alloca \[(\d+) x i32\]", text) == ["10"]


@pytest.mark.parametrize(("size", "vector"), [(20, 16), (12, 8), (5, 8), (16, 8)])
def test_accumulators_have_no_blends(size: int, vector: int) -> None:
    """Each vector of the tile has one mask in all accesses, so updates may change its inactive lanes."""
    func = tile("float32", size, vector)
    text = emit_text(func, WIDE)[0]
    assert "alloca" in text and "select <" not in text
    a, c = np.random.default_rng(size).random((6, size), "float32"), np.empty(size, "float32")
    Module.from_object(build(func, WIDE).data)["f"](a, c)
    np.testing.assert_allclose(c, a.sum(0), rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("second", [3, 8])
def test_lanes_of_other_masks_are_kept(second: int, target: Target) -> None:
    """A shorter second store to a vector, and one whose active lanes a loop changes, keep the other lanes."""
    constant = parsed(
        f"""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32", scope="register")
    for i in T.serial(8):
        with T.block("Z"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in T.serial({second}):
        with T.block("B"):
            vi = T.axis.spatial({second}, i)
            B[vi] = A[vi] * 5
    for i in T.serial(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]
"""
    )
    triangular = parsed(
        """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32", scope="register")
    for i in T.vectorized(8):
        B[i] = A[i]
    for k in T.serial(3):
        for i in T.vectorized(8):
            if i < k + 1:
                B[i] = A[i] * 5
    for i in T.vectorized(8):
        C[i] = B[i]
"""
    )
    s = Schedule(constant)
    for name in ("Z", "B", "C"):
        s.vectorize(s.split(s.get_loops(s.get_block(name))[-1], [None, 8])[1])
    a, c = np.arange(1, 9, dtype=np.int32), np.empty(8, np.int32)
    Module.from_object(build(s.func, target).data)["f"](a, c)
    np.testing.assert_array_equal(c, a * np.where(np.arange(8) < second, 5, 1))
    Module.from_object(build(triangular, target).data)["f"](a, c)
    np.testing.assert_array_equal(c, a * np.where(np.arange(8) < 3, 5, 1))


def test_tables_beyond_the_stack() -> None:
    """A register buffer in the arena has neighbours: masked stores to it write nothing else."""
    size = STACK_BYTES // 4 + 1
    s = Schedule(
        parsed(
            f"""
@T.prim_func
def f(A: T.Buffer(({size},), "int32"), C: T.Buffer(({size},), "int32")):
    B = T.alloc_buffer(({size},), "int32", scope="register")
    for i in T.serial({size}):
        with T.block("B"):
            vi = T.axis.spatial({size}, i)
            B[vi] = A[vi] * 2 + 1
    for i in T.serial({size}):
        with T.block("C"):
            vi = T.axis.spatial({size}, i)
            C[vi] = B[{size - 1} - vi]
"""
        )
    )
    for name in ("B", "C"):
        s.vectorize(s.split(s.get_loops(s.get_block(name))[0], [None, 5])[1])
    text = emit_text(s.func, WIDE)[0]
    assert not re.search(r"alloca \[\d+ x i32\]", text) and "masked.store" in text
    a, c = np.arange(size, dtype=np.int32), np.zeros(size, np.int32)
    Module.from_object(build(s.func, WIDE).data)["f"](a, c)
    np.testing.assert_array_equal(c, (a * 2 + 1)[::-1])


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint16"])
def test_absolute_values_of_integers(dtype: str) -> None:
    """For the minimum integer it is that number itself, as in numpy."""
    func = parse(
        f"""
@T.prim_func
def f(A: T.Buffer((20,), "{dtype}"), C: T.Buffer((20,), "{dtype}")):
    for i in T.vectorized(16):
        C[i] = T.abs(A[i])
    for i in T.serial(4):
        C[i + 16] = T.abs(A[i + 16])
"""
    )
    assert isinstance(func, PrimFunc)
    a = np.arange(20).astype(dtype) * -3 if dtype[0] == "i" else np.arange(20).astype(dtype)
    a[[2, 18]] = np.iinfo(dtype).min
    for target in TARGETS:
        c = np.zeros_like(a)
        Module.from_object(build(func, target).data)["f"](a, c)
        np.testing.assert_array_equal(c, np.abs(a))
