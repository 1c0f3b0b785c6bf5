"""Test baselines: choice of variants, and errors; `testing.baseline_conformance` compares every library with numpy."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operators import Param
from tunesmith.measure.baselines.registry import BASELINES, create_baseline
from tunesmith.support.errors import RunError, UserError
from tunesmith.testing.baseline_conformance import CASES

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries are not checked

NUMPY_HAS = {"matmul", "batch_matmul", "dense", "sum", "relu", "add"}


def test_operators_supported_by_numpy() -> None:
    baseline = create_baseline("openblas", 1)
    assert baseline.available() is None or "built on" in str(baseline.available())
    assert baseline.version() == np.__version__
    for case in CASES:
        prepared = baseline.prepare(case.op, case.params, case.inputs())
        assert (prepared is not None) == (case.op in NUMPY_HAS and case.params.get("activation") != "gelu")
    assert baseline.prepare("fft", {"n": 4}, {}) is None


def test_prepared_call_runs_once_and_returns_an_array() -> None:
    ran: list[str] = []
    call = PreparedCall("v", lambda: ran.append("run"), lambda _: np.zeros(len(ran)))
    assert call().shape == (1,)
    assert ran == ["run"]


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
    prepared = _Fake(1).prepare("relu", {"n": 1}, {"X": np.zeros(1)})
    assert prepared is not None and prepared.variant == "1 ms"


def test_error_names_library_and_operator() -> None:
    with pytest.raises(RunError, match=r"baseline fake failed on relu\(n=1\): ValueError: out of luck"):
        _Fake(3).prepare("relu", {"n": 1}, {"X": np.zeros(1)})


def test_result_of_wrong_shape_is_an_error() -> None:
    with pytest.raises(RunError, match=r"30 ms: the result of relu\(n=1\) has shape \(1, 1\), not \(1,\)"):
        _Fake(2).prepare("relu", {"n": 1}, {"X": np.zeros(1)})


def test_missing_library_is_reported() -> None:
    assert _Fake(1).available() == "no_such_package_here is not installed (pip install no_such_package_here)"
    assert _Fake(1).version() == "not installed"


def test_refusals() -> None:
    with pytest.raises(UserError, match="unknown baseline 'torhc'. Did you mean 'torch'"):
        create_baseline("torhc", 1)
    with pytest.raises(UserError, match="at least 1 thread is required, got 0"):
        create_baseline("openblas", 0)


A, B = np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
CONV: dict[str, Param] = {"n": 1, "h": 4, "w": 4, "ci": 3, "co": 4, "kh": 3, "kw": 3}
REFUSED: list[tuple[str, dict[str, Param], dict[str, np.ndarray], str]] = [
    ("matmul", {"m": 2, "n": 4}, {}, "matmul: parameter k is missing. It takes matmul(m, n, k)"),
    ("matmul", {"m": 2, "n": 4, "k": 3, "q": 1}, {}, "parameter q is unknown"),
    ("matmul", {"m": 2, "n": 4, "k": 0}, {}, "parameter k: expected an integer of at least 1, got 0"),
    ("matmul", {"m": 2, "n": 4, "k": "3"}, {}, "parameter k: expected an integer of at least 1, got '3'"),
    ("matmul", {"m": 2, "n": 4, "k": 3}, {"A": A}, "matmul(m=2, n=4, k=3): input B is missing; it needs A, B"),
    ("matmul", {"m": 2, "n": 4, "k": 3}, {"A": A, "B": A}, "input B has shape (2, 3), expected (3, 4)"),
    (
        "matmul",
        {"m": 2, "n": 4, "k": 3},
        {"A": A, "B": B.astype("float64")},
        "the inputs have dtypes float32, float64, expected a common dtype",
    ),
    ("dense", {"m": 2, "n": 4, "k": 3, "activation": "tanh"}, {}, "parameter activation: expected none or relu or gelu, got 'tanh'"),
    ("conv2d", {**CONV, "layout": "NC"}, {}, "parameter layout: expected NHWC or NCHW, got 'NC'"),
    ("conv2d", {**CONV, "pad": -1}, {}, "parameter pad: expected an integer of at least 0, got -1"),
    ("conv2d", {**CONV, "groups": 2}, {}, "groups must divide ci and co"),
    (
        "conv2d",
        {**CONV, "dilation": 2},
        {"X": np.zeros((1, 4, 4, 3)), "W": np.zeros((3, 3, 3, 4))},
        "the kernel does not fit into the padded input",
    ),
    ("sum", {"m": 2, "n": 3, "axis": 2}, {}, "parameter axis: expected 0 or 1 or all, got 2"),
    ("layer_norm", {"m": 2, "n": 3, "eps": "tiny"}, {}, "parameter eps: expected the text of a number of at least 0, got 'tiny'"),
    ("relu", {"m": 2, "n": 2}, {"X": A}, "input X has shape (2, 3), expected (2, 2)"),
]


@pytest.mark.parametrize(("op", "params", "inputs", "message"), REFUSED)
def test_invalid_requests_are_rejected(op: str, params: dict[str, Param], inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(RunError) as caught:
        create_baseline("openblas", 1).prepare(op, params, inputs)
    assert message in str(caught.value)


def test_registry_imports_no_library() -> None:
    code = (
        "import sys, tunesmith.measure.baselines.registry as r\n"
        "[r.create_baseline(name, 1) for name in r.BASELINES]\n"
        "bad = {'torch', 'jax', 'onnxruntime', 'tvm', 'onnx'} & set(sys.modules)\n"
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
