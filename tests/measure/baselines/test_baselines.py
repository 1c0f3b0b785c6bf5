"""Test baselines: every operator of every installed library against the reference of the operator, and errors."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.measure.baselines.registry import BASELINES, create_baseline
from tunesmith.ops import tensor_expression as te
from tunesmith.ops import workload as workloads
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter
from tunesmith.ops.workload import workload
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.registry import Registry

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries are not checked

CONV = "n=1,h=9,w=11,ci=6,co=8"
CASES = [
    "matmul(m=33,n=48,k=20)",
    "batch_matmul(b=3,m=8,n=16,k=5)",
    "dense(m=6,n=32,k=10)",
    "dense(m=6,n=32,k=10,activation=relu)",
    "dense(m=6,n=32,k=10,activation=gelu)",
    "dense(m=6,n=32,k=10,activation=gelu,bias=0)",
    "dense(m=6,n=32,k=10,activation=relu,bias=0)",
    "conv2d(n=2,h=9,w=11,ci=6,co=8,kh=3,kw=3,pad=1,bias=1,relu=1)",
    f"conv2d({CONV},kh=3,kw=2,stride=2,layout=NCHW)",
    f"conv2d({CONV},kh=3,kw=3,dilation=2,groups=2,pad=2,bias=1)",
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
]
RARE = [
    "matmul(m=5,n=7,k=3,tb=1)",
    "batch_matmul(b=2,m=5,n=7,k=3,ta=1)",
    "dense(m=5,n=7,k=3,activation=tanh)",
    f"conv2d({CONV},kh=3,kw=2,residual=1)",
    "exp(shape=3)",
    "mean(shape=3x4)",
]
"""Forms and operators that no baseline supports."""

NUMPY_HAS = {"matmul", "batch_matmul", "dense", "sum", "relu", "add"}


def _baseline(name: str) -> Baseline:
    baseline = create_baseline(name, 2)
    if reason := baseline.available():
        pytest.skip(reason)
    return baseline


FAST = [name for name in BASELINES if name not in ("torch_compile", "tvm_tuned")]


@pytest.mark.parametrize("name", FAST)
def test_outputs_are_correct(name: str) -> None:
    baseline = _baseline(name)
    assert sum(_check(baseline, text) for text in CASES) >= 2


def test_outputs_of_torch_compile_are_correct() -> None:
    baseline = _baseline("torch_compile")
    for text in (CASES[4], CASES[7], "layer_norm(m=7,n=50,eps=1e-3)"):  # compiling takes seconds each
        assert _check(baseline, text)
    exp = workload("exp(shape=3)")
    assert baseline.prepare(exp, exp.random_inputs()) is None


def _check(baseline: Baseline, text: str) -> bool:
    """True if the baseline supports the workload; its result is checked twice."""
    case = workload(text)
    inputs = case.random_inputs()
    prepared = baseline.prepare(case, inputs)
    if prepared is None:
        return False
    (expected,) = case.reference(inputs)
    for _ in range(2):
        got = prepared()
        assert isinstance(got, np.ndarray)
        assert (got.dtype, got.shape) == (np.float32, expected.shape), f"{baseline.name} {text}"
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4, err_msg=f"{baseline.name} {prepared.variant} {text}")
    assert prepared.variant
    return True


@pytest.mark.parametrize("name", FAST)
def test_every_variant_is_correct(name: str) -> None:
    """All variants are checked, not only the fastest."""
    baseline = _baseline(name)
    for text in CASES:
        case = workload(text)
        inputs = case.random_inputs()
        call = operator_call(case, inputs)
        assert call is not None
        variants = baseline.variants(call)
        assert len({variant.variant for variant in variants}) == len(variants)
        for variant in variants:
            message = f"{name} {variant.variant} {call}"
            np.testing.assert_allclose(variant(), case.reference(inputs)[0], rtol=2e-4, atol=2e-4, err_msg=message)


@pytest.mark.parametrize("name", FAST)
def test_other_dtypes_are_correct_or_unsupported(name: str) -> None:
    baseline = _baseline(name)
    for dtype in ("float64", "float16"):
        for operator in ("matmul(m=33,n=48,k=20", "relu(shape=3x4", "softmax(m=3,n=4", "sum(shape=3x4,axis=1"):
            case = workload(f"{operator},dtype={dtype})")
            inputs = case.random_inputs()
            prepared = baseline.prepare(case, inputs)
            if prepared is not None:
                got = prepared()
                assert got.dtype == dtype
                np.testing.assert_allclose(got, case.reference(inputs)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", FAST)
def test_rare_forms_and_other_operators_are_not_supported(name: str) -> None:
    baseline = _baseline(name)
    for text in RARE:
        case = workload(text)
        assert baseline.prepare(case, case.random_inputs()) is None, text


def test_operators_supported_by_numpy() -> None:
    baseline = create_baseline("openblas", 1)
    assert baseline.available() is None or "built on" in str(baseline.available())
    assert baseline.version() == np.__version__
    for text in CASES:
        case = workload(text)
        prepared = baseline.prepare(case, case.random_inputs())
        assert (prepared is not None) == (case.name in NUMPY_HAS and case.params.get("activation") != "gelu")


def test_prepared_call_runs_once_and_returns_an_array() -> None:
    ran: list[str] = []
    call = PreparedCall("v", lambda: ran.append("run"), lambda _: np.zeros(len(ran)))
    assert call().shape == (1,)
    assert ran == ["run"]


ONE = workload("relu(shape=1,dtype=float64)")


class _Fake(Baseline):
    """A library with a slow and a fast variant, or a failing one."""

    name = "fake"
    package = "no_such_package_here"

    def variants(self, call: object) -> list[PreparedCall]:
        if self.threads == 3:
            raise ValueError("out of luck")

        def unable() -> None:
            raise NotImplementedError

        outputs: list[np.ndarray] = [np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1, np.float32)]
        if self.threads == 2:
            outputs = [np.zeros((1, 1))]
        calls = [
            PreparedCall(f"{ms} ms", lambda ms=ms: time.sleep(ms * 1e-3), lambda _, out=out: out)  # type: ignore[misc]
            for ms, out in zip((30, 1, 20, 0), outputs, strict=False)
        ]
        return [*calls, PreparedCall("unable", unable, lambda _: np.zeros(1))]


def test_fastest_variant_with_the_dtype_is_used() -> None:
    prepared = _Fake(1).prepare(ONE, [np.zeros(1)])
    assert prepared is not None and prepared.variant == "1 ms"


def test_error_names_library_and_operator() -> None:
    with pytest.raises(RunError, match=r"baseline fake failed on relu\(shape=1,dtype=float64\): ValueError: out of luck"):
        _Fake(3).prepare(ONE, [np.zeros(1)])


def test_result_of_wrong_shape_is_an_error() -> None:
    with pytest.raises(RunError, match=r"30 ms: the result of relu\(shape=1,dtype=float64\) has shape \(1, 1\), not \(1,\)"):
        _Fake(2).prepare(ONE, [np.zeros(1)])


def test_missing_library_is_reported() -> None:
    assert _Fake(1).available() == "no_such_package_here is not installed (pip install no_such_package_here)"
    assert _Fake(1).version() == "not installed"


def test_refusals() -> None:
    with pytest.raises(UserError, match="unknown baseline 'torhc'. Did you mean 'torch'"):
        create_baseline("torhc", 1)
    with pytest.raises(UserError, match="at least 1 thread is required, got 0"):
        create_baseline("openblas", 0)


def test_inputs_of_another_workload_are_refused() -> None:
    with pytest.raises(RunError, match=r"the input X is float64 of shape \(1,\), got float64 of shape \(2,\)"):
        _Fake(1).prepare(ONE, [np.zeros(2)])


class _Cubes(Baseline):
    """A library with a function for an operator that is defined here."""

    name = "cubes"
    package = "numpy"

    def variants(self, call: OperatorCall) -> list[PreparedCall]:
        if call.name != "cube":
            return []
        (x,) = call.inputs.values()
        return [PreparedCall("power", lambda: x ** call.number("power"), np.asarray)]


def test_a_new_operator_needs_no_table_of_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    def tensors(*, n: int, power: int) -> list[te.Tensor]:
        x = te.placeholder(n, name="X")
        return [x, te.compute(n, lambda i: x[i] * x[i] * x[i], "Y")]

    registry: Registry[Operator] = Registry("operator")
    registry.register(
        "cube", Operator("cube", (IntParameter("n"), IntParameter("power", 3)), tensors, lambda x, **_: [x**3], lambda n, **_: 2 * n)
    )
    monkeypatch.setattr(workloads, "OPERATORS", registry)
    case = workload("cube(n=5)")
    inputs = case.random_inputs()
    prepared = _Cubes(1).prepare(case, inputs)
    assert prepared is not None
    np.testing.assert_allclose(prepared(), case.reference(inputs)[0], rtol=1e-6)
    assert create_baseline("openblas", 1).prepare(case, inputs) is None


def test_registry_imports_no_library() -> None:
    code = (
        "import sys, tunesmith.measure.baselines.registry as r\n"
        "[r.create_baseline(name, 1) for name in r.BASELINES]\n"
        "bad = {'torch', 'jax', 'onnxruntime', 'tvm', 'onnx'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr == ""
