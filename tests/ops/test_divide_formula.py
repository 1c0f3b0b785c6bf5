"""Test divide_formula: formulas of any depth and size compile with the same bits, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith.ir import structural
from tunesmith.ir.expr import Binary, Const, Expr
from tunesmith.ir.expression_size import MAX_DEPTH, MAX_NODES, ExpressionSize, size_of
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.script.parser import parse
from tunesmith.ir.script.printer import script
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.ir.visit import blocks_under
from tunesmith.ops import tensor_expression as te
from tunesmith.ops.tensor_expression import Tensor
from tunesmith.search.analytic_schedule import analytic_schedule
from tunesmith.search.space.rules_table import generate
from tunesmith.support.errors import ScriptError

N = 32


def element(formula: Callable[[Expr], Expr]) -> tuple[Tensor, Tensor]:
    """Tensors (A, B) with B[i] = formula(A[i])."""
    A = te.placeholder((N,), name="A")
    return A, te.compute((N,), lambda i: formula(A[i]), "B")


def repeated(step: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    def formula(x: Any) -> Any:
        for _ in range(times):
            x = step(x)
        return x

    return formula


DEEP: dict[str, tuple[Callable[[Any], Any], int]] = {
    "sum to the left": (lambda x: x + 0.25, 600),
    "sum to the right": (lambda x: 0.25 + x, 300),
    "squares": (lambda x: x * x + 0.125, 40),
}


@pytest.mark.parametrize("name", list(DEEP))
def test_a_deep_formula_is_divided(name: str) -> None:
    """All uses of the function give the same results as applying one operation after the other."""
    step, times = DEEP[name]
    formula = repeated(step, times)
    func = te.create_prim_func(list(element(formula)), "f")
    structural.digest(func)
    assert structural.equal(parse(script(func)), func)  # type: ignore[arg-type]
    a = np.linspace(-0.5, 0.5, N, dtype="float32")
    want = formula(a).astype("float32")
    for f in (func, analytic_schedule(func, Target("llvm -num-cores=2"))):
        got = np.empty_like(a)
        tunesmith.build(f)(a, got)
        np.testing.assert_array_equal(got, want)
    assert generate(func, Target("llvm -num-cores=2")).sketches


def test_a_shallow_formula_is_not_divided() -> None:
    """At the limits nothing is divided, and every traversal has enough stack."""
    A, B = element(repeated(lambda x: te.call("sqrt", x), MAX_DEPTH - 2))
    func = te.create_prim_func([A, B], "f")
    assert not func.allocs
    structural.digest(func)
    assert structural.equal(func, te.create_prim_func([A, B], "f"))
    a = np.full(N, 2.0, "float32")
    b = np.empty_like(a)
    tunesmith.build(func)(a, b)
    for got in (b, run(func, [a, b])[1]):
        np.testing.assert_allclose(got, 1.0, rtol=1e-6)


def test_the_formula_of_a_reduction_is_divided_outside_its_axes() -> None:
    """A part that does not depend on the reduction axes becomes a stage; one that does is refused if it is too deep."""
    A, V = te.placeholder((N, 8), name="A"), te.placeholder((N,), name="V")
    r = te.reduce_axis(8, "k")
    deep = repeated(lambda x: x + 1.0, 300)
    B = te.compute((N,), lambda i: te.sum(A[i, r] * deep(V[i]), axis=r), "B")
    func = te.create_prim_func([A, V, B], "f")
    assert len(func.allocs) >= 2
    a, v, b = np.ones((N, 8), "float32"), np.arange(N, dtype="float32"), np.empty(N, "float32")
    tunesmith.build(func)(a, v, b)
    np.testing.assert_array_equal(b, 8 * (v + 300))
    with pytest.raises(ScriptError, match=r"compute B: the formula has \d+ nodes as a tree, and depth 302; .* could not be divided"):
        te.compute((N,), lambda i: te.sum(deep(A[i, r]), axis=r), "B")


def test_branches_of_a_select_are_not_divided() -> None:
    """A stage would evaluate the branch that is not selected, which may read out of range."""
    A = te.placeholder((N,), name="A")
    with pytest.raises(ScriptError, match="could not be divided"):
        te.compute((2 * N,), lambda i: te.select(i < N, repeated(lambda x: x + 1.0, 300)(A[i]), 0.0), "B")


def test_size_of_counts_trees_in_linear_time() -> None:
    """A shared part is counted at each use and visited once."""
    x: Expr = Const(1.0, "float32")
    for _ in range(100):
        x = Binary("add", x, x)
    assert size_of(x) == ExpressionSize(2**101 - 1, 101)
    assert not size_of(x).fits and MAX_NODES < 2**20


def test_programs_with_deep_expressions_are_refused() -> None:
    """A hand-built program gets a clear error from verification and from compilation, not a RecursionError."""
    A, B = element(lambda x: x + 1.0)
    func = te.create_prim_func([A, B], "f")
    block = blocks_under(func.body)[0]
    store: Any = block.body
    value = store.value
    for _ in range(MAX_DEPTH):
        value = Binary("add", value, Const(1.0, "float32"))
    deep = func.with_(body=func.body.with_(body=block.with_(body=store.with_(value=value))))  # type: ignore[call-arg]
    for refused in (lambda: verify(deep), lambda: tunesmith.build(deep)):
        with pytest.raises(ScriptError, match=r"the value stored to B has \d+ nodes, expanded as a tree, and depth 122; the limits"):
            refused()


@pytest.mark.parametrize("count", [40, 300])
def test_a_chain_of_many_stages(count: int) -> None:
    """Without a schedule, each stage has its own buffer, and loops are not nested."""
    x = A = te.placeholder((4,), name="A")
    for k in range(count):
        x = te.compute((4,), lambda i, x=x: x[i] * 0.5 + 1.0, f"B{k}")  # type: ignore[misc]
    func = te.create_prim_func([A, x], "f")
    a, b = np.array([0.0, 1.0, 2.0, 64.0], "float32"), np.empty(4, "float32")
    tunesmith.build(func)(a, b)
    np.testing.assert_array_equal(b, repeated(lambda v: v * np.float32(0.5) + np.float32(1.0), count)(a))
