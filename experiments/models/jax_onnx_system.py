"""Prepare models with XLA's CPU compiler: the ONNX file that torch exports, converted to JAX by jaxonnxruntime."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import onnx
from jaxonnxruntime import call_onnx

from tunesmith.experiments.models.files import Files
from tunesmith.experiments.models.torch_onnx_export import export_onnx
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.support.errors import RunError


def jitted(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """One jitted function of weights and inputs that are already on the device.

    XLA reads the number of threads when its client is created, so that it is exact only for the first model of a process.

    Raises:
        RunError: jaxonnxruntime lacks an operator of the model.
    """
    os.environ["NPROC"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(model, inputs, path)
        try:
            function, weights = call_onnx.call_onnx_model(onnx.load(path), [x.numpy() for x in inputs])
        except NotImplementedError as error:
            raise RunError(f"jaxonnxruntime does not convert the model: {error}") from None
    compiled, on_device = jax.jit(function), jax.device_put((weights, [x.numpy() for x in inputs]))

    def run() -> Any:
        return jax.block_until_ready(compiled(*on_device))

    return ModelCall(run, run)
