"""Test the interpreter of graph functions: values, sizes, calls, and rejected arguments."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.interpret import run
from tunesmith.graph.ir.node import Binding, CallFunction, Region, TensorType, Value
from tunesmith.ir.expr import Binary
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, less_than, poly
from tunesmith.support.errors import InternalError, RunError


@pytest.mark.parametrize("condition", [True, False])
def test_operators_functions_and_branches(graphs: SimpleNamespace, condition: bool) -> None:
    mod = graphs.module()
    x = np.arange(3 * 64, dtype=np.float32).reshape(3, 64) % 11 - 5
    out, z, two = run(mod["main"], [x, np.array(condition)], mod)
    y = x @ graphs.WEIGHT
    np.testing.assert_array_equal(z, y[:, :32] + y[:, 32:])
    np.testing.assert_array_equal(out, np.maximum(z, 0) if condition else -z * np.float32(0.5))
    assert two.shape == () and two == 2 and two.flags.writeable
    by_name = run(mod["main"], {"c": np.array(condition), "x": x}, mod)
    np.testing.assert_array_equal(by_name[0], out)


def test_results_do_not_alias_arguments() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    given = np.ones(2, np.float32)
    (out,) = run(b.finish(x), [given])
    out[:] = 3
    assert given.tolist() == [1, 1]


def test_sizes_of_attributes_and_primitive_functions() -> None:
    k, n = Var("k"), Var("n")
    g = GraphBuilder("g")
    p = g.input("p", (poly(k) * 2,))
    inner = g.finish(g.probe_relu(p), g.probe_fill(shape=(k,), value=3.0)).with_(attrs=(("primitive", "1"),))
    size, x = Value("size", TensorType.of((n,))), Value("x", TensorType.of((poly(n) * 2,)))
    y, z = Value("y", x.type), Value("z", TensorType.of((n,)))
    f = GraphFunc("f", (size, x), Region((Binding((y, z), CallFunction("g", (x,), (poly(n),))),), (y, z)))
    arrays = [np.zeros(2, np.float32), np.array([1, -1, 2, -2], np.float32)]
    out = run(f, arrays, IRModule({"f": f, "g": inner}))
    assert [a.tolist() for a in out] == [[1, 0, 2, 0], [3, 3]]
    assert run(inner, arrays[1:], sizes={k: 2})[1].tolist() == [3, 3]
    with pytest.raises(RunError, match="g: pass the size k with `sizes`"):
        run(inner, arrays[1:])
    with pytest.raises(RunError, match=r"the parameter p is float32\[2\*k\] with k = 3, that is \(6,\), got an array of float32\[4\]"):
        run(inner, arrays[1:], sizes={k: 3})


def test_calls_of_graph_functions_bind_their_own_sizes() -> None:
    n = Var("n")
    g = GraphBuilder("g")
    a = g.input("a", (n,))
    inner = g.finish(g.probe_neg(a))
    f = GraphBuilder("f")
    x = f.input("x", (n, 2))
    y = f.probe_fill(shape=(poly(n) + 1,), value=1.0)
    out = f.finish(*f.call_function("g", [y], [y.type]), x)
    made = run(out, [np.zeros((3, 2), np.float32)], {"g": inner})
    assert made[0].tolist() == [-1, -1, -1, -1]


X = np.zeros((3, 64), np.float32)
YES = np.array(True)


def test_rejected_arguments(graphs: SimpleNamespace) -> None:
    mod = graphs.module()
    f = mod["main"]
    for arrays, message in (
        ([X], r"main takes 2 arrays \(x, c\), got 1"),
        ([X.astype(np.float64), YES], r"main: the parameter x is float32\[n, 64\], got an array of float64\[3, 64\]"),
        ([X[0], YES], r"the parameter x is float32\[n, 64\], got an array of float32\[64\]"),
        ([X[:, :5], YES], r"x is float32\[n, 64\] with n = 3, that is \(3, 64\), got an array of float32\[3, 5\]"),
        ({"x": X}, "main: missing array for c; its parameters are x, c"),
        ({"x": X, "c": YES, "d": YES}, "no parameter is named d"),
        ([np.zeros((513, 64), np.float32), YES], "main: the call violates the assumption n < 513: n = 513"),
    ):
        with pytest.raises(RunError, match=message):
            run(f, arrays, mod)
    with pytest.raises(RunError, match="the module has no function 'fused_add'; it has none"):
        run(f, [X, YES])
    with pytest.raises(RunError, match="fused_add is a str"):
        run(f, [X, YES], {"fused_add": "text"})
    with pytest.raises(RunError, match="fused_add takes 0 sizes, got 1"):
        run(f, [X, YES], {"fused_add": graphs.fused_add().with_(params=graphs.fused_add().params[:3])})
    duplicated = f.with_(params=(f.params[0], f.params[0]))
    with pytest.raises(RunError, match="several parameters are named x"):
        run(duplicated, {"x": X})


def test_repeated_sizes_are_checked() -> None:
    n = Var("n")
    b = GraphBuilder("f")
    x, y = b.input("x", (n,)), b.input("y", (n,))
    with pytest.raises(RunError, match=r"the parameter y is float32\[n\] with n = 3, that is \(3,\), got an array of float32\[4\]"):
        run(b.finish(b.probe_add(x, y)), [np.zeros(3, np.float32), np.zeros(4, np.float32)])


def test_assumptions_of_several_conditions() -> None:
    n, m = Var("n"), Var("m")
    b = GraphBuilder("f")
    x = b.input("x", (n, m))
    b.assume(Binary("and", less_than(n, 5), less_than(poly(m) % 2, 1)))
    f = b.finish(x)
    assert run(f, [np.zeros((4, 2), np.float32)])[0].shape == (4, 2)
    for shape in ((5, 2), (4, 3)):
        with pytest.raises(RunError, match="violates the assumption"):
            run(f, [np.zeros(shape, np.float32)])


def test_reference_with_a_wrong_result_type() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    with pytest.raises(InternalError, match=r"the numpy reference of probe_wrong computes float64\[3\]; the inferred type is float32\[2\]"):
        run(b.finish(b.probe_wrong(x)), [np.zeros(2, np.float32)])


def test_what_numpy_refuses_is_a_run_error() -> None:
    b = GraphBuilder("f")
    n = Var("n")
    x = b.input("x", (n, 2))
    func = b.finish(b.max(x, axes=(0,)), b.argmax(x, axis=0))
    assert run(func, [np.ones((3, 2), np.float32)])[0].tolist() == [1, 1]
    with pytest.raises(RunError, match=r"argmax of float32\[0, 2\] cannot be computed: attempt to get argmax of an empty sequence"):
        run(func, [np.ones((0, 2), np.float32)])


def test_infinite_recursion() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    f = b.finish(*b.call_function("f", [x], [x.type]))
    with pytest.raises(RunError, match="f: infinite recursion of its functions"):
        run(f, [np.zeros(2, np.float32)], {"f": f})
