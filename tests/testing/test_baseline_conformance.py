"""Run the conformance suite on baselines, and check that each of its tests detects a baseline that breaks the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.measure.baselines.registry import BASELINES
from tunesmith.ops.workload import Workload
from tunesmith.support.errors import UserError
from tunesmith.testing.baseline_conformance import CASES, BaselineConformance, Make

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries are not checked

SLOW = ("torch_compile", "torch_compile_cuda", "tvm_tuned")
"""Baselines that take seconds to prepare an operator."""
suite = BaselineConformance()


class TestRegistered(BaselineConformance):
    @pytest.fixture(params=[name for name in BASELINES if name not in SLOW])
    def make(self, request: pytest.FixtureRequest) -> Make:
        return BASELINES.get(request.param)


def test_torch_compile_agrees_with_numpy() -> None:
    class Few(BaselineConformance):
        cases: ClassVar[Sequence[str]] = [CASES[k] for k in (4, 7, 18)]

    Few().test_results_agree_with_numpy(BASELINES.get("torch_compile"))


class Relu(Baseline):
    """A correct baseline, whose calls a subclass damages."""

    name = "damaged"
    package = "numpy"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        return [self.variant(call.inputs["X"])] if call.name == "relu" else []

    def variant(self, x: np.ndarray) -> PreparedCall:
        out = np.empty_like(x)
        return PreparedCall("maximum", lambda: np.maximum(x, 0, out=out), np.asarray)


class Wrong(Relu):
    def variant(self, x: np.ndarray) -> PreparedCall:
        return PreparedCall("abs", lambda: np.abs(x), np.asarray)


class Decays(Relu):
    """Right in the two calls of `prepare` and of the first test only."""

    def variant(self, x: np.ndarray) -> PreparedCall:
        runs: list[int] = []
        return PreparedCall("decays", lambda: runs.append(0) or np.maximum(x, 0) * (len(runs) < 3), np.asarray)  # type: ignore[func-returns-value]


class Lists(Relu):
    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        prepared = super().prepare(workload, inputs)
        return prepared and replace(prepared, output=lambda x: x.tolist())  # type: ignore[attr-defined]


class Twice(Relu):
    """Two variants of one name."""

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        return 2 * list(super().variants(call))


class SlowWrong(Relu):
    """The variant that is not chosen is wrong."""

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        found = list(super().variants(call))
        return [*found, *[replace(v, variant="other", output=lambda _: np.zeros(call.output, call.dtype)) for v in found]]


class Casts(Relu):
    """Computes everything in float32."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        if workload.name != "relu":
            return None
        return self.variant(inputs[0].astype(np.float32))


class Refuses(Relu):
    """Raises an error for unsupported operators."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        found = super().prepare(workload, inputs)
        assert found is not None, f"{workload.name} is unsupported"
        return found


class Guesses(Relu):
    """Returns a call for every operator."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        return super().prepare(workload, inputs) or PreparedCall("guess", lambda: None, lambda _: np.zeros(1))


class Lazy(Relu):
    """Prepares in the timed part."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        prepared = super().prepare(workload, inputs)

        def run() -> object:
            again = Baseline.prepare(self, workload, inputs)
            return again and again.run()

        return prepared and replace(prepared, run=run)


class Shared(Relu):
    """All calls share the last input."""

    last: np.ndarray

    def variant(self, x: np.ndarray) -> PreparedCall:
        type(self).last = x
        return PreparedCall("shared", lambda: np.maximum(self.last, 0), np.asarray)


class InPlace(Relu):
    """Works in the memory of its input."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        if workload.name != "relu":
            return None
        (x,) = inputs
        return PreparedCall("in place", lambda: np.maximum(x, 0, out=x), np.asarray)


class Unchecked(Relu):
    """Does not compare the workload with its inputs."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        if workload.name != "relu":
            return None
        return self.variant(inputs[0] if inputs else np.zeros(1))


class Bare(Relu):
    """Does not convert exceptions of the library."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        call = operator_call(workload, inputs)
        if call is not None and call.name == "relu":
            self.variants(call)
        return super().prepare(workload, inputs)


