"""Test the removal of unused bindings, also in inner regions, and of functions that are no longer called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.ir.function import IRModule

Passed = Callable[..., Any]

DEAD = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2), "float32"), c: G.Tensor((), "bool")):
    w = G.constant(2.0, (), "float32")
    a = G.relu(x)
    b = G.multiply(a, w)
    d, e = G.split(x, sizes=(1, 1), axis=1)
    f = G.neg(x)
    g = G.exp(x)
    if c:
        h = G.relu(g)
        i = G.neg(h)
        j = G.add(f, x)
        o = j
    else:
        h = G.exp(x)
        o = x
    if c:
        k = G.relu(b)
        p = k
    else:
        p = x
    return o, e
"""


def test_bindings_without_users(passed: Passed, assert_golden: Passed) -> None:
    """Values used only by a dead branch are removed; a call is kept if one of its results is used."""
    assert_golden(str(passed(dead_code, DEAD)["main"]))


LIVING = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n,), "float32"), unused: G.Tensor((n,), "float32"), c: G.Tensor((), "bool")):
    a = G.relu(x)
    if c:
        b = G.neg(a)
        o = b
    else:
        o = a
    y, z = G.call("part", (a,), (G.Tensor((n,), "float32"), G.Tensor((n,), "float32")))
    return o, z, x
"""
PART = """
@G.function(sizes=("n",))
def part(x: G.Tensor((n,), "float32")):
    y = G.exp(x)
    return x, y
"""


def test_used_bindings_are_kept(unchanged: Passed) -> None:
    unchanged(dead_code, LIVING, PART)


def calls(name: str, *callees: str, live: bool) -> str:
    lines = [f'    v{i} = G.call("{f}", (x,), G.Tensor((2,), "float32"))' for i, f in enumerate(callees)]
    result = "v0" if live else "x"
    return "\n".join(["@G.function", f'def {name}(x: G.Tensor((2,), "float32")):', *lines, f"    return {result}"])


def test_functions_without_remaining_calls_are_removed(passed: Passed) -> None:
    leaf = '@G.function\ndef leaf(x: G.Tensor((2,), "float32")):\n    y = G.relu(x)\n    return y'
    chain = calls("main", "middle", live=False), calls("middle", "leaf", live=True), leaf, leaf.replace("leaf", "entry")
    assert list(passed(dead_code, *chain)) == ["main", "entry"], "a function without callers is an entry point"
    kept = calls("main", "middle", live=True), calls("middle", "leaf", "entry", live=True), leaf, leaf.replace("leaf", "entry")
    assert list(passed(dead_code, *kept)) == ["main", "middle", "leaf"]


def test_a_module_without_dead_code_is_the_same(unchanged: Passed) -> None:
    functions = [parse(LIVING), parse(PART)]
    mod = IRModule({f.name: f for f in functions})
    assert dead_code(mod) is mod
