"""Test strides of the GPU analysis: padded and aligned buffers have those of the buffer itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tunesmith.costmodel.analysis.gpu_kernels import pitches
from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis
from tunesmith.costmodel.formulas.expr_graph import NumpyProgram
from tunesmith.ir.script.syntax import T
from tunesmith.schedule.schedule import Schedule, concretize


@T.prim_func
def cube(A: T.Buffer((4, 6, 10), "float32"), C: T.Buffer((4, 6, 10), "float32")):
    B = T.alloc_buffer((4, 6, 10), "float32")
    for i, j, k in T.grid(4, 6, 10):
        with T.block("B"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            B[vi, vj, vk] = A[vi, vj, vk] * 2.0
    for i, j, k in T.grid(4, 6, 10):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            C[vi, vj, vk] = B[vi, vj, vk] + 1.0


@pytest.mark.parametrize("row", list(itertools.product((0, 3), (1, 8, 32), (16, 100))))
def test_strides_of_padded_and_aligned_buffers(row: tuple[int, int, int]) -> None:
    s = Schedule(cube, parametric=True)
    b = s.get_block("B")
    s.pad_rows(b, s.sample_categorical((0, 3), "pad"))
    s.storage_align(b, "B", 1, s.sample_categorical((1, 8, 32), "rows"), 0)
    s.storage_align(b, "B", 0, s.sample_categorical((16, 100), "planes"), 4)
    a = ProgramAnalysis(s.func, tuple(s.params))
    found = NumpyProgram(a.dag, list(pitches(a, s.func.allocs[0])))(np.array([row]))[:, 0]
    (buffer,) = concretize(s.func, dict(zip(s.params, row, strict=True))).allocs
    assert found.tolist() == [x.as_int() for x in buffer.strides]
