"""Test baselines: choice of variants, new operators, and errors; `testing.baseline_conformance` compares every library with numpy."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.measure.baselines.registry import BASELINES, create_baseline
from tunesmith.ops import tensor_expression as te
from tunesmith.ops import workload as workloads
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter
from tunesmith.ops.workload import workload
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.registry import Registry
from tunesmith.testing.baseline_conformance import CASES

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries are not checked

RARE = [
    "matmul(m=5,n=7,k=3,tb=1)",
    "batch_matmul(b=2,m=5,n=7,k=3,ta=1)",
    "dense(m=5,n=7,k=3,activation=tanh)",
    "conv2d(n=1,h=9,w=11,ci=6,co=8,kh=3,kw=2,residual=1)",
    "exp(shape=3)",
    "mean(shape=3x4)",
    "conv3d(n=1,d=3,h=3,w=3,ci=2,co=2,kd=3,kh=3,kw=2,residual=1)",
    "lstm_cell(m=2,n=3,k=4)",
]
"""Forms and operators that no baseline supports."""

NUMPY_HAS = {
    "matmul",
    "batch_matmul",
    "dense",
    "relu",
    "add",
    "sum",
    "prod",
    "variance",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "argsort",
    "gather",
    "embedding",
}


def _baseline(name: str) -> Baseline:
    baseline = create_baseline(name, 2)
    if reason := baseline.available():
        pytest.skip(reason)
    return baseline


FAST = [name for name in BASELINES if name not in ("torch_compile", "tvm_tuned")]


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
        assert (prepared is not None) == (
            case.name in NUMPY_HAS and case.params.get("activation") != "gelu" and not case.params.get("descending")
        )


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


@pytest.mark.parametrize("stat", ["/proc/stat", "/no/such/file"])
def test_fastest_variant_with_the_dtype_is_used(stat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems without /proc/stat, too, which have no quiet windows."""
    monkeypatch.setattr("tunesmith.runtime.timing._STAT", Path(stat))
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
    with pytest.raises(UserError, match="at least 1 thread is required, not 0"):
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
        "bad = {'torch', 'jax', 'onnxruntime', 'openvino', 'ncnn', 'tvm', 'onnx'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr == ""


def test_packages_that_register_peers_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "lab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tunesmith.peer]\nlab = tunesmith.measure.baselines.numpy:NumpyBaseline\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(BASELINES, "_searched", False)
    monkeypatch.setattr(BASELINES, "_paths", dict(BASELINES._paths))
    monkeypatch.setattr(BASELINES, "_sources", dict(BASELINES._sources))
    monkeypatch.setattr(BASELINES, "_values", dict(BASELINES._values))
    with pytest.warns(DeprecationWarning, match="group tunesmith.peer, which is now tunesmith.baseline"):
        assert create_baseline("lab", 1).name == "openblas"
