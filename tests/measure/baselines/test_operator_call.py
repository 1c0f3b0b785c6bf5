"""Test the calls of workloads: accessors, filters of depthwise convolutions, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.measure.baselines.operator_call import OperatorCall, operator_call
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter
from tunesmith.ops.tensor_expression import Tensor, compute, placeholder
from tunesmith.ops.workload import make_workload, workload
from tunesmith.support.errors import RunError

CONV = "n=1,h=6,w=7,ci=4,co=4,kh=3,kw=3"


def call_of(text: str) -> OperatorCall:
    case = workload(text)
    call = operator_call(case, case.random_inputs())
    assert call is not None
    return call


def test_a_call_has_the_parameters_of_the_workload() -> None:
    call = call_of(f"conv2d({CONV},layout=NCHW,bias=1)")
    assert (call.name, call.output, call.dtype) == ("conv2d", (1, 4, 4, 5), "float32")
    assert (call.number("kh"), call.text("layout")) == (3, "NCHW")
    assert list(call.inputs) == ["X", "W", "bias"] and list(call.constants) == ["W", "bias"]
    assert str(call) == f"conv2d({CONV},layout=NCHW,bias=1)"
    assert call_of("layer_norm(m=2,n=3,eps=1e-6)").real("eps") == 1e-6
    assert call_of("sum(shape=2x3,axis=-1)").axes("axis") == (1,)
    assert call_of("sum(shape=2x3)").axes("axis") == ()
    assert call_of("max_pool3d(n=1,d=2,h=3,w=4,c=1,kd=1,kh=2,kw=3)").window == (1, 2, 3)
    assert call_of("conv1d(n=1,w=4,ci=1,co=1,kw=2)").window == (2,)


@pytest.mark.parametrize(
    ("text", "activation", "common"),
    [
        ("matmul(m=2,n=3,k=4)", "none", True),
        ("matmul(m=2,n=3,k=4,ta=1)", "none", False),
        ("dense(m=2,n=3,k=4,activation=gelu)", "gelu", True),
        ("dense(m=2,n=3,k=4,activation=tanh)", "tanh", False),
        (f"conv2d({CONV},relu=1)", "relu", True),
        (f"conv2d({CONV},residual=1)", "none", False),
    ],
)
def test_common_forms(text: str, activation: str, common: bool) -> None:
    call = call_of(text)
    assert (call.activation, call.is_common) == (activation, common)


def test_filters_of_depthwise_convolutions_have_an_axis_of_input_channels() -> None:
    assert call_of(f"conv2d({CONV},groups=4)").inputs["W"].shape == (3, 3, 1, 4)
    assert call_of(f"conv2d({CONV},groups=4,layout=NCHW)").inputs["W"].shape == (4, 1, 3, 3)
    assert call_of("conv1d(n=1,w=4,ci=4,co=4,kw=2,groups=4)").inputs["W"].shape == (2, 1, 4)


def test_inputs_are_contiguous() -> None:
    case = workload("matmul(m=2,n=3,k=4)")
    call = operator_call(case, [np.ones((4, 2), np.float32).T, np.ones((3, 4), np.float32).T])
    assert call is not None and all([array.flags.c_contiguous for array in call.inputs.values()])


def test_inputs_of_another_workload_are_refused() -> None:
    case = workload("matmul(m=2,n=3,k=4)")
    with pytest.raises(RunError, match=r"matmul\(m=2,n=3,k=4\): the workload has 2 inputs \(A, B\), got 1"):
        operator_call(case, [np.ones((2, 4), np.float32)])


def test_an_operator_with_several_outputs_has_no_call() -> None:
    def tensors(*, n: int) -> list[Tensor]:
        x = placeholder(n, name="X")
        return [x, compute(n, lambda i: x[i] * 2.0, "Y"), compute(n, lambda i: x[i] + 1.0, "Z")]

    case = make_workload(Operator("twice", (IntParameter("n"),), tensors, lambda x, **_: [x * 2, x + 1], lambda n: 2 * n), {"n": 3})
    assert operator_call(case, case.random_inputs()) is None
