"""Run operators with OpenVINO's CPU plugin (oneDNN) in float32 or in the precision that it chooses; constants are packed ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.onnx_operators import OperatorModel, operator_model
from tunesmith.measure.baselines.operator_call import OperatorCall

_DTYPES = ("float32", "float16", "int32", "int64")
"""Without float64, which the plugin computes in float32."""
_NO_OPERATOR = "No conversion rule found for operations"


class OpenVinoDefaultBaseline(Baseline):
    """OpenVINO as it is installed: on processors with units for bfloat16 it computes float32 products and convolutions in bfloat16.

    The reported precision is that of the compiled model; operators that the plugin keeps in float32, such as softmax, have it too.
    """

    name: ClassVar[str] = "openvino_default"
    package: ClassVar[str] = "openvino"

    hints: ClassVar[dict[str, str]] = {}
    """Properties of the compiled model, besides those of latency and threads."""

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator."""
        if not call.is_common or any(str(array.dtype) not in _DTYPES for array in call.inputs.values()):
            return []
        model = self.model(call)
        if model is None:
            return []
        run = _request(model, {"INFERENCE_NUM_THREADS": self.threads, **self.hints})
        return [] if run is None else [run]

    def low_precision_variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """Contractions of bfloat16, with inputs, weights and results in float32."""
        types = call.types
        model = self.model(call) if types is not None and types.lhs == "bfloat16" and call.is_common else None
        if model is None or self.hints:
            return []
        run = _request(model, {"INFERENCE_NUM_THREADS": self.threads, "INFERENCE_PRECISION_HINT": "bf16"})
        return [] if run is None else [run]

    def model(self, call: OperatorCall) -> OperatorModel | None:
        """The ONNX model of an operator; None if it is not supported."""
        return operator_model(call)


class OpenVinoBaseline(OpenVinoDefaultBaseline):
    """OpenVINO with float32 products and convolutions, for all dtypes of the arrays."""

    name: ClassVar[str] = "openvino"
    hints: ClassVar[dict[str, str]] = {"INFERENCE_PRECISION_HINT": "f32"}


def _request(model: OperatorModel, properties: dict[str, Any]) -> PreparedCall | None:
    """Compile the model; inputs and output are bound to memory once, so that a run copies nothing."""
    import openvino

    core: Any = openvino.Core()
    try:
        network: Any = core.read_model(model.encode())
    except RuntimeError as error:
        if _NO_OPERATOR in str(error):  # in ONNX, but not in OpenVINO
            return None
        raise
    compiled: Any = core.compile_model(network, "CPU", {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, **properties})
    request: Any = compiled.create_infer_request()
    for name, value in [*model.inputs.items(), ("Y", model.output)]:
        request.set_tensor(name, openvino.Tensor(value, shared_memory=True))

    def run() -> object:
        request.infer(share_outputs=True)
        return model.output

    def output(value: Any) -> np.ndarray:
        return model.result(value)

    return PreparedCall(model.variant, run, output, precision=compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
