"""Reduce the store features of a program to one vector: sums, maxima and the row of the dominating store.

A program has one feature row per block, and sketches differ in their number.  Additive features (operations, iterations, bytes, lines)
are summed in linear space, over stores and buffers; of loop and allocation properties the maximum is kept; and the store with the most
work, which dominates the time of nearly every tensor program, keeps its whole row.  The same vector is computed from stored features
(`program_vector`) and, together with them, from the graph (`program_row`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from tunesmith.costmodel.features.store_features import ACCESS, BUFFERS, GPU, HEAD, Column, columns
from tunesmith.costmodel.formulas.expr_graph import Dag, Num
from tunesmith.support.array_types import Float32Array, FloatArray
from tunesmith.support.errors import UserError

WORK = next(i for i, c in enumerate(HEAD) if c.name == "work")


@cache
def program_columns(curve: bool = False) -> tuple[Column, ...]:
    """The columns of a program's vector: stores, sum.*, max.*, top.*."""
    return (
        Column("stores", log=False),
        *[Column(f"sum.{c.name}", adds=True) for c in (*HEAD, *ACCESS, *GPU) if c.adds],
        *[Column(f"max.{c.name}", c.log) for c in (*HEAD, *GPU) if not c.adds],
        *[Column(f"top.{c.name}", c.log, c.adds) for c in columns(curve)],
    )


@cache
def _sums(curve: bool) -> tuple[tuple[int, ...], ...]:
    """For each sum, the columns of a store row that it adds: one of the head, or one for every buffer."""
    names = {c.name: i for i, c in enumerate(columns(curve))}
    head = [(names[c.name],) for c in HEAD if c.adds]
    buffers = [tuple(names[f"buffer{b}.{c.name}"] for b in range(BUFFERS)) for c in ACCESS if c.adds]
    return (*head, *buffers, *[(names[c.name],) for c in GPU if c.adds])


@cache
def _maxima(curve: bool) -> tuple[int, ...]:
    """The columns of a store row that are reduced by maximum."""
    names = {c.name: i for i, c in enumerate(columns(curve))}
    return tuple(names[c.name] for c in (*HEAD, *GPU) if not c.adds)


def program_vector(features: FloatArray, curve: bool = False) -> Float32Array:
    """Vectors of programs from the features of their stores.

    Args:
        features: [N, stores, F], the result of `FeatureProgram.features`.
        curve: whether they contain the intensity curve.

    Returns:
        float32 [N, len(program_columns(curve))].  The dominating store is the first of those with the largest `work`.
    """
    if features.ndim != 3 or features.shape[2] != len(columns(curve)) or not features.shape[1]:
        raise UserError(f"store features [N, stores >= 1, {len(columns(curve))}] are needed (curve={curve}), got {list(features.shape)}")
    out = np.empty((len(features), len(program_columns(curve))), np.float32)
    out[:, 0] = features.shape[1]
    at = 1
    for group in _sums(curve):
        out[:, at] = np.log2((np.exp2(features[:, :, group].astype(np.float64)) - 1).sum(axis=(1, 2)) + 1)
        at += 1
    largest = _maxima(curve)
    out[:, at : at + len(largest)] = features[:, :, largest].max(axis=1)
    out[:, at + len(largest) :] = features[np.arange(len(features)), features[:, :, WORK].argmax(axis=1)]
    return out


def program_row(d: Dag, stores: Sequence[Sequence[Num]], curve: bool = False) -> list[Num]:
    """The same vector as nodes, before the logarithms, from the result of `store_features.extract`."""
    out = [d.const(len(stores))]
    out += [d.total([s[i] for s in stores for i in group]) for group in _sums(curve)]
    out += [d.largest([s[i] for s in stores]) for i in _maxima(curve)]
    best, top = stores[0][WORK], list(stores[0])
    for s in stores[1:]:
        more = s[WORK] > best
        top = [d.where(more, x, t) for x, t in zip(s, top, strict=True)]
        best = d.maximum(best, s[WORK])
    return out + top
