"""Test the folding of permutations into contractions, and cases in which it is not allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith.graph.ir.node import Call, all_bindings
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.fold_permutes import fold_permutes
from tunesmith.ir.function import IRModule

Passed = Callable[..., Any]

ATTENTION = """
@G.function(sizes=("n",))
def main(q: G.Tensor((1, n, 2, 4), "float32"), k: G.Tensor((1, n, 2, 4), "float32"), v: G.Tensor((1, n, 2, 4), "float32")):
    query = G.permute_dims(q, axes=(0, 2, 1, 3))
    key = G.permute_dims(k, axes=(0, 2, -1, 1))
    value = G.permute_dims(v, axes=(0, 2, 1, 3))
    scores = G.matmul(query, key)
    weights = G.softmax(scores, axis=-1)
    mixed = G.matmul(weights, value)
    back = G.permute_dims(mixed, axes=(0, 2, 1, 3))
    return (back,)
"""


def cleaned(mod: IRModule) -> IRModule:
    return dead_code(fold_permutes(mod))


def operators(mod: IRModule) -> list[str]:
    return [b.operation.operator for b in all_bindings(mod["main"].body) if isinstance(b.operation, Call)]


def test_attention_needs_no_permutations(passed: Passed, assert_golden: Callable[..., None]) -> None:
    done = passed(cleaned, ATTENTION)
    assert operators(done) == ["einsum", "softmax", "einsum"]
    assert_golden(str(done["main"]))


def test_permuted_values_with_other_uses_are_kept(passed: Passed) -> None:
    done = passed(
        cleaned,
        """
@G.function
def main(x: G.Tensor((3, 4), "float32"), y: G.Tensor((3, 5), "float32")):
    t = G.permute_dims(x, axes=(1, 0))
    z = G.matmul(t, y)
    u = G.permute_dims(z, axes=(1, 0))
    w = G.permute_dims(u, axes=(1, 0))
    return t, w
""",
    )
    assert operators(done) == ["permute_dims", "einsum"]


BRANCHES = """
@G.function
def main(x: G.Tensor((3, 4), "float32"), y: G.Tensor((3, 5), "float32"), c: G.Tensor((), "bool")):
    t = G.permute_dims(x, axes=(1, 0))
    z = G.matmul(t, y)
    if c:
        u = G.matmul(t, y)
        v = G.permute_dims(u, axes=(1, 0))
        o = v
    else:
        v = G.permute_dims(z, axes=(1, 0))
        o = v
    return (o,)
"""


def test_branches_fold_operands_from_outside_but_not_results(passed: Passed) -> None:
    """A product outside is computed for either branch, so a branch keeps its permutation of that product."""
    assert operators(passed(cleaned, BRANCHES)) == ["einsum", "einsum", "permute_dims"]


@pytest.mark.parametrize(
    "text",
    [
        "z = G.matmul(x, y)\n    o = G.permute_dims(z, axes=(0, 2, 1))\n    return o, z",
        "t = G.permute_dims(y, axes=(2, 1, 0))\n    s = G.exp(t)\n    u = G.permute_dims(s, axes=(2, 1, 0))\n    v = G.exp(u)\n"
        "    o = G.matmul(x, v)\n    return (o,)",
        "t = G.sum(y, axes=(0,))\n    u = G.permute_dims(t, axes=(1, 0))\n    v = G.permute_dims(u, axes=(1, 0))\n    w = G.exp(v)\n"
        "    o = G.matmul(x, w)\n    return (o,)",
    ],
    ids=["product with another use", "not adjacent", "batch and matrix"],
)
def test_unaffected_calls(passed: Passed, text: str) -> None:
    head = '@G.function\ndef main(x: G.Tensor((2, 3, 4), "float32"), y: G.Tensor((2, 4, 5), "float32")):\n    '
    assert "einsum" not in operators(passed(fold_permutes, head + text))


def test_reversed_axes_are_folded(passed: Passed) -> None:
    head = '@G.function\ndef main(x: G.Tensor((4, 3), "float32"), y: G.Tensor((5, 4), "float32")):\n    '
    text = "a = G.permute_dims(x)\n    b = G.permute_dims(y)\n    c = G.matmul(a, b)\n    d = G.permute_dims(c)\n    return (d,)"
    assert operators(passed(cleaned, head + text)) == ["einsum"]


@pytest.mark.parametrize("channels", [3, 4, 5])
def test_the_first_layer_reads_the_original_image(passed: Passed, channels: int) -> None:
    done = passed(
        cleaned,
        f"""
@G.function
def main(x: G.Tensor((1, {channels}, 6, 7), "float32"), w: G.Tensor((3, 3, {channels}, 8), "float32")):
    t = G.permute_dims(x, axes=(0, 2, 3, 1))
    y = G.conv2d(t, w, padding=(1, 1, 1, 1), layout="NHWC")
    return (y,)
""",
    )
    assert operators(done) == (["conv2d"] if channels <= 4 else ["permute_dims", "conv2d"])
