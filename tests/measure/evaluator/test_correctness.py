from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import cast, const
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.stmt import Block, Iter, nest, store
from tunesmith.measure.candidate import MeasureTask
from tunesmith.measure.evaluator.correctness import (
    CAP,
    check_reference,
    load_reference,
    mismatch,
    relative_error,
    save_reference,
    tolerance_of,
    tolerance_of_calls,
)
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import UserError
from tunesmith.support.seeds import stream


def dot_function(k: int, dtype: str) -> PrimFunc:
    """y = sum over k of x, for 4 rows."""
    x, y = Buffer("X", (4, k), dtype), Buffer("Y", (4,), dtype)
    i, j, vi, vj = Var("i"), Var("j"), Var("vi"), Var("vj")
    block = Block(
        "Y",
        (Iter(vi, poly(4), "S"), Iter(vj, poly(k), "R")),
        (poly(i), poly(j)),
        (),
        store(y, (vi,), const(0, dtype)),
        store(y, (vi,), y[vi] + cast(dtype, x[vi, vj])),
    )
    return PrimFunc("total", (x, y), (), nest([(i, 4), (j, k)], block))


def test_tolerance_follows_type_and_length(add_task: MeasureTask) -> None:
    assert tolerance_of(add_task.func) == 8 * 2.0**-23 * 2
    assert tolerance_of(dot_function(1024, "float32")) == 8 * 2.0**-23 * 33
    assert tolerance_of(dot_function(1024, "float16")) == 8 * 2.0**-10 * 33
    assert tolerance_of(dot_function(1024, "int32")) == 0


def test_tolerance_of_a_narrow_precision_grows_by_its_roundings(add_task: MeasureTask) -> None:
    dot, dot16 = dot_function(1024, "float32"), dot_function(1024, "float16")
    assert tolerance_of(dot, "bf16") == tolerance_of(dot) + 4 * 2.0**-7
    assert tolerance_of(dot, "tf32") == tolerance_of(dot, "f16") == tolerance_of(dot) + 4 * 2.0**-10
    assert tolerance_of(add_task.func, "bf16") == tolerance_of(add_task.func) + 4 * 2.0**-7
    assert tolerance_of(dot16, "bf16") == tolerance_of(dot16) + 4 * 2.0**-7
    for wide in ("f32", "f64", "int8", ""):
        assert tolerance_of(dot, wide) == tolerance_of(dot)
    assert tolerance_of(dot16, "f32") == tolerance_of(dot16)
    assert tolerance_of(dot_function(1024, "int32"), "bf16") == 0


def test_errors_of_calls_add_in_quadrature(add_task: MeasureTask) -> None:
    dot = dot_function(1024, "float32")
    for precision in ("", "bf16"):
        one, other = tolerance_of(dot, precision), tolerance_of(add_task.func, precision)
        assert tolerance_of_calls([(dot, 1.0)], precision) == pytest.approx(one)
        assert tolerance_of_calls([(dot, 12.0), (add_task.func, 4.0)], precision) == pytest.approx((12 * one**2 + 4 * other**2) ** 0.5)
    assert tolerance_of_calls([]) == 0


def test_zeros_do_not_pass_with_the_cap() -> None:
    for want in (np.ones(8, np.float32), stream(0, "zeros").standard_normal(64).astype(np.float32)):
        assert mismatch(np.zeros_like(want), want, CAP) is not None


def test_error_is_relative_to_the_largest_element() -> None:
    want = np.array([1.0, -4.0, 0.0, np.inf], np.float32)
    assert relative_error(want.copy(), want) == 0
    assert relative_error(np.array([1.5, -4.0, 0.25, np.inf], np.float32), want) == 0.125
    assert relative_error(np.full(2, 0.5), np.zeros(2)) == 0.5
    assert relative_error(np.zeros(0, np.float32), np.zeros(0, np.float32)) == 0
    assert relative_error(np.float32(3.0), np.float32(2.0)) == 0.5  # type: ignore[arg-type]
    assert relative_error(np.array([7, 8]), np.array([7, 4])) == pytest.approx(4 / 7)


