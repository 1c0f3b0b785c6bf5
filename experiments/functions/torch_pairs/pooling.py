"""Define pooling over windows, and the indices of extrema."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions.formulas import over
from tunesmith.experiments.functions.function import function
from tunesmith.ir.expr import equal
from tunesmith.ir.poly import ceildiv, floordiv
from tunesmith.ops.tensor_expression import Tensor


@function(lambda x: torch.argmax(x, 1), small=(4, 5), tolerance=0.0)
def argmax_last(a: int = 1024, b: int = 1000) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    most = over(te.max, x.shape, [1], lambda i: x[i], "M")
    return [x, over(te.min, x.shape, [1], lambda i: te.select(equal(x[i], most[i[0]]), te.cast("int32", i[1]), b), "Y")]


@function(lambda x: torch.argmin(x, 0), small=(5, 4), tolerance=0.0)
def argmin_first(a: int = 1000, b: int = 512) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    least = over(te.min, x.shape, [0], lambda i: x[i], "M")
    return [x, over(te.min, x.shape, [0], lambda i: te.select(equal(x[i], least[i[1]]), te.cast("int32", i[0]), a), "Y")]


def _inside(h, w, height: int, width: int):
    return te.all(h >= 0, h < height, w >= 0, w < width)


@function(lambda x: F.max_pool2d(x, 3, 2, 1), small=(1, 3, 8, 9))
def max_pool_nchw(n: int = 1, c: int = 32, h: int = 112, w: int = 112) -> Sequence[Tensor]:
    x = te.placeholder((n, c, h, w), name="x")
    kh, kw = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")

    def window(b, d, i, j):
        y, z = i * 2 + kh - 1, j * 2 + kw - 1
        return te.max(te.select(_inside(y, z, h, w), x[b, d, y, z], -math.inf), axis=[kh, kw])

    return [x, te.compute((n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1), window, "Y")]


@function(lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1), small=(2, 8, 9, 3))
def max_pool_nhwc(n: int = 4, h: int = 56, w: int = 56, c: int = 64) -> Sequence[Tensor]:
    x = te.placeholder((n, h, w, c), name="x")
    kh, kw = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw")

    def window(b, i, j, d):
        y, z = i * 2 + kh - 1, j * 2 + kw - 1
        return te.max(te.select(_inside(y, z, h, w), x[b, y, z, d], -math.inf), axis=[kh, kw])

    return [x, te.compute((n, (h - 1) // 2 + 1, (w - 1) // 2 + 1, c), window, "Y")]


@function(lambda x: F.avg_pool1d(x, 5, 2), small=(2, 3, 14))
def avg_pool_1d(n: int = 8, c: int = 64, length: int = 999) -> Sequence[Tensor]:
    x, k = te.placeholder((n, c, length), name="x"), te.reduce_axis(5, "k")
    s = te.compute((n, c, (length - 5) // 2 + 1), lambda i, j, p: te.sum(x[i, j, p * 2 + k], axis=k), "S")
    return [x, te.compute(s.shape, lambda *i: s[i] / 5.0, "Y")]


@function(lambda x: F.avg_pool3d(x, 2), small=(1, 2, 4, 6, 8))
def avg_pool_3d(n: int = 1, c: int = 16, d: int = 16, h: int = 28, w: int = 28) -> Sequence[Tensor]:
    x = te.placeholder((n, c, d, h, w), name="x")
    r = [te.reduce_axis(2, f"r{i}") for i in range(3)]

    def window(b, e, i, j, k):
        return te.sum(x[b, e, i * 2 + r[0], j * 2 + r[1], k * 2 + r[2]], axis=r)

    s = te.compute((n, c, d // 2, h // 2, w // 2), window, "S")
    return [x, te.compute(s.shape, lambda *i: s[i] / 8.0, "Y")]


@function(lambda x: F.adaptive_avg_pool2d(x, 7), small=(2, 3, 9))
def adaptive_avg_pool(n: int = 4, c: int = 64, size: int = 30) -> Sequence[Tensor]:
    x = te.placeholder((n, c, size, size), name="x")
    most = max(-(-(i + 1) * size // 7) - i * size // 7 for i in range(7))
    kh, kw = te.reduce_axis(most, "kh"), te.reduce_axis(most, "kw")

    def first(i):
        return floordiv(i * size, 7)

    def length(i):
        return ceildiv(i * size + size, 7) - first(i)

    def window(b, d, i, j):
        inside = te.all(kh < length(i), kw < length(j))
        return te.sum(te.select(inside, x[b, d, first(i) + kh, first(j) + kw], 0.0), axis=[kh, kw])

    s = te.compute((n, c, 7, 7), window, "S")
    return [x, te.compute(s.shape, lambda b, d, i, j: s[b, d, i, j] / te.cast("float32", length(i) * length(j)), "Y")]
