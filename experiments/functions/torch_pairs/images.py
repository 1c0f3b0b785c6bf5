"""Define image filters, bilinear resize and a transposition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions.formulas import clamped
from tunesmith.experiments.functions.function import Shapes, function
from tunesmith.ops.tensor_expression import Tensor


@function(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), small=(1, 2, 5, 6))
def bilinear_resize(n: int = 1, c: int = 16, h: int = 77, w: int = 80) -> Sequence[Tensor]:
    x = te.placeholder((n, c, h, w), name="x")

    def neighbours(i, extent: int):
        """The nearer and the other source index of a result index."""
        return i // 2, clamped(i // 2 + (i % 2) * 2 - 1, extent)

    def element(b, d, i, j):
        (near, far), (left, right) = neighbours(i, h), neighbours(j, w)
        rows = [x[b, d, r, left] * 0.75 + x[b, d, r, right] * 0.25 for r in (near, far)]
        return rows[0] * 0.75 + rows[1] * 0.25

    return [x, te.compute((n, c, 2 * h, 2 * w), element, "Y")]


@function(lambda x: F.avg_pool2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), 5, stride=1), small=(2, 5, 6))
def box_filter(c: int = 8, h: int = 160, w: int = 135) -> Sequence[Tensor]:
    x, kh, kw = te.placeholder((c, h, w), name="x"), te.reduce_axis(5, "kh"), te.reduce_axis(5, "kw")

    def reflected(i, extent: int):
        """The distance from the border: 2, 1, 0, 1, 2, ..., extent - 1, extent - 2, extent - 3."""
        inward = te.maximum(i - 2, 2 - i)
        return te.minimum(inward, 2 * (extent - 1) - inward)

    p = te.compute((c, h + 4, w + 4), lambda d, i, j: x[d, reflected(i, h), reflected(j, w)], "P")
    across = te.compute((c, h + 4, w), lambda d, i, j: te.sum(p[d, i, j + kw], axis=kw), "A")
    down = te.compute((c, h, w), lambda d, i, j: te.sum(across[d, i + kh, j], axis=kh), "D")
    return [x, te.compute((c, h, w), lambda d, i, j: down[d, i, j] / 25.0, "Y")]


def _unsharp(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    channels, taps = x.shape[1], k[None, None]
    blurred = F.conv2d(F.pad(x, (0, 0, 2, 2), mode="replicate"), taps[..., None].expand(channels, 1, 5, 1), groups=channels)
    blurred = F.conv2d(F.pad(blurred, (2, 2, 0, 0), mode="replicate"), taps[:, :, None].expand(channels, 1, 1, 5), groups=channels)
    return torch.clamp(2 * x - blurred, 0, 1)


def _picture_and_taps(rng: np.random.Generator, shapes: Shapes) -> list[np.ndarray]:
    return [rng.random(shapes[0]), np.array([1, 4, 6, 4, 1]) / 16]


@function(_unsharp, small=(1, 2, 6, 7), inputs=_picture_and_taps)
def unsharp_mask(n: int = 1, c: int = 3, h: int = 200, w: int = 256) -> Sequence[Tensor]:
    x, k = te.placeholder((n, c, h, w), name="x"), te.placeholder((5,), name="k")
    r, s = te.reduce_axis(5, "r"), te.reduce_axis(5, "s")
    down = te.compute(x.shape, lambda b, d, i, j: te.sum(k[r] * x[b, d, clamped(i + r - 2, h), j], axis=r), "D")
    blurred = te.compute(x.shape, lambda b, d, i, j: te.sum(k[s] * down[b, d, i, clamped(j + s - 2, w)], axis=s), "B")
    return [x, k, te.compute(x.shape, lambda *i: te.minimum(te.maximum(x[i] * 2.0 - blurred[i], 0.0), 1.0), "Y")]


@function(lambda x: x.permute(2, 1, 0).contiguous(), small=(3, 4, 5))
def transpose_210(a: int = 64, b: int = 100, c: int = 96) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, te.compute((c, b, a), lambda i, j, k: x[k, j, i], "Y")]
