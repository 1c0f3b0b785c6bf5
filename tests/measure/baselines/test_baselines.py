"""Test baselines: every operator of every installed library against plain numpy, and errors."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operators import OPERATORS, Param, operator_call
from tunesmith.measure.baselines.registry import BASELINES, create_baseline
from tunesmith.support.errors import RunError, UserError
from tunesmith.support.seeds import stream

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries are not checked

CASES: list[tuple[str, dict[str, Param]]] = [
    ("matmul", {"m": 33, "n": 48, "k": 20}),
    ("batch_matmul", {"b": 3, "m": 8, "n": 16, "k": 5}),
    ("dense", {"m": 6, "n": 32, "k": 10}),
    ("dense", {"m": 6, "n": 32, "k": 10, "activation": "relu"}),
    ("dense", {"m": 6, "n": 32, "k": 10, "activation": "gelu"}),
    ("dense", {"m": 6, "n": 32, "k": 10, "activation": "gelu", "bias": 0}),
    ("dense", {"m": 6, "n": 32, "k": 10, "activation": "relu", "bias": False}),
    ("conv2d", {"n": 2, "h": 9, "w": 11, "ci": 6, "co": 8, "kh": 3, "kw": 3, "pad": 1, "bias": 1, "relu": 1}),
    ("conv2d", {"n": 1, "h": 9, "w": 11, "ci": 6, "co": 8, "kh": 3, "kw": 2, "stride": 2, "layout": "NCHW"}),
    ("conv2d", {"n": 1, "h": 9, "w": 9, "ci": 4, "co": 6, "kh": 3, "kw": 3, "dilation": 2, "groups": 2, "pad": 2, "bias": 1}),
    ("conv2d", {"n": 1, "h": 8, "w": 8, "ci": 8, "co": 8, "kh": 3, "kw": 3, "groups": 8, "pad": 1, "layout": "NCHW", "relu": 1}),
    ("conv2d", {"n": 1, "h": 7, "w": 7, "ci": 16, "co": 8, "kh": 1, "kw": 1}),
    ("softmax", {"m": 7, "n": 50}),
    ("sum", {"m": 7, "n": 50}),
    ("sum", {"m": 7, "n": 50, "axis": 0}),
    ("sum", {"m": 7, "n": 50, "axis": "all"}),
    ("layer_norm", {"m": 7, "n": 50, "eps": "1e-3"}),
    ("relu", {"m": 7, "n": 50}),
    ("add", {"n": 1, "h": 4, "w": 5, "c": 6}),
]
INPUTS: dict[str, tuple[str, ...]] = {
    "matmul": ("A", "B"),
    "batch_matmul": ("A", "B"),
    "dense": ("X", "W", "bias"),
    "conv2d": ("X", "W", "bias"),
    "layer_norm": ("X", "gamma", "beta"),
    "add": ("A", "B"),
}

NUMPY_HAS = {"matmul", "batch_matmul", "dense", "sum", "relu", "add"}


def _shape(op: str, params: dict[str, Param], name: str) -> tuple[int, ...]:
    p = {key: int(value) for key, value in params.items() if str(value).isdigit()}
    if op in ("relu", "add"):
        return tuple(p.values())
    if op == "conv2d":
        groups = p.get("groups", 1)
        if name == "bias":
            return (p["co"],)
        if params.get("layout") == "NCHW":
            return (p["n"], p["ci"], p["h"], p["w"]) if name == "X" else (p["co"], p["ci"] // groups, p["kh"], p["kw"])
        return (p["n"], p["h"], p["w"], p["ci"]) if name == "X" else (p["kh"], p["kw"], p["ci"] // groups, p["co"])
    batch = (p["b"],) if "b" in p else ()
    if name in ("bias", "gamma", "beta"):
        return (p["n"],)
    if op in ("softmax", "sum", "layer_norm"):
        return (p["m"], p["n"])
    return (*batch, p["m"], p["k"]) if name in ("A", "X") else (*batch, p["k"], p["n"])


def _inputs(op: str, params: dict[str, Param], dtype: str = "float32") -> dict[str, np.ndarray]:
    draw = stream(0, "test-peers", op)
    names = [name for name in INPUTS.get(op, ("X",)) if name != "bias" or params.get("bias", op == "dense")]
    return {name: draw.standard_normal(_shape(op, params, name)).astype(dtype) for name in names}


def _reference(op: str, params: dict[str, Param], inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Reference result in float64, written for clarity."""
    x = {name: value.astype(np.float64) for name, value in inputs.items()}
    if op in ("matmul", "batch_matmul"):
        return x["A"] @ x["B"]
    if op == "dense":
        y = x["X"] @ x["W"] + x.get("bias", 0)
        erf = np.vectorize(math.erf)
        return {"relu": np.maximum(y, 0), "gelu": y * 0.5 * (1 + erf(y / math.sqrt(2)))}.get(str(params.get("activation")), y)
    if op == "softmax":
        e = np.exp(x["X"] - x["X"].max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)
    if op == "sum":
        axis = params.get("axis", 1)
        return np.asarray(x["X"].sum(axis=None if axis == "all" else int(axis)))
    if op == "layer_norm":
        mean, variance = x["X"].mean(axis=1, keepdims=True), x["X"].var(axis=1, keepdims=True)
        return (x["X"] - mean) / np.sqrt(variance + float(params["eps"])) * x["gamma"] + x["beta"]
    if op == "relu":
        return np.maximum(x["X"], 0)
    if op == "add":
        return x["A"] + x["B"]
    return _conv2d(params, x)


