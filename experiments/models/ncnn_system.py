"""Prepare models with ncnn in float32, converted from torch by pnnx; models with a batch of one."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
import pnnx

from tunesmith.measure.baselines.model_call import ModelCall
from tunesmith.measure.baselines.ncnn import configure
from tunesmith.support.errors import RunError


def converted(model: Any, inputs: Sequence[Any], threads: int, files: object) -> ModelCall:
    """The net, whose inputs are bound once.

    Raises:
        RunError: pnnx cannot convert the model, or ncnn lacks one of its layers.
    """
    net = ncnn.Net()
    configure(net, threads)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        pnnx.export(model, str(Path(folder, "model.pt")), tuple(inputs), fp16=False)
        files = [Path(folder, f"model.ncnn.{kind}") for kind in ("param", "bin")]
        if not all(file.exists() for file in files):
            raise RunError("pnnx does not convert the model to ncnn")
        if net.load_param(str(files[0])) != 0 or net.load_model(str(files[1])) != 0:
            raise RunError("ncnn does not load the model that pnnx converted: it lacks a layer, or a form of one")
    samples = [_sample(x.numpy()) for x in inputs]  # a Mat refers to its array until it is cloned
    mats = [ncnn.Mat(sample).clone() for sample in samples]
    names = net.output_names()

    def run() -> list[Any]:
        extractor = net.create_extractor()
        for i, mat in enumerate(mats):
            extractor.input(f"in{i}", mat)
        found = [extractor.extract(name) for name in names]
        if any(status != 0 for status, _ in found):
            raise RunError(f"ncnn does not run the model: extract returned {[status for status, _ in found]} for {', '.join(names)}")
        return [mat for _, mat in found]

    return ModelCall(run, run)


def _sample(x: np.ndarray) -> np.ndarray:
    """The input without a batch axis of extent 1; ncnn has indices of 32 bits."""
    return (x[0] if x.ndim > 1 and x.shape[0] == 1 else x).astype(np.float32 if x.dtype.kind == "f" else np.int32)
