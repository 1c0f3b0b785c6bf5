"""Vectors that fill the gaps of each other are interleaved and stored at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.codegen.cpu.store_groups import Interleaved, grouped_stores
from tunesmith.codegen.llvm.build import build, emit_text
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import poly
from tunesmith.ir.script.parser import parse
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.runtime.module import Module
from tunesmith.schedule.schedule import Schedule

HERE = Target.detect()
MEMORY = Buffer("C", (1024,))


def packed(rows: int, columns: int, group: int, dtype: str, guard: bool = False) -> PrimFunc:
    """C[i, j, g] = A[i * group + g, j], vectors along j, g unrolled; with a guard, rows beyond those of A are 0."""
    have = rows * group - 1 if guard else rows * group
    value = f"A[vi * {group} + vg, vj]"
    if guard:
        value = f"T.select(vi * {group} + vg < {have}, {value}, T.cast('{dtype}', T.int32(0)))"
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer(({have}, {columns}), "{dtype}"), C: T.Buffer(({rows}, {columns}, {group}), "{dtype}")):
    for i, j, g in T.grid({rows}, {columns}, {group}):
        with T.block("C"):
            vi, vj, vg = T.axis.remap("SSS", [i, j, g])
            C[vi, vj, vg] = {value}
""")
    assert isinstance(func, PrimFunc)
    s = Schedule(func)
    _, j, g = s.get_loops(s.get_block("C"))
    s.reorder([g, j])
    s.vectorize(j)
    s.unroll(g)
    return s.func


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("columns", [5, 16, 40, 64])
@pytest.mark.parametrize(("group", "dtype"), [(2, "int16"), (4, "int8"), (4, "uint8"), (2, "float32"), (8, "int8"), (4, "float64")])
def test_results(group: int, dtype: str, columns: int, guard: bool) -> None:
    func = packed(3, columns, group, dtype, guard)
    a = np.random.default_rng(0).integers(0, 100, (3 * group, columns)).astype(dtype)
    want = a.copy()
    want[3 * group - guard :] = 0
    c = np.full((3, columns, group), 77, dtype)
    Module.from_object(build(func, HERE).data)["f"](a[: 3 * group - guard], c)
    np.testing.assert_array_equal(c, want.reshape(3, group, columns).transpose(0, 2, 1))


def test_one_store_for_a_group() -> None:
    text, _ = emit_text(packed(3, 16, 2, "int16"), Target("llvm -mcpu=x86-64-v4 -num-cores=1"))
    assert "scatter" not in text and text.count("store <32 x i16>") == 1 and "shufflevector" in text


def placed(offset: int, stride: int, mask: int | None = None) -> BufferStore:
    """A vector of four lanes at an offset."""
    value = BufferLoad(Buffer("A", (4,)), (poly(0),), 4, poly(1))
    return BufferStore(MEMORY, (poly(offset),), value, poly(stride), None if mask is None else poly(mask))


def test_only_complete_groups() -> None:
    (found,) = grouped_stores([placed(9, 2), placed(8, 2)])
    assert isinstance(found, Interleaved) and [s.indices[0].as_int() for s in found.stores] == [8, 9] and found.lanes == 4
    (found,) = grouped_stores([placed(n, 4, mask=3) for n in range(4)])
    assert isinstance(found, Interleaved) and found.lanes == 3
    for stores in (
        [placed(0, 3), placed(1, 3), placed(2, 3)],  # not a power of two
        [placed(0, 4), placed(1, 4)],  # gaps remain
        [placed(0, 2), placed(1, 2, mask=3)],
        [placed(0, 2), placed(0, 2)],
        [placed(8, -2), placed(9, -2)],
    ):
        assert not any(isinstance(x, Interleaved) for x in grouped_stores(stores))


def test_statements_are_read_a_constant_number_of_times() -> None:
    """Grouping a long sequence takes linear time."""

    class Counted(list[BufferStore]):
        read = 0

        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            Counted.read += len(found) if isinstance(at, slice) else 1
            return found

    stores = Counted([placed(n, 1) for n in range(400)])
    assert len(grouped_stores(stores)) == 400
    assert Counted.read < 400 * 10
