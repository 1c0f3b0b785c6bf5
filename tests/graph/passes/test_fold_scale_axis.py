"""Test the folding of factors into weights, through additions and in every layout, and cases in which it is not allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.node import Call, all_bindings
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.fold_scale_axis import fold_scale_axis
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
N = Var("n")

CHAIN = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 1, 3, 3), "float32"), c: G.Tensor((), "bool")):
    w = G.constant([[[[1.0, 2.0]]], [[[3.0, 4.0]]]], (2, 1, 1, 2), "float32")
    s = G.constant([[[2.0]], [[0.5]]], (2, 1, 1), "float32")
    b = G.constant([[[1.0]], [[-1.0]]], (2, 1, 1), "float32")
    y = G.conv2d(x, w)
    y_1 = G.multiply(y, s)
    y_2 = G.add(b, y_1)
    y_3 = G.multiply(s, y_2)
    if c:
        z = G.conv2d(x, w)
        z_1 = G.add(z, b)
        z_2 = G.multiply(z_1, s)
        o = z_2
    else:
        z = G.multiply(y_3, s)
        o = z
    return o, y_3
"""


def test_multiplications_are_folded_into_the_weights(passed: Passed, assert_golden: Callable[..., None]) -> None:
    """Also through additions, repeatedly, and in branches; weights shared by two convolutions are scaled for each."""
    assert_golden(str(passed(fold_scale_axis, CHAIN)["main"]))


CONTRACTIONS = {
    "conv2d": ((N, 4, 5, 5), (6, 4, 3, 3), (6, 1, 1), {}),
    "conv2d groups": ((N, 4, 5, 5), (6, 2, 3, 3), (1, 6, 1, 1), {"groups": 2}),
    "conv2d NHWC": ((N, 5, 5, 4), (3, 3, 4, 6), (6,), {"layout": "NHWC"}),
    "conv2d depthwise": ((N, 5, 5, 4), (3, 3, 1, 4), (1, 1, 4), {"layout": "NHWC", "groups": 4}),
    "conv2d_transpose": ((N, 4, 5, 5), (4, 6, 3, 3), (6, 1, 1), {}),
    "conv2d_transpose NHWC": ((N, 5, 5, 4), (3, 3, 6, 4), (6,), {"layout": "NHWC"}),
    "matmul": ((N, 3, 4), (4, 6), (6,), {}),
    "matmul rows": ((4,), (4, 6), (6,), {}),
    "matmul number": ((N, 4), (4, 6), (), {}),
}


@pytest.mark.parametrize("case", CONTRACTIONS)
def test_every_contraction(passed: Passed, case: str) -> None:
    x, w, s, attrs = CONTRACTIONS[case]
    rng = stream(0, case)
    b = GraphBuilder("main")
    weight, scale = [b.constant(rng.standard_normal(shape).astype(np.float32)) for shape in (w, s)]
    y = b.call(case.split()[0], b.input("x", x), weight, **attrs)
    done = dead_code(fold_constants(passed(fold_scale_axis, b.finish(b.multiply(scale, b.add(y, scale))))))["main"]
    names = [binding.operation.operator for binding in all_bindings(done.body) if isinstance(binding.operation, Call)]
    assert names == [case.split()[0], "add"]


def unaffected(name: str) -> GraphBuilder:
    b = GraphBuilder("main")
    rng = stream(0, "kept")
    x = b.input("x", (2, 3, 4, 4))
    w, other = [b.constant(rng.standard_normal((3, 3, 1, 1)).astype(np.float32)) for _ in range(2)]
    s, row, whole = [b.constant(rng.standard_normal(e).astype(np.float32)) for e in ((3, 1, 1), (4,), (2, 3, 4, 4))]
    y = b.conv2d(x, w)
    if name == "two users":
        b.output(b.multiply(y, s), y)
    elif name == "used in a branch":
        p = b.input("p", (), "bool")
        b.output(b.multiply(y, s), b.branch(p, lambda r: r.relu(y), lambda r: x))
    elif name == "scaled in a branch":
        p = b.input("p", (), "bool")
        b.output(b.branch(p, lambda r: r.multiply(y, s), lambda r: x))
    elif name == "other axes":
        b.output(b.multiply(y, row), b.multiply(b.conv2d(x, other), whole))
    elif name == "unknown weights":
        b.output(b.multiply(b.conv2d(x, b.input("v", (3, 3, 1, 1))), s))
    elif name == "unknown factors":
        b.output(b.multiply(y, b.input("v", (3, 1, 1))))
    elif name == "operator in between":
        b.output(b.multiply(b.relu(y), s), b.multiply(b.add(b.relu(b.conv2d(x, other)), s), s))
    elif name == "larger product":
        b.output(b.multiply(y, b.constant(np.ones((2, 1, 1, 1, 1), np.float32))))
    elif name == "broadcast channel":
        b.output(b.multiply(b.conv2d(x, b.constant(np.ones((1, 3, 1, 1), np.float32))), s))
    elif name == "sum of two unknown values":
        b.output(b.multiply(b.add(y, x), s))
    elif name == "sum with two users":
        z = b.add(y, s)
        b.output(b.multiply(z, s), z)
    elif name == "batches of matrices":
        b.output(b.multiply(b.matmul(x, b.constant(np.ones((2, 3, 4, 2), np.float32))), b.constant(np.ones(2, np.float32))))
    elif name == "a product with a vector":
        b.output(b.multiply(b.matmul(x, row), b.constant(np.ones(4, np.float32))))
    elif name == "groups of a transposed convolution":
        b.output(b.multiply(b.conv2d_transpose(x, b.constant(np.ones((3, 1, 2, 2), np.float32)), groups=3), s))
    return b


