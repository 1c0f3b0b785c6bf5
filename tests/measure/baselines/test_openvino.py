"""Test OpenVINO: the reported precision, and what it lacks; `testing.baseline_conformance` compares results with numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunesmith.measure.baselines.baseline import PreparedCall
from tunesmith.measure.baselines.onnx_operators import OperatorModel, operator_model
from tunesmith.measure.baselines.openvino import OpenVinoBaseline, OpenVinoDefaultBaseline
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.measure.evaluator.correctness import mismatch, relative_error, tolerance_of
from tunesmith.ops.workload import workload
from tunesmith.support.errors import RunError

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # warnings of other libraries are not checked
    pytest.mark.skipif(OpenVinoBaseline(1).available() is not None, reason=str(OpenVinoBaseline(1).available())),
]
PRODUCT = "matmul(m=64,n=48,k=128)"


def prepared(baseline: OpenVinoDefaultBaseline, text: str) -> PreparedCall | None:
    case = workload(text)
    return baseline.prepare(case, case.random_inputs())


@pytest.mark.parametrize("baseline", [OpenVinoBaseline(2), OpenVinoDefaultBaseline(2)])
def test_the_result_has_the_reported_precision(baseline: OpenVinoDefaultBaseline) -> None:
    case = workload(PRODUCT)
    (expected,) = case.reference(case.random_inputs())
    call = prepared(baseline, PRODUCT)
    assert call is not None and call.precision in ("f32", "bf16", "f16")
    assert call.precision == "f32" or type(baseline) is OpenVinoDefaultBaseline
    assert mismatch(call(), expected, tolerance_of(case.func, call.precision)) is None
    assert (relative_error(call(), expected) < 1e-5) == (call.precision == "f32")


def test_float16_is_computed_in_float32() -> None:
    call = prepared(OpenVinoBaseline(1), "matmul(m=4,n=5,k=6,dtype=float16)")
    assert call is not None and (call.precision, call().dtype) == ("f32", np.float16)


@pytest.mark.parametrize(
    "text", ["relu(shape=3x4,dtype=float64)", "argmax(shape=3x4,dtype=float64)", "exp(shape=3)", "lstm_cell(m=2,n=3,k=4)"]
)
def test_float64_and_other_operators_are_not_supported(text: str) -> None:
    assert prepared(OpenVinoBaseline(1), text) is None


class _Renamed(OpenVinoBaseline):
    """Relu as another node."""

    op, attributes = "Det", {"axis": 0}

    def model(self, call: OperatorCall) -> OperatorModel | None:
        model = operator_model(call)
        assert model is not None
        return replace(model, nodes=[replace(node, op=self.op, attributes=self.attributes) for node in model.nodes])


class _Invalid(_Renamed):
    op, attributes = "Softmax", {"axis": 7}


def test_a_node_that_openvino_lacks_gives_none_and_an_invalid_one_an_error() -> None:
    assert prepared(_Renamed(1), "relu(shape=3x4)") is None
    with pytest.raises(
        RunError, match=r"baseline openvino failed on relu\(shape=3x4\): RuntimeError: (.|\n)*Axis 7 out of the tensor rank"
    ):
        prepared(_Invalid(1), "relu(shape=3x4)")
