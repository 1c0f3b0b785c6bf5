"""Define attention: softmax, causal, with one key head, linear; and rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions import formulas
from tunesmith.experiments.functions.function import function
from tunesmith.ops.tensor_expression import Tensor


def _qkv(heads: int, length: int, width: int) -> list[Tensor]:
    return [te.placeholder((heads, length, width), name=name) for name in ("q", "k", "v")]


def _scaled_product(q: Tensor, key, keys: int) -> Tensor:
    heads, length, width = q.shape
    d, scale = te.reduce_axis(width, "d"), 1 / math.sqrt(width.as_int())
    s = te.compute((heads, length, keys), lambda h, i, j: te.sum(q[h, i, d] * key(h, j, d), axis=d), "S")
    return te.compute(s.shape, lambda *i: s[i] * scale, "T")


@function(lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0], small=(2, 5, 4))
def attention(heads: int = 8, length: int = 200, width: int = 64) -> Sequence[Tensor]:
    q, k, v = _qkv(heads, length, width)
    p = formulas.softmax(_scaled_product(q, lambda h, j, d: k[h, j, d], length), 2)
    j = te.reduce_axis(length, "j")
    return [q, k, v, te.compute(q.shape, lambda h, i, e: te.sum(p[h, i, j] * v[h, j, e], axis=j), "Y")]


@function(lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0], small=(2, 5, 4))
def causal_attention(heads: int = 8, length: int = 128, width: int = 64) -> Sequence[Tensor]:
    q, k, v = _qkv(heads, length, width)
    s = _scaled_product(q, lambda h, j, d: k[h, j, d], length)
    masked = te.compute(s.shape, lambda h, i, j: te.select(j <= i, s[h, i, j], -math.inf), "U")
    p, j = formulas.softmax(masked, 2), te.reduce_axis(length, "j")
    return [q, k, v, te.compute(q.shape, lambda h, i, e: te.sum(p[h, i, j] * v[h, j, e], axis=j), "Y")]


@function(lambda q, k, v: torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), -1) @ v, small=(2, 5, 4))
def multi_query_attention(heads: int = 8, length: int = 200, width: int = 64) -> Sequence[Tensor]:
    q = te.placeholder((heads, length, width), name="q")
    k, v = te.placeholder((length, width), name="k"), te.placeholder((length, width), name="v")
    p = formulas.softmax(_scaled_product(q, lambda _, j, d: k[j, d], length), 2)
    j = te.reduce_axis(length, "j")
    return [q, k, v, te.compute(q.shape, lambda h, i, e: te.sum(p[h, i, j] * v[j, e], axis=j), "Y")]


def _linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(1)[:, :, None])


@function(_linear, small=(2, 5, 4))
def linear_attention(heads: int = 8, length: int = 256, width: int = 64) -> Sequence[Tensor]:
    q, k, v = _qkv(heads, length, width)
    fq, fk = [te.compute(x.shape, lambda *i, x=x: te.select(x[i] > 0.0, x[i] + 1.0, te.exp(x[i])), f"F{x.name}") for x in (q, k)]
    n, n2, d, d2 = te.reduce_axis(length, "n"), te.reduce_axis(length, "n"), te.reduce_axis(width, "d"), te.reduce_axis(width, "d")
    kv = te.compute((heads, width, width), lambda h, i, e: te.sum(fk[h, n, i] * v[h, n, e], axis=n), "KV")
    z = te.compute((heads, width), lambda h, i: te.sum(fk[h, n2, i], axis=n2), "Z")
    total = te.compute((heads, length), lambda h, i: te.sum(fq[h, i, d] * z[h, d], axis=d), "N")
    out = te.compute(q.shape, lambda h, i, e: te.sum(fq[h, i, d2] * kv[h, d2, e], axis=d2), "O")
    return [q, k, v, te.compute(q.shape, lambda h, i, e: out[h, i, e] / total[h, i], "Y")]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@function(_rotate, small=(2, 5, 6))
def rotary_embedding(heads: int = 12, length: int = 200, width: int = 64) -> Sequence[Tensor]:
    half = width // 2
    x = te.placeholder((heads, length, width), name="x")
    cos, sin = te.placeholder((length, half), name="cos"), te.placeholder((length, half), name="sin")

    def rotated(h, i, d):
        first = x[h, i, d] * cos[i, d] - x[h, i, d + half] * sin[i, d]
        return te.select(d < half, first, x[h, i, d] * cos[i, d - half] + x[h, i, d - half] * sin[i, d - half])

    return [x, cos, sin, te.compute(x.shape, rotated, "Y")]
