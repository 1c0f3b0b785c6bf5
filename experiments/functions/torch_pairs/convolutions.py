"""Define convolutions: capsule, depthwise in one dimension, transposed, in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions.function import function
from tunesmith.ir.expr import equal
from tunesmith.ops.tensor_expression import Tensor

CAPSULE = 4


def _inside(*indices_and_extents):
    return te.all(*[c for x, extent in indices_and_extents for c in (x >= 0, x < extent)])


def _capsule(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As a convolution: rows of the capsule join the batch, its other axis the channels."""
    n, h, v, rows, inner, ci = x.shape
    kernel = w.permute(3, 5, 2, 4, 0, 1).reshape(-1, inner * ci, 3, 3)
    y = F.conv2d(x.permute(0, 3, 4, 5, 1, 2).reshape(n * rows, inner * ci, h, v), kernel, stride=2, padding=1)
    return y.reshape(n, rows, w.shape[3], -1, *y.shape[2:]).permute(0, 4, 5, 1, 2, 3).contiguous()


@function(_capsule, small=(1, 5, 2, 3))
def capsule_convolution(n: int = 1, size: int = 16, ci: int = 32, co: int = 32) -> Sequence[Tensor]:
    x = te.placeholder((n, size, size, CAPSULE, CAPSULE, ci), name="x")
    w = te.placeholder((3, 3, CAPSULE, CAPSULE, ci, co), name="w")
    rh, rw, k, c = te.reduce_axis(3, "rh"), te.reduce_axis(3, "rw"), te.reduce_axis(CAPSULE, "k"), te.reduce_axis(ci, "c")
    out = (size - 1) // 2 + 1

    def padded(b, h, v, i, j, d):
        inside = _inside((h - 1, size), (v - 1, size))
        return te.select(inside, x[b, h - 1, v - 1, i, j, d], 0.0)

    p = te.compute((n, size + 2, size + 2, CAPSULE, CAPSULE, ci), padded, "P")

    def element(b, h, v, i, j, o):
        return te.sum(p[b, h * 2 + rh, v * 2 + rw, i, k, c] * w[rh, rw, k, j, c, o], axis=[rh, rw, k, c])

    return [x, w, te.compute((n, out, out, CAPSULE, CAPSULE, co), element, "Y")]


@function(lambda x, w, b: F.conv1d(x, w, b, padding=3, groups=x.shape[1]), small=(2, 3, 11))
def depthwise_conv_1d(n: int = 4, c: int = 256, length: int = 500) -> Sequence[Tensor]:
    x, w, b = te.placeholder((n, c, length), name="x"), te.placeholder((c, 1, 7), name="w"), te.placeholder((c,), name="b")
    k = te.reduce_axis(7, "k")
    p = te.compute((n, c, length + 6), lambda i, j, t: te.select(_inside((t - 3, length)), x[i, j, t - 3], 0.0), "P")
    s = te.compute(x.shape, lambda i, j, t: te.sum(p[i, j, t + k] * w[j, 0, k], axis=k), "S")
    return [x, w, b, te.compute(x.shape, lambda i, j, t: s[i, j, t] + b[j], "Y")]


@function(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), small=(1, 3, 2, 5))
def transposed_conv_2d(n: int = 1, ci: int = 64, co: int = 32, size: int = 28) -> Sequence[Tensor]:
    x, w = te.placeholder((n, ci, size, size), name="x"), te.placeholder((ci, co, 4, 4), name="w")
    c, kh, kw = te.reduce_axis(ci, "c"), te.reduce_axis(4, "kh"), te.reduce_axis(4, "kw")

    def element(b, o, i, j):
        # One more than the padding and the kernel keeps the numerators positive.
        u, v = i + 5 - kh, j + 5 - kw
        at, to = u // 2 - 2, v // 2 - 2
        inside = te.all(equal(u % 2, 0), equal(v % 2, 0), _inside((at, size), (to, size)))
        return te.sum(te.select(inside, x[b, c, at, to], 0.0) * w[c, o, kh, kw], axis=[c, kh, kw])

    return [x, w, te.compute((n, co, 2 * size, 2 * size), element, "Y")]


@function(lambda x, w, b: torch.relu(F.conv3d(x, w, b, padding=1)), small=(1, 2, 3, 4, 5))
def conv_3d_relu(n: int = 1, ci: int = 16, co: int = 16, depth: int = 8, size: int = 20) -> Sequence[Tensor]:
    x = te.placeholder((n, ci, depth, size, size), name="x")
    w, bias = te.placeholder((co, ci, 3, 3, 3), name="w"), te.placeholder((co,), name="b")
    c, kd, kh, kw = te.reduce_axis(ci, "c"), te.reduce_axis(3, "kd"), te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")

    def padded(b, d, t, i, j):
        inside = _inside((t - 1, depth), (i - 1, size), (j - 1, size))
        return te.select(inside, x[b, d, t - 1, i - 1, j - 1], 0.0)

    p = te.compute((n, ci, depth + 2, size + 2, size + 2), padded, "P")

    def element(b, o, t, i, j):
        return te.sum(p[b, c, t + kd, i + kh, j + kw] * w[o, c, kd, kh, kw], axis=[c, kd, kh, kw])

    s = te.compute((n, co, depth, size, size), element, "S")
    return [x, w, bias, te.compute(s.shape, lambda b, o, t, i, j: te.maximum(s[b, o, t, i, j] + bias[o], 0.0), "Y")]
