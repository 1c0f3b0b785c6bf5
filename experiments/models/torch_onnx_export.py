"""Write torch models with static shapes as ONNX files."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def export_onnx(model: Any, inputs: Sequence[Any], path: Path) -> None:
    """Export with `torch.export`, or from TorchScript if onnxscript, which the former needs, is not installed."""
    is_new = importlib.util.find_spec("onnxscript") is not None
    options = {"external_data": False, "verbose": False} if is_new else {"opset_version": 17}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, tuple(inputs), path, dynamo=is_new, **options)
