"""Test operator fusion: the groups, their functions, and sharing of equal functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import PRIMITIVE, CallFunction, If, Operand, all_bindings
from tunesmith.graph.passes.fuse_operators import MAX_CALLS, fuse_operators
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.target.target import Target
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
N = Var("n")


def data(*shape: int) -> np.ndarray:
    return stream(0, "fusion", *shape).standard_normal(shape).astype(np.float32)


def text(mod: IRModule) -> str:
    return "\n\n".join([str(f) for f in mod.values()])


BLOCK = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 4), "float32"), c: G.Tensor((), "bool"), y: G.Tensor((n, 4), "float32")):
    w = G.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], (4, 2), "float32")
    b = G.constant([1.0, 2.0], (2,), "float32")
    two = G.constant([[2.0]], (1, 1), "float32")
    a = G.matmul(x, w)
    d = G.add(a, b)
    e = G.relu(d)
    f = G.multiply(e, two)
    r = G.reshape(f, shape=(n * 2,))
    s, s_1 = G.split(x, sizes=(2, 2), axis=1)
    if c:
        g = G.matmul(y, w)
        h = G.add(g, b)
        i = G.relu(h)
        j = G.multiply(two, i)
        o = j
    else:
        g = G.matmul(y, w)
        h = G.add(g, b)
        i = G.relu(h)
        j = G.multiply(i, two)
        o = j
    k = G.exp(x)
    l = G.sum(k, axes=(1,))
    m = G.subtract(s, s_1)
    return o, r, l, m, x, b
"""


def test_a_block(passed: Passed, assert_golden: Callable[..., None]) -> None:
    """Equal groups share a function at any position; weights are passed, numbers are part of the function."""
    assert_golden(text(passed(fuse_operators, BLOCK)))


def groups(f: GraphFunc, most: int = MAX_CALLS) -> list[str]:
    """Names of the called functions, in order; names in branches come first."""
    done = fuse_operators(IRModule({"main": f}), most=most)
    operations = [b.operation for b in all_bindings(done["main"].body)]
    return [o.function if isinstance(o, CallFunction) else o.operator for o in operations if not isinstance(o, If)]


def graph(make: Callable[[RegionBuilder, Operand], Any]) -> GraphFunc:
    b = GraphBuilder("main")
    made = make(b, b.input("x", (N, 4)))
    return b.finish(*(made if isinstance(made, tuple) else (made,)))


def _residual(b: RegionBuilder, x: Operand) -> Operand:
    y = b.matmul(x, b.constant(data(4, 4)))
    return b.relu(b.add(b.tanh(y), b.add(y, x)))


def _diamond(b: RegionBuilder, x: Operand) -> Operand:
    a = b.exp(x)
    return b.add(b.relu(a), b.neg(a))


def _two_results(b: RegionBuilder, x: Operand) -> tuple[Operand, Operand]:
    a = b.exp(x)
    return b.relu(a), b.neg(a)


def _result_and_operand(b: RegionBuilder, x: Operand) -> tuple[Operand, Operand]:
    a = b.exp(x)
    return b.relu(a), a


def _two_products(b: RegionBuilder, x: Operand) -> Operand:
    return b.add(b.matmul(x, b.constant(data(4, 4))), b.matmul(x, b.constant(data(4, 4))))


def _attention(b: RegionBuilder, x: Operand) -> Operand:
    scores = b.multiply(b.matmul(x, b.permute_dims(x)), b.constant(np.float32(0.5)))
    return b.matmul(b.softmax(scores), x)


def _used_inside_a_branch(b: RegionBuilder, x: Operand) -> Any:
    a = b.exp(x)
    return b.branch(b.constant(np.array(True)), lambda r: r.relu(a), lambda r: r.add(a, x)), b.neg(a)


def _multi_result_anchor(b: RegionBuilder, x: Operand) -> tuple[Operand, ...]:
    return tuple([b.relu(v) for v in b.split(b.exp(x), sizes=(2, 2), axis=1)])


