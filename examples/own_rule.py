"""Add a sketch rule: list the sketches that it makes, look at one candidate, and tune with it.

The operator adds a matrix to its transpose.  One of the two reads runs down a column, so the order in which elements are visited
decides how often a cache line is loaded.  The built-in rule for elementwise operators keeps whole rows; this rule cuts both axes
into tiles.

    python examples/own_rule.py
"""

from pathlib import Path

import numpy as np

import tunesmith
from tunesmith import te
from tunesmith.ir.visit import blocks_under
from tunesmith.search.space.rules_table import generate
from tunesmith.support.seeds import stream

N = 384
LOG = Path("own_rule.jsonl")


def tiles(func, target):
    """Named schedules of a function; [] if the rule does not apply to it.

    A schedule runs once, with symbolic sizes: each `sample_...` becomes a column of the sketch's search space, and a row of integers is a
    candidate.  A schedule must not look at these integers; it says what they may be.  A schedule with a step that is refused for the
    function is left out.
    """
    blocks = blocks_under(func.body)
    if len(blocks) != 1 or len(blocks[0].iters) != 2 or any(i.kind == "R" for i in blocks[0].iters):
        return []
    lanes = target.vector_lanes("float32")

    def schedule(s, threads):
        i, j = s.get_loops(s.get_block(blocks[0].name))
        rows = s.sample_tile(i, 2, "rows", [(4, 8, 16, 32, 64)], waste=1.0)
        columns = s.sample_tile(j, 2, "columns", [(lanes, 2 * lanes, 4 * lanes)], waste=1.0)
        i0, i1 = s.split(i, [None, *rows])
        j0, j1 = s.split(j, [None, *columns])
        s.reorder([i0, j0, i1, j1])
        s.vectorize(j1)
        if threads:
            s.parallel(s.fuse([i0, j0]))

    return [("tiles", lambda s: schedule(s, True)), ("tiles serial", lambda s: schedule(s, False))]


def symmetric_sum():
    """B[i, j] = A[i, j] + A[j, i]."""
    a = te.placeholder((N, N), name="A")
    b = te.compute((N, N), lambda i, j: a[i, j] + a[j, i], name="B")
    return te.create_prim_func([a, b], name="symmetric_sum")


def tune(func):
    """Search the sketches of this rule and of a built-in one, which is given by name.  Without `rules` only built-in rules are used."""
    search = tunesmith.Search(rules=[tiles, "pointwise"], batch=4, seed=0)
    return tunesmith.tune(func, log=LOG, budget=8, search=search, progress=False)


def main():
    func = symmetric_sum()
    target = tunesmith.Target.detect()

    space = generate(func, target, [tiles])
    for sketch in space.sketches:
        columns = ", ".join(p.name for p in sketch.params)
        print(f"sketch {sketch.name!r}: {sketch.space.size()} configurations of ({columns})")

    # One configuration of the first sketch, drawn at random, and the program that it stands for.
    row = tuple(space.sketches[0].space.sample(1, stream(0, "own_rule"))[0].tolist())
    print(f"\nconfiguration {row}:\n{space.sketches[0].concretize(row)}\n")

    report = tune(func)
    print(report)

    # Records hold the whole schedule, so compiling needs the log and not the rule.
    module = tunesmith.compile(func, records=LOG, strict=True)
    a = np.random.default_rng(0).random((N, N), dtype=np.float32)
    b = np.empty_like(a)
    module["symmetric_sum"](a, b)
    assert np.array_equal(b, a + a.T)
    print("tuned: equal to numpy")


if __name__ == "__main__":
    main()
