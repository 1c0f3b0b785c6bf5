"""Inputs that are indices: their values are below the extent that they index."""

from __future__ import annotations

import numpy as np

import tunesmith
from tunesmith import te
from tunesmith.ir.analysis.lookup_ranges import lookup_ranges
from tunesmith.ir.function import PrimFunc


def histogram(n: int = 100, bins: int = 10) -> PrimFunc:
    x = te.placeholder((n,), "int64", name="x")
    count = te.scatter(lambda b: 0, n, lambda k: (x[k],), lambda c, k: c + 1, shape=(bins,), name="Y", dtype="int32")
    return te.create_prim_func([x, count], "histogram")


def gather(dtype: str = "int32") -> PrimFunc:
    i, small, table = te.placeholder((20,), dtype, name="i"), te.placeholder((4, 3), name="small"), te.placeholder((7, 3), name="table")
    at = (lambda n: te.cast("int64", i[n])) if dtype != "int64" else (lambda n: i[n])
    y = te.compute((20, 3), lambda n, c: te.lookup(at(n), 7, lambda v: table[v, c]) + te.lookup(at(n), 4, lambda v: small[v, c]), "Y")
    return te.create_prim_func([i, small, table, y], "gather")


def test_scatters_and_gathers() -> None:
    assert lookup_ranges(histogram()) == {"x": (0, 10)}
    assert lookup_ranges(gather("int64")) == lookup_ranges(gather("int32")) == {"i": (0, 4)}, "the smallest extent"


def test_computed_indices_give_no_range() -> None:
    i, table = te.placeholder((20,), "int64", name="i"), te.placeholder((8,), name="table")
    y = te.compute((20,), lambda n: te.lookup(i[n] * 2, 8, lambda v: table[v]), "Y")
    assert lookup_ranges(te.create_prim_func([i, table, y])) == {}
    x = te.placeholder((3,), name="X")
    assert lookup_ranges(te.create_prim_func([x, te.compute((3,), lambda n: x[n] + 1.0, "Y")])) == {}


def test_tune_draws_indices_in_range(tmp_path: object) -> None:
    report = tunesmith.tune(histogram(1000, 3), "llvm -num-cores=1", f"{tmp_path}/log.jsonl", budget=2, progress=False)
    assert report.tasks[0].best is not None and not report.tasks[0].failure
    x = np.arange(1000) % 3
    out = np.zeros(3, "int32")
    tunesmith.compile(histogram(1000, 3), "llvm -num-cores=1", f"{tmp_path}/log.jsonl")["histogram"](x, out)
    assert out.tolist() == [334, 333, 333]
