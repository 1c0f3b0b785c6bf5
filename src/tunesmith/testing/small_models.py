"""Small models with fixed weights that tests compile for all executors and machines."""

from __future__ import annotations

import numpy as np

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Operand
from tunesmith.ir.function import IRModule


def tiny_classifier() -> IRModule:
    """Scores of 10 classes for an image, and the best class: convolution, pooling, dense layer."""
    rng = np.random.default_rng(0)
    w, d, b = [0.1 * rng.standard_normal(shape).astype("float32") for shape in ((16, 3, 3, 3), (16 * 64, 10), (10,))]
    g = GraphBuilder()
    x = g.input("x", (1, 3, 16, 16))
    h = g.relu(g.conv2d(x, g.constant(w, "w"), padding=(1, 1, 1, 1)))
    pooled = g.max_pool2d(h, kernel=(2, 2), strides=(2, 2))
    dense = g.add(g.matmul(g.reshape(pooled, shape=(1, 16 * 64)), g.constant(d, "d")), g.constant(b, "b"))
    scores = g.softmax(dense, name="scores")
    return IRModule({"main": g.finish(scores, g.argmax(scores, axis=1, name="class"))})


def transformer_layer() -> IRModule:
    """Attention with two heads, and a dense layer with GELU, on 9 tokens of 32 features."""
    rng = np.random.default_rng(0)
    tokens, features, heads = 9, 32, 2
    g = GraphBuilder()

    def dense(x: Operand, rows: int, columns: int, name: str) -> Operand:
        w = (rng.standard_normal((rows, columns)) / rows**0.5).astype("float32")
        b = 0.1 * rng.standard_normal(columns).astype("float32")
        return g.add(g.matmul(x, g.constant(w, f"{name}_w")), g.constant(b, f"{name}_b"))

    def norm(x: Operand) -> Operand:
        return g.layer_norm(x, g.constant(np.ones(features, "float32")), g.constant(np.zeros(features, "float32")), axes=(-1,))

    def split(x: Operand, axes: tuple[int, ...]) -> Operand:
        return g.permute_dims(g.reshape(x, shape=(tokens, heads, features // heads)), axes=axes)

    x = g.input("x", (tokens, features))
    q, k, v = [dense(x, features, features, name) for name in "qkv"]
    weights = g.softmax(g.matmul(split(q, (1, 0, 2)), split(k, (1, 2, 0))), axis=-1)
    mixed = g.reshape(g.permute_dims(g.matmul(weights, split(v, (1, 0, 2))), axes=(1, 0, 2)), shape=(tokens, features))
    h = norm(g.add(x, dense(mixed, features, features, "o")))
    wide = g.gelu(dense(h, features, 4 * features, "up"))
    return IRModule({"main": g.finish(norm(g.add(h, dense(wide, 4 * features, features, "down"))))})
