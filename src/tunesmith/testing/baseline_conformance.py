"""Conformance tests for baselines: derive a class from `BaselineConformance` in a test file and define the baseline's factory.

    class TestMine(BaselineConformance):
        @pytest.fixture
        def make(self):
            return MyBaseline

All tests are skipped if the library is not installed.  A baseline that needs seconds for an operator tests fewer `cases`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.equivalent_call import equivalent_call
from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter
from tunesmith.ops.workload import Workload, make_workload, workload
from tunesmith.support.errors import RunError, TunesmithError, UserError

Make = Callable[[int], Baseline]
"""Factory of baselines with a number of threads."""

TOLERANCE = {"float16": 1e-2, "float32": 2e-4, "float64": 1e-9, "int64": 0.0}
"""Allowed difference by dtype: absolute, and relative to the numpy reference of the operator."""
NARROW = {"f32": 2e-4, "tf32": 1e-2, "f16": 1e-2, "bf16": 8e-2}
"""Allowed difference of floats by compute precision, where it is larger than that of the dtype."""
_CONV = "n=1,h=9,w=11,ci=6,co=8"
CASES = (
    "matmul(m=33,n=48,k=20)",
    "batch_matmul(b=3,m=8,n=16,k=5)",
    "dense(m=6,n=32,k=10)",
    "dense(m=6,n=32,k=10,activation=relu)",
    "dense(m=6,n=32,k=10,activation=gelu)",
    "dense(m=6,n=32,k=10,activation=gelu,bias=0)",
    "dense(m=6,n=32,k=10,activation=relu,bias=0)",
    "conv2d(n=2,h=9,w=11,ci=6,co=8,kh=3,kw=3,pad=1,bias=1,relu=1)",
    f"conv2d({_CONV},kh=3,kw=2,stride=2,layout=NCHW)",
    f"conv2d({_CONV},kh=3,kw=3,dilation=2,groups=2,pad=2,bias=1)",
    "conv2d(n=1,h=8,w=8,ci=8,co=8,kh=3,kw=3,groups=8,pad=1,layout=NCHW,relu=1)",
    "conv2d(n=1,h=8,w=8,ci=8,co=8,kh=3,kw=3,groups=8,pad=1)",
    "conv2d(n=1,h=7,w=7,ci=16,co=8,kh=1,kw=1)",
    "softmax(m=7,n=50)",
    "sum(shape=7x50,axis=1)",
    "sum(shape=7x50,axis=0)",
    "sum(shape=7x50)",
    "sum(shape=3x4x5,axis=0+2)",
    "layer_norm(m=7,n=50,eps=1e-3)",
    "relu(shape=7x50)",
    "add(shape=1x4x5x6)",
    "add(shape=4x5x6,other=5x1)",
    "softmax(m=7,n=50,axis=0)",
    "log_softmax(m=7,n=50)",
    "capsule_conv2d(n=2,h=5,w=4,ci=3,co=5,kh=3,kw=2,stride=2,pad=1,size=2)",
    "conv1d(n=2,w=11,ci=6,co=8,kw=3,stride=2,pad=1,bias=1,relu=1)",
    "conv1d(n=1,w=8,ci=8,co=8,kw=3,pad=1,groups=8,layout=NCW)",
    "conv3d(n=1,d=4,h=5,w=6,ci=4,co=6,kd=3,kh=2,kw=3,pad=1,dilation=2,groups=2)",
    "conv3d(n=1,d=4,h=5,w=6,ci=4,co=6,kd=3,kh=2,kw=3,layout=NCDHW,bias=1)",
    "conv1d_transpose(n=2,w=5,ci=4,co=6,kw=3,stride=2,output_pad=1,layout=NCW,bias=1)",
    "conv2d_transpose(n=1,h=3,w=4,ci=4,co=6,kh=4,kw=3,stride=2,pad=1,relu=1)",
    "conv2d_transpose(n=1,h=3,w=4,ci=4,co=6,kh=3,kw=3,stride=2,groups=2,dilation=2)",
    "conv3d_transpose(n=1,d=2,h=3,w=4,ci=4,co=6,kd=2,kh=2,kw=2,stride=2)",
    "matrix_norm(b=2,m=7,n=50)",
    "max_pool1d(n=2,w=9,c=3,kw=3,stride=2,pad=1,layout=NCW)",
    "max_pool2d(n=2,h=9,w=11,c=6,kh=3,kw=2,stride=2,pad=1)",
    "max_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2)",
    "avg_pool1d(n=1,w=9,c=3,kw=3,pad=1)",
    "avg_pool2d(n=2,h=9,w=11,c=6,kh=3,kw=3,stride=2,pad=1,count_include_pad=1)",
    "avg_pool2d(n=2,h=9,w=11,c=6,kh=3,kw=3,pad=1,layout=NCHW)",
    "avg_pool3d(n=1,d=4,h=5,w=3,c=2,kd=2,kh=3,kw=2,pad=1,layout=NCDHW)",
    "argmax(shape=7x50)",
    "argmin(shape=7x50,axis=0)",
    "prod(shape=7x50,axis=1)",
    *[f"{f}(shape=7x50,axis=0)" for f in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")],
    "argsort(shape=7x50,axis=0)",
    "argsort(shape=3x200,descending=1)",
    "topk(shape=3x200,k=6)",
    "variance(shape=7x50,axis=1,correction=1)",
    "rms_norm(m=7,n=50,eps=1e-3)",
    "group_norm(shape=2x5x4x6,groups=3)",
    "instance_norm(shape=2x5x4x6,layout=NCHW)",
    "instance_norm(shape=2x5x4x6)",
    "attention(b=2,m=9,n=11,d=8)",
    "attention(b=2,m=9,n=9,d=8,causal=1)",
    "gather(m=9,n=6,rows=5)",
    "embedding(tokens=5,vocabulary=9,width=6)",
    "resize2d(n=1,h=5,w=4,c=3,oh=7,ow=3,coordinates=asymmetric)",
    "resize2d(n=1,h=5,w=4,c=3,oh=9,ow=8,mode=linear)",
    "resize2d(n=1,h=5,w=4,c=3,oh=7,ow=3,mode=linear,coordinates=align_corners)",
)
"""Workloads of the operators that libraries have."""
LARGE = ("relu(shape=4096x2048)", "matmul(m=1,n=4096,k=4096)", "conv2d(n=1,h=2,w=2,ci=4096,co=4096,kh=1,kw=1)")
"""Workloads that move 67 MB."""
FASTEST = 30e12
"""Bytes per second that no machine moves.  67 MB take 2.2 us at this rate; a call that does nothing takes less than one."""
CALLS = 50


class BaselineConformance:
    """The tests; each docstring states a requirement."""

    cases: ClassVar[Sequence[str]] = CASES
    """The workloads to test; at least one must be supported."""

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
        for threads in ("2", 1.5, True):
            try:
                make(threads)  # type: ignore[arg-type]
            except UserError:
                continue
            except Exception as error:
                raise AssertionError(f"threads={threads!r}: a UserError is expected, got {type(error).__name__}: {error}") from error
            raise AssertionError(f"threads={threads!r}: a UserError is expected, got a baseline")

    def test_results_agree_with_numpy(self, make: Make) -> None:
        """Every supported call returns an array of the right shape and dtype, in the first run and in later ones."""
        baseline, supported = ready(make), 0
        for case in map(workload, self.cases):
            inputs = case.random_inputs()
            prepared = baseline.prepare(case, inputs)
            if prepared is None:
                continue
            supported += 1
            assert prepared.variant, f"{case}: the prepared call names no variant"
            for when in ("first", "second"):
                check_result(prepared(), case, inputs, f"{case}, {prepared.variant}, {when} call", prepared.precision)
        assert supported, f"none of {len(self.cases)} calls is supported"

    def test_every_variant_agrees_with_numpy(self, make: Make) -> None:
        """Not only the fastest; their names differ.  A variant that lacks the dtype raises NotImplementedError."""
        baseline = ready(make)
        for case in map(workload, self.cases):
            inputs = case.random_inputs()
            variants = baseline.variants(_call(case, inputs))
            names = [v.variant for v in variants]
            assert len(set(names)) == len(names), f"{case}: two variants have the same name: {names}"
            for variant in variants:
                try:
                    result = variant()
                except NotImplementedError:
                    continue
                check_result(result, case, inputs, f"{case}, {variant.variant}", variant.precision)

    def test_other_dtypes_agree_or_are_unsupported(self, make: Make) -> None:
        """The result has the dtype of the inputs, or `prepare` returns None."""
        baseline = ready(make)
        for dtype in ("float64", "float16"):
            for text in self.cases:
                case = workload(f"{text[:-1]},dtype={dtype})")
                if case.name in ("matmul", "relu", "softmax", "sum"):
                    inputs = case.random_inputs()
                    prepared = baseline.prepare(case, inputs)
                    if prepared is not None:
                        check_result(prepared(), case, inputs, str(case), prepared.precision)

    def test_unsupported_operators_give_none(self, make: Make) -> None:
        """An operator defined elsewhere, and one that the library lacks, give None, not an error."""
        baseline = ready(make)
        other = make_workload(_DEFINED_HERE, {"n": 4})
        found = baseline.prepare(other, other.random_inputs())
        assert found is None, f"an operator of another package must give None, got {found}"
        for case in map(workload, self.cases):
            inputs = case.random_inputs()
            call = _call(case, inputs)
            lacks = not baseline.variants(call)
            if lacks and equivalent_call(call) is None:
                found = baseline.prepare(case, inputs)
                assert found is None, f"{case}: the library has no variant, so prepare must give None, got {found}"

    def test_preparation_happens_once(self, make: Make) -> None:
        """Variants are created by `prepare`, and not again by the timed part."""
        baseline = ready(make)
        case, inputs, counted = self._supported(baseline)
        prepared = baseline.prepare(case, inputs)
        assert prepared is not None
        before = len(counted)
        for _ in range(3):
            prepared.complete()
        assert before > 0 and len(counted) == before, f"{case}: {len(counted) - before} preparations in three calls, expected none"

    def test_calls_do_the_work(self, make: Make) -> None:
        """The timed part computes the result, in each call: it takes longer than any memory needs to move inputs and outputs."""
        baseline, supported = ready(make), 0
        for case in map(workload, LARGE):
            prepared = baseline.prepare(case, case.random_inputs())
            if prepared is None:
                continue
            supported += 1
            seconds, least = _least_seconds(prepared.complete), case.nbytes / FASTEST
            assert seconds > least, (
                f"{case}, {prepared.variant}: a call takes {seconds:.2g} s, less than {least:.2g} s for {case.nbytes / 1e6:.0f} MB: "
                "the result must be computed by `run`, not by `prepare` or `output`"
            )
        if not supported:
            pytest.skip(f"none of {', '.join(LARGE)} is supported")

    def test_wrong_arguments_are_refused(self, make: Make) -> None:
        """A text in place of the workload, and values in place of the arrays, raise a TunesmithError that says what is expected."""
        baseline = ready(make)
        case, (first, *rest), _ = self._supported(baseline)
        refused: dict[str, tuple[Any, Any]] = {
            "a text as the workload": (case.text, [first, *rest]),
            "None as the workload": (None, [first, *rest]),
            "None as the inputs": (case, None),
            "a list as an input": (case, [first.tolist(), *rest]),
        }
        for what, arguments in refused.items():
            try:
                found = baseline.prepare(*arguments)
            except TunesmithError as error:
                assert "expected" in str(error), f"{what}: the refusal does not say what is expected: {error}"
            except Exception as error:
                raise AssertionError(f"{what}: a refusal is expected, got {type(error).__name__}: {error}") from error
            else:
                raise AssertionError(f"{what}: a refusal is expected, got {found}")

    def test_prepared_calls_are_independent(self, make: Make) -> None:
        """A call keeps its own inputs and memory when another one is prepared and run."""
        baseline = ready(make)
        case, inputs, _ = self._supported(baseline)
        others = case.random_inputs(seed=1)
        first, second = baseline.prepare(case, inputs), baseline.prepare(case, others)
        assert first is not None and second is not None
        for _ in range(2):
            check_result(first(), case, inputs, f"{case}, after another call was prepared", first.precision)
            check_result(second(), case, others, f"{case}, prepared as the second", second.precision)

    def test_inputs_are_not_changed(self, make: Make) -> None:
        """Preparation and calls do not write to the inputs; inputs in Fortran order give the same result."""
        baseline = ready(make)
        for case in {case.name: case for case in map(workload, self.cases)}.values():
            inputs = [np.asfortranarray(value) for value in case.random_inputs()]
            prepared = baseline.prepare(case, inputs)
            if prepared is None:
                continue
            result = prepared()
            for spec, given, value in zip(case.inputs, inputs, case.random_inputs(), strict=True):
                assert np.array_equal(given, value), f"{case}: the baseline changed its input {spec.name}"
            check_result(result, case, inputs, f"{case}, inputs in Fortran order", prepared.precision)

    def test_invalid_inputs_are_refused(self, make: Make) -> None:
        """Inputs that are not those of the workload raise RunError."""
        baseline = ready(make)
        case, (first, *rest), _ = self._supported(baseline)
        refused = {
            "an input is missing": rest,
            "an input has another shape": [np.zeros((2, *first.shape), first.dtype), *rest],
            "an input has another dtype": [first.astype(np.int8), *rest],
        }
        for what, inputs in refused.items():
            try:
                found = baseline.prepare(case, inputs)
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
            baseline.prepare(case, inputs)
        except RunError as error:
            assert baseline.name in str(error) and case.name in str(error), (
                f"the RunError must name {baseline.name} and {case.name}: {error}"
            )
        except Exception as error:
            raise AssertionError(f"a failure of the library must be a RunError, got {type(error).__name__}: {error}") from error
        else:
            raise AssertionError("a failure of the library must be a RunError, got a prepared call")

    def _supported(self, baseline: Baseline) -> tuple[Workload, list[np.ndarray], list[OperatorCall]]:
        """The first supported call, its inputs, and a list that grows with every later call of `variants`."""
        counted: list[OperatorCall] = []
        inner = baseline.variants

        def counting(call: OperatorCall) -> Sequence[PreparedCall]:
            counted.append(call)
            return inner(call)

        for case in map(workload, self.cases):
            inputs = case.random_inputs()
            if baseline.prepare(case, inputs) is not None:
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


def check_result(result: Any, case: Workload, inputs: Sequence[np.ndarray], what: str, precision: str) -> None:
    """Raise an AssertionError that describes the difference unless the result agrees with the numpy reference of the operator.

    The tolerance is that of the compute precision, if it is narrower than the dtype.
    """
    (expected,) = case.reference(inputs)
    dtype = case.outputs[0].dtype
    assert isinstance(result, np.ndarray), f"{what}: the result is a {type(result).__name__}, not a numpy array"
    assert (str(result.dtype), result.shape) == (dtype, expected.shape), (
        f"{what}: the result is {result.dtype}{list(result.shape)}, expected {dtype}{list(expected.shape)}"
    )
    apart = np.abs(result.astype(np.float64) - expected)
    tolerance = TOLERANCE[dtype]
    if result.dtype.kind == "f":
        tolerance = max(tolerance, NARROW.get(precision, 0.0))
    wrong = ~(apart <= tolerance * (1 + np.abs(expected)))
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} elements differ from numpy: {result[at]}, expected {expected[at]}"
        )


def _least_seconds(call: Callable[[], None]) -> float:
    """Seconds of the fastest of `CALLS` calls; fewer if they are slow."""
    least, until = float("inf"), time.perf_counter() + 0.2
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        least = min(least, now - start)
        if now > until:
            break
    return least


def _cube(*, n: int) -> list[te.Tensor]:
    x = te.placeholder(n, name="X")
    return [x, te.compute(n, lambda i: x[i] * x[i] * x[i], "Y")]


_DEFINED_HERE = Operator("no_such_operator", (IntParameter("n"),), _cube, lambda x, **_: [x**3], lambda n, **_: 2 * n)


def _call(case: Workload, inputs: Sequence[np.ndarray]) -> OperatorCall:
    call = operator_call(case, inputs)
    assert call is not None
    return call
