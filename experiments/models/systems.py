"""Run one system of the model comparison in its process: prepare it once, then time windows."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from tunesmith.experiments.models.model_call import Files, ModelCall
from tunesmith.runtime.module import load_module
from tunesmith.testing.torch_models import get

WINDOW_S = 0.5
WAKE_S = 0.05

PREPARE = {
    "ours": "systems:ours",
    "ours_quantize": "systems:ours_quantize",
    "torch": "torch_systems:eager",
    "torch_channels_last": "torch_systems:channels_last",
    "torch_compile": "torch_systems:compiled",
    "torch_bf16": "torch_systems:eager_bf16",
    "torch_compile_bf16": "torch_systems:compiled_bf16",
    "onnxruntime": "torch_onnxruntime_system:exported",
    "openvino": "openvino_system:in_float32",
    "openvino_default": "openvino_system:by_default",
    "onnxruntime_int8": "torch_onnxruntime_system:quantized",
    "openvino_int8": "openvino_system:quantized",
    "openvino_int8_default": "openvino_system:quantized_by_default",
    "ncnn": "ncnn_system:converted",
}
"""System -> module of this folder, and its function of a torch model, inputs, number of threads and `Files`."""
INT8 = ("ours_quantize", "onnxruntime_int8", "openvino_int8", "openvino_int8_default")
"""Systems that need a quantised model."""


class System:
    """A system with one model.

    Args:
        system: a name of `PREPARE`.
        model: a name of `tunesmith.testing.torch_models`.
        size: its size there.
        files: its files.
        threads: number of threads.
    """

    def __init__(self, system: str, model: str, size: str, files: Files, threads: int) -> None:
        module, _, function = PREPARE[system].partition(":")
        prepare: Callable[..., ModelCall] = getattr(importlib.import_module(f"tunesmith.experiments.models.{module}"), function)
        self.model, self.inputs = get(model, size=size)  # kept: libraries share the memory of weights and inputs
        self.call = prepare(self.model, self.inputs, threads, files)

    def __call__(self, job: str) -> Any:
        """Run a job: `outputs`, the results of one call; `precision`; or `time`, the median seconds of a window."""
        if job == "outputs":
            return self.call.outputs()
        if job == "precision":
            return self.call.precision
        end = time.perf_counter() + WAKE_S
        while time.perf_counter() < end:
            self.call.run()
        samples = []
        end = time.perf_counter() + WINDOW_S
        while time.perf_counter() < end or len(samples) < 3:
            start = time.perf_counter()
            self.call.run()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)


def ours(model: Any, inputs: Any, threads: int, files: Files) -> ModelCall:
    """The exported model, with the threads of the process."""
    return _loaded(files.exported, inputs, files.precision)


def ours_quantize(model: Any, inputs: Any, threads: int, files: Files) -> ModelCall:
    """The exported model that `tunesmith.quantize` made of the float model."""
    return _loaded(files.quantized, inputs, files.precision)


def _loaded(library: str, inputs: Any, precision: str) -> ModelCall:
    executor: Any = load_module(library)
    for i, x in enumerate(inputs):
        executor.set_input(i, x.numpy())
    return ModelCall(executor.run, lambda: executor(*[x.numpy() for x in inputs]), precision)
