"""Prepare models with OpenVINO's CPU plugin, converted from torch: in float32, and in the precision that OpenVINO chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino

from tunesmith.experiments.models.model_call import ModelCall


def in_float32(model: Any, inputs: Sequence[Any], threads: int, own: object) -> ModelCall:
    """All operators in float32."""
    return _compiled(model, inputs, threads, {"INFERENCE_PRECISION_HINT": "f32"})


def by_default(model: Any, inputs: Sequence[Any], threads: int, own: object) -> ModelCall:
    """Products and convolutions in bfloat16 on processors with such units; the call has the precision of the compiled model."""
    return _compiled(model, inputs, threads, {})


def _compiled(model: Any, inputs: Sequence[Any], threads: int, hints: dict[str, str]) -> ModelCall:
    """A request with static shapes, whose inputs are bound once."""
    converted = openvino.convert_model(model, example_input=tuple(inputs))
    converted.reshape({port: tuple(x.shape) for port, x in zip(converted.inputs, inputs, strict=True)})
    properties = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads, **hints}
    compiled = openvino.Core().compile_model(converted, "CPU", properties)
    request = compiled.create_infer_request()
    for i, x in enumerate(inputs):
        request.set_input_tensor(i, openvino.Tensor(x.numpy(), shared_memory=True))

    def run() -> Any:
        return request.infer(share_outputs=True)

    def results() -> list[Any]:
        run()
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return ModelCall(run, results, compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
