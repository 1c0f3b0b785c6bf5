"""Prepare models with OpenVINO's CPU plugin: in float32, in the precision that OpenVINO chooses, and from a quantised ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino

from tunesmith.experiments.models.model_call import Files, ModelCall

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}
_BYTES = ("i8", "u8")
_CONTRACTIONS = ("Convolution", "FullyConnected", "MatMul")


def in_float32(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """All operators in float32."""
    return _compiled(_converted(model, inputs), inputs, threads, FLOAT32)


def by_default(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """Products and convolutions in bfloat16 on processors with such units; the call has the precision of the compiled model."""
    return _compiled(_converted(model, inputs), inputs, threads, {})


def quantized(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """The QDQ file: contractions of bytes, everything else in float32."""
    return _compiled(openvino.Core().read_model(files.qdq), inputs, threads, FLOAT32)


def quantized_by_default(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """The QDQ file: contractions of bytes, everything else in the precision that OpenVINO chooses."""
    return _compiled(openvino.Core().read_model(files.qdq), inputs, threads, {})


def _converted(model: Any, inputs: Sequence[Any]) -> Any:
    """The torch model with static shapes."""
    converted = openvino.convert_model(model, example_input=tuple(inputs))
    converted.reshape({port: tuple(x.shape) for port, x in zip(converted.inputs, inputs, strict=True)})
    return converted


def _compiled(model: Any, inputs: Sequence[Any], threads: int, hints: dict[str, str]) -> ModelCall:
    """A request whose inputs are bound once."""
    properties = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads, **hints}
    compiled = openvino.Core().compile_model(model, "CPU", properties)
    request = compiled.create_infer_request()
    for i, x in enumerate(inputs):
        request.set_input_tensor(i, openvino.Tensor(x.numpy(), shared_memory=True))

    def run() -> Any:
        return request.infer(share_outputs=True)

    def results() -> list[Any]:
        run()
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return ModelCall(run, results, _precision(compiled))


def _precision(compiled: Any) -> str:
    """The precision of floats, or int8 with that of the floats beside it unless float32, if a contraction is computed in bytes."""
    floats: str = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    used = {str(f["runtimePrecision"].astype(str)) for f in facts if f["layerType"].astype(str) in _CONTRACTIONS}
    if not used.intersection(_BYTES):
        return floats
    return "int8" if floats == "f32" else f"int8+{floats}"
