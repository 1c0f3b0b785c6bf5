"""Define the operator that copies a tensor to another device; `graph.passes.insert_transfers` inserts it."""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.operator import OPAQUE, GraphOperator
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor


def _transfer(x: Tensor, *, device: str) -> Tensor:
    return te.compute(x.shape, lambda *i: x[i], x.name)


def _reference(x: np.ndarray, *, device: str) -> np.ndarray:
    return x


TRANSFER = GraphOperator(
    "transfer",
    OPAQUE,
    _transfer,
    _reference,
    meaning="The tensor in memory of a device: `cpu` (host memory), `cuda` or `opencl`. The elements are equal.",
)
