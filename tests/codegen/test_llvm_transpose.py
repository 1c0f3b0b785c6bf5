"""Strided stores side by side become transposed tiles, and only where that is the same."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.codegen.llvm_build import build, emit_text
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

TARGET = Target("llvm -mcpu=x86-64-v3 -vector-bits=128 -num-cores=1")
LANES = 4


def across(columns: int, rows: int, step: int = 1, value: str = "A[w, c] * 2") -> PrimFunc:
    """C[c, step * w] from A[w, c], vectors along c, columns written out."""
    func = parse(
        f"""
@T.prim_func
def f(A: T.Buffer(({columns}, {rows}), "float32"), C: T.Buffer(({rows}, {columns * step + 3}), "float32")):
    for i, j in T.grid({columns}, {rows}):
        with T.block("C"):
            w, c = T.axis.remap("SS", [i, j])
            C[c, w * {step}] = {value}
"""
    )
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    i, j = s.get_loops(s.get_block("C"))
    s.vectorize(j)
    s.unroll(i)
    return s.func


def run(func: PrimFunc, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    out = c.copy()
    Module.from_object(build(func, TARGET).data)["f"](a, out)
    return out


def scatters(func: PrimFunc) -> bool:
    return "masked.scatter.v" in emit_text(func, TARGET)[0]


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("rows", [4, 6, 8, 11])
def test_tiles_of_any_size(columns: int, rows: int) -> None:
    func = across(columns, rows)
    a = np.random.default_rng(columns * 16 + rows).random((columns, rows), np.float32)
    c = np.full((rows, columns + 3), 7, np.float32)
    out = run(func, a, c)
    np.testing.assert_array_equal(out[:, :columns], a.T * 2)
    assert (out[:, columns:] == 7).all()  # nothing beside the tile is touched
    assert scatters(func) == (columns % LANES == 1)  # one column alone is not worth it


def test_stores_with_gaps_stay_scattered() -> None:
    func = across(4, 8, step=2)
    a = np.random.default_rng(0).random((4, 8), np.float32)
    np.testing.assert_array_equal(run(func, a, np.zeros((8, 11), np.float32))[:, :8:2], a.T * 2)
    assert scatters(func)


def test_values_that_read_what_is_written_stay_in_order() -> None:
    """C[c, w] = C[c, 0] + A[w, c]: the first column changes before the others read it."""
    func = across(4, 4, value="C[c, 0] + A[w, c]")
    a = np.random.default_rng(0).random((4, 4), np.float32)
    c = np.ones((4, 7), np.float32)
    expected = c.copy()
    for w in range(4):
        expected[:, w] = expected[:, 0] + a[w]
    np.testing.assert_array_equal(run(func, a, c), expected)
    assert scatters(func)


def test_rows_that_overlap_stay_in_order() -> None:
    """D[2 * c + w]: lanes lie closer together than the tile is wide, and the last store wins."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((4, 4), "float32"), C: T.Buffer((10,), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("C"):
            w, c = T.axis.remap("SS", [i, j])
            C[c * 2 + w] = A[w, c]
"""
    )
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    i, j = s.get_loops(s.get_block("C"))
    s.vectorize(j)
    s.unroll(i)
    a = np.arange(16, dtype=np.float32).reshape(4, 4)
    expected = np.zeros(10, np.float32)
    for w in range(4):
        for c in range(4):
            expected[c * 2 + w] = a[w, c]
    np.testing.assert_array_equal(run(s.func, a, np.zeros(10, np.float32)), expected)
    assert scatters(s.func)
