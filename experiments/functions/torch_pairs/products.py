"""Define matrix products with neighbours: norms, activations, cells of recurrent networks, distances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions import formulas
from tunesmith.experiments.functions.formulas import gelu, matmul, mean, mean_and_variance, over, square
from tunesmith.experiments.functions.function import function
from tunesmith.ops.tensor_expression import Tensor

EPS = 1e-5


def _matrices(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [te.placeholder(shape, name=name) for name, shape in shapes.items()]


@function(lambda x, g, w: F.rms_norm(x, x.shape[-1:], g, EPS) @ w, small=(5, 6, 7))
def rms_norm_matmul(m: int = 128, k: int = 768, n: int = 768) -> Sequence[Tensor]:
    x, g, w = _matrices(x=(m, k), g=(k,), w=(k, n))
    s = mean(x.shape, [1], lambda i: square(x[i]), "M")
    r = te.compute((m,), lambda i: te.rsqrt(s[i] + EPS), "R")
    y = te.compute(x.shape, lambda i, j: x[i, j] * r[i] * g[j], "X")
    return [x, g, w, matmul(y, w, "Y")]


@function(lambda x, g, b, w, c: F.linear(F.layer_norm(x, x.shape[-1:], g, b), w, c), small=(5, 6, 7))
def layer_norm_dense(m: int = 128, k: int = 512, n: int = 512) -> Sequence[Tensor]:
    x, g, b, w, c = _matrices(x=(m, k), g=(k,), b=(k,), w=(n, k), c=(n,))
    mu, v = mean_and_variance(x, [1])
    y = te.compute(x.shape, lambda i, j: (x[i, j] - mu[i]) * te.rsqrt(v[i] + EPS) * g[j] + b[j], "X")
    z = matmul(y, w, "Z", transposed=True)
    return [x, g, b, w, c, te.compute(z.shape, lambda i, j: z[i, j] + c[j], "Y")]


@function(lambda a, b: torch.softmax(a @ b * 0.1, 1), small=(5, 6, 7))
def matmul_softmax(m: int = 128, k: int = 256, n: int = 1000) -> Sequence[Tensor]:
    a, b = _matrices(a=(m, k), b=(k, n))
    z = matmul(a, b, "Z")
    t = te.compute(z.shape, lambda i, j: z[i, j] * 0.1, "T")
    return [a, b, formulas.softmax(t, 1)]


@function(lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c), small=(5, 6, 7))
def mlp_gelu(m: int = 64, k: int = 256, hidden: int = 1024) -> Sequence[Tensor]:
    x, w, b, v, c = _matrices(x=(m, k), w=(hidden, k), b=(hidden,), v=(k, hidden), c=(k,))
    z = matmul(x, w, "Z", transposed=True)
    h = te.compute(z.shape, lambda i, j: gelu(z[i, j] + b[j]), "H")
    y = matmul(h, v, "O", transposed=True)
    return [x, w, b, v, c, te.compute(y.shape, lambda i, j: y[i, j] + c[j], "Y")]


@function(lambda x, u, w, v: (F.silu(x @ u) * (x @ w)) @ v, small=(5, 6, 7))
def swiglu(m: int = 64, k: int = 256, hidden: int = 688) -> Sequence[Tensor]:
    x, u, w, v = _matrices(x=(m, k), u=(k, hidden), w=(k, hidden), v=(hidden, k))
    a, b = matmul(x, u, "A"), matmul(x, w, "B")
    h = te.compute(a.shape, lambda i, j: a[i, j] * te.sigmoid(a[i, j]) * b[i, j], "H")
    return [x, u, w, v, matmul(h, v, "Y")]


def _gates(x: Tensor, w: Tensor, b: Tensor, name: str) -> Tensor:
    z = matmul(x, w, f"{name}_product", transposed=True)
    return te.compute(z.shape, lambda i, j: z[i, j] + b[j], name)


@function(lambda x, h, c, w, u, b, d: torch.lstm_cell(x, (h, c), w, u, b, d), small=(3, 4, 5))
def lstm_cell(m: int = 32, k: int = 256, n: int = 256) -> Sequence[Tensor]:
    x, h, c, w, u, b, d = _matrices(x=(m, k), h=(m, n), c=(m, n), w=(4 * n, k), u=(4 * n, n), b=(4 * n,), d=(4 * n,))
    p, q = _gates(x, w, b, "P"), _gates(h, u, d, "Q")
    g = te.compute(p.shape, lambda i, j: p[i, j] + q[i, j], "G")

    def cell(i, j):
        return te.sigmoid(g[i, j + n]) * c[i, j] + te.sigmoid(g[i, j]) * te.tanh(g[i, j + 2 * n])

    new = te.compute((m, n), cell, "C")
    out = te.compute((m, n), lambda i, j: te.sigmoid(g[i, j + 3 * n]) * te.tanh(new[i, j]), "H")
    return [x, h, c, w, u, b, d, out, new]


@function(torch.gru_cell, small=(3, 4, 5))
def gru_cell(m: int = 1, k: int = 256, n: int = 512) -> Sequence[Tensor]:
    x, h, w, u, b, d = _matrices(x=(m, k), h=(m, n), w=(3 * n, k), u=(3 * n, n), b=(3 * n,), d=(3 * n,))
    p, q = _gates(x, w, b, "P"), _gates(h, u, d, "Q")
    keep = te.compute((m, n), lambda i, j: te.sigmoid(p[i, j + n] + q[i, j + n]), "Z")
    new = te.compute((m, n), lambda i, j: te.tanh(p[i, j + 2 * n] + te.sigmoid(p[i, j] + q[i, j]) * q[i, j + 2 * n]), "N")
    return [x, h, w, u, b, d, te.compute((m, n), lambda i, j: (1.0 - keep[i, j]) * new[i, j] + keep[i, j] * h[i, j], "Y")]


@function(lambda a, b, c: a @ b @ c, small=(5, 3))
def low_rank_product(n: int = 512, rank: int = 32) -> Sequence[Tensor]:
    a, b, c = _matrices(a=(n, n), b=(n, rank), c=(rank, n))
    return [a, b, c, matmul(matmul(a, b, "T"), c, "Y")]


@function(torch.cdist, small=(5, 6, 7))
def pairwise_distances(m: int = 500, n: int = 350, k: int = 77) -> Sequence[Tensor]:
    x, y = _matrices(x=(m, k), y=(n, k))
    d = te.reduce_axis(k, "d")
    s = te.compute((m, n), lambda i, j: te.sum(square(x[i, d] - y[j, d]), axis=d), "S")
    return [x, y, te.compute((m, n), lambda i, j: te.sqrt(s[i, j]), "Y")]


@function(lambda x: torch.cov(x.T), small=(9, 4))
def covariance(n: int = 1000, k: int = 128) -> Sequence[Tensor]:
    (x,) = _matrices(x=(n, k))
    m = mean(x.shape, [0], lambda i: x[i], "M")
    c = te.compute(x.shape, lambda i, j: x[i, j] - m[j], "C")
    s = over(te.sum, (k, k, n), [2], lambda i: c[i[2], i[0]] * c[i[2], i[1]], "S")
    return [x, te.compute((k, k), lambda i, j: s[i, j] / float(n - 1), "Y")]
