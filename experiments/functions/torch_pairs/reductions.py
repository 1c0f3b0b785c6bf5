"""Define reductions with epilogues along every axis of a tensor, and variances."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tunesmith import te
from tunesmith.experiments.functions.formulas import mean, mean_and_variance, over, square
from tunesmith.experiments.functions.function import ONE_SUM, function
from tunesmith.ops.tensor_expression import Tensor


@function(lambda x: x.mean(0), small=(3, 4, 5))
def mean_axis_0(a: int = 16, b: int = 100, c: int = 999) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, mean(x.shape, [0], lambda i: x[i], "Y")]


@function(lambda x: x.square().mean(1).sqrt(), small=(3, 4, 5))
def rms_axis_1(a: int = 64, b: int = 200, c: int = 77) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    m = mean(x.shape, [1], lambda i: square(x[i]), "M")
    return [x, te.compute((a, c), lambda i, k: te.sqrt(m[i, k]), "Y")]


@function(lambda x, gain: x.sum(2) * gain, small=(3, 4, 5))
def scaled_sum_axis_2(a: int = 64, b: int = 100, c: int = 128) -> Sequence[Tensor]:
    x, gain = te.placeholder((a, b, c), name="x"), te.placeholder((b,), name="gain")
    s = over(te.sum, x.shape, [2], lambda i: x[i], "S")
    return [x, gain, te.compute((a, b), lambda i, j: s[i, j] * gain[j], "Y")]


@function(lambda x, limit: torch.relu(x.amax(1) - limit), small=(3, 4, 5))
def max_relu_axis_1(a: int = 8, b: int = 512, c: int = 196) -> Sequence[Tensor]:
    x, limit = te.placeholder((a, b, c), name="x"), te.placeholder((c,), name="limit")
    m = over(te.max, x.shape, [1], lambda i: x[i], "M")
    return [x, limit, te.compute((a, c), lambda i, k: te.maximum(m[i, k] - limit[k], 0.0), "Y")]


@function(lambda x: torch.linalg.vector_norm(x, dim=0), small=(7, 5))
def l2_norm_axis_0(a: int = 512, b: int = 1000) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    s = over(te.sum, x.shape, [0], lambda i: square(x[i]), "S")
    return [x, te.compute((b,), lambda j: te.sqrt(s[j]), "Y")]


@function(lambda x: x.mean(), small=(3, 4, 5), tolerance=ONE_SUM)
def global_mean(a: int = 512, b: int = 28, c: int = 28) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, mean(x.shape, [0, 1, 2], lambda i: x[i], "Y")]


@function(lambda x: x.prod(1), small=(4, 3, 5), inputs=lambda rng, shapes: [1 + 0.1 * rng.standard_normal(s) for s in shapes])
def product_axis_1(a: int = 1000, b: int = 35, c: int = 16) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, over(te.prod, x.shape, [1], lambda i: x[i], "Y")]


@function(lambda x: x.var(0, correction=0), small=(7, 5))
def variance_axis_0(a: int = 256, b: int = 700) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    return [x, mean_and_variance(x, [0])[1]]


@function(lambda x: x.std(1, correction=0), small=(7, 5))
def deviation_axis_1(a: int = 250, b: int = 999) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    v = mean_and_variance(x, [1])[1]
    return [x, te.compute((a,), lambda i: te.sqrt(v[i]), "Y")]


@function(lambda x: x.var(correction=0), small=(7, 5), tolerance=ONE_SUM)
def variance_all(a: int = 512, b: int = 512) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    return [x, mean_and_variance(x, [0, 1])[1]]
