"""Test reductions whose loops do not run through memory without a gap, and reductions to one element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tunesmith
from tunesmith import te
from tunesmith.ir.expr import Expr
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Poly
from tunesmith.ir.stmt import For
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import walk
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

TARGET = Target("llvm -num-cores=2")
Formula = Callable[[te.Tensor, Sequence[Poly]], Expr]


def reduction(shape: tuple[int, ...], extents: tuple[int, ...], axes: tuple[int, ...], formula: Formula, units: int = 0) -> PrimFunc:
    """A sum over `axes` of a formula of the elements of X; `units` are the dimensions of extent 1 of the result."""
    x = te.placeholder(shape, name="X")
    reduced = {d: te.reduce_axis(extents[d], f"r{d}") for d in axes}
    kept = [d for d in range(len(extents)) if d not in axes]

    def element(*i: Poly) -> Expr:
        at = dict(zip(kept, i[units:], strict=True)) | reduced
        return te.sum(formula(x, [at[d] for d in range(len(extents))]), axis=list(reduced.values()))

    return te.create_prim_func([x, te.compute((1,) * units + tuple([extents[d] for d in kept]), element, "Y")], "reduction")


SHIFTED = ((40, 50), (40, 49), (0, 1), lambda x, i: x[i[0], i[1]] * x[i[0], i[1] + 1])
CASES: dict[str, tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Formula, int], Callable[[np.ndarray], np.ndarray]]] = {
    "all, one column left out": ((*SHIFTED, 0), lambda x: (x[:, :-1] * x[:, 1:]).sum()),
    "all, few rows": (((3, 400), (3, 399), (0, 1), lambda x, i: x[i[0], i[1]], 0), lambda x: x[:, :-1].sum()),
    "one element": ((*SHIFTED, 1), lambda x: (x[:, :-1] * x[:, 1:]).sum().reshape(1)),
    "one element of a matrix": (((30, 40), (30, 40), (0, 1), lambda x, i: x[i[0], i[1]], 2), lambda x: x.sum().reshape(1, 1)),
    "transposed": (((30, 40), (40, 30), (0, 1), lambda x, i: x[i[1], i[0]], 0), lambda x: x.sum()),
    "outer and inner axis": (((6, 9, 70), (6, 9, 70), (0, 2), lambda x, i: x[i[0], i[1], i[2]], 0), lambda x: x.sum((0, 2))),
    "rows, one column left out": (
        ((20, 7, 50), (20, 7, 49), (1, 2), lambda x, i: x[i[0], i[1], i[2] + 1], 0),
        lambda x: x[..., 1:].sum((1, 2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_candidates_are_right_and_vectorised(name: str) -> None:
    given, reference = CASES[name]
    func = reduction(*given)
    x = np.random.default_rng(0).standard_normal(given[0], dtype=np.float32)
    expected = reference(x)
    for sketch in generate(func, TARGET).sketches:
        for row in np.unique(sketch.space.sample(6, stream(0, name)), axis=0).tolist():
            program = sketch.concretize(row)
            out = np.zeros(expected.shape, np.float32)
            tunesmith.build(program, TARGET)(x, out)
            assert np.allclose(out, expected, rtol=1e-4, atol=1e-4 * math.sqrt(x.size)), (sketch.name, row)
            assert any(type(n) is For and n.kind == "vectorized" for n in walk(program.body))


def test_loops_of_a_gap_are_not_fused() -> None:
    func = reduction(*SHIFTED)
    for sketch in generate(func, TARGET).sketches:
        text = tunesmith.Schedule(sketch.concretize(sketch.space.sample(1, stream(0))[0].tolist())).mod
        assert "% 49" not in str(text), "an index of fused loops has no vector form"