@pytest.mark.parametrize("k", [16, 1024, 16384])
@pytest.mark.parametrize("mean", [0.0, 0.5])
def test_reordered_sums_pass_and_a_missing_term_does_not(k: int, mean: float) -> None:
    relative = tolerance_of(dot_function(k, "float32"))
    terms = stream(k, "terms").random((200, k), np.float32) - np.float32(0.5 - mean)
    exact = terms.astype(np.float64).sum(axis=1).astype(np.float32)
    one_by_one = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    assert mismatch(one_by_one, exact, relative) is None
    assert mismatch(np.cumsum(terms[:, ::-1], axis=1, dtype=np.float32)[:, -1], exact, relative) is None
    if mean == 0.0:
        assert mismatch(terms[:, 1:].sum(axis=1), exact, relative) is not None


def test_a_report_names_the_first_wrong_element() -> None:
    want = np.ones((2, 3), np.float32)
    got = want.copy()
    got[1, 0], got[1, 2] = 1.5, np.nan
    text = mismatch(got, want, 1e-5)
    assert text is not None
    assert text.startswith("2 of 6 elements are wrong, the first at [1, 0]: got 1.5, expected 1.0 (within 1e-05 * (|expected| + 1))")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_non_finite_elements_must_match_exactly(dtype: Any) -> None:
    want = np.array([np.nan, np.inf, -np.inf, 2.0], dtype)
    assert mismatch(want.copy(), want, 1e-3) is None
    for i, other in ((0, 0.0), (1, 6e4), (1, -np.inf), (2, np.nan), (3, np.inf), (3, np.nan)):
        got = want.copy()
        got[i] = other
        text = mismatch(got, want, 1e-3)
        assert text is not None and f"1 of 4 elements are wrong, the first at [{i}]" in text


def test_empty_and_scalar_outputs() -> None:
    assert mismatch(np.zeros(0, np.float32), np.zeros(0, np.float32), 0.0) is None
    assert mismatch(np.zeros((), np.float32), np.zeros((), np.float32), 0.0) is None
    assert "the first at []: got 1.0, expected 0.0" in str(mismatch(np.ones((), np.float32), np.zeros((), np.float32), 0.1))


def test_integers_must_be_equal() -> None:
    want = np.array([5, 250], np.uint8)
    assert mismatch(want.copy(), want, 1.0) is None
    assert mismatch(np.array([5, 251], np.uint8), want, 1.0) == "1 of 2 elements are wrong, the first at [1]: got 251, expected 250 (equal)"
    assert mismatch(np.array([True]), np.array([False]), 1.0) is not None


PARAMS = [ParamSpec("A", "float32", (2,)), ParamSpec("C", "float32", (2,), True), ParamSpec("I", "int32", (1,), True)]


def test_mismatched_references_are_rejected() -> None:
    good = [np.array([1.0, 2.0]), np.array([3])]
    assert [x.dtype for x in check_reference(PARAMS, good)] == [np.float32, np.int32]
    with pytest.raises(UserError, match="the reference returned 1 outputs; the function writes C, I"):
        check_reference(PARAMS, good[:1])
    with pytest.raises(UserError, match=r"the reference returned float64\[2, 1\] for C, which is float32\[2\]"):
        check_reference(PARAMS, [good[0][:, None], good[1]])
    with pytest.raises(UserError, match=r"the reference returned float64\[1\] for I, which is int32\[1\]"):
        check_reference(PARAMS, [good[0], good[1].astype(float)])


def test_references_keep_their_order_on_disk(tmp_path: Path) -> None:
    outputs = [np.full(2, i, np.float32) for i in range(12)]
    save_reference(tmp_path / "r.npz", outputs)
    for got, want in zip(load_reference(tmp_path / "r.npz"), outputs, strict=True):
        np.testing.assert_array_equal(got, want)
