"""Test the ONNX importer: operator families, symbolic sizes, control flow, functions and unsupported models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.onnx.errors import OnnxImportError  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.importers.onnx.node import ONNX_OPERATORS, OnnxNode  # noqa: E402
from tunesmith.graph.importers.onnx.values import Datum, Sizes, least, sizes  # noqa: E402
from tunesmith.graph.ir import interpret  # noqa: E402
from tunesmith.graph.ir.function import GraphFunc  # noqa: E402
from tunesmith.graph.ir.node import Call, If, all_bindings, constants  # noqa: E402
from tunesmith.graph.ir.verify import verify  # noqa: E402
from tunesmith.ir.poly import Var, poly  # noqa: E402
from tunesmith.support.errors import ModelImportError, RunError  # noqa: E402

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Dims = Sequence[int | str]


def model(
    nodes: Sequence[Any],
    inputs: dict[str, Dims | tuple[int, Dims]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 20,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> Any:
    """A model of these nodes with float32 inputs by default and outputs without declared shapes."""
    typed = {k: v if v and isinstance(v[1:], tuple) and isinstance(v[-1], (list, tuple)) else (FLOAT, v) for k, v in inputs.items()}
    graph = helper.make_graph(
        list(nodes),
        "tested",
        [helper.make_tensor_value_info(k, t, list(d)) for k, (t, d) in typed.items()],
        [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(w), k) for k, w in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(d, 1) for d in domains]]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


def node(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(
        operator, [i if i != "-" else "" for i in inputs.split()], outputs.split(), name=f"the_{operator}", **attributes
    )


def imported(proto: Any, **options: Any) -> GraphFunc:
    func = from_onnx(proto, **options)["main"]
    assert isinstance(func, GraphFunc)
    verify(func)
    return func


def run(proto: Any, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    return interpret.run(imported(proto, **options), list(arrays))


def operators(func: GraphFunc) -> list[str]:
    return [b.operation.operator for b in all_bindings(func.body) if isinstance(b.operation, Call)]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


X = draw(2, 3, 4)

FAMILIES: list[tuple[str, Any, Callable[[np.ndarray], np.ndarray], dict[str, np.ndarray], int]] = [
    ("arithmetic", node("Add", "x x"), lambda x: x + x, {}, 20),
    ("clip by inputs", node("Clip", "x lo hi"), lambda x: x.clip(-0.5, 0.5), {"lo": np.float32(-0.5), "hi": np.float32(0.5)}, 13),
    ("clip by attributes", node("Clip", "x", min=-0.5), lambda x: x.clip(-0.5), {}, 7),
    ("power", node("Pow", "x two"), lambda x: x * x, {"two": np.int64(2)}, 15),
    ("atan", node("Atan", "x"), np.arctan, {}, 20),
    ("cast", node("Cast", "x", to=TensorProto.INT32), lambda x: x.astype(np.int32), {}, 20),
    ("squeeze by input", node("Unsqueeze", "x a"), lambda x: x[:, None], {"a": np.array([1])}, 13),
    ("unsqueeze by attribute", node("Unsqueeze", "x", axes=[1, -1]), lambda x: x[:, None, ..., None], {}, 11),
    ("mean by attribute", node("ReduceMean", "x", axes=[1], keepdims=0), lambda x: x.mean(1), {}, 17),
    ("mean by input", node("ReduceMean", "x a", keepdims=1), lambda x: x.mean(1, keepdims=True), {"a": np.array([1])}, 18),
    ("sum of all", node("ReduceSum", "x", keepdims=0), lambda x: x.sum(), {}, 13),
    ("argmax of the last", node("ArgMax", "x", axis=2, keepdims=0, select_last_index=1), lambda x: x.argmax(2), {}, 13),
    ("old softmax", node("Softmax", "x", axis=1), lambda x: _softmax(x.reshape(2, -1)).reshape(x.shape), {}, 11),
    ("softmax", node("Softmax", "x"), lambda x: _softmax(x), {}, 13),
    ("reshape", node("Reshape", "x s"), lambda x: x.reshape(2, 12), {"s": np.array([0, -1])}, 14),
    ("transpose", node("Transpose", "x"), lambda x: x.T, {}, 20),
    ("slice by inputs", node("Slice", "x b e a s"), lambda x: x[:, ::-1][:, :, 1:3], {k: np.array(v) for k, v in
     (("b", [-1, 1]), ("e", [-(1 << 62), 3]), ("a", [1, 2]), ("s", [-1, 1]))}, 13),
    ("slice by attributes", node("Slice", "x", starts=[1], ends=[-1], axes=[2]), lambda x: x[:, :, 1:-1], {}, 9),
    ("pad by input", node("Pad", "x p"), lambda x: np.pad(x, ((0, 0), (0, 1), (2, 0))), {"p": np.array([0, 0, 2, 0, 1, 0])}, 13),
    ("pad by attribute", node("Pad", "x", pads=[0, 0, -1, 0, 0, 1]), lambda x: np.pad(x[:, :, 1:], ((0, 0), (0, 0), (0, 1))), {}, 10),
    ("gather", node("Gather", "x i", axis=1), lambda x: x[:, [2, 0]], {"i": np.array([-1, 0])}, 13),
    ("expand", node("Expand", "x s"), lambda x: np.broadcast_to(x, (5, 2, 3, 4)), {"s": np.array([5, 1, 3, 1])}, 13),
    ("hardmax", node("Hardmax", "x"), lambda x: (x == x.max(-1, keepdims=True)).astype(x.dtype), {}, 13),
    ("layer norm", node("LayerNormalization", "x g"), lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
     {"g": np.ones(4, np.float32)}, 17),
    ("matmul", node("MatMul", "x w"), lambda x: x @ draw(4, 5), {"w": draw(4, 5)}, 13),
    ("einsum", node("Einsum", "x w", equation="bij,jk->bki"), lambda x: np.einsum("bij,jk->bki", x, draw(4, 5)), {"w": draw(4, 5)}, 12),
    ("max pool", node("MaxPool", "x", kernel_shape=[2]), lambda x: np.maximum(x[..., 1:], x[..., :-1]), {}, 12),
    ("upsample", node("Upsample", "x s"), lambda x: x.repeat(2, 2), {"s": np.array([1, 1, 2], np.float32)}, 9),
    ("resize", node("Resize", "x - s", mode="nearest"), lambda x: x.repeat(2, 2), {"s": np.array([1, 1, 2], np.float32)}, 19),
    ("dropout", node("Dropout", "x"), lambda x: x, {}, 13),
    ("function body", node("MeanVarianceNormalization", "x", axes=[0]),
     lambda x: (x - x.mean(0, keepdims=True)) / (x.std(0, keepdims=True) + 1e-9), {}, 13),
]  # fmt: skip


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("name", "tested", "expected", "weights", "opset"), FAMILIES, ids=[f[0] for f in FAMILIES])
def test_operator(name: str, tested: Any, expected: Callable[..., np.ndarray], weights: dict[str, np.ndarray], opset: int) -> None:
    (made,) = run(model([tested], {"x": X.shape}, ["y"], weights, opset), X)
    np.testing.assert_allclose(made, expected(X), rtol=1e-5, atol=1e-6)


def test_convolution_with_batch_norm_and_same_padding() -> None:
    x, w = draw(1, 3, 5, 5), draw(4, 3, 3, 3, seed=1)
    nodes = [node("Conv", "x w", "c", auto_pad="SAME_UPPER", strides=[2, 2]), node("BatchNormalization", "c g z z g")]
    proto = model(nodes, {"x": x.shape}, ["y"], {"w": w, "g": np.full(4, 4, np.float32), "z": np.zeros(4, np.float32)}, 15)
    func = imported(proto)
    assert operators(func) == ["conv2d", "batch_norm"]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    expected = np.einsum("nchwij,ocij->nohw", windows, w) * 4 / np.sqrt(4 + 1e-5)
    np.testing.assert_allclose(interpret.run(func, [x])[0], expected, rtol=1e-4, atol=1e-5)


def test_3d_convolution_is_a_sum_of_2d_convolutions() -> None:
    x, w = draw(1, 2, 4, 5, 5), draw(3, 2, 2, 3, 3, seed=1)
    (made,) = run(model([node("Conv", "x w", pads=[1, 0, 0, 0, 0, 0])], {"x": x.shape}, ["y"], {"w": w}), x)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3, 3), axis=(2, 3, 4))
    np.testing.assert_allclose(made, np.einsum("ncdhwkij,ockij->nodhw", windows, w), rtol=1e-4, atol=1e-5)


def test_top_k_prefers_the_first_of_equal_elements() -> None:
    x = np.array([[1, 3, 3, 2]], np.float32)
    values, indices = run(model([node("TopK", "x k", "y i")], {"x": x.shape}, ["y", "i"], {"k": np.array([3])}), x)
    np.testing.assert_array_equal(values, [[3, 3, 2]])
    np.testing.assert_array_equal(indices, [[1, 2, 3]])


def test_shape_computations_fold_to_one_reshape() -> None:
    """torch's export of x.view(x.shape[0], -1) computes the shape with Shape, Gather, Unsqueeze and Concat."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n zeros", "m"),
        node("Concat", "m rest", "to", axis=0),
        node("Reshape", "x to"),
    ]
    weights = {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1])}
    func = imported(model(nodes, {"x": ["batch", 3, 4]}, ["y"], weights))
    assert operators(func) == ["reshape"]
    (n,) = func.sizes
    assert n.name == "batch" and func.results[0].type.shape == (poly(n), 12)
    np.testing.assert_array_equal(interpret.run(func, [X])[0], X.reshape(2, 12))