class Greedy(Relu):
    """Ignores its number of threads."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.threads = 64


class Nothing(Relu):
    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        return []


class Precomputes(Relu):
    """Computes at preparation; the timed part returns what is there."""

    def variant(self, x: np.ndarray) -> PreparedCall:
        out = np.maximum(x, 0)
        return PreparedCall("precomputed", lambda: out, np.asarray)


class Defers(Relu):
    """Computes when the result is read, which is not timed."""

    def variant(self, x: np.ndarray) -> PreparedCall:
        return PreparedCall("deferred", lambda: x, lambda x: np.maximum(x, 0))  # type: ignore[call-overload]


class OnlyOnce(Relu):
    """Computes in the first call, and returns that result in later ones."""

    def variant(self, x: np.ndarray) -> PreparedCall:
        return PreparedCall("cached", cache(lambda: np.maximum(x, 0)), np.asarray)


class Unguarded(Relu):
    """Uses its arguments before it looks at them."""

    def prepare(self, workload: Workload, inputs: Sequence[np.ndarray]) -> PreparedCall | None:
        return super().prepare(workload, inputs) if workload.name else None


class AnyThreads(Relu):
    """Compares the number of threads, whatever it is."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise UserError("at least 1 thread is required")
        self.threads = threads


CASES_OF_FAILURE: list[tuple[Callable[..., None], type[Baseline], str]] = [
    (suite.test_description, Greedy, "created with 2 threads, the baseline has 64"),
    (suite.test_results_agree_with_numpy, Wrong, r"relu\(shape=7x50\), abs, first call: \d+ of 350 elements differ from numpy"),
    (suite.test_results_agree_with_numpy, Decays, "second call: "),
    (suite.test_results_agree_with_numpy, Lists, "the result is a list, not a numpy array"),
    (suite.test_results_agree_with_numpy, Nothing, "none of 64 calls is supported"),
    (suite.test_every_variant_agrees_with_numpy, Twice, "two variants have the same name"),
    (suite.test_every_variant_agrees_with_numpy, SlowWrong, "other: .* elements differ from numpy"),
    (suite.test_other_dtypes_agree_or_are_unsupported, Casts, r"the result is float32\[7, 50\], expected float64\[7, 50\]"),
    (suite.test_unsupported_operators_give_none, Guesses, "an operator of another package must give None"),
    (suite.test_unsupported_operators_give_none, Refuses, "no_such_operator is unsupported"),
    (
        suite.test_calls_do_the_work,
        Precomputes,
        r"relu\(shape=4096x2048\), precomputed: a call takes .* the result must be computed by `run`",
    ),
    (suite.test_calls_do_the_work, Defers, "the result must be computed by `run`"),
    (suite.test_calls_do_the_work, OnlyOnce, "the result must be computed by `run`"),
    (suite.test_description, AnyThreads, "threads='2': a UserError is expected"),
    (suite.test_wrong_arguments_are_refused, Unguarded, "a text as the workload: a refusal is expected, got AttributeError"),
    (suite.test_preparation_happens_once, Lazy, "3 preparations in three calls, expected none"),
    (suite.test_prepared_calls_are_independent, Shared, "after another call was prepared"),
    (suite.test_inputs_are_not_changed, InPlace, "the baseline changed its input X"),
    (suite.test_invalid_inputs_are_refused, Unchecked, "an input is missing: a RunError is expected, got PreparedCall"),
    (suite.test_failures_of_the_library_are_run_errors, Bare, "must be a RunError, got ValueError: the library is broken"),
]


@pytest.mark.parametrize(("test", "broken", "message"), CASES_OF_FAILURE)
def test_broken_baselines_are_detected(test: Callable[..., None], broken: type[Baseline], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        test(broken)


class Rounds(Relu):
    """Has the error of bfloat16, and says so."""

    precision = "bf16"

    def variant(self, x: np.ndarray) -> PreparedCall:
        return PreparedCall("rounded", lambda: np.maximum(x, 0) * 1.01, lambda y: y.astype(x.dtype), precision=self.precision)


class RoundsSilently(Rounds):
    precision = ""


def test_the_tolerance_is_that_of_the_precision() -> None:
    for test in (
        suite.test_results_agree_with_numpy,
        suite.test_every_variant_agrees_with_numpy,
        suite.test_other_dtypes_agree_or_are_unsupported,
    ):
        test(Rounds)
        with pytest.raises(AssertionError, match="elements differ from numpy"):
            test(RoundsSilently)


def test_a_baseline_without_threads_is_refused() -> None:
    with pytest.raises(UserError):
        Relu(0)
    suite.test_description(Relu)
