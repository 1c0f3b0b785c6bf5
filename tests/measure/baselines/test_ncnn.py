"""Test the nets of ncnn: forms that the conformance cases, most of which have batches, do not reach, and errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tunesmith.measure.baselines import ncnn
from tunesmith.measure.baselines.ncnn import NcnnBaseline
from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.measure.evaluator.correctness import mismatch, tolerance_of
from tunesmith.ops.workload import workload
from tunesmith.support.errors import RunError

pytestmark = pytest.mark.skipif(NcnnBaseline(1).available() is not None, reason=str(NcnnBaseline(1).available()))

CONV = "conv2d(n=1,h=9,w=11,ci=6,co=8,kh=3,kw=2"


def call_of(text: str) -> OperatorCall:
    case = workload(text)
    call = operator_call(case, case.random_inputs())
    assert call is not None
    return call


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"{CONV},stride=2,pad=1,bias=1,relu=1)", 1),
        (f"{CONV},dilation=2,groups=2,bias=1,layout=NCHW)", 1),
        ("conv2d(n=1,h=8,w=8,ci=8,co=8,kh=3,kw=3,groups=8,pad=1,relu=1)", 1),
        ("conv2d(n=1,h=56,w=56,ci=16,co=16,kh=3,kw=3,pad=1)", 1),  # F(6, 3) is not accurate enough
        ("conv1d(n=1,w=11,ci=6,co=8,kw=3,stride=2,pad=1,bias=1,relu=1)", 1),
        ("conv3d(n=1,d=4,h=5,w=6,ci=4,co=6,kd=3,kh=2,kw=3,pad=1,bias=1)", 1),
        ("max_pool1d(n=1,w=9,c=3,kw=3,stride=2,pad=1)", 1),
        ("max_pool2d(n=1,h=9,w=11,c=6,kh=3,kw=2,stride=2,pad=1)", 1),
        ("avg_pool2d(n=1,h=10,w=11,c=6,kh=3,kw=3,stride=2,pad=1,count_include_pad=1)", 1),
        ("avg_pool2d(n=1,h=10,w=11,c=6,kh=3,kw=3,stride=2,pad=1)", 1),
        ("dense(m=6,n=32,k=10,bias=0)", 2),
        ("dense(m=1,n=32,k=10,activation=relu)", 2),
        ("relu(shape=5)", 1),
        ("relu(shape=2x3x4x5x6)", 1),
        ("add(shape=4x5x6)", 1),
        ("rms_norm(m=7,n=50,eps=1e-3)", 1),
    ],
)
def test_every_net_agrees_with_numpy(text: str, count: int) -> None:
    case = workload(text)
    (expected,) = case.reference(case.random_inputs())
    variants = NcnnBaseline(2).variants(call_of(text))
    assert len(variants) == count
    for variant in variants:
        assert variant.precision == "f32"
        for _ in range(2):
            result = variant()
            assert result.shape == expected.shape and mismatch(result, expected, tolerance_of(case.func)) is None


@pytest.mark.parametrize(
    "text",
    [
        "conv2d(n=2,h=9,w=11,ci=6,co=8,kh=3,kw=3)",
        "max_pool2d(n=2,h=9,w=11,c=6,kh=3,kw=3)",
        "relu(shape=5,dtype=float64)",
        "matmul(m=5,n=7,k=3,dtype=float16)",
        "add(shape=4x5x6,other=5x1)",
        "log_softmax(m=7,n=50)",
        "conv2d_transpose(n=1,h=3,w=4,ci=4,co=6,kh=4,kw=3)",
    ],
)
def test_batches_other_dtypes_and_other_operators_are_not_supported(text: str) -> None:
    assert list(NcnnBaseline(1).variants(call_of(text))) == []


def test_a_net_that_ncnn_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def net(layer: ncnn._Layer) -> Callable[[OperatorCall], list[ncnn._Net]]:
        return lambda call: [ncnn._Net([layer], [call.inputs["X"]], "one layer")]

    case, x = workload("relu(shape=3x4)"), np.ones((3, 4), np.float32)
    monkeypatch.setitem(ncnn._NETS, "relu", net(ncnn._Layer("NoSuchLayer")))
    with pytest.raises(RunError, match=r"baseline ncnn failed on relu\(shape=3x4\): RuntimeError: load_param_mem of ncnn returned -1"):
        NcnnBaseline(1).prepare(case, [x])
    monkeypatch.setitem(ncnn._NETS, "relu", net(ncnn._Layer("InnerProduct", {0: 3, 2: 12})))  # without weights
    with pytest.raises(RunError, match="load_model of ncnn returned -1"):
        NcnnBaseline(1).prepare(case, [x])


def test_results_outlive_their_net() -> None:
    call = call_of("relu(shape=64x64)")
    (variant,) = NcnnBaseline(1).variants(call)
    result = variant.run()
    output = variant.output
    del variant
    np.testing.assert_array_equal(output(result), np.maximum(call.inputs["X"], 0))
