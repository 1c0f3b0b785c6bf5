"""Define softmax and log-softmax along every axis, logsumexp, and losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions import formulas
from tunesmith.experiments.functions.formulas import clamped, mean, over, square, without
from tunesmith.experiments.functions.function import ONE_SUM, Shapes, function
from tunesmith.ops.tensor_expression import Tensor


@function(lambda x: torch.softmax(x, 0), small=(3, 4, 5))
def softmax_axis_0(a: int = 64, b: int = 100, c: int = 64) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, formulas.softmax(x, 0)]


@function(lambda x: torch.softmax(x, 1), small=(3, 4, 5))
def softmax_axis_1(a: int = 64, b: int = 100, c: int = 64) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, formulas.softmax(x, 1)]


@function(lambda x: torch.softmax(x, 2), small=(3, 4, 5))
def softmax_axis_2(a: int = 8, b: int = 200, c: int = 200) -> Sequence[Tensor]:
    x = te.placeholder((a, b, c), name="x")
    return [x, formulas.softmax(x, 2)]


def _log_softmax(shape: tuple[int, ...], axis: int) -> Sequence[Tensor]:
    x = te.placeholder(shape, name="x")
    total = formulas.logsumexp(x, axis)
    return [x, te.compute(shape, lambda *i: x[i] - total[without(i, [axis])], "Y")]


@function(lambda x: torch.log_softmax(x, 0), small=(3, 4, 5))
def log_softmax_axis_0(a: int = 128, b: int = 77, c: int = 35) -> Sequence[Tensor]:
    return _log_softmax((a, b, c), 0)


@function(lambda x: torch.log_softmax(x, 1), small=(3, 4, 5))
def log_softmax_axis_1(a: int = 4, b: int = 21, c: int = 4096) -> Sequence[Tensor]:
    return _log_softmax((a, b, c), 1)


@function(lambda x: torch.logsumexp(x, 1), small=(4, 5))
def logsumexp(a: int = 1024, b: int = 1000) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    return [x, formulas.logsumexp(x, 1)]


def _logits_and_labels(rng: np.random.Generator, shapes: Shapes) -> list[np.ndarray]:
    return [rng.standard_normal(shapes[0]), rng.integers(0, shapes[0][1], shapes[1])]


@function(F.cross_entropy, small=(4, 5), inputs=_logits_and_labels)
def cross_entropy(a: int = 512, b: int = 1000) -> Sequence[Tensor]:
    x, label = te.placeholder((a, b), name="x"), te.placeholder((a,), "int64", name="label")
    total = formulas.logsumexp(x, 1)
    loss = te.compute((a,), lambda i: total[i] - te.lookup(clamped(label[i], b), b, lambda at: x[i, at]), "loss")
    return [x, label, mean(loss.shape, [0], lambda i: loss[i], "Y")]


@function(lambda p, q: F.kl_div(torch.log_softmax(q, 1), torch.softmax(p, 1), reduction="batchmean"), small=(4, 5))
def kl_divergence(a: int = 256, b: int = 1000) -> Sequence[Tensor]:
    p, q = te.placeholder((a, b), name="p"), te.placeholder((a, b), name="q")
    lp, lq = formulas.logsumexp(p, 1, "P"), formulas.logsumexp(q, 1, "Q")
    loss = over(te.sum, p.shape, [1], lambda i: te.exp(p[i] - lp[i[0]]) * ((p[i] - lp[i[0]]) - (q[i] - lq[i[0]])), "loss")
    return [p, q, mean(loss.shape, [0], lambda i: loss[i], "Y")]


@function(F.huber_loss, small=(3, 4, 5), tolerance=ONE_SUM)
def huber_loss(a: int = 64, b: int = 77, c: int = 100) -> Sequence[Tensor]:
    x, y = te.placeholder((a, b, c), name="x"), te.placeholder((a, b, c), name="y")
    d = te.compute(x.shape, lambda *i: te.abs(x[i] - y[i]), "D")
    return [x, y, mean(x.shape, [0, 1, 2], lambda i: te.select(d[i] < 1.0, square(d[i]) * 0.5, d[i] - 0.5), "Y")]
