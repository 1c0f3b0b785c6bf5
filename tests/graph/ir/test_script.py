"""Test the script text of graph functions: round trips, convenience syntax, and errors that point to the fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Binding, Call, CallFunction, Constant, If, Region, TensorType, Value
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.ir.script_printer import large_constants, lines, script_of
from tunesmith.graph.ir.structural import difference
from tunesmith.graph.ir.verify import verify
from tunesmith.ir import structural
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var, minimum, poly
from tunesmith.ir.script.parser import parse as parse_program
from tunesmith.ir.script.printer import script
from tunesmith.support.errors import ScriptError


def assert_round_trip(f: GraphFunc) -> GraphFunc:
    """Assert that printing and parsing give an equal function and the same text."""
    text = script_of(f)
    again = parse(text, large_constants(f))
    assert difference(f, again) is None, text
    assert script_of(again) == text
    return again


def of(*lines: str, head: str = '@G.function\ndef f(x: G.Tensor((4,), "float32"), c: G.Tensor((), "bool")):') -> str:
    return head + "\n" + "\n".join("    " + line for line in lines) + "\n"


def constant(text: str, data: Any = None) -> np.ndarray:
    """The elements of the constant defined by a line."""
    found = parse(of(f"k = {text}", "return k"), data).results[0]
    assert isinstance(found, Constant)
    return found.data


# ---- round trips -----------------------------------------------------------------------------------------------------


def test_the_text_of_a_function(graphs: SimpleNamespace) -> None:
    f = graphs.example()
    digest = Constant("w", graphs.WEIGHT).digest
    assert script_of(f) == (
        '@G.function(sizes=("n",))\n'
        'def main(x: G.Tensor((n, 64), "float32"), c: G.Tensor((), "bool")):\n'
        "    G.assume(n < 513)\n"
        f'    weight = G.constant("{digest}", (64, 64), "float32")\n'
        '    two = G.constant(2.0, (), "float32")\n'
        "    y = G.probe_matmul(x, weight)\n"
        "    probe_split, probe_split_1 = G.probe_split(y, sizes=(32, 32), axis=1)\n"
        '    z = G.call("fused_add", (probe_split, probe_split_1), G.Tensor((n, 32), "float32"), sizes=(n,))\n'
        "    if c:\n"
        "        probe_relu = G.probe_relu(z)\n"
        "        r = probe_relu\n"
        "    else:\n"
        "        probe_neg = G.probe_neg(z)\n"
        "        probe_scale = G.probe_scale(probe_neg, factor=0.5)\n"
        "        r = probe_scale\n"
        "    return r, z, two"
    )
    again = assert_round_trip(f)
    verify(again)
    assert str(f) == f.script() == script(f) == script_of(f)
    assert f.script("other").split("\n")[1].startswith("def other(")
    assert lines(f, 1) == ["    " + line for line in script_of(f).split("\n")]


def test_modules_with_graph_and_tir_functions(graphs: SimpleNamespace) -> None:
    mod = graphs.module()
    text = script(mod)
    again = parse_program(text, constants=large_constants(mod["main"]))
    assert isinstance(again, IRModule) and list(again) == ["main", "fused_add"]
    assert script(again) == text
    assert structural.difference(mod, again) is None
    verify(again["main"], again)


def test_the_module_names_its_functions(graphs: SimpleNamespace) -> None:
    mod = IRModule({"first": graphs.example(), "the second": graphs.example()})
    again = parse_program(script(mod), constants=large_constants(graphs.example()))
    assert list(again) == ["first", "the second"]
    assert [f.name for f in again.values()] == ["first", "the second"]


def test_names_are_made_unique() -> None:
    b = GraphBuilder("not a name")
    x = b.input("G", (2,))
    values = [b.call("probe_relu", x, name=n) for n in ("a", "a", "a_1", "T", "lambda", "", "ä b", "G", "range", "a" * 300)]
    f = b.finish(*values, x).with_(attrs=(("k", "v 'quoted' \n"), ("l", "")))
    again = assert_round_trip(f)
    assert again.name == "not a name" and again.attrs == f.attrs
    names = [v.name for v in again.results]
    assert names[:3] == ["a", "a_1", "a_1_1"] and len(set(names)) == len(names) and names[-1] == "G_1"


ATTRIBUTES = [
    1,
    1.0,
    True,
    -1,
    -0.0,
    0.5,
    1e300,
    float("inf"),
    -float("inf"),
    float("nan"),
    None,
    "",
    "a 'b' \"c\"\n",
    (),
    (1,),
    ((1, 2.0), None),
]


@pytest.mark.parametrize("value", ATTRIBUTES, ids=repr)
def test_attributes_keep_their_type_and_value(value: Any) -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    (binding,) = assert_round_trip(b.finish(b.probe_scale(x, extra=value))).body.bindings
    assert isinstance(binding.operation, Call)
    assert repr(binding.operation.attr("extra")) == repr(value)


def test_default_attributes_are_omitted() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    text = script_of(b.finish(b.probe_scale(x, factor=2.0), b.probe_scale(x, factor=2), b.probe_scale(x, mode="other")))
    assert "G.probe_scale(x)" in text and "G.probe_scale(x, factor=2)" in text and 'G.probe_scale(x, mode="other")' in text


def test_sizes_in_attributes_and_extents() -> None:
    n, m = Var("n"), Var("n")
    b = GraphBuilder("f")
    b.input("x", (poly(n) * m + 1, m, n))
    y = b.probe_fill(shape=(poly(n) + 1, minimum(n, 64), poly(n) * m // 4))
    f = b.finish(y)
    again = assert_round_trip(f)
    verify(again)
    assert 'sizes=("n", "n_1")' in script_of(f) and "T.min(n_1, 64)" in script_of(f)


def test_sizes_of_primitive_functions_keep_their_order() -> None:
    n, m = Var("n"), Var("m")
    x = Value("x", TensorType.of((poly(m) * n,)))
    f = GraphFunc("f", (x, Value("y", TensorType.of((m,)))), Region((), (x,)), (("primitive", "1"),))
    again = assert_round_trip(f)
    assert [v.name for v in again.sizes] == [v.name for v in f.sizes] == ["n", "m"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_constants_are_exact(dtype: str) -> None:
    kind = np.dtype(dtype).type
    tiny = np.finfo(dtype).smallest_subnormal
    data = np.array([0.1, -0.0, np.inf, -np.inf, np.nan, tiny, np.finfo(dtype).max, kind(1) / kind(3)], dtype).reshape(2, 4)
    b = GraphBuilder("f")
    again = assert_round_trip(b.finish(b.constant(data, "k"))).results[0]
    assert isinstance(again, Constant)
    assert again.data.tobytes() == data.tobytes() and again.data.shape == (2, 4) and again.data.dtype == data.dtype
    assert not large_constants(b.finish(again))


def test_float32_is_printed_with_the_shortest_exact_text() -> None:
    b = GraphBuilder("f")
    assert 'G.constant(0.1, (), "float32")' in script_of(b.finish(b.constant(np.float32(0.1))))


@pytest.mark.parametrize(
    "data",
    [
        np.array([True, False]),
        np.array(-128, np.int8),
        np.array([[2**64 - 1]], np.uint64),
        np.array([-(2**63)], np.int64),
        np.zeros((2, 0, 3)),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_other_constants_are_exact(data: np.ndarray) -> None:
    b = GraphBuilder("f")
    again = assert_round_trip(b.finish(b.constant(data))).results[0]
    assert isinstance(again, Constant)
    assert again.data.tobytes() == data.tobytes() and again.data.shape == data.shape and again.data.dtype == data.dtype


def test_constants_without_a_short_text_are_referenced_by_digest() -> None:
    odd_nan = np.array([0x7FC00001], np.uint32).view(np.float32)
    for data in (odd_nan, np.zeros(17, np.int8), np.zeros((0, 1000))):
        b = GraphBuilder("f")
        f = b.finish(b.constant(data))
        assert list(large_constants(f)) == [Constant("c", data).digest]
        assert_round_trip(f)


def test_a_constant_with_several_uses_is_not_duplicated() -> None:
    b = GraphBuilder("f")
    k, same = b.constant([1.0, 2.0], "k"), b.constant([1.0, 2.0], "k")
    again = assert_round_trip(b.finish(b.probe_add(k, k), b.probe_add(k, same)))
    first, second = [x.operation.args for x in again.body.bindings]
    assert first[0] is first[1] is second[0] and second[1] is not first[0]


def test_nested_branches_with_several_results() -> None:
    b = GraphBuilder("f")
    x, c = b.input("x", (2,)), b.input("c", (), "bool")

    def inner(r: Any) -> Any:
        return r.branch(
            c, lambda q: (q.probe_relu(x), x), lambda q: (x, q.constant([0.0, 1.0], "k").__class__("k", np.ones(2, np.float32)))
        )

    again = assert_round_trip(b.finish(*b.branch(c, inner, lambda r: (r.probe_neg(x), x), name="out")))
    verify(again)
    operation = again.body.bindings[0].operation
    assert isinstance(operation, If) and isinstance(operation.then.bindings[0].operation, If)


def test_operators_with_other_names() -> None:
    b = GraphBuilder("f")
    x = b.input("x", (2,))
    f = b.finish(b.call("probe.dotted name", x))
    assert 'G.operator("probe.dotted name")(x)' in script_of(f)
    assert_round_trip(f)


def test_a_call_with_several_results() -> None:
    x = Value("x", TensorType.of((2,)))
    a, c = Value("a", TensorType.of(())), Value("b", TensorType.of((3,), "int8"))
    f = GraphFunc("f", (x,), Region((Binding((a, c), CallFunction("a function", (), ())),), (a, c)))
    assert 'a, b = G.call("a function", (), (G.Tensor((), "float32"), G.Tensor((3,), "int8")))' in script_of(f)
    assert_round_trip(f)


def test_long_signatures_are_wrapped() -> None:
    b = GraphBuilder("f")
    xs = [b.input(f"a_long_name_{i}", (2, 3)) for i in range(5)]
    f = b.finish(*xs)
    assert "def f(\n" in script_of(f)
    assert_round_trip(f)


def test_ill_formed_functions_are_printed() -> None:
    stray, n = Value("stray", TensorType.of((2,))), Var("m")
    y = Value("y", TensorType.of((n,)))
    text = script_of(GraphFunc("f", (), Region((Binding((y,), Call("no_such", (stray,), (("k", 1),))),), (y,))))
    assert 'sizes=("m",)' in text and "y = G.no_such(stray, k=1)" in text


# ---- convenience syntax ----------------------------------------------------------------------------------------------


def test_branches_may_end_with_a_binding() -> None:
    typed = of("if c:", "    r = G.probe_relu(x)", "elif c:", "    r = G.probe_neg(x)", "else:", "    r = x", "return r")
    meant = of("if c:", "    t = G.probe_relu(x)", "    r = t", "else:", "    if c:", "        t = G.probe_neg(x)", "        s = t", "    else:", "        s = x", "    r = s", "return r")  # fmt: skip  # noqa: E501
    assert difference(parse(typed), parse(meant)) is None
    assert_round_trip(parse(typed))


def test_conveniences() -> None:
    f = parse(of('"""Text."""', "k = G.constant([1, 2, 3, 4], [4], 'float32')", "y = G.probe_add(x, k)", "return (y)"))
    again = assert_round_trip(f)
    assert again.results[0].type == TensorType.of((4,))
    g = parse('@G.function(sizes=["n"])\ndef f(x: G.Tensor([n])):\n    G.assume(n % 4 == 0)\n    G.assume(0 < n and n < 9)\n    return x')
    assert len(assert_round_trip(g).assumptions) == 2


# ---- errors ----------------------------------------------------------------------------------------------------------

REJECTED = {
    "unknown operator": (of("y = G.probe_rely(x)", "return y"), "unknown graph operator 'probe_rely'. Did you mean 'probe_relu'"),
    "unknown attribute": (of("y = G.probe_scale(x, facto=1.0)", "return y"), r"attribute facto is unknown \(did you mean factor"),
    "missing attribute": (of("y, z = G.probe_split(x)", "return y"), "attribute sizes is missing"),
    "operands do not fit": (of("k = G.constant(1.0, (), 'float32')", "y = G.probe_add(x, k)", "return y"), "the shapes differ"),
    "number of operands": (of("y = G.probe_add(x)", "return y"), "probe_add takes 2 operands, got 1"),
    "operator that breaks": (of("y = G.probe_strange(x, key=3)", "return y"), "probe_strange cannot be applied: TypeError"),
    "number of results": (of("y, z = G.probe_relu(x)", "return y"), "probe_relu has 1 results, but 2 names"),
    "operand unknown": (of("y = G.probe_relu(xx)", "return y"), "`xx` is not bound here\n(.*\n)*.*Did you mean `x`"),
    "operand is a call": (of("y = G.probe_relu(G.probe_relu(x))", "return y"), "an operand must be the name of a tensor"),
    "operand is a number": (of("y = G.probe_add(x, 1.0)", "return y"), "G.constant"),
    "used before": (of("y = G.probe_relu(z)", "z = G.probe_relu(x)", "return y"), "`z` is not bound here"),
    "bound twice": (of("x = G.probe_relu(x)", "return x"), "`x` already names a tensor in scope"),
    "out of its branch": (of("if c:", "    t = G.probe_relu(x)", "    r = t", "else:", "    r = x", "return t"), "`t` is not bound here"),
    "no else": (of("if c:", "    r = x", "return x"), "an `if` must have an `else:`"),
    "branches differ": (of("if c:", "    r = x", "else:", "    s = x", "return x"), "name different results: r and s"),
    "branches of other types": (of("if c:", "    r = x", "else:", "    r = c", "return r"), "the result types of the branches differ"),
    "condition": (of("if x:", "    r = x", "else:", "    r = x", "return r"), r"must be bool\[\], got float32\[4\]"),
    "alias": (of("y = x", "return y"), "A tensor has one name"),
    "no return": (of("y = G.probe_relu(x)"), "the last statement of a graph function must return its results"),
    "empty return": (of("return"), "must return its results"),
    "nothing returned": (of("return ()"), "at least one result"),
    "return in the middle": (of("return x", "return x"), "unsupported in a graph function: return"),
    "loop": (of("for i in x:", "    pass", "return x"), "a loop is over the number of iterations and the initial values"),
    "while": (of("while x:", "    pass", "return x"), "unsupported in a graph function: While"),
    "two targets": (of("y = z = G.probe_relu(x)", "return y"), "several `=`"),
    "subscript": (of("y[0] = G.probe_relu(x)", "return y"), "expected a name"),
    "expression": (of("G.probe_relu(x)", "return x"), "only G.assume"),
    "late assume": (of("y = G.probe_relu(x)", "G.assume(1 < 2)", "return y"), "G.assume at the start"),
    "assume a tensor": (of("G.assume(x < 4)", "return x"), "`x` is a tensor; only sizes"),
    "assume a vector": (of("G.assume(T.Broadcast(True, 4))", "return x"), "an assumption must be a scalar condition, got boolx4"),
    "star": (of("y = G.probe_add(*x)", "return y"), "an operand must be the name"),
    "double star": (of("y = G.probe_relu(x, **x)", "return y"), r"`\*\*` is not supported"),
    "no operation": (of("y = G.Tensor((2,))", "return y"), "`G.Tensor` is not an operation"),
    "not of G": (of("y = T.exp(x)", "return y"), "`T.exp` is not an operation"),
    "long operator": (of(f"y = G.{'a' * 300}(x)", "return y"), "longer than 256"),
    "bytes": (of("y = G.probe_scale(x, extra=b'1')", "return y"), "text cannot be a value"),
    "big number": (of(f"y = G.probe_scale(x, extra={2**70})", "return y"), "does not fit in 64 bits"),
    "tensor in an attribute": (of("y = G.probe_scale(x, extra=c)", "return y"), "`c` is a tensor; only sizes"),
    "reserved name": (of("G = G.probe_relu(x)", "return G"), "`G` is a namespace"),
    "no type": ("@G.function\ndef f(x):\n    return x", "the parameter `x` has no type"),
    "other type": ("@G.function\ndef f(x: int):\n    return x", "expected the type of a tensor"),
    "vector type": ("@G.function\ndef f(x: G.Tensor((2,), 'float32x4')):\n    return x", "a scalar type"),
    "negative extent": ("@G.function\ndef f(x: G.Tensor((-2,), 'float32')):\n    return x", "cannot have the extent -2"),
    "unknown size": ("@G.function\ndef f(x: G.Tensor((n,), 'float32')):\n    return x", "unknown name `n`"),
    "defaults": ("@G.function\ndef f(x: G.Tensor(()) = 1):\n    return x", "parameters must not have defaults"),
    "size twice": ("@G.function(sizes=('n', 'n'))\ndef f(x: G.Tensor(())):\n    return x", "`n` already names a size"),
    "size of a strange name": ("@G.function(sizes=('n m',))\ndef f(x: G.Tensor(())):\n    return x", "must be an identifier, got 'n m'"),
    "size as operand": ("@G.function(sizes=('n',))\ndef f(x: G.Tensor((n,))):\n    return n", "`n` is a size, not a tensor"),
    "decorator positional": ("@G.function('n')\ndef f(x: G.Tensor(())):\n    return x", "passed by name"),
    "decorator unknown": ("@G.function(size=1)\ndef f(x: G.Tensor(())):\n    return x", "unexpected argument `size`"),
    "empty name": ("@G.function(name='')\ndef f(x: G.Tensor(())):\n    return x", "must not be empty"),
    "attrs": ("@G.function(attrs=1)\ndef f(x: G.Tensor(())):\n    return x", "must be a dict of strings"),
    "attrs twice": ("@G.function(attrs={'a': 'b', 'a': 'b'})\ndef f(x: G.Tensor(())):\n    return x", "duplicate attribute 'a'"),
    "attrs stars": ("@G.function(attrs={**a})\ndef f(x: G.Tensor(())):\n    return x", r"`\*\*` is not supported"),
    "other decorator": ("@G.fnction\ndef f(x: G.Tensor(())):\n    return x", "needs the decorator @T.prim_func"),
    "a TIR function": ("@T.prim_func\ndef f(A: T.Buffer((2,))):\n    A[0] = 1.0", "expected a graph function .*, found a PrimFunc"),
    "constant: extra list": (of("k = G.constant([1.0], (), 'float32')", "return k"), "list cannot|unsupported in a script: list"),
    "constant: too few": (of("k = G.constant([1.0], (2,), 'float32')", "return k"), "expected 2 elements for this shape, found 1"),
    "constant: bool": (of("k = G.constant(1, (), 'bool')", "return k"), "True or False"),
    "constant: range": (of("k = G.constant(128, (), 'int8')", "return k"), "does not fit in int8"),
    "constant: float range": (of("k = G.constant(1e300, (), 'float32')", "return k"), "does not fit in float32"),
    "constant: fraction": (of("k = G.constant(1.5, (), 'int8')", "return k"), "is not a value of int8"),
    "constant: bfloat16": (of("k = G.constant(1e39, (), 'bfloat16')", "return k"), "does not fit in bfloat16"),
    "constant: vector": (of("k = G.constant([1.5, 2.0], (1,), 'float32x2')", "return k"), "constants of float32x2 are not supported"),
    "constant: rank": (of(f"k = G.constant(1.5, {(1,) * 40}, 'float32')", "return k"), "at most 32 dimensions"),
    "constant: extent": (of(f"k = G.constant([], (0, {2**62}, {2**62}), 'float32')", "return k"), "numpy has no arrays of the shape"),
    "constant: expression": (of("k = G.constant(T.float32(1), (), 'float32')", "return k"), "must be a number"),
    "constant: two names": (of("k, l = G.constant(1.0, (), 'float32')", "return k"), "a constant must have one name"),
    "constant: not given": (of("k = G.constant('abcd', (99,), 'float32')", "return k"), "missing data of the constant 'abcd'"),
    "deep": (of("y = G.probe_scale(x, extra=" + "(" * 150 + "1" + ",)" * 150 + ")", "return y"), "nested"),
}  # fmt: skip


@pytest.mark.parametrize("case", REJECTED)
def test_errors_show_the_location(case: str) -> None:
    text, message = REJECTED[case]
    with pytest.raises(ScriptError, match=message) as e:
        parse(text)
    if case not in ("a TIR function", "deep"):
        assert "^" in str(e.value) and "<script>:" in str(e.value)


def test_data_of_constants_are_checked() -> None:
    data = np.arange(20, dtype=np.float32)
    digest = Constant("k", data).digest
    text = f"G.constant('{digest}', (20,), 'float32')"
    assert constant(text, {digest: data}).tobytes() == data.tobytes()
    with pytest.raises(ScriptError, match=r"is float32\[20\] here, but its data are float64\[20\]"):
        constant(text, {digest: data.astype(np.float64)})
    with pytest.raises(ScriptError, match="the data passed for the constant .* have another digest"):
        constant(text, {digest: data + 1})
    with pytest.raises(ScriptError, match=f"missing data of the constant '{digest}'\n(.*\n)*.*constants="):
        constant(text)
    with pytest.raises(ScriptError, match="complex"):
        constant(text, {digest: data.astype(np.complex64)})
