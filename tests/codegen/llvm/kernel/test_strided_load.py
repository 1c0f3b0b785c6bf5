"""Loads with a small constant stride: results for all strides and types, no gather, nothing read outside."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.measure.evaluator.guard_pages import GuardedArray
from tunesmith.runtime.module import Module

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=256 -num-cores=1")


def strided(stride: int, lanes: int, dtype: str, vectors: int = 3) -> PrimFunc:
    """y[i] = x[first + stride * i]; the first and the last element of x are read."""
    n = lanes * vectors
    size = abs(stride) * (n - 1) + 1
    first = 0 if stride > 0 else size - 1
    made = parse(f"""
@T.prim_func
def strided(x: T.Buffer(({size},), "{dtype}"), y: T.Buffer(({n},), "{dtype}")):
    for i in T.serial({vectors}):
        for j in T.vectorized({lanes}):
            y[i * {lanes} + j] = x[{first} + {stride} * (i * {lanes} + j)]
""")
    assert isinstance(made, PrimFunc)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "float16"])
@pytest.mark.parametrize("stride", [-4, -2, -1, 1, 2, 3, 4, 5])
def test_values(stride: int, dtype: str) -> None:
    lanes = TARGET.vector_lanes(dtype)
    func = strided(stride, lanes, dtype)
    text, _ = emit_text(func, TARGET)
    assert ("gather" in text) == (stride in (-4, -2, 5))
    size = func.params[0].shape[0].as_int()  # type: ignore[union-attr]
    x = np.random.default_rng(0).integers(0, 100, size).astype(dtype)
    y = np.zeros(lanes * 3, dtype)
    Module.from_object(build(func, TARGET).data)["strided"](x, y)
    np.testing.assert_array_equal(y, x[::stride][: y.size])


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("stride", [-1, 2, 3, 4])
def test_nothing_is_read_outside(stride: int, at_the_end: bool) -> None:
    """A load before the first element or behind the last one would be a segmentation fault."""
    func = strided(stride, 8, "float32")
    count = func.params[0].shape[0].as_int()  # type: ignore[union-attr]
    page = GuardedArray("uint8", (4096,))
    x = page.data[-4 * count :].view("float32") if at_the_end else page.data[: 4 * count].view("float32")
    x[...] = np.arange(count)
    y = np.zeros(24, "float32")
    Module.from_object(build(func, TARGET).data)["strided"](x, y)
    np.testing.assert_array_equal(y, x[::stride])