def _conv2d(params: dict[str, Param], x: dict[str, np.ndarray]) -> np.ndarray:
    nchw = params.get("layout") == "NCHW"
    image = x["X"].transpose(0, 2, 3, 1) if nchw else x["X"]
    kernel = x["W"].transpose(2, 3, 1, 0) if nchw else x["W"]
    stride, pad, dilation, groups = (
        int(params.get(name, default)) for name, default in (("stride", 1), ("pad", 0), ("dilation", 1), ("groups", 1))
    )
    image = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    kh, kw, ci, co = kernel.shape
    high = (image.shape[1] - dilation * (kh - 1) - 1) // stride + 1
    wide = (image.shape[2] - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((image.shape[0], high, wide, co))
    for group in range(groups):
        i, o = slice(group * ci, (group + 1) * ci), slice(group * co // groups, (group + 1) * co // groups)
        for y in range(high):
            for z in range(wide):
                top, left = y * stride, z * stride
                patch = image[:, top : top + dilation * (kh - 1) + 1 : dilation, left : left + dilation * (kw - 1) + 1 : dilation, i]
                out[:, y, z, o] = np.tensordot(patch, kernel[..., o], axes=3)
    out = out + x.get("bias", 0)
    out = np.maximum(out, 0) if params.get("relu") else out
    return out.transpose(0, 3, 1, 2) if nchw else out


def _baseline(name: str) -> Baseline:
    baseline = create_baseline(name, 2)
    if reason := baseline.available():
        pytest.skip(reason)
    return baseline


FAST = [name for name in BASELINES if name not in ("torch_compile", "tvm_tuned")]


@pytest.mark.parametrize("name", FAST)
def test_outputs_are_correct(name: str) -> None:
    baseline = _baseline(name)
    assert sum(_check(baseline, op, params) for op, params in CASES) >= 2


def test_outputs_of_torch_compile_are_correct() -> None:
    baseline = _baseline("torch_compile")
    for number in (4, 7, 16):  # compiling takes seconds each
        assert _check(baseline, *CASES[number])


def _check(baseline: Baseline, op: str, params: dict[str, Param]) -> bool:
    """True if the baseline supports the operator; its result is checked twice."""
    inputs = _inputs(op, params)
    prepared = baseline.prepare(op, params, inputs)
    if prepared is None:
        return False
    expected = _reference(op, params, inputs)
    for _ in range(2):
        got = prepared()
        assert isinstance(got, np.ndarray)
        assert (got.dtype, got.shape) == (np.float32, expected.shape), f"{baseline.name} {op} {params}"
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4, err_msg=f"{baseline.name} {prepared.variant} {op} {params}")
    assert prepared.variant
    return True


@pytest.mark.parametrize("name", FAST)
def test_every_variant_is_correct(name: str) -> None:
    """All variants are checked, not only the fastest."""
    baseline = _baseline(name)
    for op, params in CASES:
        inputs = _inputs(op, params)
        call = operator_call(op, params, inputs)
        assert call is not None
        variants = baseline.variants(call)
        assert len({variant.variant for variant in variants}) == len(variants)
        for variant in variants:
            message = f"{name} {variant.variant} {call}"
            np.testing.assert_allclose(variant(), _reference(op, params, inputs), rtol=2e-4, atol=2e-4, err_msg=message)


@pytest.mark.parametrize("name", FAST)
def test_other_dtypes_are_correct_or_unsupported(name: str) -> None:
    baseline = _baseline(name)
    for dtype in ("float64", "int32", "float16"):
        for op, params in (CASES[0], ("relu", {"m": 3, "n": 4}), ("softmax", {"m": 3, "n": 4}), ("sum", {"m": 3, "n": 4})):
            inputs = {key: np.round(value * 4).astype(dtype) for key, value in _inputs(op, params).items()}
            prepared = baseline.prepare(op, {**params, "dtype": dtype}, inputs)
            if prepared is not None:
                got = prepared()
                assert got.dtype == dtype
                np.testing.assert_allclose(got, _reference(op, params, inputs), rtol=1e-2, atol=1e-2)


def test_operators_supported_by_numpy() -> None:
    baseline = create_baseline("openblas", 1)
    assert baseline.available() is None or "built on" in str(baseline.available())
    assert baseline.version() == np.__version__
    for op, params in CASES:
        prepared = baseline.prepare(op, params, _inputs(op, params))
        assert (prepared is not None) == (op in NUMPY_HAS and params.get("activation") != "gelu")
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


def test_cases_cover_all_operators() -> None:
    assert {op for op, _ in CASES} == set(OPERATORS)


def test_registry_imports_no_library() -> None:
    code = (
        "import sys, tunesmith.measure.baselines.registry as r\n"
        "[r.create_baseline(name, 1) for name in r.BASELINES]\n"
        "bad = {'torch', 'jax', 'onnxruntime', 'tvm', 'onnx'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stderr == ""
