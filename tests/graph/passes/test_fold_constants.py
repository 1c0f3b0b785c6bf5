"""Test constant folding: folded calls, results that are too large or unknown, and floating-point errors in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Constant, all_bindings
from tunesmith.graph.passes.fold_constants import MAX_GROWTH, fold_constants
from tunesmith.ir.poly import Var, poly

Passed = Callable[..., Any]

FOLDED = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2), "float32"), c: G.Tensor((), "bool")):
    w = G.constant([[1.0, 2.0], [3.0, 4.0]], (2, 2), "float32")
    i = G.constant([1, 0], (2,), "int64")
    t = G.permute_dims(w)
    u = G.add(t, w)
    a, b = G.split(u, sizes=(1, 1), axis=0)
    m = G.less(a, b)
    f = G.full(shape=(2,), value=0.5, dtype="float32")
    g = G.take(w, i, axis=0)
    y = G.matmul(x, u)
    if c:
        h = G.multiply(f, a)
        o, o_1 = y, h
    else:
        h = G.add(x, x)
        o, o_1 = h, a
    return o, o_1, m, g, b, w
"""


def test_calls_on_constants(passed: Passed, assert_golden: Passed) -> None:
    assert_golden(str(passed(fold_constants, FOLDED)["main"]))


def test_floating_point_errors_are_not_reported(passed: Passed) -> None:
    b = GraphBuilder("main")
    zero, one = b.constant(np.float32([0, -1]), "zero"), b.constant(np.float32([1, 1]), "one")
    most = b.constant(np.full(2, 3e38, np.float32))
    f = b.finish(
        b.divide(one, zero), b.log(zero), b.exp(b.multiply(one, b.constant(np.float32(1000)))), b.matmul(most, most), b.square(most)
    )
    made = passed(fold_constants, f)["main"]
    assert not made.body.bindings
    wanted = [[np.inf, -1], [-np.inf, np.nan], [np.inf, np.inf], np.inf, [np.inf, np.inf]]
    for r, w in zip(made.results, wanted, strict=True):
        np.testing.assert_array_equal(r.data, w)


KEPT = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n,), "float32")):
    one = G.constant(1.0, (), "float32")
    a = G.broadcast_to(one, shape=(n,))
    b = G.full(shape=(n + 1,), value=0.0, dtype="float32")
    m = G.size_value(value=n)
    d = G.cast(one, dtype="bfloat16")
    e, e_1 = G.call("part", (one,), (G.Tensor((), "float32"), G.Tensor((), "float32")))
    return a, b, m, d, e, e_1
"""
PART = """
@G.function
def part(x: G.Tensor((), "float32")):
    return x, x
"""


def test_sizes_functions_and_types_that_numpy_lacks(unchanged: Passed) -> None:
    """Constants of types without numpy arrays are not folded; functions of the module are not evaluated."""
    unchanged(fold_constants, KEPT, PART)


def test_large_results_of_small_operands_are_not_folded(unchanged: Passed, passed: Passed) -> None:
    def repeated(count: int) -> Any:
        b = GraphBuilder("main")
        return b.finish(b.broadcast_to(b.constant(np.zeros(1, np.float32)), shape=(count,)))

    unchanged(fold_constants, repeated(MAX_GROWTH // 4 + 2))
    assert isinstance(passed(fold_constants, repeated(MAX_GROWTH // 4 + 1))["main"].results[0], Constant)
    b = GraphBuilder("main")
    w = b.constant(np.zeros((300, 300), np.float32))
    assert isinstance(passed(fold_constants, b.finish(b.permute_dims(w)))["main"].results[0], Constant)


def test_names_are_kept_and_shared_constants_are_folded_for_each_use(passed: Passed) -> None:
    n = Var("n")
    b = GraphBuilder("main")
    x, w = b.input("x", (n, 4)), b.constant(np.eye(4, dtype=np.float32), "weights")
    f = b.finish(b.matmul(x, b.permute_dims(w)), b.matmul(x, w), b.full(shape=(poly(2),), value=1.0, dtype="float32"))
    made = passed(fold_constants, f)["main"]
    used = [b.operation.args[1] for b in all_bindings(made.body)]
    assert [u.name for u in used] == ["weights", "weights"] and used[1] is w and made.results[2].name == "full"