CASES: dict[str, tuple[Callable[[RegionBuilder, Operand], Any], list[str]]] = {
    "chain": (lambda b, x: b.neg(b.relu(b.exp(x))), ["fused_exp_relu_neg"]),
    "abbreviated names": (lambda b, x: _chain(b, x, 8), ["fused_exp_neg_exp_neg_exp_neg_etc"]),
    "one": (lambda b, x: b.relu(x), ["op_relu"]),
    "view alone": (lambda b, x: b.reshape(x, shape=(poly(N) * 4,)), ["reshape"]),
    "views at the ends": (lambda b, x: b.expand_dims(b.relu(b.expand_dims(x, axes=0)), axes=0), ["expand_dims", "op_relu", "expand_dims"]),
    "views in the middle": (lambda b, x: b.relu(b.expand_dims(b.exp(x), axes=0)), ["fused_exp_expand_dims_relu"]),
    "views only": (lambda b, x: b.squeeze(b.expand_dims(x, axes=1), axes=1), ["expand_dims", "squeeze"]),
    "elementwise into a reduction": (lambda b, x: b.sum(b.exp(x)), ["fused_exp_sum"]),
    "epilogue of a reduction": (lambda b, x: b.sqrt(b.sum(b.exp(x), axes=1)), ["fused_exp_sum_sqrt"]),
    "broadcast reduction": (lambda b, x: b.divide(x, b.sum(x, axes=1, keepdims=True)), ["op_sum", "op_divide"]),
    "two reductions": (lambda b, x: b.max(b.sum(x, axes=0)), ["op_sum", "op_max"]),
    "residual": (_residual, ["fused_matmul_tanh_add_relu"]),
    "two products": (_two_products, ["op_matmul", "fused_matmul_add"]),
    "maps before a product": (lambda b, x: b.matmul(b.exp(x), b.constant(data(4, 4))), ["op_exp", "op_matmul"]),
    "permuted product": (lambda b, x: b.permute_dims(b.matmul(x, b.constant(data(4, 4)))), ["op_matmul", "op_permute_dims"]),
    "attention": (_attention, ["op_permute_dims", "fused_matmul_multiply", "op_softmax", "op_matmul"]),
    "diamond": (_diamond, ["fused_exp_relu_neg_add"]),
    "two results": (_two_results, ["op_exp", "op_relu", "op_neg"]),
    "a result that is an operand": (_result_and_operand, ["op_exp", "op_relu"]),
    "used in a branch": (_used_inside_a_branch, ["op_exp", "op_relu", "op_add", "op_neg"]),
    "several results": (_multi_result_anchor, ["fused_exp_split", "op_relu", "op_relu"]),
    "only numbers": (lambda b, x: b.add(b.constant(np.float32(1)), b.constant(np.float32(2))), ["op_add"]),
    "no operands": (lambda b, x: b.add(x, b.full(shape=(N, 4), value=1.0, dtype="float32")), ["fused_full_add"]),
}


def _chain(b: RegionBuilder, x: Operand, count: int) -> Operand:
    for i in range(count):
        x = b.neg(x) if i % 2 else b.exp(x)
    return x


@pytest.mark.parametrize("name", CASES)
def test_groups(passed: Passed, name: str) -> None:
    make, wanted = CASES[name]
    assert groups(graph(make)) == wanted
    passed(fuse_operators, graph(make))


def test_maximum_number_of_calls_of_a_group() -> None:
    f = graph(lambda b, x: _chain(b, x, 7))
    assert [len(n.split("_")) - 1 for n in groups(f, 3)] == [3, 3, 1]
    assert groups(f, 1) == ["op_exp", "op_neg"] * 3 + ["op_exp"]
    long = fuse_operators(IRModule({"main": graph(lambda b, x: _chain(b, x, MAX_CALLS + 1))}))
    assert sorted(len(f.body.bindings) for name, f in long.items() if name != "main") == [1, MAX_CALLS]


