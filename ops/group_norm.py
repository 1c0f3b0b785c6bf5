"""Define normalisations of images: by groups of channels (Wu and He, 2018) and by channels (Ulyanov, Vedaldi and Lempitsky, 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly, mod
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.moments import Sets, affine, deviations, scaled, sets_along, standardised
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, RealParameter, ShapeParameter, Value, WordParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError, UserError

LAYOUTS = ("NHWC", "NCHW")
"""Channels last, and channels first, whatever the number of dimensions."""


def channel_axis(rank: int, layout: str) -> int:
    """The position of the channels."""
    return 1 if layout == "NCHW" else rank - 1


def check_channels(x: Tensor, axis: int, *scales: Tensor | None) -> None:
    """Raise ScriptError for a scale that is not a vector along the channels."""
    for scale in scales:
        if scale is not None and scale.shape != (x.shape[axis],):
            raise ScriptError(f"{scale!r} must be a vector along axis {axis} of {x!r}")


def group_norm(x: Tensor, gamma: Tensor | None, beta: Tensor | None, groups: int, eps: float, layout: str = "NHWC") -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta, with one mean for all positions of a group of channels of an image.

    The stages are those of `moments.deviations`, and Y.

    Raises:
        ScriptError: the layout is unknown, `x` has no channels, `groups` does not divide them, or a scale has another extent.
    """
    rank = len(x.shape)
    if layout not in LAYOUTS or rank < 2:
        raise ScriptError(f"layout {layout!r} must be NCHW or NHWC, and {x!r} must have batch and channel axes")
    c = channel_axis(rank, layout)
    check_channels(x, c, gamma, beta)
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
        return scaled((x[i] - mean[group]) * scale[group], [i[c]], gamma, beta)

    return te.compute(x.shape, element, "Y")


def group_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None, beta: np.ndarray | None, groups: int, eps: float, layout: str = "NHWC"
) -> np.ndarray:
    """Group normalisation in numpy, computed in float64 and rounded once."""
    c = channel_axis(x.ndim, layout)
    cut = x.astype(np.float64).reshape(*x.shape[:c], groups, x.shape[c] // groups, *x.shape[c + 1 :])
    normal = standardised(cut, tuple([d for d in range(1, cut.ndim) if d != c]), eps)
    return affine(normal.reshape(x.shape), gamma, beta, (c,), x.dtype)


def instance_norm(x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, layout: str = "NHWC") -> Tensor:
    """The same with one mean for the positions of each channel.

    Raises:
        ScriptError: `x` has no positions, or a scale has another extent.
    """
    rank = len(x.shape)
    if layout not in LAYOUTS or rank < 3:
        raise ScriptError(
            f"layout {layout!r} must be NCHW or NHWC, and {x!r} must have at least 3 dimensions: batch, channels and positions"
        )
    c = channel_axis(rank, layout)
    check_channels(x, c, gamma, beta)
    mean, scale = deviations(x, sets_along(x, [d for d in range(1, rank) if d != c]), eps)

    def element(*i: Poly) -> Expr:
        channel = (i[0], i[c])
        return scaled((x[i] - mean[channel]) * scale[channel], [i[c]], gamma, beta)

    return te.compute(x.shape, element, "Y")


def instance_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None, beta: np.ndarray | None, eps: float, layout: str = "NHWC"
) -> np.ndarray:
    """Instance normalisation in numpy, computed in float64 and rounded once."""
    c = channel_axis(x.ndim, layout)
    normal = standardised(x.astype(np.float64), tuple([d for d in range(1, x.ndim) if d != c]), eps)
    return affine(normal, gamma, beta, (c,), x.dtype)


def _checked(p: dict[str, Value]) -> dict[str, Value]:
    shape, layout, groups = p["shape"], p["layout"], p.get("groups", 1)
    assert isinstance(shape, tuple) and isinstance(layout, str) and isinstance(groups, int)
    if len(shape) < 3:
        raise UserError(f"parameter shape: {'x'.join(map(str, shape))} must have batch, channels and positions")
    channels = shape[channel_axis(len(shape), layout)]
    if channels % groups:
        raise UserError(f"groups={groups} must divide the {channels} channels")
    return p


def _tensors(*, shape: tuple[int, ...], eps: float, layout: str, dtype: str, groups: int | None = None) -> list[Tensor]:
    channels = shape[channel_axis(len(shape), layout)]
    x, gamma, beta = te.placeholder(shape, dtype, "X"), te.placeholder(channels, dtype, "gamma"), te.placeholder(channels, dtype, "beta")
    if groups is None:
        return [x, gamma, beta, instance_norm(x, gamma, beta, eps, layout)]
    return [x, gamma, beta, group_norm(x, gamma, beta, groups, eps, layout)]


def _reference(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, /, *, eps: float, layout: str, groups: int | None = None, **_: object
) -> list[np.ndarray]:
    if groups is None:
        return [instance_norm_reference(x, gamma, beta, eps, layout)]
    return [group_norm_reference(x, gamma, beta, groups, eps, layout)]


def _flops(*, shape: tuple[int, ...], **_: object) -> int:
    """Operations per element: those of a layer norm."""
    return 8 * math.prod(shape)


def _operator(name: str, *more: IntParameter) -> Operator:
    parameters = (ShapeParameter("shape"), *more, RealParameter("eps", 1e-5), WordParameter("layout", LAYOUTS[0], LAYOUTS), FLOATS)
    return Operator(name, parameters, _tensors, _reference, _flops, constants=("gamma", "beta"), settle=_checked)


GROUP_NORM, INSTANCE_NORM = _operator("group_norm", IntParameter("groups")), _operator("instance_norm")
