"""Conformance tests for baselines: derive a class from `BaselineConformance` in a test file and define the baseline's factory.

    class TestMine(BaselineConformance):
        @pytest.fixture
        def make(self):
            return MyBaseline

All tests are skipped if the library is not installed.  A baseline that needs seconds for an operator tests fewer `cases`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operators import OperatorCall, Param, operator_call
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.seeds import stream

Make = Callable[[int], Baseline]
"""Factory of baselines with a number of threads."""
Arrays = dict[str, np.ndarray]

TOLERANCE = {"float16": 1e-2, "float32": 2e-4, "float64": 1e-9}
"""Allowed difference by dtype: absolute, and relative to the reference in float64.  Integers must be equal."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call of an operator: its parameters, and the shapes of its inputs."""

    op: str
    params: Mapping[str, Param]
    shapes: Mapping[str, tuple[int, ...]]

    def inputs(self, dtype: str = "float32", seed: int = 0) -> Arrays:
        """Random inputs; multiples of 1/4, so that all dtypes hold them; whole numbers for integers."""
        draw = stream(seed, "baseline conformance", self.op)
        scale = 1 if dtype.startswith("int") else 4
        return {name: (np.round(draw.standard_normal(shape) * 4) / scale).astype(dtype) for name, shape in self.shapes.items()}

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{key}={value}' for key, value in self.params.items())})"


_DENSE: dict[str, tuple[int, ...]] = {"X": (6, 10), "W": (10, 32)}
_BIASED: dict[str, tuple[int, ...]] = {**_DENSE, "bias": (32,)}
_SIZES: dict[str, Param] = {"m": 6, "n": 32, "k": 10}
_CONV: dict[str, Param] = {"kh": 3, "kw": 3, "pad": 1}
CASES = (
    Case("matmul", {"m": 33, "n": 48, "k": 20}, {"A": (33, 20), "B": (20, 48)}),
    Case("batch_matmul", {"b": 3, "m": 8, "n": 16, "k": 5}, {"A": (3, 8, 5), "B": (3, 5, 16)}),
    Case("dense", _SIZES, _BIASED),
    Case("dense", {**_SIZES, "activation": "relu"}, _BIASED),
    Case("dense", {**_SIZES, "activation": "gelu"}, _BIASED),
    Case("dense", {**_SIZES, "activation": "gelu", "bias": 0}, _DENSE),
    Case("dense", {**_SIZES, "activation": "relu", "bias": False}, _DENSE),
    Case(
        "conv2d",
        {"n": 2, "h": 9, "w": 11, "ci": 6, "co": 8, **_CONV, "bias": 1, "relu": 1},
        {"X": (2, 9, 11, 6), "W": (3, 3, 6, 8), "bias": (8,)},
    ),
    Case(
        "conv2d",
        {"n": 1, "h": 9, "w": 11, "ci": 6, "co": 8, "kh": 3, "kw": 2, "stride": 2, "layout": "NCHW"},
        {"X": (1, 6, 9, 11), "W": (8, 6, 3, 2)},
    ),
    Case(
        "conv2d",
        {"n": 1, "h": 9, "w": 9, "ci": 4, "co": 6, **_CONV, "dilation": 2, "groups": 2, "pad": 2, "bias": 1},
        {"X": (1, 9, 9, 4), "W": (3, 3, 2, 6), "bias": (6,)},
    ),
    Case(
        "conv2d",
        {"n": 1, "h": 8, "w": 8, "ci": 8, "co": 8, **_CONV, "groups": 8, "layout": "NCHW", "relu": 1},
        {"X": (1, 8, 8, 8), "W": (8, 1, 3, 3)},
    ),
    Case("conv2d", {"n": 1, "h": 7, "w": 7, "ci": 16, "co": 8, "kh": 1, "kw": 1}, {"X": (1, 7, 7, 16), "W": (1, 1, 16, 8)}),
    Case("softmax", {"m": 7, "n": 50}, {"X": (7, 50)}),
    Case("sum", {"m": 7, "n": 50}, {"X": (7, 50)}),
    Case("sum", {"m": 7, "n": 50, "axis": 0}, {"X": (7, 50)}),
    Case("sum", {"m": 7, "n": 50, "axis": "all"}, {"X": (7, 50)}),
    Case("layer_norm", {"m": 7, "n": 50, "eps": "1e-3"}, {"X": (7, 50), "gamma": (50,), "beta": (50,)}),
    Case("relu", {"m": 7, "n": 50}, {"X": (7, 50)}),
    Case("add", {"n": 1, "h": 4, "w": 5, "c": 6}, {"A": (1, 4, 5, 6), "B": (1, 4, 5, 6)}),
)
"""Calls of all operators."""


