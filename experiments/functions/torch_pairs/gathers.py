"""Define functions with indices from data, and others whose formula counts or accumulates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tunesmith import te
from tunesmith.experiments.functions.formulas import clamped, mean, square
from tunesmith.experiments.functions.function import Shapes, function
from tunesmith.ops.tensor_expression import Tensor

BINS = 64


def _rows_of_a_table(rng: np.random.Generator, shapes: Shapes) -> list[np.ndarray]:
    return [rng.standard_normal(shapes[0]), rng.integers(0, shapes[0][0], shapes[1]), *[rng.standard_normal(s) for s in shapes[2:]]]


@function(lambda table, at, g: F.rms_norm(F.embedding(at, table), g.shape, g, 1e-5), small=(9, 5, 6), inputs=_rows_of_a_table)
def embedding_norm(rows: int = 10000, length: int = 400, width: int = 256) -> Sequence[Tensor]:
    table, at, g = te.placeholder((rows, width), name="table"), te.placeholder((length,), "int64", "at"), te.placeholder((width,), name="g")
    e = te.compute((length, width), lambda i, j: te.lookup(clamped(at[i], rows), rows, lambda r: table[r, j]), "E")
    m = mean(e.shape, [1], lambda i: square(e[i]), "M")
    return [table, at, g, te.compute(e.shape, lambda i, j: e[i, j] * te.rsqrt(m[i] + 1e-5) * g[j], "Y")]


@function(lambda table, at: table[at], small=(9, 5, 6), inputs=_rows_of_a_table)
def gather_rows(rows: int = 5000, length: int = 1000, width: int = 128) -> Sequence[Tensor]:
    table, at = te.placeholder((rows, width), name="table"), te.placeholder((length,), "int64", "at")
    return [table, at, te.compute((length, width), lambda i, j: te.lookup(clamped(at[i], rows), rows, lambda r: table[r, j]), "Y")]


@function(
    lambda x: torch.bincount(x, minlength=BINS),
    small=(50,),
    inputs=lambda rng, shapes: [rng.integers(0, BINS, s) for s in shapes],
    tolerance=0.0,
)
def histogram(n: int = 20000) -> Sequence[Tensor]:
    x = te.placeholder((n,), "int64", name="x")
    return [x, te.scatter(lambda b: 0, n, lambda k: (x[k],), lambda count, k: count + 1, shape=BINS, name="Y", dtype="int32")]


@function(lambda x: x.cumsum(1), small=(3, 7))
def cumulative_sum(a: int = 16, b: int = 1000) -> Sequence[Tensor]:
    x = te.placeholder((a, b), name="x")
    return [x, te.scan((a, b), lambda before, i, j: before + x[i, j], 0.0, name="Y")]
