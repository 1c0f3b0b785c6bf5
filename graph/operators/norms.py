"""Define normalisation operators: softmax, and normalisation by mean and variance of rows, groups and channels.

Formulas and numpy references are those of `ops/`, so that records of workloads apply to graphs; here all operands must have one floating
point type, and both scales are optional.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import BROADCAST, FUSABLE, GraphOperator
from tunesmith.graph.operators.axes import axes_of, axis_of
from tunesmith.ir.expr import Expr, call, const
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.group_norm import check_channels, group_norm, group_norm_reference, instance_norm, instance_norm_reference
from tunesmith.ops.layer_norm import layer_norm, layer_norm_reference, rms_norm, rms_norm_reference
from tunesmith.ops.moments import affine, spread
from tunesmith.ops.softmax import log_softmax as plain_log_softmax
from tunesmith.ops.softmax import log_softmax_reference, softmax_reference
from tunesmith.ops.softmax import softmax as plain_softmax
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support import dtype as dt
from tunesmith.support.errors import ScriptError


def _floats(x: Tensor, *others: Tensor | None) -> None:
    for t in (x, *others):
        if t is not None and (not dt.is_float(t.dtype) or t.dtype != x.dtype):
            raise ScriptError(f"all operands must have one floating point type, got {t.dtype}")


# ---- softmax -----------------------------------------------------------------------------------------------------------


def _softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    _floats(x)
    return plain_softmax(x, axis_of(axis, len(x.shape)))


SOFTMAX = GraphOperator("softmax", FUSABLE, _softmax, softmax_reference, wide=True, meaning="exp(x) divided by its sum along an axis.")


def _log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    _floats(x)
    return plain_log_softmax(x, axis_of(axis, len(x.shape)))


LOG_SOFTMAX = GraphOperator(
    "log_softmax", FUSABLE, _log_softmax, log_softmax_reference, wide=True, meaning="The logarithm of softmax, computed without overflow."
)


# ---- means and variances -----------------------------------------------------------------------------------------------


def _layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, axes: Sequence[int] = (-1,), eps: float = 1e-5
) -> Tensor:
    _floats(x, gamma, beta)
    return layer_norm(x, gamma, beta, eps, axes_of(axes, len(x.shape)))


def _layer_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *, axes: Sequence[int] = (-1,), eps: float = 1e-5
) -> np.ndarray:
    return layer_norm_reference(x, gamma, beta, eps, axes)


LAYER_NORM = GraphOperator(
    "layer_norm",
    FUSABLE,
    _layer_norm,
    _layer_norm_reference,
    wide=True,
    meaning="(x - mean) / sqrt(variance + eps) * gamma + beta over `axes`; gamma and beta have the extents of `axes`, in the order of x.",
)


def _rms_norm(x: Tensor, gamma: Tensor | None = None, *, axes: Sequence[int] = (-1,), eps: float) -> Tensor:
    _floats(x, gamma)
    return rms_norm(x, gamma, eps, axes_of(axes, len(x.shape)))


def _rms_norm_reference(x: np.ndarray, gamma: np.ndarray | None = None, *, axes: Sequence[int] = (-1,), eps: float) -> np.ndarray:
    return rms_norm_reference(x, gamma, eps, axes)


RMS_NORM = GraphOperator(
    "rms_norm",
    FUSABLE,
    _rms_norm,
    _rms_norm_reference,
    wide=True,
    meaning="x / sqrt(mean of squares + eps) * gamma over `axes` (Zhang and Sennrich, 2019).",
)


def _group_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, groups: int, eps: float, layout: str = "NCHW"
) -> Tensor:
    _floats(x, gamma, beta)
    return group_norm(x, gamma, beta, groups, eps, layout)


def _group_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *, groups: int, eps: float, layout: str = "NCHW"
) -> np.ndarray:
    return group_norm_reference(x, gamma, beta, groups, eps, layout)


GROUP_NORM = GraphOperator(
    "group_norm",
    FUSABLE,
    _group_norm,
    _group_norm_reference,
    wide=True,
    meaning="Normalise over groups of channels and all positions (Wu and He, 2018); gamma and beta have one element per channel.",
)


def _instance_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, eps: float) -> Tensor:
    _floats(x, gamma, beta)
    return instance_norm(x, gamma, beta, eps, "NCHW")


def _instance_norm_reference(x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *, eps: float) -> np.ndarray:
    return instance_norm_reference(x, gamma, beta, eps, "NCHW")


INSTANCE_NORM = GraphOperator(
    "instance_norm",
    FUSABLE,
    _instance_norm,
    _instance_norm_reference,
    wide=True,
    meaning="Normalise each channel of each image separately (Ulyanov, Vedaldi and Lempitsky, 2016).",
)


def _batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, *, eps: float, axis: int = 1) -> Tensor:
    a = axis_of(axis, len(x.shape))
    _floats(x, gamma, beta, mean, var)
    check_channels(x, a, gamma, beta, mean, var)

    def element(*i: Poly) -> Expr:
        c = i[a]
        return (x[i] - mean[c]) * (gamma[c] * call("rsqrt", var[c] + const(eps, x.dtype))) + beta[c]

    return te.compute(x.shape, element, "batch_norm")


def _batch_norm_reference(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, var: np.ndarray, *, eps: float, axis: int = 1
) -> np.ndarray:
    wide = [spread(t.astype(np.float64), x.ndim, (axis,)) for t in (mean, var)]
    return affine((x - wide[0]) / np.sqrt(wide[1] + eps), gamma, beta, (axis,), x.dtype)


BATCH_NORM = GraphOperator(
    "batch_norm",
    BROADCAST,
    _batch_norm,
    _batch_norm_reference,
    wide=True,
    meaning="Normalise by the given statistics of each channel (Ioffe and Szegedy, 2015), as in inference.",
)
