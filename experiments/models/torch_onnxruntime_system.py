"""Prepare models with onnxruntime, from the ONNX file that torch exports."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from tunesmith.experiments.models.model_call import ModelCall


def exported(model: Any, inputs: Sequence[Any], threads: int, own: object) -> ModelCall:
    """A session of the CPU provider."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(model, tuple(inputs), path, dynamo=True, external_data=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}

    def run() -> Any:
        return session.run(None, feed)

    return ModelCall(run, run)