UNAFFECTED = (
    "two users",
    "used in a branch",
    "scaled in a branch",
    "other axes",
    "unknown weights",
    "unknown factors",
    "operator in between",
    "larger product",
    "broadcast channel",
    "sum of two unknown values",
    "sum with two users",
    "batches of matrices",
    "a product with a vector",
    "groups of a transposed convolution",
)


@pytest.mark.parametrize("name", UNAFFECTED)
def test_unaffected_functions(unchanged: Passed, name: str) -> None:
    unchanged(fold_scale_axis, unaffected(name).finish())


def test_weights_of_the_input_module_are_not_modified(passed: Passed) -> None:
    b = GraphBuilder("main")
    w = b.constant(np.ones((4, 2), np.float32), "w")
    f = b.finish(b.multiply(b.matmul(b.input("x", (3, 4)), w), b.constant(np.float32([2, 3]))))
    done = fold_constants(fold_scale_axis(IRModule({"main": f})))["main"]
    np.testing.assert_array_equal(w.data, np.ones((4, 2)))
    np.testing.assert_array_equal(done.body.bindings[0].operation.args[1].data, np.tile(np.float32([2, 3]), (4, 1)))


def test_depthwise_filters_of_three_dimensions_are_kept() -> None:
    """A factor of each channel does not broadcast against [channels, kh, kw] as against four dimensions."""
    b = GraphBuilder("main")
    w = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32)
    y = b.multiply(b.conv2d(b.input("x", (1, 4, 6, 6)), b.constant(w)), b.constant(np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1)))
    mod = IRModule({"main": b.finish(y)})
    assert fold_scale_axis(mod)["main"] is mod["main"]


def additions(build: GraphBuilder, name: str, terms: list[np.ndarray], flipped: bool = False) -> Any:
    shape, weight, _, attrs = CONTRACTIONS[name]
    make = stream(3, "additions").standard_normal
    x = build.input("x", shape)
    out = getattr(build, name.split()[0])(x, build.constant(make(weight).astype(np.float32), "w"), **attrs)
    for n, term in enumerate(terms):
        c = build.constant(term, f"b{n}")
        out = build.add(c, out) if flipped else build.add(out, c)
    return build.finish(out)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("name", ["conv2d", "conv2d NHWC", "matmul"])
def test_constant_terms_of_channels_become_one(name: str, flipped: bool) -> None:
    terms = [stream(n, "terms").standard_normal(CONTRACTIONS[name][2]).astype(np.float32) for n in range(3)]
    func = additions(GraphBuilder("main"), name, terms, flipped)
    made: Any = dead_code(fold_scale_axis(IRModule({"main": func})))["main"]
    calls = [b.operation for b in made.body.bindings if isinstance(b.operation, Call)]
    assert [c.operator for c in calls] == [name.split()[0], "add"]
    (total,) = [a.data for a in calls[1].args if hasattr(a, "data")]
    np.testing.assert_array_equal(total, (terms[0] + terms[1]) + terms[2])


def test_other_terms_are_kept() -> None:
    """A constant that varies along other axes, and a sum that is used twice."""
    whole = np.ones((4, 6), np.float32)
    func = additions(GraphBuilder("main"), "matmul rows", [np.ones(6, np.float32)])
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (4, 4)), b.constant(np.ones((4, 6), np.float32), "w"))
    one = b.add(y, b.constant(np.ones(6, np.float32), "b"))
    kept = b.finish(b.add(one, b.constant(whole, "c")), b.add(one, b.constant(np.ones(6, np.float32), "d")))
    for f in (func, kept):
        mod = IRModule({"main": f})
        assert fold_scale_axis(mod)["main"] is f
