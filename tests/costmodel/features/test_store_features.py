"""Vectorised features equal those of the plain Python extractor, on both backends and every sketch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tunesmith.costmodel.analysis.program_analysis import ProgramAnalysis
from tunesmith.costmodel.features.feature_program import FeatureProgram
from tunesmith.costmodel.features.store_features import ACCESS, BUFFERS, GPU, HEAD, columns, extract
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param, Var, poly
from tunesmith.ir.stmt import Block, Iter, nest, store


@pytest.mark.parametrize("curve", [False, True])
def test_features_equal_the_reference(case: Any, reference: ModuleType, curve: bool) -> None:
    s = case.schedule
    rows = case.rows(16)
    expected = np.array([reference.reference_features(case.program(row), curve) for row in rows])
    for backend in ("llvm", "numpy"):
        got = FeatureProgram(s.func, s.params, s.constraints, curve=curve, backend=backend).features(rows)
        assert got.shape == expected.shape and got.dtype == np.float32
        wrong = ~np.isclose(got, expected, rtol=1e-5, atol=1e-5)
        names = [c.name for c in columns(curve)]
        assert not wrong.any(), [(rows[i].tolist(), s.blocks()[b].name, names[c]) for i, b, c in np.argwhere(wrong)[:5].tolist()]


def test_the_reference_can_fail(make_case: Callable[[str], Any], reference: ModuleType) -> None:
    """The comparison detects a change of one tile size by one."""
    case = make_case("gemm ij packed")
    row = case.rows(30)[-1]
    other = row.copy()
    other[2] += 1
    first, second = (np.array(reference.reference_features(case.program(r))) for r in (row, other))
    assert not np.allclose(first, second, rtol=1e-5)


def copies(sizes: list[int], repeat: Param) -> PrimFunc:
    """out[i] = sum of inputs of these sizes; all loops inside one that repeats them."""
    ins = [Buffer(f"I{k}", (n,)) for k, n in enumerate(sizes)]
    out = Buffer("O", (4,))
    v, w, i, r = Var("v"), Var("w"), Var("i"), Var("r")
    value = ins[0][poly(v)]
    for b in ins[1:]:
        value = value + b[poly(v) * (b.shape[0].as_int() // 4)]
    block = Block("O", (Iter(v, poly(4), "S"), Iter(w, poly(repeat), "S")), (poly(i), poly(r)), (), None, store(out, (v,), value))
    return PrimFunc("copies", (*ins, out), (), nest([(r, poly(repeat)), (i, 4)], block))


def test_the_largest_buffers_come_first_and_equal_ones_keep_their_order() -> None:
    repeat = Param("repeat", (1, 2))
    func = copies([4, 40, 4, 20, 80, 4, 12], repeat)
    f = FeatureProgram(func, [repeat])
    values = dict(zip(f.names, f.features(np.array([[1], [2]]))[0, 0].tolist(), strict=True))
    unique = [values[f"buffer{b}.unique_bytes"] for b in range(BUFFERS)]
    sizes = sorted([4 * (3 * (n // 4) + 1) for n in (4, 40, 4, 20, 80, 4, 12)] + [16], reverse=True)[:BUFFERS]
    assert np.allclose(unique, np.log2(np.array(sizes) + 1.0))
    # The output and the first input are equally large; the output is accessed first, and is the only one written.
    few = FeatureProgram(copies([4], repeat), [repeat])
    values = dict(zip(few.names, few.features(np.array([[1]]))[0, 0].tolist(), strict=True))
    assert values["buffer0.writes"] == 1 and values["buffer1.reads"] == 1 and values["buffer2.bytes"] == 0


def test_hand_computed_gemm_tile(make_case: Callable[[str], Any]) -> None:
    """100 x 70 x 30, register tile 5 x 16, one task for each 20 x 16."""
    case = make_case("gemm ij packed")
    s = case.schedule
    row = dict.fromkeys([p.name for p in s.params], 1) | {"i2": 4, "i3": 5, "j3": 16}
    f = FeatureProgram(s.func, s.params, s.constraints)
    table = f.features(np.array([[row[p.name] for p in s.params]]))[0]
    main = dict(zip(f.names, table[f.stores.index("C")].tolist(), strict=True))
    n = 100 * 70 * 30
    assert main["add"] == main["mul"] == pytest.approx(np.log2(n + 1), rel=1e-6)
    assert main["iterations"] == pytest.approx(np.log2(100 * 80 * 30 + 1), rel=1e-6) and main["useful"] == pytest.approx(70 / 80)
    assert (
        main["vec_len"] == pytest.approx(np.log2(17))
        and main["unr_len"] == pytest.approx(np.log2(6))
        and main["par_prod"] == pytest.approx(np.log2(26))
    )
    assert (
        main["tile"] == pytest.approx(np.log2(81))
        and main["inner_trip"] == pytest.approx(np.log2(31))
        and main["reduction"] == pytest.approx(np.log2(31))
    )
    assert main["register_elements"] == pytest.approx(np.log2(81)) and main["register_vectors"] == pytest.approx(np.log2(6))
    assert main["guarded"] == 1 and main["writes_register"] == 1 and main["reads_workspace"] == 1 and main["recompute"] == 1
    pack = dict(zip(f.names, table[f.stores.index("B_copy")].tolist(), strict=True))
    assert pack["alloc_bytes"] == pytest.approx(np.log2(30 * 16 * 4 + 1)) and pack["alloc_times"] == pytest.approx(np.log2(26))
    assert pack["recompute"] == pytest.approx(np.log2(6)), "each of the five row blocks packs its panel again"


def test_columns_are_unique_and_name_every_group() -> None:
    names = [c.name for c in columns(True)]
    assert len(set(names)) == len(names) == len(HEAD) + 10 + BUFFERS * len(ACCESS) + len(GPU)


def test_extract_returns_a_row_for_each_block(make_case: Callable[[str], Any]) -> None:
    s = make_case("softmax").schedule
    rows = extract(ProgramAnalysis(s.func, tuple(s.params)))
    assert len(rows) == len(s.blocks()) and {len(r) for r in rows} == {len(columns())}
