"""Test the lowering of groups to TIR functions with parameters, constants and sizes in order; only calls and views remain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.driver.compile_model import compile_model
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import PRIMITIVE, CallFunction, Constant, all_bindings
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.graph.passes.fuse_operators import fuse_operators
from tunesmith.graph.passes.legalise import legalise, prim_func
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Var, poly
from tunesmith.ir.target.target import Target
from tunesmith.ir.verify import verify
from tunesmith.lower.fallback.default_schedule import default_schedule
from tunesmith.support.errors import InternalError

Passed = Callable[..., Any]

BLOCK = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2), "float32"), c: G.Tensor((), "bool")):
    w = G.constant([[1.0, 2.0], [3.0, 4.0]], (2, 2), "float32")
    two = G.constant([[2.0]], (1, 1), "float32")
    low = G.constant(-1, (), "int32")
    yes = G.constant(True, (), "bool")
    a = G.matmul(x, w)
    d = G.multiply(a, two)
    e = G.where(c, d, two)
    f = G.where(yes, e, a)
    g, h = G.split(x, sizes=(1, 1), axis=1)
    i = G.full(shape=(n,), value=2, dtype="int32")
    j = G.add(i, low)
    k = G.reshape(f, shape=(n * 2,))
    return k, g, h, j, x, w
"""


def fused(mod: IRModule) -> IRModule:
    return legalise(fuse_operators(mod))


@pytest.mark.parametrize("run_pass", (legalise, fused))
def test_a_block(passed: Passed, assert_golden: Callable[..., None], run_pass: Any) -> None:
    done = passed(run_pass, BLOCK)
    for f in done.values():
        if isinstance(f, PrimFunc):
            verify(f)
    left = [b.operation for b in all_bindings(done["main"].body)]
    assert all(isinstance(o, CallFunction) or GRAPH_OPERATORS.get(o.operator).view for o in left)
    assert_golden("\n\n".join([str(f) for f in done.values()]), f"graph/passes/test_legalise/test_a_block-{run_pass.__name__}")


def test_parameters_are_operands_results_and_sizes(passed: Passed) -> None:
    b = GraphBuilder("main")
    n, m = Var("n"), Var("m")
    x, w = b.input("x", (m, n)), b.constant(np.ones((3, 2), np.float32), "w")
    y = b.input("y", (poly(n) + 1, 3))
    done = passed(fused, b.finish(b.relu(b.matmul(y, w)), *b.split(x, sizes=(1, poly(n) - 1), axis=1)))
    kernel, split = done["fused_matmul_relu"], done["op_split"]
    assert [type(p) for p in kernel.params] == [Buffer, Buffer, Buffer, Var]
    assert kernel.constants == (kernel.params[1].name,)
    assert [type(p) for p in split.params] == [Buffer, Buffer, Buffer, Var, Var] and split.constants == ()


def test_primitive_functions_with_function_calls_are_rejected() -> None:
    b = GraphBuilder("wrong")
    x = b.input("x", (4,))
    (y,) = b.call_function("other", [x], [x.type])
    f = b.finish(y).with_(attrs=((PRIMITIVE, "1"),))
    with pytest.raises(InternalError, match="the primitive function wrong contains a CallFunction"):
        prim_func(f)


def test_constants_of_one_element_become_numbers() -> None:
    """Constants of every type and of any shape with one element."""
    for number in (np.float32(np.inf), np.float64(0.1), np.int64(2**40), np.int8(-3), np.uint8(200), np.bool_(True)):
        for shape in ((), (1,), (1, 1)):
            b = GraphBuilder("main")
            dtype = np.dtype(type(number)).name
            f = b.finish(b.equal(b.input("x", (2, 3), dtype), Constant("c", np.full(shape, number))))
            done = legalise(IRModule({"main": f}))
            (call,) = [o.operation for o in done["main"].body.bindings]
            assert isinstance(call, CallFunction) and len(call.args) == 1
            assert len(done[call.function].params) == 2


def test_unaffected_functions(unchanged: Passed) -> None:
    unchanged(legalise, '@G.function\ndef main(x: G.Tensor((4,), "float32")):\n    y = G.reshape(x, shape=(2, 2))\n    return y, x')
    b = GraphBuilder("main")
    x = b.input("x", (4,))
    made = legalise(IRModule({"main": b.finish(b.relu(x))}))
    assert isinstance(made["main"], GraphFunc) and isinstance(made["op_relu"], PrimFunc)
    again = legalise(made)
    assert all(again[name] is made[name] for name in made)


def test_sizes_of_one_name_are_different_sizes() -> None:
    """Versions of a function for sizes go by the names of the sizes, and two sizes that are read often have the same name."""
    b = GraphBuilder("main")
    x, s = b.input("x", (3, 1)), b.input("s", (2,), "int64")
    n, m = [b.read_size(b.squeeze(b.strided_slice(s, axes=(0,), begin=(i,), end=(i + 1,)), axes=(0,)), "n") for i in (0, 1)]
    module = IRModule({"main": b.finish(b.broadcast_to(x, shape=(n, 3, m)))})
    (made,) = [f for name, f in legalise(module).items() if isinstance(f, PrimFunc) and "broadcast" in name]
    assert [p.name for p in made.params if isinstance(p, Var)] == ["n", "n_1"]
    a = np.arange(3, dtype=np.float32).reshape(3, 1)
    model = compile_model(module, Target.detect(), untuned=default_schedule)
    for shape in ((2, 6), (6, 2), (0, 3), (4, 0)):
        np.testing.assert_array_equal(model(a, np.array(shape)), np.broadcast_to(a, (shape[0], 3, shape[1])))
