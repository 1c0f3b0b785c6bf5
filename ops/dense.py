"""Define a fully connected layer: a matrix product with a constant right factor, a bias and an activation."""

from __future__ import annotations

import numpy as np

from tunesmith.ops import tensor_expression as te
from tunesmith.ops.epilogue import ACTIVATIONS, activate, bias_add
from tunesmith.ops.matmul import matmul
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, WordParameter, flag
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.ops.unary import UNARY


def _tensors(*, m: int, n: int, k: int, bias: int, activation: str, dtype: str) -> list[Tensor]:
    inputs = [te.placeholder((m, k), dtype, "A"), te.placeholder((k, n), dtype, "W")]
    out = matmul(inputs[0], inputs[1])
    if bias:
        inputs.append(te.placeholder((n,), dtype, "bias"))
        out = bias_add(out, inputs[-1])
    return [*inputs, activate(out, activation)]


def _reference(a: np.ndarray, w: np.ndarray, /, *more: np.ndarray, bias: int, activation: str, **_: object) -> list[np.ndarray]:
    out = a.astype(np.float64) @ w.astype(np.float64)
    if bias:
        out += more[0]
    if activation != "none":
        out = UNARY[activation][1](out)
    return [out.astype(a.dtype)]


def _flops(*, m: int, n: int, k: int, **_: object) -> int:
    return 2 * m * n * k


DENSE = Operator(
    "dense",
    (IntParameter("m"), IntParameter("n"), IntParameter("k"), flag("bias", 1), WordParameter("activation", "none", ACTIVATIONS), FLOATS),
    _tensors,
    _reference,
    _flops,
    constants=("W", "bias"),
)
