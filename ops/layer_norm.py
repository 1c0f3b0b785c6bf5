"""Define layer normalisation of rows (Ba, Kiros and Hinton, 2016), with mean and variance in two passes against cancellation."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import call, const
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, RealParameter
from tunesmith.ops.reduction import divide_by_count, number, reduce
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta along the last axis.

    Stages: S, the sum of a row; M, its mean; V, the sum of squared differences; R, the reciprocal of the deviation; Y.
    M and R are separate stages, so that each row needs one division and one square root.

    Raises:
        ScriptError: gamma or beta is not a vector along the last axis.
    """
    if not x.shape or gamma.shape != x.shape[-1:] or beta.shape != x.shape[-1:]:
        raise ScriptError(f"layer_norm: {gamma!r} and {beta!r} must be vectors along the last axis of {x!r}")
    rank, n = len(x.shape), x.shape[-1]
    mean = divide_by_count(reduce("sum", x, (rank - 1,), "S"), n, "M")
    rows = [v.name for v in mean.axes]
    r = te.reduce_axis(n, "ijkl"[rank - 1] if rank <= 4 else f"i{rank - 1}")
    spread = te.compute(x.shape[:-1], lambda *i: te.sum((x[(*i, r)] - mean[i]) * (x[(*i, r)] - mean[i]), axis=r), "V", axes=rows)
    scale = te.compute(x.shape[:-1], lambda *i: call("rsqrt", spread[i] / number(n, x.dtype) + const(eps, x.dtype)), "R", axes=rows)
    return te.compute(x.shape, lambda *i: (x[i] - mean[i[:-1]]) * scale[i[:-1]] * gamma[i[-1]] + beta[i[-1]], "Y")


def _tensors(*, m: int, n: int, eps: float, dtype: str) -> list[Tensor]:
    x = te.placeholder((m, n), dtype, "X")
    gamma, beta = te.placeholder((n,), dtype, "gamma"), te.placeholder((n,), dtype, "beta")
    return [x, gamma, beta, layer_norm(x, gamma, beta, eps)]


def _reference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, /, *, eps: float, **_: object) -> list[np.ndarray]:
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(axis=-1, keepdims=True)) / np.sqrt(wide.var(axis=-1, keepdims=True) + eps)
    return [(normal * gamma + beta).astype(x.dtype)]


def _flops(*, m: int, n: int, **_: object) -> int:
    """Operations per element: sum; difference, square, sum; difference, two products, sum."""
    return 8 * m * n


LAYER_NORM = Operator(
    "layer_norm",
    (IntParameter("m"), IntParameter("n"), RealParameter("eps", 1e-5), FLOATS),
    _tensors,
    _reference,
    _flops,
    constants=("gamma", "beta"),
)
