"""Run operators and ONNX models with OpenVINO's CPU plugin (oneDNN), in float32 or its own choice; constants are packed ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.baselines.onnx_operators import OperatorModel, operator_model
from tunesmith.measure.baselines.operator_call import OperatorCall

_DTYPES = ("float32", "float16", "int32", "int64")
"""Without float64, which the plugin computes in float32."""
_BYTES = ("i8", "u8")
_CONTRACTIONS = ("Convolution", "FullyConnected", "MatMul")
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

    def onnx_call(self, path: str, inputs: Sequence[np.ndarray]) -> ModelCall | None:
        """The model of an ONNX file."""
        import openvino

        core: Any = openvino.Core()
        network: Any = core.read_model(path)
        network.reshape({port: x.shape for port, x in zip(network.inputs, inputs, strict=True)})
        return network_call(network, inputs, self.threads, self.hints)


class OpenVinoBaseline(OpenVinoDefaultBaseline):
    """OpenVINO with float32 products and convolutions, for all dtypes of the arrays."""

    name: ClassVar[str] = "openvino"
    hints: ClassVar[dict[str, str]] = {"INFERENCE_PRECISION_HINT": "f32"}


def network_call(network: Any, inputs: Sequence[np.ndarray], threads: int, hints: Mapping[str, Any]) -> ModelCall:
    """Compile an `openvino.Model` of constant shapes; inputs are bound to memory once.

    Args:
        network: the model.
        inputs: its inputs, in order.
        threads: number of threads.
        hints: properties of the compiled model, besides those of latency and threads.
    """
    import openvino

    properties = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads, **hints}
    core: Any = openvino.Core()
    compiled: Any = core.compile_model(network, "CPU", properties)
    request: Any = compiled.create_infer_request()
    for i, x in enumerate(inputs):
        request.set_input_tensor(i, openvino.Tensor(x, shared_memory=True))

    def run() -> Any:
        return request.infer(share_outputs=True)

    def results() -> list[Any]:
        run()
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return ModelCall(run, results, _precision_of(compiled))


def _precision_of(compiled: Any) -> str:
    """The precision of floats, or int8 with that of the floats beside it unless float32, if a contraction is computed in bytes."""
    floats: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    used = {str(f["runtimePrecision"].astype(str)) for f in facts if f["layerType"].astype(str) in _CONTRACTIONS}
    if not used.intersection(_BYTES):
        return floats
    return "int8" if floats == "f32" else f"int8+{floats}"


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
