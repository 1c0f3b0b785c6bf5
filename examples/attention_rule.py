"""Schedule attention in blocks of query rows by a rule of one's own, beside the built-in rules.

The scores of attention, one for each query and key, are a matrix that is larger than its inputs.  The rule computes the scores of a
block of queries, their softmax and their product with the values in one iteration of a parallel loop, in a workspace that stays in a cache
(Dao and others, FlashAttention, 2022, block the keys as well, with a running maximum).

    python examples/attention_rule.py
"""

import numpy as np

import tunesmith
from tunesmith import te
from tunesmith.search.space.derive.reductions import factor_into_lanes, finish_lanes
from tunesmith.search.space.rules_table import find_rules, generate
from tunesmith.support.seeds import stream

HEADS, LENGTH, SIZE = 4, 256, 32


def attention():
    """out = softmax(q @ k) @ v for each head; q is scaled, and k is stored with the keys last."""
    q = te.placeholder((HEADS, LENGTH, SIZE), name="q")
    k = te.placeholder((HEADS, SIZE, LENGTH), name="k")
    v = te.placeholder((HEADS, LENGTH, SIZE), name="v")
    d, a, b, c = te.reduce_axis(SIZE, "d"), *[te.reduce_axis(LENGTH, name) for name in "abc"]
    scores = te.compute((HEADS, LENGTH, LENGTH), lambda h, i, j: te.sum(q[h, i, d] * k[h, d, j], axis=d), "scores")
    top = te.compute((HEADS, LENGTH), lambda h, i: te.max(scores[h, i, a], axis=a), "top")
    weights = te.compute((HEADS, LENGTH, LENGTH), lambda h, i, j: te.exp(scores[h, i, j] - top[h, i]), "weights")
    total = te.compute((HEADS, LENGTH), lambda h, i: te.sum(weights[h, i, b], axis=b), "total")
    mixed = te.compute((HEADS, LENGTH, SIZE), lambda h, i, x: te.sum(weights[h, i, c] * v[h, c, x], axis=c), "mixed")
    out = te.compute((HEADS, LENGTH, SIZE), lambda h, i, x: mixed[h, i, x] / total[h, i], "out")
    return te.create_prim_func([q, k, v, out], name="attention")


def row_blocks(func, target):
    """Attention in blocks of 16 to 64 query rows; [] for other functions."""
    if func.name != "attention":
        return []
    lanes = target.vector_lanes("float32")

    def schedule(s):
        lanes_of = [factor_into_lanes(s, name, lanes) for name in ("total", "top")]  # partial results in vector lanes
        tiles = {name: s.cache_write(s.get_block(name), "register") for name in ("mixed", "scores")}  # accumulators in registers
        h, i, x = s.get_loops(s.get_block("out"))
        outer, _ = s.split(i, [None, *s.sample_tile(i, 2, "rows", [(16, 32, 64)], waste=1.0)])
        task = s.fuse([h, outer])
        for name in ("mixed", "total", "weights", "top", "scores"):  # consumers before producers
            result = tiles.get(name, s.get_block(name))
            s.set_scope(result, "workspace")
            s.compute_at(result, task)
            for part in [s.get_block(name)] if name in tiles else [s.get_block(r.part) for r in lanes_of if r.block == name]:
                s.compute_at(part, task)
        for name, copy in tiles.items():
            i, j = s.get_loops(copy)[-2:]
            (height,), (width,) = s.sample_tile(i, 2, f"{name}_i", [(1, 2, 4, 8)]), s.sample_tile(j, 2, f"{name}_j", [(lanes, 2 * lanes)])
            (i0, i1), (j0, j1) = s.split(i, [None, height]), s.split(j, [None, width])
            s.reorder([i0, j0, i1, j1])
            s.compute_at(s.get_block(name), j0)
            row, column, k = s.get_loops(s.get_block(name))[-3:]
            s.reorder([k, row, column])
            for rows, columns in ((i1, j1), (row, column)):
                s.unroll(rows)
                s.vectorize(columns)
        for r in lanes_of:
            finish_lanes(s, r, task)
        for loop in (s.get_loops(s.get_block("weights"))[-1], x):
            s.vectorize(s.split(loop, [None, lanes])[1])
        s.parallel(task)

    return [("row blocks", schedule)]


def main():
    func, target = attention(), tunesmith.Target.detect()
    rng = np.random.default_rng(0)
    q, k, v = [
        rng.standard_normal(shape, dtype="float32") for shape in [(HEADS, LENGTH, SIZE), (HEADS, SIZE, LENGTH), (HEADS, LENGTH, SIZE)]
    ]
    scores = q @ k
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ v / weights.sum(-1, keepdims=True)

    space = generate(func, target, find_rules(["default", row_blocks]))
    print(f"{len(space.sketches) - 1} built-in sketches and {space.sketches[-1].name!r}")
    for row in space.sketches[-1].space.sample(3, stream(0, "attention_rule")):
        module = tunesmith.build(space.sketches[-1].concretize(tuple(row.tolist())), target)
        out = np.empty_like(q)
        module(q, k, v, out)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        print(f"{dict(zip([p.name for p in space.sketches[-1].params], row.tolist(), strict=True))}: equal to numpy")


if __name__ == "__main__":
    main()