class BaselineConformance:
    """The tests; each docstring states a requirement."""

    cases: ClassVar[Sequence[Case]] = CASES
    """The calls to test; at least one must be supported."""

    @pytest.fixture
    def make(self) -> Make:
        """A factory of baselines with a number of threads: the class."""
        raise NotImplementedError("override the fixture `make` to return a factory of baselines, for example the class")

    def test_description(self, make: Make) -> None:
        """It has a name, a package and a version, and keeps its number of threads, of which at least one is required."""
        baseline = ready(make)
        assert baseline.name and baseline.package and baseline.version(), "name, package and version are texts that tables show"
        assert baseline.threads == 2, f"created with 2 threads, the baseline has {baseline.threads}"
        with pytest.raises(UserError, match="at least 1 thread"):
            make(0)

    def test_results_agree_with_numpy(self, make: Make) -> None:
        """Every supported call returns an array of the right shape and dtype, in the first run and in later ones."""
        baseline, supported = ready(make), 0
        for case in self.cases:
            inputs = case.inputs()
            prepared = baseline.prepare(case.op, case.params, inputs)
            if prepared is None:
                continue
            supported += 1
            assert prepared.variant, f"{case}: the prepared call names no variant"
            for when in ("first", "second"):
                check_result(prepared(), case, inputs, f"{case}, {prepared.variant}, {when} call")
        assert supported, f"none of {len(self.cases)} calls is supported"

    def test_every_variant_agrees_with_numpy(self, make: Make) -> None:
        """Not only the fastest; their names differ.  A variant that lacks the dtype raises NotImplementedError."""
        baseline = ready(make)
        for case in self.cases:
            inputs = case.inputs()
            variants = baseline.variants(_call(case, inputs))
            names = [v.variant for v in variants]
            assert len(set(names)) == len(names), f"{case}: two variants have the same name: {names}"
            for variant in variants:
                try:
                    result = variant()
                except NotImplementedError:
                    continue
                check_result(result, case, inputs, f"{case}, {variant.variant}")

    def test_other_dtypes_agree_or_are_unsupported(self, make: Make) -> None:
        """The result has the dtype of the inputs, or `prepare` returns None."""
        baseline = ready(make)
        for dtype in ("float64", "int32", "float16"):
            for case in self.cases:
                if case.op in ("matmul", "relu", "softmax", "sum"):
                    inputs = case.inputs(dtype)
                    prepared = baseline.prepare(case.op, {**case.params, "dtype": dtype}, inputs)
                    if prepared is not None:
                        check_result(prepared(), case, inputs, f"{case} of {dtype}")

    def test_unsupported_operators_give_none(self, make: Make) -> None:
        """An operator that does not exist, and one that the library lacks, give None, not an error."""
        baseline = ready(make)
        found = baseline.prepare("no_such_operator", {"n": 4}, {})
        assert found is None, f"an operator that does not exist must give None, got {found}"
        for case in self.cases:
            inputs = case.inputs()
            lacks = not baseline.variants(_call(case, inputs))
            if lacks:
                found = baseline.prepare(case.op, case.params, inputs)
                assert found is None, f"{case}: the library has no variant, so prepare must give None, got {found}"

    def test_preparation_happens_once(self, make: Make) -> None:
        """Variants are created by `prepare`, and not again by the timed part."""
        baseline = ready(make)
        case, inputs, counted = self._supported(baseline)
        prepared = baseline.prepare(case.op, case.params, inputs)
        assert prepared is not None
        before = len(counted)
        for _ in range(3):
            prepared.complete()
        assert before > 0 and len(counted) == before, f"{case}: {len(counted) - before} preparations in three calls, expected none"

    def test_prepared_calls_are_independent(self, make: Make) -> None:
        """A call keeps its own inputs and memory when another one is prepared and run."""
        baseline = ready(make)
        case, inputs, _ = self._supported(baseline)
        others = case.inputs(seed=1)
        first, second = baseline.prepare(case.op, case.params, inputs), baseline.prepare(case.op, case.params, others)
        assert first is not None and second is not None
        for _ in range(2):
            check_result(first(), case, inputs, f"{case}, after another call was prepared")
            check_result(second(), case, others, f"{case}, prepared as the second")

    def test_inputs_are_not_changed(self, make: Make) -> None:
        """Preparation and calls do not write to the inputs; inputs in Fortran order give the same result."""
        baseline = ready(make)
        for case in {case.op: case for case in self.cases}.values():
            inputs = {name: np.asfortranarray(value) for name, value in case.inputs().items()}
            prepared = baseline.prepare(case.op, case.params, inputs)
            if prepared is None:
                continue
            result = prepared()
            for name, value in case.inputs().items():
                assert np.array_equal(inputs[name], value), f"{case}: the baseline changed its input {name}"
            check_result(result, case, inputs, f"{case}, inputs in Fortran order")

    def test_invalid_requests_are_refused(self, make: Make) -> None:
        """Parameters and inputs that do not match raise RunError."""
        baseline = ready(make)
        a, b = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
        sizes: dict[str, Param] = {"m": 2, "n": 4, "k": 3}
        refused: dict[str, tuple[dict[str, Param], Arrays]] = {
            "parameter is missing": ({"m": 2, "n": 4}, {"A": a, "B": b}),
            "parameter is unknown": ({**sizes, "q": 1}, {"A": a, "B": b}),
            "input is missing": (sizes, {"A": a}),
            "input has another shape": (sizes, {"A": a, "B": a}),
            "inputs have different dtypes": (sizes, {"A": a, "B": b.astype(np.float64)}),
        }
        for what, (params, inputs) in refused.items():
            try:
                found = baseline.prepare("matmul", params, inputs)
            except RunError as error:
                assert str(error), f"{what}: the RunError has no message"
            except Exception as error:
                raise AssertionError(f"{what}: a RunError is expected, got {type(error).__name__}: {error}") from error
            else:
                raise AssertionError(f"{what}: a RunError is expected, got {found}")

    def test_failures_of_the_library_are_run_errors(self, make: Make) -> None:
        """An exception of the library becomes a RunError that names the baseline and the operator."""
        baseline = ready(make)
        case, inputs, _ = self._supported(baseline)

        def fails(call: OperatorCall) -> Sequence[PreparedCall]:
            raise ValueError("the library is broken")

        baseline.variants = fails  # type: ignore[method-assign]
        try:
            baseline.prepare(case.op, case.params, inputs)
        except RunError as error:
            assert baseline.name in str(error) and case.op in str(error), f"the RunError must name {baseline.name} and {case.op}: {error}"
        except Exception as error:
            raise AssertionError(f"a failure of the library must be a RunError, got {type(error).__name__}: {error}") from error
        else:
            raise AssertionError("a failure of the library must be a RunError, got a prepared call")

    def _supported(self, baseline: Baseline) -> tuple[Case, Arrays, list[OperatorCall]]:
        """The first supported call, its inputs, and a list that grows with every later call of `variants`."""
        counted: list[OperatorCall] = []
        inner = baseline.variants

        def counting(call: OperatorCall) -> Sequence[PreparedCall]:
            counted.append(call)
            return inner(call)

        for case in self.cases:
            inputs = case.inputs()
            if baseline.prepare(case.op, case.params, inputs) is not None:
                baseline.variants = counting  # type: ignore[method-assign]
                return case, inputs, counted
        raise AssertionError(f"none of {len(self.cases)} calls is supported")


