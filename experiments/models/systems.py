"""Run one system of the model comparison in its process: prepare it once, then time windows."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tunesmith.experiments.models.files import Files
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.runtime.module import load_module
from tunesmith.testing.torch_models import get

WINDOW_S = 0.5
WAKE_S = 0.05
FLUSH_BYTES = 256 << 20
"""Bytes that each thread writes before a cold call; the caches of large processors hold a part of 64 MB."""

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
    "xla": "jax_onnx_system:jitted",
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
        batch: images, sentences or sequences of a call.
    """

    def __init__(self, system: str, model: str, size: str, files: Files, threads: int, batch: int = 1) -> None:
        module, _, function = PREPARE[system].partition(":")
        prepare: Callable[..., ModelCall] = getattr(importlib.import_module(f"tunesmith.experiments.models.{module}"), function)
        self.model, self.inputs = get(model, size=size, batch=batch)  # kept: libraries share the memory of weights and inputs
        self.call = prepare(self.model, self.inputs, threads, files)
        self.flushed = [np.zeros(FLUSH_BYTES // 4, np.float32) for _ in range(threads)]
        self.threads = ThreadPoolExecutor(threads)

    def __call__(self, job: str) -> Any:
        """Run a job.

        Args:
            job: `outputs`, the results of one call; `precision`; `time`, the median seconds of a window; or `time_cold`, the same of calls
                before which the caches are flushed.
        """
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
            if job == "time_cold":
                list(self.threads.map(lambda x: np.add(x, 1, out=x), self.flushed))  # numpy releases the GIL: the caches of all cores
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