def test_sizes_used_as_results_are_computed() -> None:
    nodes = [node("Shape", "x", "s"), node("Mul", "s two", "d"), node("Cast", "d", "f", to=FLOAT), node("Identity", "f")]
    func = imported(model(nodes, {"x": ["a", 3]}, ["y"], {"two": np.array(2)}))
    assert "size_value" in operators(func)
    np.testing.assert_array_equal(interpret.run(func, [draw(5, 3)])[0], [10.0, 6.0])


def test_symbolic_dimensions_are_shared_and_fixed_by_name() -> None:
    proto = model([node("Add", "a b")], {"a": ["n", "m"], "b": ["n", "m"]}, ["y"])
    assert [v.name for v in imported(proto).sizes] == ["n", "m"]
    assert imported(proto, shapes={"n": 2, "m": 7}).results[0].type.extents == (2, 7)
    with pytest.raises(ModelImportError, match="no symbolic dimension 'nn'. Did you mean 'n'"):
        from_onnx(proto, shapes={"nn": 2})


def test_slice_and_range_of_a_symbolic_size() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Squeeze", "s", "n"),
        node("Range", "zero n one", "r"),
        node("Slice", "r begin end", "t"),
        node("Cast", "t", to=FLOAT),
    ]
    weights = {"zero": np.array(0), "one": np.array(1), "begin": np.array([1]), "end": np.array([1 << 62])}
    (made,) = run(model(nodes, {"x": ["n"]}, ["y"], weights), draw(6))
    np.testing.assert_array_equal(made, np.arange(1, 6, dtype=np.float32))


