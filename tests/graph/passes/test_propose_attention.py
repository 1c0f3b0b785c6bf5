"""Test which calls are proposed as one function of attention, and that its parts compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import CallFunction, all_bindings
from tunesmith.graph.passes import propose_attention as made
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.pipelines import GRAPH
from tunesmith.graph.passes.propose_attention import propose_attention
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var
from tunesmith.ir.target.target import Target
from tunesmith.support.seeds import stream

Passed = Callable[..., IRModule]
TARGET = Target("llvm -mcpu=x86-64-v3 -num-cores=2")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "LEAST_BYTES", 2 * 3 * 5 * 4)


ATTENTION = """
@G.function
def main(
    q: G.Tensor((2, 3, 4), "float32"),
    k: G.Tensor((2, 5, 4), "float32"),
    v: G.Tensor((2, 5, 4), "float32"),
    m: G.Tensor((3, 5), "float32"),
):
    half = G.constant(0.5, (), "float32")
    p = G.einsum(q, k, equation="bik,bjk->bij")
    s = G.multiply(p, half)
    t = G.add(m, s)
    w = G.softmax(t, axis=-1)
    y = G.matmul(w, v)
    z = G.relu(y)
    return z
"""


def test_masked_attention(passed: Passed, assert_golden: Callable[..., None]) -> None:
    done = passed(propose_attention, ATTENTION)
    assert list(done) == ["main", "fused_attention", "fused_attention_parts"]
    assert_golden("\n".join(str(f) for f in done.values()))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("G.softmax(t, axis=-1)", "G.softmax(t, axis=1)"),
        ("G.softmax(t, axis=-1)", "G.log_softmax(t, axis=-1)"),
        ("G.softmax(t, axis=-1)", "G.tanh(t)"),
        ("return z", "return z, w"),
        ("return z", "return z, s"),
        ("G.add(m, s)", "G.add(p, s)"),
        ("G.matmul(w, v)", 'G.einsum(w, v, equation="bji,bjk->bik")'),
        ('p = G.einsum(q, k, equation="bik,bjk->bij")', "p = G.broadcast_to(m, shape=(2, 3, 5))"),
    ],
)
def test_other_calls_stay_as_they_are(unchanged: Callable[..., None], before: str, after: str) -> None:
    assert before in ATTENTION
    text = ATTENTION.replace(before, after)
    if "bji" in after:
        text = text.replace("(2, 5, 4)", "(2, 3, 4)")
        text = text.replace("(3, 5)", "(3, 3)")
    unchanged(propose_attention, text)


def test_scores_that_fit_in_the_caches_and_dynamic_ones_stay_as_they_are(
    unchanged: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    unchanged(propose_attention, ATTENTION.replace("@G.function", '@G.function(sizes=("n",))').replace("3,", "n,"))
    monkeypatch.setattr(made, "LEAST_BYTES", 2 * 3 * 5 * 4 + 1)
    unchanged(propose_attention, ATTENTION)


def layers(count: int, tokens: int | Var = 6) -> IRModule:
    b = GraphBuilder("main")
    x = b.input("x", (2, tokens, 4))
    for i in range(count):
        weights = [b.constant(stream(i, "w", j).standard_normal((4, 4)).astype(np.float32)) for j in range(3)]
        q, k, v = [b.matmul(x, w) for w in weights]
        scores = b.multiply(b.matmul(q, b.permute_dims(k, axes=(0, 2, 1))), b.constant(np.array(0.5, np.float32)))
        x = b.add(x, b.matmul(b.softmax(scores, axis=-1), v))
    return IRModule({"main": b.finish(x)})


def test_equal_layers_share_one_function_and_its_parts() -> None:
    mod = layers(3)
    done = GRAPH(mod, TARGET)
    calls = [b.operation.function for b in all_bindings(done["main"].body) if isinstance(b.operation, CallFunction)]
    assert calls.count("fused_attention") == 3 and isinstance(done["fused_attention"], PrimFunc)
    parts = [b.operation.function for b in all_bindings(done["fused_attention_parts"].body) if isinstance(b.operation, CallFunction)]
    assert len(parts) == 3 and parts[1] == "op_softmax" and all(isinstance(done[name], PrimFunc) for name in parts)
    x = stream(0, "x").standard_normal((2, 6, 4)).astype(np.float32)
    np.testing.assert_allclose(run(done["main"], [x], done)[0], run(mod["main"], [x], mod)[0], rtol=1e-4, atol=1e-5)


def test_attention_in_a_branch_is_proposed(passed: Passed) -> None:
    b = GraphBuilder("main")
    q, k, c = b.input("q", (2, 3, 4)), b.input("k", (2, 4, 5)), b.input("c", (), "bool")
    v = b.input("v", (2, 5, 4))
    y = b.branch(c, lambda r: r.matmul(r.softmax(r.matmul(q, k), axis=-1), v), lambda r: r.exp(q))
    assert "fused_attention" in passed(propose_attention, b.finish(y))


def test_offloaded_functions_stay_as_they_are() -> None:
    mod = layers(1)
    given = mod.update({"main": mod["main"].with_(attrs=(("codegen", "x"),))})
    assert propose_attention(given)["main"] is given["main"]


def test_the_proposal_is_no_obstacle_to_fusion() -> None:
    """What follows attention is fused as without the proposal."""
    fused: Any = fuse_operators(propose_attention(layers(2)))
    assert {name for name in fused if name.startswith("fused_")} >= {"fused_attention", "fused_attention_parts"}
