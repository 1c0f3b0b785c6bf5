"""Define layer normalisation of rows (Ba, Kiros and Hinton, 2016)."""

from __future__ import annotations

import numpy as np

from tunesmith.ops import tensor_expression as te
from tunesmith.ops.moments import deviations, sets_along, standardised
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, RealParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta along the last axis.

    The stages are those of `moments.deviations`, and Y.

    Raises:
        ScriptError: gamma or beta is not a vector along the last axis.
    """
    if not x.shape or gamma.shape != x.shape[-1:] or beta.shape != x.shape[-1:]:
        raise ScriptError(f"layer_norm: {gamma!r} and {beta!r} must be vectors along the last axis of {x!r}")
    mean, scale = deviations(x, sets_along(x, [len(x.shape) - 1]), eps)
    return te.compute(x.shape, lambda *i: (x[i] - mean[i[:-1]]) * scale[i[:-1]] * gamma[i[-1]] + beta[i[-1]], "Y")


def _tensors(*, m: int, n: int, eps: float, dtype: str) -> list[Tensor]:
    x = te.placeholder((m, n), dtype, "X")
    gamma, beta = te.placeholder((n,), dtype, "gamma"), te.placeholder((n,), dtype, "beta")
    return [x, gamma, beta, layer_norm(x, gamma, beta, eps)]


def _reference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, /, *, eps: float, **_: object) -> list[np.ndarray]:
    return [(standardised(x.astype(np.float64), (-1,), eps) * gamma + beta).astype(x.dtype)]


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