def test_slicing_a_table_to_a_size_assumes_that_the_table_is_large_enough() -> None:
    """Position embeddings: the slice has the symbolic size, not its minimum with the table's extent, and the function assumes so."""
    nodes = [node("Shape", "x", "n", start=1, end=2), node("Slice", "table zero n", "part"), node("Add", "x part")]
    table = draw(8, 4)
    func = imported(model(nodes, {"x": ["b", "t", 4]}, ["y"], {"table": table, "zero": np.array([0])}))
    assert func.results[0].type.shape[1].as_var() is not None and len(func.assumptions) == 1
    x = draw(2, 5, 4)
    np.testing.assert_array_equal(interpret.run(func, [x])[0], x + table[:5])
    with pytest.raises(RunError):
        interpret.run(func, [draw(2, 9, 4)])


def test_unsupported_symbolic_sizes_can_be_fixed() -> None:
    proto = model([node("Add", "x w")], {"x": ["t", 4]}, ["y"], {"w": draw(3, 4)})
    with pytest.raises(OnnxImportError, match=r"symbolic sizes t; fix them with shapes="):
        from_onnx(proto)
    assert imported(proto, shapes={"t": 3}).results[0].type.extents == (3, 4)


def test_constants_are_folded() -> None:
    nodes = [node("Transpose", "w", "t"), node("Add", "t one", "u"), node("MatMul", "x u")]
    w = draw(5, 4)
    func = imported(model(nodes, {"x": (2, 4)}, ["y"], {"w": w, "one": np.float32(1)}))
    assert operators(func) == ["matmul"]
    np.testing.assert_array_equal(constants(func.body)[0].data, w.T + 1)


