"""The feature program of a sketch: backends, shapes, output buffers, program vectors, error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.features.program_vector import program_columns, program_vector
from tunesmith.costmodel.features.store_features import columns
from tunesmith.costmodel.formulas import compiled_graph
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param, Var, poly
from tunesmith.ir.stmt import Block, Iter, nest, store
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import substitute
from tunesmith.schedule.schedule import Schedule, concretize
from tunesmith.support.errors import RunError, UserError

TARGET = Target("llvm -mcpu=sapphirerapids -num-cores=2")


def program(case: Any, **options: Any) -> FeatureProgram:
    s = case.schedule
    return FeatureProgram(s.func, s.params, s.constraints, **options)


def test_program_vectors_equal_those_of_the_stores(case: Any) -> None:
    rows = case.rows(40)
    for curve in (False, True):
        f = program(case, curve=curve)
        expected = program_vector(f.features(rows), curve)
        assert expected.shape == (40, len(program_columns(curve))) == (40, len(f.program_names))
        assert np.allclose(f.program(rows), expected, rtol=1e-5, atol=1e-5)
        assert np.allclose(program(case, curve=curve, backend="numpy").program(rows), expected, rtol=1e-5, atol=1e-5)


def test_program_vector_by_hand() -> None:
    """Two stores: additive features are summed before the logarithm, others are maxima, and the store with more work is on top."""
    names = [c.name for c in columns()]
    table = np.zeros((1, 2, len(names)), np.float32)
    for row, values in enumerate(
        [{"add": 3.0, "work": 2.0, "vec_len": 4.0, "buffer0.bytes": 1.0, "buffer1.bytes": 1.0}, {"add": 1.0, "work": 5.0, "guarded": 1.0}]
    ):
        for name, value in values.items():
            table[0, row, names.index(name)] = value
    got = dict(zip([c.name for c in program_columns()], program_vector(table)[0].tolist(), strict=True))
    assert got["stores"] == 2
    assert got["sum.add"] == pytest.approx(np.log2(7 + 1 + 1)) and got["sum.bytes"] == pytest.approx(np.log2(1 + 1 + 1))
    assert got["max.vec_len"] == 4 and got["max.guarded"] == 1
    assert got["top.add"] == 1 and got["top.work"] == 5 and got["top.vec_len"] == 0


def test_with_equal_work_the_first_store_is_on_top() -> None:
    table = np.zeros((1, 2, len(columns())), np.float32)
    table[0, 1, [c.name for c in columns()].index("add")] = 9
    got = dict(zip([c.name for c in program_columns()], program_vector(table)[0].tolist(), strict=True))
    assert got["top.add"] == 0 and got["sum.add"] == 9


def test_program_vector_refuses_other_shapes() -> None:
    with pytest.raises(UserError, match=r"store features \[N, stores >= 1, \d+\] are needed \(curve=False\), got \[3, 7\]"):
        program_vector(np.zeros((3, 7)))
    with pytest.raises(UserError, match="got \\[3, 0, "):
        program_vector(np.zeros((3, 0, len(columns()))))


def test_analytic_columns_extend_the_vector(make_case: Callable[[str], Any]) -> None:
    case = make_case("gemm ij packed")
    rows = case.rows(33)
    f = program(case, target=TARGET)
    vector, seconds = f.scored(rows)
    assert f.program_names[-8:] == tuple(f"analytic.{t}" for t in ("seconds", "issue", "shared", "l2", "l3", "dram", "stalls", "overhead"))
    assert np.array_equal(vector[:, :-8], program(case).program(rows))
    assert np.allclose(vector[:, -8], np.log2(seconds * 1e9 + 1), rtol=1e-6)
    assert np.allclose(seconds, f.seconds(rows), rtol=1e-12) and np.array_equal(f.program(rows), vector)


def test_admissible_rows_satisfy_the_constraints(make_case: Callable[[str], Any]) -> None:
    case = make_case("gemm ij packed")
    f = program(case)
    rows = case.rows(20)
    assert f.admissible(rows).all()
    bad = rows.copy()
    bad[3:6, 0] = 1000  # far beyond the extent of the axis
    assert f.admissible(bad).tolist() == [not 3 <= i < 6 for i in range(20)]
    assert program(make_case("gemm unscheduled")).admissible(np.zeros((2, 0), int)).tolist() == [True, True]


def test_output_buffers_are_filled(make_case: Callable[[str], Any]) -> None:
    case = make_case("softmax")
    rows = case.rows(19)
    for backend in ("llvm", "numpy"):
        f = program(case, backend=backend)
        out = np.full((19, len(f.stores), len(f.names)), np.nan, np.float32)
        assert np.shares_memory(f.features(rows, out), out) and np.array_equal(out, f.features(rows))
        with pytest.raises(UserError, match=r"`out` must be C-contiguous float32 of shape \[18, 4, \d+\]"):
            f.features(rows[:18], out)
        vector = np.full((19, len(f.program_names)), np.nan, np.float32)
        assert f.program(rows, vector) is vector and np.array_equal(vector, f.program(rows))


def test_numpy_is_the_fallback_if_code_cannot_be_loaded(make_case: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("gelu")
    rows = case.rows(5)
    expected = program(case).features(rows)

    def refuse(*_: Any) -> None:
        raise RunError("cannot load")

    monkeypatch.setattr(compiled_graph, "DagKernel", refuse)
    assert np.allclose(program(case).features(rows), expected, rtol=1e-6)
    with pytest.raises(RunError, match="cannot load"):
        program(case, backend="llvm").features(rows)


def test_refusals(make_case: Callable[[str], Any]) -> None:
    case = make_case("gelu")
    with pytest.raises(UserError, match="unknown backend 'jit' of a feature program; known: auto, llvm, numpy"):
        program(case, backend="jit")
    with pytest.raises(UserError, match="FeatureProgram.seconds needs a target: make the feature program with target="):
        program(case).seconds(case.rows(1))
    with pytest.raises(UserError, match="FeatureProgram.scored needs a target"):
        program(case).scored(case.rows(1))


def test_sizes_may_be_params(reference: Any) -> None:
    """One program for all shapes of an operator: sizes are columns too."""
    n = Param("n", range(1, 2000))
    x, y = Buffer("X", (n,)), Buffer("Y", (n,))
    i, v = Var("i"), Var("v")
    block = Block("Y", (Iter(v, poly(n), "S"),), (poly(i),), (), None, store(y, (v,), x[v] + x[v]))
    s = Schedule(PrimFunc("twice", (x, y), (), nest([(i, n)], block)), parametric=True)
    (loop,) = s.get_loops(s.get_block("Y"))
    _, inner = s.split(loop, [None, *s.sample_tile(loop, 2, "t", [(1, 8, 16)])])
    s.vectorize(inner)
    f = FeatureProgram(s.func, [n, *s.params], s.constraints, target=TARGET)
    rows = np.array([[1000, 16], [999, 8], [7, 1]])
    assert np.isfinite(f.seconds(rows)).all()
    for row, got in zip(rows, f.features(rows), strict=True):
        concrete = concretize(s.func, dict(zip([n, *s.params], row.tolist(), strict=True)))
        size = {n: poly(int(row[0]))}
        whole = {b: b.like(shape=[int(row[0])]) for b in (x, y)}
        assert np.allclose(
            got, reference.reference_features(concrete.with_(body=substitute(concrete.body, size, whole))), rtol=1e-5, atol=1e-5
        )
