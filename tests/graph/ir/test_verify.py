"""Test the verifier: well-formed functions pass, and every violation is reported."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, If, Region, TensorType, Value
from tunesmith.graph.ir.verify import infer, verify
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.expr import Const
from tunesmith.ir.function import IRModule, PrimFunc
from tunesmith.ir.poly import Param, Poly, Var, floordiv, less_than, poly
from tunesmith.ir.stmt import store
from tunesmith.support.errors import ScriptError

N, M = Var("n"), Var("m")
VECTOR = TensorType.of((N,))
X, C = Value("x", VECTOR), Value("c", TensorType.of((), "bool"))


def func(*bindings: Binding, results: tuple[Any, ...] = (X,), **changes: Any) -> GraphFunc:
    return GraphFunc("f", (X, C), Region(bindings, results)).with_(**changes)


def bind(operation: Any, *results: Value) -> Binding:
    return Binding(results, operation)


def value(*shape: Any, name: str = "y", dtype: str = "float32") -> Value:
    return Value(name, TensorType.of(shape or (N,), dtype))


def relu(x: Any = X) -> Call:
    return Call("probe_relu", (x,))


def test_well_formed_functions_pass(graphs: SimpleNamespace) -> None:
    mod = graphs.module()
    verify(mod["main"])
    verify(mod["main"], mod)
    y = value()
    verify(func(bind(relu(), y), results=(y, Constant("k", np.zeros((2, 0))))))


Y, Z = value(), value(name="z")
SHORT = value(3)

REJECTED = {
    "unbound operand": (func(bind(relu(Z), Y)), r"operand 0 is z, which is not bound before\nin the graph function f, binding 0 \(y\)"),
    "order": (func(bind(relu(Z), Y), bind(relu(), Z)), "operand 0 is z, which is not bound before"),
    "no operand": (func(bind(Call("probe_relu", (3,)), Y)), "operand 0 must be a Value or a Constant, got int"),  # type: ignore[arg-type]
    "bound twice": (func(bind(relu(), Y), bind(relu(), Y)), "the value y is bound twice"),
    "parameter twice": (func(params=(X, X)), "the value x is bound twice"),
    "result unbound": (func(results=(Y,)), "result 0 is y, which is not bound before"),
    "no results": (func(results=()), "must have at least one result"),
    "no value": (func(bind(relu(), 3)), "a result must be a Value"),  # type: ignore[arg-type]
    "operation": (func(bind(3, Y)), "an operation must be a Call, a CallFunction, an If, a Loop, a While or a ReadSize, got int"),
    "operator": (func(bind(Call("no_such", (X,)), Y)), "unknown graph operator 'no_such'"),
    "wrong type": (func(bind(relu(), SHORT)), r"result 0 of probe_relu is float32\[n\], but the value y bound to it is float32\[3\]"),
    "number of results": (func(bind(relu(), Y, Z)), "probe_relu has 1 results, but 2 values"),
    "does not fit": (func(bind(Call("probe_add", (X, C)), Y)), "the shapes differ"),
    "attributes incomplete": (func(bind(Call("probe_scale", (X,), (("factor", 2.0),)), Y)), "must have all attributes in the order"),
    "attribute unknown": (func(bind(Call("probe_relu", (X,), (("k", 1),)), Y)), "attribute k is unknown"),
    "attribute size": (func(bind(Call("probe_scale", (X,), (("factor", poly(M)),)), Y)), "the attribute factor, m, uses the size m"),
    "operator breaks": (func(bind(Call("probe_strange", (X,), (("key", 3),)), Y)), "probe_strange cannot be applied: TypeError"),
    "size of a result": (func(bind(CallFunction("g", (X,)), value(M))), "an extent of y, m, uses the size m, which no parameter has"),
    "size of a call": (func(bind(CallFunction("g", (X,), (poly(M),)), Y)), "a size given to g, m, uses the size m"),
    "size not bare": (func(params=(value(poly(M) * 2), C)), "uses the size m, which no parameter has as an extent by itself"),
    "Param": (func(params=(value(Param("p", [1, 2])), C)), "a size of a graph function must be a Var, not a Param"),
    "extent": (func(params=(Value("x", TensorType((3,), "float32")),)), "of index expressions"),  # type: ignore[arg-type]
    "negative": (func(params=(Value("x", TensorType((poly(-3),), "float32")),)), "cannot have the extent -3"),
    "dtype": (func(params=(Value("x", TensorType((), "flot32")),)), "unknown dtype 'flot32'"),
    "not a type": (func(params=(Value("x", 3),)), "must be a TensorType"),  # type: ignore[arg-type]
    "no condition": (func(assumptions=(poly(N),)), "an assumption must be a condition of type bool, got int64"),
    "not an expression": (func(assumptions=(3,)), "an assumption must be a condition of type bool, got 3"),
    "size of an assumption": (func(assumptions=(less_than(M, 3),)), "an assumption is not well formed: .*uses the variable m"),
    "load in an assumption": (func(assumptions=(Buffer("B", (1,), "bool")[0],)), "an assumption is not well formed: .*B"),
    "name": (func(name=""), "the name of a function must be a non-empty string, got ''"),
    "attrs": (func(attrs=(("b", "1"), ("a", "1"))), "sorted by key"),
    "attrs texts": (func(attrs=(("b", 1),)), "must be pairs of strings"),
    "result names": (func(attrs=(("result_names", "y"),)), "result_names must be a JSON list of names, got 'y'"),
    "if condition": (func(bind(If(X, Region((), (X,)), Region((), (X,))), Y)), r"must be bool\[\], got float32\[n\]"),
    "if types": (func(bind(If(C, Region((), (X,)), Region((), (C,))), Y)), r"got float32\[n\] and bool\[\]"),
    "if result type": (func(bind(If(C, Region((), (C,)), Region((), (C,))), Y)), "result 0 of the `if` is bool"),
    "if region": (func(bind(If(C, Region((bind(relu(), Y),), (Y,)), Region((), (Y,))), Z)), "outside the region that binds it\n.*else"),
    "if nothing": (func(bind(If(C, Region((), ()), Region((), ())))), "must have at least one result"),
    "no results of a call": (func(bind(CallFunction("g", (X,)))), "the call of g has no results"),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_violations(case: str) -> None:
    ill_formed, message = REJECTED[case]
    with pytest.raises(ScriptError, match=message):
        verify(ill_formed)


def test_only_graph_functions_are_verified(graphs: SimpleNamespace) -> None:
    with pytest.raises(ScriptError, match="graph.ir.verify takes a GraphFunc, got PrimFunc"):
        verify(graphs.fused_add())


def test_calls_of_tir_functions(graphs: SimpleNamespace) -> None:
    mod = graphs.module()
    main = mod["main"]
    bindings = main.body.bindings
    at = next(i for i, b in enumerate(bindings) if isinstance(b.operation, CallFunction))
    call = bindings[at].operation

    def changed(**changes: Any) -> GraphFunc:
        b = Binding(bindings[at].results, replace(call, **changes))
        return main.with_(body=Region((*bindings[:at], b, *bindings[at + 1 :]), main.results))

    for f, message in (
        (changed(function="other"), "the module has no function 'other'; it has main, fused_add"),
        (changed(args=call.args[:1]), r"takes 3 buffers \(a, b, sum\), got 1 operands and 1 results"),
        (changed(sizes=()), r"takes 1 sizes \(n\), got 0"),
        (
            changed(sizes=(poly(graphs.N) + 1,)),
            r"the buffer a of fused_add is float32\[1 \+ n, 32\] in this call, but probe_split is float32\[n, 32\]",
        ),
        (
            changed(args=(main.params[0], call.args[1])),
            r"the buffer a of fused_add is float32\[n, 32\] in this call, but x is float32\[n, 64\]",
        ),
    ):
        with pytest.raises(ScriptError, match=message):
            verify(f, mod)
    b = Buffer("b", (2,))
    n = Var("n")
    for callee, message in (
        (PrimFunc("fused_add", (n, b), (), store(b, (0,), Const(0.0, "float32"))), "its scalar parameters after its buffers"),
        ("text", "fused_add is a str; a graph function calls"),
    ):
        with pytest.raises(ScriptError, match=message):
            verify(main, {"main": main, "fused_add": callee})


def test_extents_that_divide_by_zero_for_the_sizes_of_a_call() -> None:
    d = Var("d")
    b = Buffer("b", (floordiv(8, d),))
    callee = PrimFunc("g", (b, d), (), store(b, (0,), Const(0.0, "float32")))
    y = value(4)
    f = func(bind(CallFunction("g", (), (poly(0),)), y), results=(y,))
    with pytest.raises(ScriptError, match="the buffer b of g: division by 0.*\nin the graph function f"):
        verify(f, IRModule({"f": f, "g": callee}))


def test_calls_of_graph_functions() -> None:
    inner = GraphBuilder("g")
    k = Var("k")
    a = inner.input("a", (k, 2))
    b = inner.input("b", (poly(k) * 2,))
    g = inner.finish(inner.probe_relu(a), b)

    def caller(rows: Poly, half: Poly, *results: Value, sizes: tuple[Poly, ...] = ()) -> GraphFunc:
        p, q = Value("p", TensorType.of((rows, 2))), Value("q", TensorType.of((half,)))
        size = Value("s", TensorType.of((N,)))
        return GraphFunc("f", (p, q, size), Region((bind(CallFunction("g", (p, q), sizes), *results),), results))

    n = poly(N)
    mod = {"g": g}
    verify(caller(n, n * 2, value(n, 2), value(n * 2, name="z")), mod)
    for f, message in (
        (caller(n, n, value(n, 2), value(n * 2)), r"the parameter b of g is float32\[2\*n\] in this call, but q is float32\[n\]"),
        (caller(n, n * 2, value(n, 3), value(n * 2)), r"result 0 of g is float32\[n, 2\] in this call, but y is float32\[n, 3\]"),
        (caller(n, n * 2, value(n, 2)), "takes 2 operands and has 2 results, got 2 and 1"),
        (caller(n, n * 2, value(n, 2), value(n * 2), sizes=(n,)), "takes 0 sizes"),
    ):
        with pytest.raises(ScriptError, match=message):
            verify(f, mod)


def test_calls_pass_the_sizes_of_primitive_functions() -> None:
    k = Var("k")
    p = Value("p", TensorType.of((poly(k) * 2,)))
    g = GraphFunc("g", (p,), Region((), (p,)), (("primitive", "1"),))
    assert g.bound_sizes == (k,)
    verify(g)
    x, y = Value("x", TensorType.of((poly(N) * 2,))), Value("y", TensorType.of((poly(N) * 2,)))

    def caller(*sizes: Poly) -> GraphFunc:
        return GraphFunc("f", (X, x), Region((bind(CallFunction("g", (x,), sizes), y),), (y,)))

    verify(caller(poly(N)), {"g": g})
    with pytest.raises(ScriptError, match="g takes 1 sizes .*, got 0"):
        verify(caller(), {"g": g})
    with pytest.raises(ScriptError, match=r"the parameter p of g is float32\[2 \+ 2\*n\] in this call"):
        verify(caller(poly(N) + 1), {"g": g})


def test_infer_raises_script_error_for_every_failure() -> None:
    assert infer("probe_relu", [VECTOR], ()) == (VECTOR,)
    with pytest.raises(ScriptError, match="unknown graph operator"):
        infer("nothing", [], ())
    with pytest.raises(ScriptError, match="probe_strange cannot be applied"):
        infer("probe_strange", [VECTOR], (("key", None),))
