"""Test every rule of simplify_inference, chains of views, and calls that no rule changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.simplify_inference import simplify_inference
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]

NORMALISED = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2, 3), "float32"), y: G.Tensor((n, 3), "float32"), gamma: G.Tensor((2,), "float32")):
    beta = G.constant([0.5, 1.0], (2,), "float32")
    mean = G.constant([0.0, -1.0], (2,), "float32")
    var = G.constant([1.0, 4.0], (2,), "float32")
    row = G.constant([1.0, 2.0, 3.0], (3,), "float32")
    a = G.batch_norm(x, gamma, beta, mean, var, eps=0.001)
    b = G.batch_norm(a, gamma, beta, mean, var, eps=0.001, axis=-2)
    c = G.batch_norm(y, row, row, row, row, eps=0.5)
    return b, c
"""


def test_batch_normalisation_becomes_multiplication_and_addition(passed: Passed, assert_golden: Passed) -> None:
    assert_golden(str(passed(simplify_inference, NORMALISED)["main"]))


SPLIT = """
@G.function(sizes=("n",))
def main(x: G.Tensor((2, n + 3), "float32")):
    a, b, c = G.split(x, sizes=(2, n, 1), axis=-1)
    s = G.add(a, c)
    return s, b, a
"""


def test_split_becomes_slices(passed: Passed, assert_golden: Passed) -> None:
    assert_golden(str(passed(simplify_inference, SPLIT.replace("x: G.T", 'size: G.Tensor((n,), "float32"), x: G.T'))["main"]))


NOTHING = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2), "float32"), v: G.Tensor((3,), "float32"), s: G.Tensor((), "float32")):
    w = G.constant([[1.0, 2.0]], (1, 2), "float32")
    a = G.identity(x)
    b = G.cast(a, dtype="float32")
    c = G.reshape(b, shape=(n, 2))
    d = G.permute_dims(c, axes=(0, -1))
    e = G.broadcast_to(d, shape=(n, 2))
    f = G.pad(e, before=(0, 0), after=(0, 0), mode="reflect")
    g = G.identity(w)
    h = G.permute_dims(v)
    i = G.permute_dims(s)
    j = G.reshape(s, shape=())
    return f, g, h, i, j, x
"""


def test_calls_without_effect_are_removed(passed: Passed, assert_golden: Passed) -> None:
    """Only parameters and constants remain."""
    assert_golden(str(passed(simplify_inference, NOTHING)["main"]))


CHAINS = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2, 3), "float32"), c: G.Tensor((), "bool")):
    a = G.reshape(x, shape=(n * 2, 3))
    b = G.expand_dims(a, axes=(1,))
    d = G.squeeze(b, axes=(1,))
    e = G.reshape(d, shape=(n, 6))
    p = G.permute_dims(x, axes=(2, 0, 1))
    q = G.permute_dims(p)
    r = G.permute_dims(q, axes=(1, 2, 0))
    s = G.permute_dims(r, axes=(2, 0, 1))
    if c:
        t = G.reshape(e, shape=(n, 3, 2))
        u = G.reshape(t, shape=(n, 2, 3))
        w = G.permute_dims(p, axes=(1, 2, 0))
        o, o_1 = u, w
    else:
        t = G.relu(x)
        u = G.identity(t)
        o, o_1 = u, x
    return e, q, s, o, o_1, b
"""


def test_chains_of_views_and_permutations_are_merged(passed: Passed, assert_golden: Passed) -> None:
    """Also in branches, across the boundary of the region."""
    assert_golden(str(passed(simplify_inference, CHAINS)["main"]))


KEPT = """
@G.function(sizes=("n", "m"))
def main(x: G.Tensor((n, m), "float32"), y: G.Tensor((2, 2), "float32"), c: G.Tensor((), "bool")):
    a = G.reshape(x, shape=(m, n))
    b = G.permute_dims(y)
    d = G.cast(y, dtype="float64")
    e = G.broadcast_to(y, shape=(1, 2, 2))
    f = G.pad(y, before=(0, 0), after=(0, 1))
    g = G.relu(b)
    h = G.permute_dims(g)
    z, z_1 = G.call("part", (x, y), (G.Tensor((n, m), "float32"), G.Tensor((2, 2), "float32")))
    if c:
        o = z_1
    else:
        i = G.relu(y)
        o = i
    return a, d, e, f, h, z, o
"""
PART = """
@G.function(sizes=("n", "m"))
def part(x: G.Tensor((n, m), "float32"), y: G.Tensor((2, 2), "float32")):
    return x, y
"""


def test_unaffected_calls(unchanged: Passed) -> None:
    unchanged(simplify_inference, KEPT, PART)
    b = GraphBuilder("main")
    x, v = b.input("x", (2, 3), "bfloat16"), b.input("v", (3,), "bfloat16")
    unchanged(simplify_inference, b.finish(b.batch_norm(x, v, v, v, v, eps=0.1)))


def transposed(layout: str, groups: int = 1, constant: bool = True, dtype: str = "float32", **attrs: Any) -> Any:
    """A transposed convolution of an image of 7 x 8 with 4 channels, a window of 3 x 2 and 3 outputs for each group."""
    b = GraphBuilder("main")
    x = b.input("x", (2, 4, 7, 8) if layout == "NCHW" else (2, 7, 8, 4), dtype)
    shape = (4, 3, 3, 2) if layout == "NCHW" else (3, 2, 3, 4)
    weights = stream(0, "filter", *shape).standard_normal(shape).astype(dtype)
    w = b.constant(weights) if constant else b.input("w", shape, dtype)
    return b.finish(b.conv2d_transpose(x, w, groups=groups, layout=layout, **attrs))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    "attrs",
    [{}, {"padding": (1, 0, 2, 1)}, {"dilation": (2, 3)}, {"dilation": (2, 3), "padding": (3, 1, 0, 2), "output_padding": (1, 2)}],
)
def test_transposed_convolutions_of_stride_1_become_convolutions(passed: Passed, layout: str, groups: int, attrs: Any) -> None:
    done = passed(simplify_inference, transposed(layout, groups, **attrs))
    operators = [b.operation.operator for b in done["main"].body.bindings]
    assert operators == ["flip", "reshape", "permute_dims", "reshape", "conv2d"] and len(folded(done)) == 1


def folded(mod: Any) -> list[str]:
    return [b.operation.operator for b in fold_constants(mod)["main"].body.bindings]


@pytest.mark.parametrize(
    "options", [{"strides": (1, 2)}, {"padding": (3, 0, 0, 0)}, {"constant": False}, {"dtype": "float64"}, {"strides": (2, 2), "groups": 2}]
)
def test_other_transposed_convolutions_stay_as_they_are(unchanged: Passed, options: Any) -> None:
    unchanged(simplify_inference, transposed("NCHW", **options))