def _branches() -> Any:
    then = helper.make_graph([node("Add", "x one", "a")], "then", [], [helper.make_tensor_value_info("a", FLOAT, None)])
    other = helper.make_graph([node("Neg", "x", "b")], "other", [], [helper.make_tensor_value_info("b", FLOAT, None)])
    return helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="choice")


def test_if_has_two_regions() -> None:
    proto = model([_branches()], {"x": (2,), "c": (BOOL, ())}, ["y"], {"one": np.float32(1)})
    func = imported(proto)
    assert any(isinstance(b.operation, If) for b in func.body.bindings)
    x = draw(2)
    for c, expected in ((True, x + 1), (False, -x)):
        np.testing.assert_array_equal(interpret.run(func, [x, np.array(c)])[0], expected)


def test_if_with_a_constant_condition_is_inlined() -> None:
    func = imported(model([_branches()], {"x": (2,)}, ["y"], {"one": np.float32(1), "c": np.array(False)}))
    assert operators(func) == ["neg"]


def test_forward_and_inverse_fourier_transform() -> None:
    z = draw(2, 6, 2)
    axis = {"a": np.array(1)}
    there, back = run(model([node("DFT", "x - a", "f"), node("DFT", "f - a", "y", inverse=1)], {"x": z.shape}, ["f", "y"], axis), z)
    expected = np.fft.fft(z[..., 0] + 1j * z[..., 1], axis=1)
    np.testing.assert_allclose(there, np.stack([expected.real, expected.imag], -1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back, z, rtol=1e-4, atol=1e-5)
    with pytest.raises(OnnxImportError, match="a last extent of 4"):
        from_onnx(model([node("DFT", "x - a")], {"x": (2, 3, 4)}, ["y"], axis))


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_reverse_recurrent_network_equals_forward_on_the_reversed_sequence(operator: str, gates: int) -> None:
    """The reverse direction equals the forward direction on the reversed sequence."""
    x, weights = draw(3, 2, 4), {"w": draw(1, gates * 5, 4, seed=1), "r": draw(1, gates * 5, 5, seed=2)}
    made = {}
    for direction, given in (("forward", x), ("reverse", x[::-1])):
        tested = node(operator, "x w r", "y h", hidden_size=5, direction=direction)
        made[direction] = run(model([tested], {"x": x.shape}, ["y", "h"], weights, 14), given.copy())
    np.testing.assert_allclose(made["forward"][0], made["reverse"][0][::-1], rtol=1e-5)
    np.testing.assert_allclose(made["forward"][1], made["forward"][0][-1], rtol=1e-6)


def test_scan_is_unrolled() -> None:
    """A running sum that also outputs doubled rows."""
    body = helper.make_graph(
        [node("Add", "s x", "n"), node("Add", "x x", "o")],
        "body",
        [helper.make_tensor_value_info(k, FLOAT, (2,)) for k in "sx"],
        [helper.make_tensor_value_info(k, FLOAT, (2,)) for k in "no"],
    )
    scan = helper.make_node("Scan", ["s0", "xs"], ["y", "z"], body=body, num_scan_inputs=1, scan_output_directions=[1])
    xs = draw(3, 2)
    total, rows = run(model([scan], {"xs": (3, 2)}, ["y", "z"], {"s0": np.zeros(2, np.float32)}), xs)
    np.testing.assert_allclose(total, xs.sum(0), rtol=1e-6)
    np.testing.assert_array_equal(rows, 2 * xs[::-1])


def test_functions_of_the_model_are_inlined_with_their_attributes() -> None:
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function(
        "mine", "Twice", ["a"], ["c"], [leaky, node("Add", "b b", "c")], [helper.make_opsetid("", 20)], ["slope"]
    )
    call = helper.make_node("Twice", ["x"], ["y"], domain="mine", slope=0.25)
    (made,) = run(model([call], {"x": (4,)}, ["y"], functions=[function], domains=["mine"]), np.array([-4, 0, 1, 2], np.float32))
    np.testing.assert_array_equal(made, [-2, 0, 2, 4])


def test_custom_converter() -> None:
    def double(n: OnnxNode) -> Datum:
        return n.b.multiply(n.input(0), n.like(n.attr("by", 2), n.input(0)))

    ONNX_OPERATORS.register("test.onnx_import.Times", double)
    call = helper.make_node("Times", ["x"], ["y"], domain="test.onnx_import", by=3)
    (made,) = run(model([call], {"x": (2,)}, ["y"], domains=["test.onnx_import"]), np.ones(2, np.float32))
    np.testing.assert_array_equal(made, [3, 3])


def test_one_error_lists_all_unsupported_nodes() -> None:
    nodes = [
        node("ImageDecoder", "x", "a"),
        node("Relu", "a", "b"),
        helper.make_node("Odd", ["b"], ["c"], domain="far.away", name="first"),
        helper.make_node("Odd", ["x"], ["d"], domain="far.away", name="second"),
        node("Cast", "x", "e", to=TensorProto.STRING),
        node("Add", "c d"),
    ]
    with pytest.raises(OnnxImportError) as caught:
        from_onnx(model(nodes, {"x": (1, 2, 3)}, ["y"], domains=["far.away"]))
    text = str(caught.value)
    assert "ImageDecoder (ai.onnx 20): it decodes files of images" in text
    assert "Odd (far.away 1): there is no converter [2x: first, second]" in text
    assert "Cast (ai.onnx 20): element type string [1x: the_Cast]" in text
    assert len(caught.value.unsupported) == 4


def test_an_input_of_axes_is_named_in_the_error_and_can_be_passed_as_a_constant() -> None:
    proto = model([node("Unsqueeze", "x s")], {"x": (2, 6), "s": (INT64, (2,))}, ["y"])
    with pytest.raises(OnnxImportError, match=r"input 1 \(axes\) is not known at import") as caught:
        from_onnx(proto)
    assert caught.value.wanted == ("s",) and "constants={name: array}" in str(caught.value)
    func = imported(proto, constants={"s": np.array([0, 3])})
    assert [p.name for p in func.params] == ["x"] and func.results[0].type.extents == (1, 2, 6, 1)
    with pytest.raises(ModelImportError, match=r"the input 's' is int64\[2\], got float64\[2\]"):
        from_onnx(proto, constants={"s": np.array([3.0, 4.0])})
    with pytest.raises(ModelImportError, match="the model has no input 'r'"):
        from_onnx(proto, constants={"r": np.array([3])})


def old(proto: Any, operator: str) -> None:
    """Make the first node another operator, of operator set 6."""
    proto.opset_import[0].version = 6
    proto.graph.node[0].op_type = operator


def test_older_operator_sets_are_supported_for_operators_that_did_not_change() -> None:
    proto = model([node("Relu", "x")], {"x": (2,)}, ["y"])
    old(proto, "Sigmoid")
    np.testing.assert_allclose(run(proto, np.float32([0, 2]))[0], [0.5, 0.880797], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 0), "empty tensors are not supported"),
        (lambda p: p.graph.input[0].type.tensor_type.__setattr__("elem_type", TensorProto.STRING), "ONNX element type number 8"),
        (lambda p: p.graph.input[0].type.tensor_type.ClearField("shape"), "has no shape"),
        (lambda p: p.graph.input[0].type.sequence_type.elem_type.tensor_type.__setattr__("elem_type", 1), "is a sequence; give the shapes"),
        (lambda p: old(p, "Add"), "operator set 6, and Add changed since then; 7 is the oldest one that is supported completely"),
        (lambda p: p.graph.node[0].input.__setitem__(0, "undefined"), "'undefined' is used before it is computed"),
        (lambda p: p.graph.ClearField("output"), "it has no graph with an output"),
    ],
)
def test_invalid_models_are_refused(change: Callable[[Any], Any], message: str) -> None:
    proto = model([node("Relu", "x")], {"x": (2,)}, ["y"])
    change(proto)
    with pytest.raises(ModelImportError, match=message):
        from_onnx(proto)


