"""Scratch memory larger than the range of 32-bit offsets, or than the available memory."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.cpu.arena import STATIC_BYTES
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.support.errors import BuildError, RunError

HERE = Target.detect()


def through(nbytes: int, name: str = "f") -> PrimFunc:
    """Four elements through a buffer of `nbytes` bytes, of which they access four pages."""
    return parse(f"""
@T.prim_func
def {name}(A: T.Buffer((4,), "int8"), C: T.Buffer((4,), "int8")):
    Wide = T.alloc_buffer(({nbytes},), "int8")
    for i in T.serial(4):
        with T.block("Wide"):
            vi = T.axis.spatial(4, i)
            Wide[vi * {(nbytes - 1) // 3}] = A[vi]
    for i in T.serial(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = Wide[vi * {(nbytes - 1) // 3}]
""")


def test_scratch_memory_beyond_32_bit_offsets() -> None:
    a, c = np.arange(4, dtype="int8") + 5, np.zeros(4, "int8")
    Module.from_object(build(through(3 << 30), HERE).data)["f"](a, c)
    np.testing.assert_array_equal(c, a)


def test_kernels_of_an_object_share_the_static_limit() -> None:
    size = STATIC_BYTES // 2
    text, _ = emit_text([through(size // 2, "f"), through(size, "g"), through(size, "h")], HERE)
    assert "@f_kernel.arena = internal global" in text and "@g_kernel.arena = internal global" in text
    assert "@h_kernel.arena" not in text and "define i64 @h_kernel(" in text
    module = Module.from_object(build([through(size // 2, "f"), through(size, "g"), through(size, "h")], HERE).data)
    for name in "fgh":
        a, c = np.arange(4, dtype="int8") + 5, np.zeros(4, "int8")
        module[name](a, c)
        np.testing.assert_array_equal(c, a)


def test_unavailable_memory_is_an_error_of_the_call() -> None:
    f = Module.from_object(build(through(1 << 46), HERE).data)["f"]
    a, c = np.ones(4, "int8"), np.zeros(4, "int8")
    with pytest.raises(RunError, match=r"f: out of memory, \d+ bytes for .* were refused; the largest is Wide, 70368744177664 bytes"):
        f(a, c)
    assert not c.any()


def test_memory_beyond_the_address_space_is_refused_by_build() -> None:
    with pytest.raises(BuildError, match=rf"f: intermediate buffers take \d+ bytes; the largest is Wide, {1 << 50} bytes: more than"):
        build(through(1 << 50), HERE)
