"""Quantise torch models with onnxruntime: ONNX files with QuantizeLinear and DequantizeLinear (QDQ), and their results in float32.

Weights are int8 with a scale for each output channel, activations uint8 with the least and largest element of calibration inputs as their
range.  onnxruntime chooses the operators, but in models with attention only matrix products and convolutions are quantised: with norms and
additions (masks of -1e9) in bytes too, the error of ViT-B/16 of few layers is half of the largest result.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tunesmith.experiments.models.torch_onnx_export import export_onnx
from tunesmith.measure.baselines.model_call import arrays
from tunesmith.support.errors import RunError
from tunesmith.testing.torch_models import example_inputs, get

BATCHES = 8
"""Number of calibration inputs."""
CONTRACTIONS = ["Conv", "Gemm", "MatMul"]
"""Operators that are quantised in models with attention."""
_SOURCE = "source"
"""Key of the file's metadata with the digest of what it was made from."""


def calibration_batches(name: str, size: str) -> list[list[np.ndarray]]:
    """Seeded random inputs like those of the model, other than its example inputs."""
    return [[x.numpy() for x in example_inputs(name, size, seed)] for seed in range(1, BATCHES + 1)]


def qdq_file(name: str, size: str, folder: Path) -> Path:
    """The QDQ file of a model, made if the folder lacks one of the same weights and calibration inputs.

    Raises:
        RunError: torch cannot export the model, or onnxruntime cannot quantise it.
    """
    model, inputs = get(name, size=size)
    batches = calibration_batches(name, size)
    source = _digest([*[w.numpy() for w in model.state_dict().values()], *[x for batch in batches for x in batch]])
    path = folder / f"{name}_{size}_qdq.onnx"
    if path.exists() and _source(path) == source:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:  # beside the file, so that it can be moved
        floats, quantized = Path(made, "float32.onnx"), Path(made, "qdq.onnx")
        try:
            export_onnx(model, inputs, floats)
        except Exception as error:
            raise RunError(f"torch does not export {name} to ONNX: {_first_line(error)}") from error
        try:
            _quantize(floats, quantized, batches)
        except Exception as error:
            raise RunError(f"onnxruntime does not quantise {name}: {_first_line(error)}") from error
        proto = onnx.load(quantized)
        onnx.helper.set_model_props(proto, {_SOURCE: source})
        onnx.save(proto, quantized)
        os.replace(quantized, path)
    return path


def qdq_outputs(path: Path, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The results of a QDQ file operator by operator: bytes are dequantised, everything else is computed in float32."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return arrays(session.run(None, {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}))


class _Batches(CalibrationDataReader):
    """The calibration inputs by the names of the inputs of a file."""

    def __init__(self, path: Path, batches: Sequence[Sequence[np.ndarray]]) -> None:
        names = [i.name for i in onnx.load(path).graph.input]
        self.feeds = iter([dict(zip(names, batch, strict=True)) for batch in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next inputs; None at the end."""
        return next(self.feeds, None)


def _quantize(floats: Path, quantized: Path, batches: Sequence[Sequence[np.ndarray]]) -> None:
    """Fold batch norms and constants, then quantise."""
    prepared = floats.with_name("prepared.onnx")
    quant_pre_process(floats, prepared, skip_symbolic_shape=True)  # all shapes are static
    operators = {node.op_type for node in onnx.load(prepared).graph.node}
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.ERROR)  # it warns of biases that it does not need
    try:
        quantize_static(
            prepared,
            quantized,
            _Batches(prepared, batches),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=CONTRACTIONS if "Softmax" in operators else None,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.getLogger().setLevel(level)


def _source(path: Path) -> str:
    """The digest in the metadata of a file; empty if it has none."""
    return next((p.value for p in onnx.load(path).metadata_props if p.key == _SOURCE), "")


def _digest(parts: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256(onnxruntime.__version__.encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part))
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
