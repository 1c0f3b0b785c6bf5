"""Define normalisations: layer, root mean square, group, instance, batch, L2 and local response."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions.formulas import mean, mean_and_variance, over, square
from tunesmith.experiments.functions.function import function
from tunesmith.ops.tensor_expression import Tensor

EPS = 1e-5
GROUPS = 8


@function(lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b), small=(1, 4, 6))
def layer_norm(n: int = 1, length: int = 197, width: int = 768) -> Sequence[Tensor]:
    x = te.placeholder((n, length, width), name="x")
    g, b = te.placeholder((width,), name="g"), te.placeholder((width,), name="b")
    m, v = mean_and_variance(x, [2])
    return [x, g, b, te.compute(x.shape, lambda i, j, k: (x[i, j, k] - m[i, j]) * te.rsqrt(v[i, j] + EPS) * g[k] + b[k], "Y")]


@function(lambda x, g: F.rms_norm(x, x.shape[-1:], g, EPS), small=(2, 4, 6))
def rms_norm(n: int = 4, length: int = 200, width: int = 512) -> Sequence[Tensor]:
    x, g = te.placeholder((n, length, width), name="x"), te.placeholder((width,), name="g")
    m = mean(x.shape, [2], lambda i: square(x[i]), "M")
    r = te.compute((n, length), lambda i, j: te.rsqrt(m[i, j] + EPS), "R")
    return [x, g, te.compute(x.shape, lambda i, j, k: x[i, j, k] * r[i, j] * g[k], "Y")]


@function(lambda x, g, b: F.group_norm(x, GROUPS, g, b), small=(1, 16, 4, 5))
def group_norm(n: int = 1, c: int = 64, h: int = 56, w: int = 56) -> Sequence[Tensor]:
    x = te.placeholder((n, c, h, w), name="x")
    g, b = te.placeholder((c,), name="g"), te.placeholder((c,), name="b")
    size = c // GROUPS
    shape = te.placeholder((n, GROUPS, size, h, w)).shape
    m = mean(shape, [2, 3, 4], lambda i: x[i[0], i[1] * size + i[2], i[3], i[4]], "M")
    v = mean(shape, [2, 3, 4], lambda i: square(x[i[0], i[1] * size + i[2], i[3], i[4]] - m[i[0], i[1]]), "V")
    r = te.compute(v.shape, lambda i, j: te.rsqrt(v[i, j] + EPS), "R")
    y = te.compute(x.shape, lambda i, j, k, l: (x[i, j, k, l] - m[i, j // size]) * r[i, j // size] * g[j] + b[j], "Y")  # noqa: E741
    return [x, g, b, y]


@function(lambda x: F.instance_norm(x), small=(2, 3, 4, 5))
def instance_norm(n: int = 4, c: int = 32, h: int = 35, w: int = 40) -> Sequence[Tensor]:
    x = te.placeholder((n, c, h, w), name="x")
    m, v = mean_and_variance(x, [2, 3])
    return [x, te.compute(x.shape, lambda *i: (x[i] - m[i[:2]]) * te.rsqrt(v[i[:2]] + EPS), "Y")]


@function(lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True), small=(2, 3, 4, 5))
def batch_norm_training(n: int = 8, c: int = 64, h: int = 28, w: int = 28) -> Sequence[Tensor]:
    x = te.placeholder((n, c, h, w), name="x")
    g, b = te.placeholder((c,), name="g"), te.placeholder((c,), name="b")
    m, v = mean_and_variance(x, [0, 2, 3])
    scale = te.compute((c,), lambda j: te.rsqrt(v[j] + EPS) * g[j], "scale")
    return [x, g, b, te.compute(x.shape, lambda *i: (x[i] - m[i[1]]) * scale[i[1]] + b[i[1]], "Y")]


@function(lambda x: F.normalize(x, dim=1), small=(5, 6))
def l2_normalize(a: int = 1000, b: int = 128) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    s = over(te.sum, x.shape, [1], lambda i: square(x[i]), "S")
    return [x, te.compute(x.shape, lambda i, j: x[i, j] / te.maximum(te.sqrt(s[i]), 1e-12), "Y")]


@function(lambda x: F.local_response_norm(x, 5), small=(1, 8, 3, 5))
def local_response_norm(n: int = 1, c: int = 64, h: int = 28, w: int = 28) -> Sequence[Tensor]:
    x, d = te.placeholder((n, c, h, w), name="x"), te.reduce_axis(5, "d")

    def near(i, j, k, l):  # noqa: E741
        at = j + d - 2
        return te.sum(te.select(te.all(at >= 0, at < c), square(x[i, at, k, l]), 0.0), axis=d)

    s = te.compute(x.shape, near, "S")
    return [x, te.compute(x.shape, lambda *i: x[i] * te.exp(te.log(s[i] * (1e-4 / 5) + 1.0) * -0.75), "Y")]
