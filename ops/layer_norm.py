"""Define layer normalisation (Ba, Kiros and Hinton, 2016) and RMS normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.ir.expr import Expr
from tunesmith.ir.poly import Poly
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.moments import affine, deviations, reciprocal_root, scaled, sets_along, standardised
from tunesmith.ops.operator import Operator
from tunesmith.ops.parameter import FLOATS, IntParameter, RealParameter
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.support.errors import ScriptError


def layer_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, eps: float = 1e-5, axes: Sequence[int] = (-1,)
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over `axes`, by default the last.

    The stages are those of `moments.deviations`, and Y.

    Raises:
        ScriptError: the axes are not different axes of `x`, or gamma or beta does not have their extents, in the order of x.
    """
    normed, kept = _axes("layer_norm", x, axes, gamma, beta)
    mean, scale = deviations(x, sets_along(x, normed), eps)

    def element(*i: Poly) -> Expr:
        row = tuple([i[d] for d in kept])
        return scaled((x[i] - mean[row]) * scale[row], [i[d] for d in normed], gamma, beta)

    return te.compute(x.shape, element, "Y")


def rms_norm(x: Tensor, gamma: Tensor | None = None, eps: float = 1e-5, axes: Sequence[int] = (-1,)) -> Tensor:
    """x / sqrt(mean of squares + eps) * gamma over `axes`, in the stages S, the sums of squares, R and Y; see `layer_norm`."""
    normed, kept = _axes("rms_norm", x, axes, gamma)
    sets = sets_along(x, normed)
    scale = reciprocal_root(sets.sum(lambda e, _: x[e] * x[e], "S"), sets.count, eps)
    return te.compute(x.shape, lambda *i: scaled(x[i] * scale[tuple([i[d] for d in kept])], [i[d] for d in normed], gamma, None), "Y")


def _axes(name: str, x: Tensor, axes: Sequence[int], *scales: Tensor | None) -> tuple[list[int], list[int]]:
    """Positions of the axes that are normalised, and of the others."""
    rank = len(x.shape)
    normed = sorted({a % rank for a in axes if -rank <= a < rank})
    if not normed or len(normed) != len(axes):
        raise ScriptError(f"{name}: {tuple(axes)} are not different axes of {x!r}")
    for scale in scales:
        if scale is not None and scale.shape != tuple([x.shape[d] for d in normed]):
            raise ScriptError(f"{name}: {scale!r} must have the extents of the axes {normed} of {x!r}")
    return normed, [d for d in range(rank) if d not in normed]


def layer_norm_reference(
    x: np.ndarray, gamma: np.ndarray | None = None, beta: np.ndarray | None = None, eps: float = 1e-5, axes: Sequence[int] = (-1,)
) -> np.ndarray:
    """Layer normalisation in numpy, computed in float64 and rounded once."""
    return affine(standardised(x.astype(np.float64), tuple(axes), eps), gamma, beta, axes, x.dtype)


def rms_norm_reference(x: np.ndarray, gamma: np.ndarray | None = None, eps: float = 1e-5, axes: Sequence[int] = (-1,)) -> np.ndarray:
    """RMS normalisation in numpy, computed in float64 and rounded once."""
    wide = x.astype(np.float64)
    return affine(wide / np.sqrt((wide * wide).mean(tuple(axes), keepdims=True) + eps), gamma, None, axes, x.dtype)


def _layer_norm_tensors(*, m: int, n: int, eps: float, dtype: str) -> list[Tensor]:
    x = te.placeholder((m, n), dtype, "X")
    gamma, beta = te.placeholder((n,), dtype, "gamma"), te.placeholder((n,), dtype, "beta")
    return [x, gamma, beta, layer_norm(x, gamma, beta, eps)]


def _rms_norm_tensors(*, m: int, n: int, eps: float, dtype: str) -> list[Tensor]:
    x, gamma = te.placeholder((m, n), dtype, "X"), te.placeholder((n,), dtype, "gamma")
    return [x, gamma, rms_norm(x, gamma, eps)]


def _layer_norm_flops(*, m: int, n: int, **_: object) -> int:
    """Operations per element: sum; difference, square, sum; difference, two products, sum."""
    return 8 * m * n


def _rms_norm_flops(*, m: int, n: int, **_: object) -> int:
    """Operations per element: square, sum; two products."""
    return 4 * m * n


_PARAMETERS = (IntParameter("m"), IntParameter("n"), RealParameter("eps", 1e-5), FLOATS)

LAYER_NORM = Operator(
    "layer_norm",
    _PARAMETERS,
    _layer_norm_tensors,
    lambda x, gamma, beta, /, *, eps, **_: [layer_norm_reference(x, gamma, beta, eps)],
    _layer_norm_flops,
    constants=("gamma", "beta"),
)
RMS_NORM = Operator(
    "rms_norm",
    _PARAMETERS,
    _rms_norm_tensors,
    lambda x, gamma, /, *, eps, **_: [rms_norm_reference(x, gamma, eps)],
    _rms_norm_flops,
    constants=("gamma",),
)
