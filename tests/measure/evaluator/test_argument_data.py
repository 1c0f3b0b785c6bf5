from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.measure.evaluator.argument_data import ArgumentTable, make_inputs, poison, run_baseline
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.support.errors import UserError

PARAMS = [ParamSpec("A", "float32", (50, 20)), ParamSpec("C", "float32", (9,), written=True), ParamSpec("I", "int32", (1000,))]


def test_inputs_are_seeded_and_do_not_depend_on_each_other() -> None:
    a, i = make_inputs(PARAMS, 3)
    assert (a.shape, a.dtype, i.shape, i.dtype) == ((50, 20), np.float32, (1000,), np.int32)
    np.testing.assert_array_equal(a, make_inputs(PARAMS[:1], 3)[0])
    assert not np.array_equal(a, make_inputs(PARAMS, 4)[0])


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float64", -1, 1),
        ("float32", -1, 1),
        ("float16", -1, 1),
        ("bfloat16", -1, 1),
        ("int8", -128, 127),
        ("uint8", 0, 255),
        ("bool", 0, 1),
    ],
)
def test_default_ranges(dtype: str, low: float, high: float) -> None:
    (values,) = make_inputs([ParamSpec("A", dtype, (4000,))])
    assert values.min() >= low and values.max() <= high
    assert values.min() <= low + 0.1 * (high - low) and values.max() >= high - 0.1 * (high - low)


def test_ranges_by_name() -> None:
    a, i = make_inputs(PARAMS, ranges={"I": (0, 3), "A": (1, 2)})
    assert set(i.tolist()) == {0, 1, 2}
    assert a.min() >= 1 and a.max() <= 2


def test_invalid_ranges_are_rejected() -> None:
    with pytest.raises(UserError, match="a range is given for B, C, but the inputs are A, I"):
        make_inputs(PARAMS, ranges={"C": (0, 1), "B": (0, 1)})
    with pytest.raises(UserError, match="the range of I is empty: from 3 up to 3. Give the lower end first"):
        make_inputs(PARAMS, ranges={"I": (3, 3)})


def test_poison_differs_from_the_reference_everywhere() -> None:
    outputs = [ParamSpec("F", "float32", (3,), True), ParamSpec("I", "int8", (2,), True), ParamSpec("B", "bool", (2,), True)]
    reference = [np.array([0, np.nan, np.inf], np.float32), np.array([0, -5], np.int8), np.array([True, False])]
    table = ArgumentTable(outputs, [])
    table.fill(poison(outputs, reference))
    for got, want in zip(table.outputs(), reference, strict=True):
        assert not np.any((got == want) | (np.isnan(got) & np.isnan(want)))


UPDATED = [ParamSpec("A", "float32", (6,)), ParamSpec("F", "float32", (6,), True), ParamSpec("B", "bool", (6,), True)]


def test_outputs_that_a_baseline_writes_start_from_poison() -> None:
    before, after = run_baseline(UPDATED, 0, lambda _: [np.array([1, 2, np.nan, 4, 5, 6], np.float32), np.zeros(6, bool)])
    np.testing.assert_array_equal(before[0], [np.nan, np.nan, 0, np.nan, np.nan, np.nan])
    assert before[1].all() and not after[1].any()


@pytest.mark.parametrize(
    "function",
    [
        lambda f, b: [f + 1, np.ones_like(b)],
        lambda f, b: [np.ones_like(f), np.append(np.ones_like(b[1:]), b[-1])],
        lambda f, b: [b.astype(np.float32), np.ones_like(b)],
    ],
    ids=["updated", "written-in-part", "moved"],
)
def test_outputs_that_a_baseline_reads_start_from_random_values(function: Callable[..., list[np.ndarray]]) -> None:
    before, after = run_baseline(UPDATED, 0, lambda values: function(*values))
    assert np.isfinite(before[0]).all() and len(set(before[0].tolist())) == 6
    for x, y in zip(function(*before), after, strict=True):
        np.testing.assert_array_equal(x, y)


def test_table() -> None:
    inputs = make_inputs(PARAMS)
    table = ArgumentTable(PARAMS, inputs)
    a, c, i = table.arguments()
    np.testing.assert_array_equal(a, inputs[0])
    np.testing.assert_array_equal(i, inputs[1])
    c[:] = 5  # type: ignore[index]
    np.testing.assert_array_equal(table.outputs()[0], 5)
    assert table.damaged() == []