def test_from_onnx_is_exported() -> None:
    assert tunesmith.from_onnx is from_onnx


def test_lower_bounds_of_sizes() -> None:
    n = poly(Var("n"))
    assert [least(p) for p in (n, n * n + 3, n - 1, 2 - n, n // 2)] == [1, 4, 0, None, 0]
    assert isinstance(sizes([n, 3]), Sizes) and not isinstance(sizes([2, 3]), Sizes)


@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_results_have_the_names_of_the_models_outputs(executor: str) -> None:
    add = helper.make_node("Add", ["s", "xi"], ["so"])
    relu = helper.make_node("Relu", ["so"], ["yi"])
    values = [helper.make_tensor_value_info(n, FLOAT, [4]) for n in ("s", "xi", "so", "yi")]
    body = helper.make_graph([add, relu], "body", values[:2], values[2:])
    nodes = [
        node("Scan", "s0 x", "sT ys", body=body, num_scan_inputs=1),
        node("Split", "x", "q p", axis=1, num_outputs=2),
        node("Identity", "s0", "o1"),
        node("Identity", "s0", "o2"),
    ]
    outputs = ["sT", "ys", "q", "p", "o1", "o2", "x"]
    mod = from_onnx(model(nodes, {"s0": (4,), "x": (5, 4)}, outputs))
    assert mod["main"].result_names == tuple(outputs)
    s0, x = np.ones(4, np.float32), np.arange(20, dtype=np.float32).reshape(5, 4)
    ex = tunesmith.compile(mod, "llvm -mcpu=x86-64-v3 -num-cores=1", executor=executor).executor
    for name, value in (("s0", s0), ("x", x)):
        ex.set_input(name, value)
    ex.run()
    rows = s0 + np.cumsum(x, axis=0)
    expected = {"sT": rows[-1], "ys": rows, "q": x[:, :2], "p": x[:, 2:], "o1": s0, "o2": s0, "x": x}
    for name, value in expected.items():
        np.testing.assert_array_equal(ex.get_output(name), value, err_msg=name)


@pytest.mark.parametrize("executor", ["graph", "vm", "aot"])
def test_inputs_are_given_by_name(executor: str) -> None:
    proto = model([node("Sub", "a b", "y")], {"a": (4,), "b": (4,)}, ["y"])
    run = tunesmith.compile(from_onnx(proto), "llvm -mcpu=x86-64-v3 -num-cores=1", executor=executor)
    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    for made in (run(a, b), run(b=b, a=a), run(a, b=b)):
        np.testing.assert_array_equal(made, a - b)
    for arrays, named, message in (
        ((), {"a": a}, "the input b is missing"),
        ((), {}, "2 inputs|takes 2|needs 2"),
        ((a,), {"a": a}, "the input a is given twice: by its position and by its name"),
        ((a,), {"c": b}, "there is no input 'c'. There are: a, b"),
    ):
        with pytest.raises(RunError, match=message):
            run(*arrays, **named)  # type: ignore[arg-type]
