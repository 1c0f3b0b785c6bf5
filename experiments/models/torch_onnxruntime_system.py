"""Prepare models with onnxruntime: from the ONNX file that torch exports, and from a quantised one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.experiments.models.files import Files
from tunesmith.experiments.models.torch_onnx_export import export_onnx
from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.baselines.onnxruntime import session_call


def exported(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """The model in float32."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(model, inputs, path)
        return _session(path, inputs, threads, "f32")


def quantized(model: Any, inputs: Sequence[Any], threads: int, files: Files) -> ModelCall:
    """The QDQ file, whose contractions onnxruntime fuses into those of bytes; the rest is float32."""
    return _session(Path(files.qdq), inputs, threads, "int8")


def _session(path: Path, inputs: Sequence[Any], threads: int, precision: str) -> ModelCall:
    """A session of the CPU provider."""
    return session_call(str(path), [x.numpy() for x in inputs], threads, precision)
