"""Convert ONNX pooling over one to three dimensions; over one dimension as images of height 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tunesmith.graph.importers.onnx.nn import Window
from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, extents, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum, UnsupportedNode


def _pool(node: OnnxNode, operator: str, x: Datum, **attrs: Any) -> Datum:
    """The operator `max_pool` or `avg_pool` over one to three dimensions."""
    b, n = node.b, rank(x) - 2
    window = Window.of(node, node.each("kernel_shape", n), shape_of(x)[2:])
    if n not in (1, 2, 3):
        raise UnsupportedNode(f"pooling over {n} dimensions")
    if n == 1:
        x, window = b.expand_dims(x, axes=(2,)), window.part(-1, 0)
    made = b.call(
        f"{operator}{max(n, 2)}d",
        x,
        kernel=window.kernel,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilations,
        ceil_mode=bool(node.attr("ceil_mode", 0)),
        layout="NCDHW" if n == 3 else "NCHW",
        **attrs,
    )
    return b.squeeze(made, axes=(2,)) if n == 1 else made


def _max_pool(node: OnnxNode) -> Converted:
    x = node.input(0)
    made = _pool(node, "max_pool", x)
    return (made, _indices(node, x, made)) if node.wants(1) else made


_MOST_WINDOW = 1024


def _indices(node: OnnxNode, x: Datum, pooled: Datum) -> Datum:
    """Flat index of each maximum: the first position in its window with this value."""
    b, n = node.b, rank(x) - 2
    shape, out = extents(x), extents(pooled)
    window = Window.of(node, node.each("kernel_shape", n), shape[2:])
    steps = [np.arange(out[i + 2])[:, None] * window.strides[i] - window.before[i] + np.arange(window.kernel[i]) * window.dilations[i]
             for i in range(n)]  # fmt: skip
    if int(np.prod(window.kernel)) > _MOST_WINDOW:
        raise node.refuse(f"indices in windows of more than {_MOST_WINDOW} elements")
    at = np.zeros((1,) * 2 * n, dtype=np.int64)
    inside = np.ones((1,) * 2 * n, dtype=bool)
    column = np.zeros((1,) * 2 * n, dtype=np.int64)
    strides = [int(np.prod(shape[i + 3 :])) for i in range(n)]
    reverse = [int(np.prod(shape[2 : 2 + i])) for i in range(n)]
    for i, step in enumerate(steps):
        wide = step.reshape([s if j in (i, n + i) else 1 for j, s in enumerate((*[step.shape[0]] * n, *[step.shape[1]] * n))])
        inside = inside & (wide >= 0) & (wide < shape[i + 2])
        at = at + wide * strides[i]
        column = column + wide * reverse[i]
    spots, size = int(np.prod(out[2:])), int(np.prod(shape[2:]))
    at, inside, column = (np.broadcast_to(v, (*out[2:], *window.kernel)).reshape(spots, -1) for v in (at, inside, column))
    planes = shape[0] * shape[1]
    flat = b.reshape(x, shape=(planes, size))
    windows = b.take(flat, b.constant(np.where(inside, at, 0)), axis=1)
    best = b.reshape(pooled, shape=(planes, spots, 1))
    hit = b.logical_and(b.equal(windows, best), b.constant(inside))
    first = b.argmax(cast_to(b, hit, "int32"), axis=2, keepdims=True)
    named = column if node.attr("storage_order", 0) else at
    table = b.broadcast_to(b.constant(named.astype(np.int64)), shape=(planes, *named.shape))
    chosen = b.squeeze(b.gather_elements(table, first, axis=2), axes=(2,))
    offset = b.constant((np.arange(planes, dtype=np.int64) * size)[:, None])
    return b.reshape(b.add(chosen, offset), shape=out)


def _average_pool(node: OnnxNode) -> Converted:
    return _pool(node, "avg_pool", node.input(0), count_include_pad=bool(node.attr("count_include_pad", 0)))


def _lp_pool(node: OnnxNode) -> Converted:
    """p-norm pooling: the mean of powers, with padding counted, times the window size."""
    x, b, p = node.input(0), node.b, node.attr("p", 2)
    power = b.multiply(x, x) if p == 2 else b.power(b.abs(x), node.like(p, x))
    mean = _pool(node, "avg_pool", power, count_include_pad=True)
    total = b.multiply(mean, node.like(int(np.prod(node.attr("kernel_shape"))), mean))
    return b.sqrt(total) if p == 2 else b.power(total, node.like(1 / p, total))


def _global(operator: str) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        x = node.input(0)
        return node.b.call(operator, x, axes=tuple(range(2, rank(x))), keepdims=True)

    return convert


def _global_lp(node: OnnxNode) -> Converted:
    x, b, p = node.input(0), node.b, node.attr("p", 2)
    total = b.sum(b.power(b.abs(x), node.like(p, x)), axes=tuple(range(2, rank(x))), keepdims=True)
    return b.power(total, node.like(1 / p, total))


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global("mean"),
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _global("max"),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
