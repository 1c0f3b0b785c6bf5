"""Define a fully connected layer: a matrix product with a constant right factor, a bias and an activation."""

from __future__ import annotations

import numpy as np

from tunesmith.ops import tensor_expression as te
from tunesmith.ops.contraction_types import CONTRACTION_TYPES, in_type, rounded, settle_types, types_of
from tunesmith.ops.epilogue import ACTIVATIONS, activate, bias_add, check_activation
from tunesmith.ops.matmul import matmul
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import IntParameter, Value, WordParameter, flag
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.ops.unary import UNARY


def _tensors(*, m: int, n: int, k: int, bias: int, activation: str, **types: str) -> list[Tensor]:
    t = types_of(**types)
    inputs = [te.placeholder((m, k), t.lhs, "A"), te.placeholder((k, n), t.rhs, "W")]
    out = matmul(inputs[0], inputs[1], out_dtype=t.sums)
    if bias:
        inputs.append(te.placeholder((n,), t.sums, "bias"))
        out = bias_add(out, inputs[-1])
    return [*inputs, rounded(activate(out, activation), t.out)]


def _reference(
    a: np.ndarray, w: np.ndarray, /, *more: np.ndarray, bias: int, activation: str, dtype: str, rhs_dtype: str, out_dtype: str, **_: object
) -> list[np.ndarray]:
    out = a.astype(np.float64) @ w.astype(np.float64)
    if bias:
        out += more[0]
    if activation != "none":
        out = UNARY[activation][1](out)
    return [in_type(out, types_of(dtype, rhs_dtype, out_dtype).out)]


def _settled(p: dict[str, Value]) -> dict[str, Value]:
    checked = settle_types(p)
    check_activation(str(p["activation"]), str(p["dtype"]))
    return checked


def _flops(*, m: int, n: int, k: int, **_: object) -> int:
    return 2 * m * n * k


DENSE = Operator(
    "dense",
    (
        IntParameter("m"),
        IntParameter("n"),
        IntParameter("k"),
        flag("bias", 1),
        WordParameter("activation", "none", ACTIVATIONS),
        *CONTRACTION_TYPES,
    ),
    _tensors,
    _reference,
    _flops,
    constants=("W", "bias"),
    settle=_settled,
)
