"""Prepare models with OpenVINO's CPU plugin: in float32, in the precision that OpenVINO chooses, and from a quantised ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino

from tunesmith.experiments.models.files import Files
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.baselines.openvino import network_call

FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}


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
    return network_call(model, [x.numpy() for x in inputs], threads, hints)