def test_names_in_use_are_not_reused(passed: Passed) -> None:
    taken = '@G.function\ndef op_relu(x: G.Tensor((4,), "float32")):\n    return x'
    main = """
@G.function
def main(x: G.Tensor((4,), "float32"), y: G.Tensor((2,), "float32")):
    a = G.relu(x)
    b = G.relu(y)
    c = G.relu(a)
    d = G.call("op_relu", (x,), G.Tensor((4,), "float32"))
    e = G.sum(d)
    return c, b, e
"""
    done = passed(fuse_operators, main, taken)
    assert list(done) == ["main", "op_relu", "op_relu_1", "fused_relu", "op_sum"]
    assert done["op_relu"].attr(PRIMITIVE) is None and done["op_relu_1"].attr(PRIMITIVE) == "1"


def test_sizes_are_passed_in_the_order_of_the_function(passed: Passed) -> None:
    b = GraphBuilder("main")
    m = Var("m")
    x, y = b.input("x", (N, m)), b.input("y", (m, N))
    z = b.reshape(x, shape=(poly(N) * m,))
    done = passed(fuse_operators, b.finish(b.neg(x), b.neg(y), b.full(shape=(m, N), value=1.0, dtype="float32"), b.exp(b.neg(z))))
    calls = [b.operation for b in done["main"].body.bindings if isinstance(b.operation, CallFunction)]
    assert len([name for name in done if name.startswith("op_neg")]) == 1, "equal up to the names of sizes"
    assert [c.sizes for c in calls][:2] == [(poly(N), poly(m)), (poly(m), poly(N))]


def test_operands_used_twice_are_passed_once(passed: Passed) -> None:
    b = GraphBuilder("main")
    w = b.constant(data(4, 4), "w")
    done = passed(fuse_operators, b.finish(b.add(b.add(w, b.input("x", (4, 4))), w)))
    call = done["main"].body.bindings[0].operation
    assert [a.name for a in call.args] == ["w", "x"] and done["fused_add"].attr("constants") == "0"
    assert [p.name for p in done["fused_add"].params] == ["a", "b"]


def test_unaffected_functions(unchanged: Passed) -> None:
    unchanged(fuse_operators, '@G.function\ndef main(x: G.Tensor((4,), "float32")):\n    y = G.reshape(x, shape=(2, 2))\n    return y, x')
    done = fuse_operators(IRModule({"main": graph(_residual)}))
    again = fuse_operators(done)
    assert all(again[name] is done[name] for name in done)


def test_expressions_of_groups_are_bounded() -> None:
    """Inlining into an operator with many reads of its operand copies the expression, so a chain of them is split into groups."""

    def chain(b: RegionBuilder, x: Operand) -> Operand:
        for _ in range(12):
            x = b.multiply(x, b.tanh(b.softplus(x)))
        return x

    mod = fuse_operators(IRModule({"main": graph(chain)}))
    counts = [len(f.body.bindings) for name, f in mod.items() if name != "main"]
    assert 1 < max(counts) < 12


def test_scales_and_zero_points_of_one_element_are_arguments() -> None:
    """Quantised layers that differ in them share a function; a zero point of 0 is a number of the program."""
    b = GraphBuilder("main")
    results = []
    for i, (unit, zero) in enumerate([(0.5, 3), (0.25, 131), (0.5, 0)]):
        scale, shift = b.constant(np.float32(unit)), b.constant(np.uint8(zero))
        x = b.quantize(b.relu(b.input(f"x{i}", (2, 4))), scale, shift)
        results.append(b.multiply(b.dequantize(x, scale, shift), b.constant(np.float32(2.0))))
    mod = IRModule({"main": b.finish(*results)})
    done = fuse_operators(mod)
    calls = [o.operation for o in all_bindings(done["main"].body) if isinstance(o.operation, CallFunction)]
    assert len(calls) == 3 and calls[0].function == calls[1].function != calls[2].function
    assert [len(c.args) for c in calls] == [3, 3, 2]
    arrays = [data(2, 4) for _ in range(3)]
    expected = run(mod["main"], arrays, mod)
    for got in (run(done["main"], arrays, done), compile_model(mod, Target("llvm"), untuned=default_schedule)(*arrays)):
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g, e)
