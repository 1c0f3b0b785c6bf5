"""Name the files of a model that systems are prepared from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a model.

    Attributes:
        exported: our exported model.
        precision: its precision.
        qdq: the quantised ONNX file; empty without one.
        quantized: the exported model that `tunesmith.quantize` made; empty without one.
    """

    exported: str
    precision: str
    qdq: str = ""
    quantized: str = ""
