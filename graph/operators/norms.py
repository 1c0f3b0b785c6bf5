"""Define normalisation operators: softmax, and normalisation by mean and variance of rows, groups and channels.

Softmax is that of `ops/`, and all means and variances are stages of `ops.moments`.  `ops.layer_norm` is for rows with gamma and beta; here
any axes are normalised, and both scales are optional.  Rows give the program of the workload.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.graph.ir.operator import BROADCAST, FUSABLE, GraphOperator
from tunesmith.graph.operators.axes import axes_of, axis_of
from tunesmith.ir.expr import Expr, call, const
from tunesmith.ir.poly import Poly, mod
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.moments import Sets, deviations, reciprocal_root, sets_along, standardised
from tunesmith.ops.softmax import exponentials, softmax_reference, without
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
    a = axis_of(axis, len(x.shape))
    top, _powers, total = exponentials(x, a)
    log = te.compute(total.shape, lambda *i: call("log", total[i]), "L", axes=[v.name for v in total.axes])
    return te.compute(x.shape, lambda *i: x[i] - top[without(i, a)] - log[without(i, a)], "Y")


def _log_softmax_reference(x: np.ndarray, *, axis: int = -1) -> np.ndarray:
    wide = x.astype(np.float64)
    low = wide - wide.max(axis, keepdims=True)
    return (low - np.log(np.exp(low).sum(axis, keepdims=True))).astype(x.dtype)


LOG_SOFTMAX = GraphOperator(
    "log_softmax", FUSABLE, _log_softmax, _log_softmax_reference, wide=True, meaning="The logarithm of softmax, computed without overflow."
)


# ---- means and variances -----------------------------------------------------------------------------------------------


def _scaled(value: Expr, at: Sequence[Poly], gamma: Tensor | None, beta: Tensor | None) -> Expr:
    if gamma is not None:
        value = value * gamma[tuple(at)]
    return value if beta is None else value + beta[tuple(at)]


def _along(x: Tensor, axes: Sequence[int], *scales: Tensor | None) -> tuple[list[int], list[int], Sets]:
    """Positions of the axes that are normalised, and of the others, and the sets of elements along the former."""
    _floats(x, *scales)
    normed = sorted(axes_of(axes, len(x.shape)))
    for scale in scales:
        if scale is not None and scale.shape != tuple([x.shape[d] for d in normed]):
            raise ScriptError(f"{scale!r} must have the extents of the axes {normed} of {x!r}")
    return normed, [d for d in range(len(x.shape)) if d not in normed], sets_along(x, normed)


def _layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, axes: Sequence[int] = (-1,), eps: float = 1e-5
) -> Tensor:
    normed, kept, sets = _along(x, axes, gamma, beta)
    mean, scale = deviations(x, sets, eps)

    def element(*i: Poly) -> Expr:
        row = tuple([i[d] for d in kept])
        return _scaled((x[i] - mean[row]) * scale[row], [i[d] for d in normed], gamma, beta)

    return te.compute(x.shape, element, "Y")


def _spread(scale: np.ndarray, rank: int, axes: Sequence[int]) -> np.ndarray:
    """A scale along some axes, in order, with extent 1 in the others."""
    return np.expand_dims(scale, [d for d in range(rank) if d not in {a % rank for a in axes}])


def _affine(normal: np.ndarray, gamma: np.ndarray | None, beta: np.ndarray | None, axes: Sequence[int], dtype: np.dtype) -> np.ndarray:
    if gamma is not None:
        normal = normal * _spread(gamma, normal.ndim, axes)
    return (normal if beta is None else normal + _spread(beta, normal.ndim, axes)).astype(dtype)


def _layer_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *, axes: Sequence[int] = (-1,), eps: float = 1e-5
) -> np.ndarray:
    return _affine(standardised(x.astype(np.float64), tuple(axes), eps), gamma, beta, axes, x.dtype)


LAYER_NORM = GraphOperator(
    "layer_norm",
    FUSABLE,
    _layer_norm,
    _layer_norm_reference,
    wide=True,
    meaning="(x - mean) / sqrt(variance + eps) * gamma + beta over `axes`; gamma and beta have the extents of `axes`, in the order of x.",
)


def _rms_norm(x: Tensor, gamma: Tensor | None = None, *, axes: Sequence[int] = (-1,), eps: float) -> Tensor:
    normed, kept, sets = _along(x, axes, gamma)
    scale = reciprocal_root(sets.sum(lambda e, _: x[e] * x[e], "S"), sets.count, eps)
    return te.compute(x.shape, lambda *i: _scaled(x[i] * scale[tuple([i[d] for d in kept])], [i[d] for d in normed], gamma, None), "Y")


def _rms_norm_reference(x: np.ndarray, gamma: np.ndarray | None = None, *, axes: Sequence[int] = (-1,), eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return _affine(wide / np.sqrt((wide * wide).mean(tuple(axes), keepdims=True) + eps), gamma, None, axes, x.dtype)


RMS_NORM = GraphOperator(
    "rms_norm",
    FUSABLE,
    _rms_norm,
    _rms_norm_reference,
    wide=True,
    meaning="x / sqrt(mean of squares + eps) * gamma over `axes` (Zhang and Sennrich, 2019).",
)


def _channels(x: Tensor, axis: int, *scales: Tensor | None) -> None:
    _floats(x, *scales)
    for scale in scales:
        if scale is not None and scale.shape != (x.shape[axis],):
            raise ScriptError(f"{scale!r} must be a vector along axis {axis} of {x!r}")


def _group_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, groups: int, eps: float, layout: str = "NCHW"
) -> Tensor:
    rank = len(x.shape)
    if layout not in ("NCHW", "NHWC") or rank < 2:
        raise ScriptError(f"layout {layout!r} must be NCHW or NHWC, and {x!r} must have batch and channel axes")
    c = 1 if layout == "NCHW" else rank - 1
    _channels(x, c, gamma, beta)
    if groups < 1 or mod(x.shape[c], groups) != 0:
        raise ScriptError(f"the {x.shape[c]} channels of {x!r} cannot be divided into {groups} groups")
    each, names = x.shape[c] // groups, te.default_loops(rank)
    reduced = {d: te.reduce_axis(each if d == c else x.shape[d], names[d]) for d in range(1, rank)}

    def at(i: Sequence[Poly]) -> tuple[Poly, ...]:
        return (i[0], *[i[1] * each + r if d == c else r for d, r in reduced.items()])

    groups_of = Sets((x.shape[0], x.shape[c] // each), (names[0], "g"), list(reduced.values()), at)
    mean, scale = deviations(x, groups_of, eps)

    def element(*i: Poly) -> Expr:
        group = (i[0], i[c] // each)
        return _scaled((x[i] - mean[group]) * scale[group], [i[c]], gamma, beta)

    return te.compute(x.shape, element, "Y")


def _group_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *, groups: int, eps: float, layout: str = "NCHW"
) -> np.ndarray:
    c = 1 if layout == "NCHW" else x.ndim - 1
    cut = x.astype(np.float64).reshape(*x.shape[:c], groups, x.shape[c] // groups, *x.shape[c + 1 :])
    normal = standardised(cut, tuple([d for d in range(1, cut.ndim) if d != c]), eps)
    return _affine(normal.reshape(x.shape), gamma, beta, (c,), x.dtype)


GROUP_NORM = GraphOperator(
    "group_norm",
    FUSABLE,
    _group_norm,
    _group_norm_reference,
    wide=True,
    meaning="Normalise over groups of channels and all positions (Wu and He, 2018); gamma and beta have one element per channel.",
)


def _instance_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, *, eps: float) -> Tensor:
    if len(x.shape) < 3:
        raise ScriptError(f"{x!r} must have at least 3 dimensions: batch, channels and positions")
    _channels(x, 1, gamma, beta)
    mean, scale = deviations(x, sets_along(x, range(2, len(x.shape))), eps)
    return te.compute(x.shape, lambda *i: _scaled((x[i] - mean[i[:2]]) * scale[i[:2]], [i[1]], gamma, beta), "Y")


def _instance_norm_reference(x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, *, eps: float) -> np.ndarray:
    return _affine(standardised(x.astype(np.float64), tuple(range(2, x.ndim)), eps), gamma, beta, (1,), x.dtype)


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
    _channels(x, a, gamma, beta, mean, var)

    def element(*i: Poly) -> Expr:
        c = i[a]
        return (x[i] - mean[c]) * (gamma[c] * call("rsqrt", var[c] + const(eps, x.dtype))) + beta[c]

    return te.compute(x.shape, element, "batch_norm")


def _batch_norm_reference(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, var: np.ndarray, *, eps: float, axis: int = 1
) -> np.ndarray:
    wide = [_spread(t.astype(np.float64), x.ndim, (axis,)) for t in (mean, var)]
    return _affine((x - wide[0]) / np.sqrt(wide[1] + eps), gamma, beta, (axis,), x.dtype)


BATCH_NORM = GraphOperator(
    "batch_norm",
    BROADCAST,
    _batch_norm,
    _batch_norm_reference,
    wide=True,
    meaning="Normalise by the given statistics of each channel (Ioffe and Szegedy, 2015), as in inference.",
)
