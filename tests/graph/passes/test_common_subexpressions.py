"""Test common-subexpression elimination: equal calls, constants and functions; branches; calls that only look equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.graph.passes.common_subexpressions import common_subexpressions

Passed = Callable[..., Any]

PART = """
@G.function(sizes=("n",))
def part(x: G.Tensor((n,), "float32")):
    y = G.exp(x)
    return x, y
"""
SAME = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n,), "float32"), c: G.Tensor((), "bool")):
    w = G.constant([1.0], (1,), "float32")
    v = G.constant([1.0], (1,), "float32")
    a = G.relu(x)
    b = G.relu(x)
    d = G.add(a, w)
    e = G.add(b, v)
    f, g = G.call("part", (d,), (G.Tensor((n,), "float32"), G.Tensor((n,), "float32")))
    h, i = G.call("part", (e,), (G.Tensor((n,), "float32"), G.Tensor((n,), "float32")))
    j = G.full(shape=(n,), value=1.0, dtype="float32")
    k = G.full(shape=(n,), value=1.0, dtype="float32")
    l = G.add(g, i)
    return l, h, k, j, b, v
"""


def test_calls_constants_and_functions(passed: Passed, assert_golden: Passed) -> None:
    assert_golden(str(passed(common_subexpressions, SAME, PART)["main"]))


BRANCHES = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n,), "float32"), c: G.Tensor((), "bool")):
    a = G.relu(x)
    if c:
        b = G.relu(x)
        d = G.neg(b)
        e = G.neg(a)
        if c:
            f = G.neg(a)
            o = f
        else:
            f = G.exp(x)
            o = f
        s = G.exp(x)
        p, q = G.add(d, e), G.add(o, s)
    else:
        d = G.neg(a)
        e = G.exp(x)
        p, q = d, e
    g = G.neg(a)
    h = G.exp(x)
    i = G.neg(a)
    return p, q, g, h, i
"""


def test_regions_reuse_values_of_enclosing_regions_only(passed: Passed, assert_golden: Passed) -> None:
    text = BRANCHES.replace(
        "        p, q = G.add(d, e), G.add(o, s)", "        t = G.add(d, e)\n        u = G.add(o, s)\n        p, q = t, u"
    )
    assert_golden(str(passed(common_subexpressions, text)["main"]))


KEPT = """
@G.function(sizes=("n", "m"))
def main(x: G.Tensor((n,), "float32"), y: G.Tensor((m,), "float32"), z: G.Tensor((2,), "float32")):
    zero = G.constant(0.0, (), "float32")
    below = G.constant(-0.0, (), "float32")
    row = G.constant([0.0], (1,), "float32")
    whole = G.constant(0, (), "int32")
    a = G.full(shape=(n,), value=0.0, dtype="float32")
    b = G.full(shape=(n,), value=-0.0, dtype="float32")
    d = G.full(shape=(m,), value=0.0, dtype="float32")
    e = G.full(shape=(n,), value=0, dtype="float32")
    f = G.full(shape=(n,), value=0, dtype="int32")
    g = G.subtract(x, zero)
    h = G.subtract(zero, x)
    i = G.divide(x, below)
    j = G.divide(x, zero)
    k = G.add(x, row)
    l = G.add(f, whole)
    p = G.sum(z, keepdims=True)
    q = G.sum(z, keepdims=False)
    s = G.call("relu", (z,), G.Tensor((2,), "float32"))
    t = G.relu(z)
    return a, b, d, e, g, h, i, j, k, l, p, q, s, t
"""
FUNCTION = """
@G.function
def relu(x: G.Tensor((2,), "float32")):
    y = G.neg(x)
    return y
"""


def test_similar_calls_are_not_merged(unchanged: Passed) -> None:
    """0.0 and -0.0, sizes, types, shapes, operand order, and a function with the name of an operator."""
    unchanged(common_subexpressions, KEPT, FUNCTION)