def ready(make: Make) -> Baseline:
    """A baseline with two threads; skips the test if its library is missing."""
    baseline = make(2)
    reason = baseline.available()
    if reason is not None:
        pytest.skip(reason)
    return baseline


def check_result(result: Any, case: Case, inputs: Mapping[str, np.ndarray], what: str) -> None:
    """Raise an AssertionError that describes the difference unless the result agrees with numpy."""
    expected = reference(case, inputs)
    dtype = str(next(iter(inputs.values())).dtype)
    assert isinstance(result, np.ndarray), f"{what}: the result is a {type(result).__name__}, not a numpy array"
    assert (str(result.dtype), result.shape) == (dtype, expected.shape), (
        f"{what}: the result is {result.dtype}{list(result.shape)}, expected {dtype}{list(expected.shape)}"
    )
    tolerance = TOLERANCE.get(dtype, 0.0)
    apart = np.abs(result.astype(np.float64) - expected)
    wrong = ~(apart <= tolerance * (1 + np.abs(expected)))
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} elements differ from numpy: {result[at]}, expected {expected[at]}"
        )


def reference(case: Case, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result of a call in float64, written for clarity."""
    x = {name: value.astype(np.float64) for name, value in inputs.items()}
    return np.asarray(_REFERENCES[case.op](case.params, x))


def _dense(params: Mapping[str, Param], x: Arrays) -> np.ndarray:
    y = x["X"] @ x["W"] + x.get("bias", 0)
    activation = params.get("activation", "none")
    if activation == "gelu":
        return y * 0.5 * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
    return np.maximum(y, 0) if activation == "relu" else y


def _conv2d(params: Mapping[str, Param], x: Arrays) -> np.ndarray:
    """The convolution as a product of all windows with the kernel, NHWC inside."""
    nchw = params.get("layout") == "NCHW"
    image = x["X"].transpose(0, 2, 3, 1) if nchw else x["X"]
    kernel = x["W"].transpose(2, 3, 1, 0) if nchw else x["W"]
    stride, pad, dilation, groups = (int(params.get(name, default)) for name, default in _CONV_DEFAULTS.items())
    kh, kw, ci, co = kernel.shape
    image = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    window = (dilation * (kh - 1) + 1, dilation * (kw - 1) + 1)
    windows = np.lib.stride_tricks.sliding_window_view(image, window, (1, 2))[:, ::stride, ::stride, :, ::dilation, ::dilation]
    n, h, w = windows.shape[:3]
    grouped = windows.reshape(n, h, w, groups, ci, kh, kw)
    out = np.einsum("nyxgcij,ijcgo->nyxgo", grouped, kernel.reshape(kh, kw, ci, groups, co // groups)).reshape(n, h, w, co)
    out = out + x.get("bias", 0)
    out = np.maximum(out, 0) if params.get("relu") else out
    return out.transpose(0, 3, 1, 2) if nchw else out


def _softmax(params: Mapping[str, Param], x: Arrays) -> np.ndarray:
    e = np.exp(x["X"] - x["X"].max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _layer_norm(params: Mapping[str, Param], x: Arrays) -> np.ndarray:
    mean, variance = x["X"].mean(axis=1, keepdims=True), x["X"].var(axis=1, keepdims=True)
    return (x["X"] - mean) / np.sqrt(variance + float(params["eps"])) * x["gamma"] + x["beta"]


def _sum(params: Mapping[str, Param], x: Arrays) -> np.ndarray:
    axis = params.get("axis", 1)
    return np.asarray(x["X"].sum(axis=None if axis == "all" else int(axis)))


_CONV_DEFAULTS = {"stride": 1, "pad": 0, "dilation": 1, "groups": 1}
_REFERENCES: dict[str, Callable[[Mapping[str, Param], Arrays], np.ndarray]] = {
    "matmul": lambda params, x: x["A"] @ x["B"],
    "batch_matmul": lambda params, x: x["A"] @ x["B"],
    "dense": _dense,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "sum": _sum,
    "layer_norm": _layer_norm,
    "relu": lambda params, x: np.maximum(x["X"], 0),
    "add": lambda params, x: x["A"] + x["B"],
}


def _call(case: Case, inputs: Mapping[str, np.ndarray]) -> OperatorCall:
    call = operator_call(case.op, case.params, inputs)
    assert call is not None
    return call
