"""Run one system of the model comparison in its process: prepare it once, then time windows."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WINDOW_S = 0.5
WAKE_S = 0.05


class System:
    """A system with one model.

    Args:
        system: ours, torch, torch_compile or onnxruntime.
        model: a name of `tunesmith.testing.torch_models`.
        library: path of the exported model, for ours.
        threads: number of threads.
    """

    def __init__(self, system: str, model: str, library: str, threads: int) -> None:
        self.call, self.outputs = PREPARE[system](model, library, threads)

    def __call__(self, job: str) -> Any:
        """Run a job: `outputs`, or `time` for the median seconds of a window."""
        if job == "outputs":
            return self.outputs()
        end = time.perf_counter() + WAKE_S
        while time.perf_counter() < end:
            self.call()
        samples = []
        end = time.perf_counter() + WINDOW_S
        while time.perf_counter() < end or len(samples) < 3:
            start = time.perf_counter()
            self.call()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)


Prepared = tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]


def _torch_model(model: str, threads: int) -> tuple[Any, Sequence[Any]]:
    import torch

    from tunesmith.testing.torch_models import get

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return get(model, size="full")


def _arrays(results: Any) -> list[np.ndarray]:
    return [np.asarray(r) for r in (results if isinstance(results, (tuple, list)) else (results,))]


def _torch(model: str, library: str, threads: int) -> Prepared:
    module, inputs = _torch_model(model, threads)
    return lambda: module(*inputs), lambda: _arrays(module(*inputs))


def _channels_last(model: str, library: str, threads: int) -> Prepared:
    import torch

    module, inputs = _torch_model(model, threads)
    module = module.to(memory_format=torch.channels_last)
    inputs = [x.to(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs]
    return lambda: module(*inputs), lambda: _arrays(module(*inputs))


def _torch_compile(model: str, library: str, threads: int) -> Prepared:
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    module, inputs = _torch_model(model, threads)
    module = torch.compile(module)
    for _ in range(3):
        module(*inputs)
    return lambda: module(*inputs), lambda: _arrays(module(*inputs))


def _onnxruntime(model: str, library: str, threads: int) -> Prepared:
    import onnxruntime
    import torch

    module, inputs = _torch_model(model, threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(module, tuple(inputs), path, dynamo=True, external_data=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed), lambda: _arrays(session.run(None, feed))


def _ours(model: str, library: str, threads: int) -> Prepared:
    from tunesmith.runtime.module import load_module

    _, inputs = _torch_model(model, threads)
    executor: Any = load_module(library)
    for i, x in enumerate(inputs):
        executor.set_input(i, x.numpy())
    return executor.run, lambda: _arrays(executor(*[x.numpy() for x in inputs]))


PREPARE: dict[str, Callable[[str, str, int], Prepared]] = {
    "ours": _ours,
    "torch": _torch,
    "torch_channels_last": _channels_last,
    "torch_compile": _torch_compile,
    "onnxruntime": _onnxruntime,
}
