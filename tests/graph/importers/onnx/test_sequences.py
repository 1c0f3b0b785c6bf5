"""Test sequences and optionals of ONNX models against onnx.reference, or against lists where the reference is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.graph.importers.onnx.errors import OnnxImportError  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.importers.onnx.sequences import MOST_PARTS  # noqa: E402
from tunesmith.graph.ir import interpret  # noqa: E402
from tunesmith.graph.ir.function import GraphFunc  # noqa: E402
from tunesmith.graph.ir.script_parser import parse  # noqa: E402
from tunesmith.graph.ir.verify import verify  # noqa: E402
from tunesmith.ir.function import IRModule  # noqa: E402
from tunesmith.support.errors import ModelImportError  # noqa: E402
from tunesmith.support.seeds import stream  # noqa: E402


def model(graph: str, opset: int = 24) -> Any:
    """A model from the text of a graph; `P1` and `M1` are the constants 1 and -1, `Seq` and `Tensor` types."""
    graph = re.sub(r"\bSeq\b", "seq(float[])", re.sub(r"\bTensor\b", "float[2,3]", graph))
    for n in range(-4, 5):
        name = f"P{n}" if n >= 0 else f"M{-n}"
        if name in graph:
            graph = graph.replace("{", f"{{ {name} = Constant <value = int64 {{{n}}}> ()", 1)
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> tested {graph}')


def imported(proto: Any, **options: Any) -> GraphFunc:
    func = from_onnx(proto, **options)["main"]
    assert isinstance(func, GraphFunc)
    verify(func)
    return func


def grouped(func: GraphFunc, proto: Any, made: Sequence[np.ndarray]) -> list[Any]:
    """The results of a function as the model's outputs."""
    lengths = json.loads(func.attr("sequences") or "{}")
    rest = iter(made)
    outputs = [list(islice(rest, lengths[o.name])) if o.name in lengths else next(rest) for o in proto.graph.output]
    assert next(rest, None) is None
    return outputs


def shapes_of(given: dict[str, Any]) -> dict[str, Any]:
    """The argument `sequences` for inputs."""
    return {k: None if v is None else [a.shape for a in v] for k, v in given.items() if v is None or isinstance(v, list)}


def run(proto: Any, given: dict[str, Any], compiled: bool = False, **options: Any) -> list[Any]:
    """The outputs of the model for inputs by name."""
    func = imported(proto, sequences=shapes_of(given), **options)
    known = options.get("constants", {})
    arrays = [a for k, v in given.items() if k not in known and v is not None for a in (v if isinstance(v, list) else [v])]
    if not compiled:
        return grouped(func, proto, interpret.run(func, arrays))
    made = tunesmith.compile(IRModule({"main": func}))(*arrays)
    return grouped(func, proto, made if isinstance(made, tuple) else (made,))


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert isinstance(a, list) == isinstance(b, list)
        if isinstance(a, list):
            assert_same(a, b)
        else:
            assert a.dtype == np.asarray(b).dtype
            np.testing.assert_array_equal(a, b)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return stream(seed, "sequences", *shape).standard_normal(shape).astype(np.float32)


S = [draw(2, 3), draw(1, 3), draw(4, 3)]
T = draw(2, 3, seed=1)

ADD = "b (float[] p, float[] q) => (float[] r) { r = Add (p, q) }"
AGAINST_REFERENCE: dict[str, tuple[str, dict[str, Any]]] = {
    "construct": ("(Tensor t) => (Seq y) { u = Neg (t) y = SequenceConstruct (t, u, t) }", {"t": T}),
    "insert at the end": ("(Seq s, Tensor t) => (Seq y) { y = SequenceInsert (s, t) }", {"s": S, "t": T}),
    "insert": ("(Seq s, Tensor t) => (Seq y) { y = SequenceInsert (s, t, P1) }", {"s": S, "t": T}),
    "insert, counted from the end": ("(Seq s, Tensor t) => (Seq y) { y = SequenceInsert (s, t, M3) }", {"s": S, "t": T}),
    "insert into an empty one": ("(Tensor t) => (Seq y) { e = SequenceEmpty () y = SequenceInsert (e, t) }", {"t": T}),
    "erase the last": ("(Seq s) => (Seq y) { y = SequenceErase (s) }", {"s": S}),
    "erase": ("(Seq s) => (Seq y) { y = SequenceErase (s, P0) }", {"s": S}),
    "erase, counted from the end": ("(Seq s) => (Seq y) { y = SequenceErase (s, M2) }", {"s": S}),
    "at": ("(Seq s) => (float[] y, float[] z) { y = SequenceAt (s, P1) z = SequenceAt (s, M1) }", {"s": S}),
    "length": ("(Seq s) => (int64 y, int64 z) { e = SequenceEmpty () y = SequenceLength (s) z = SequenceLength (e) }", {"s": S}),
    "split": ("(Tensor t) => (Seq y) { y = SplitToSequence <axis = 1> (t) }", {"t": T}),
    "split without the axis": ("(Tensor t) => (Seq y) { y = SplitToSequence <axis = -1, keepdims = 0> (t) }", {"t": T}),
    "split by a number": ("(Tensor t) => (Seq y) { y = SplitToSequence <axis = 1, keepdims = 0> (t, P2) }", {"t": T}),
    "split by a large number": ("(Tensor t) => (Seq y) { y = SplitToSequence (t, P4) }", {"t": T}),
    "split by numbers": ("(Tensor t) => (Seq y) { n = Constant <value = int64[2] {1, 2}> () "
                         "y = SplitToSequence <axis = 1> (t, n) }", {"t": T}),
    "split by one number": ("(Tensor t) => (Seq y) { n = Constant <value = int64[1] {2}> () "
                            "y = SplitToSequence (t, n) }", {"t": T}),
    "concatenate": ("(Seq s) => (float[] y) { y = ConcatFromSequence <axis = 0> (s) }", {"s": S}),
    "concatenate one": ("(Seq s) => (float[] y) { y = ConcatFromSequence <axis = -2> (s) }", {"s": S[:1]}),
    "stack": ("(Seq s) => (float[] y) { y = ConcatFromSequence <axis = 2, new_axis = 1> (s) }", {"s": [T, -T]}),
    "stack, counted from the end": ("(Seq s) => (float[] y) { y = ConcatFromSequence <axis = -1, new_axis = 1> (s) }", {"s": [T, -T]}),
    "map": ("(Seq s) => (Seq y, seq(int64[]) z) { y, z = SequenceMap (s) <body = b (float[] p) => (float[] q, int64[] r) "
            "{ q = Neg (p) r = Shape (p) }> }", {"s": S}),
    "map two": (f"(Seq s, Seq t) => (Seq y) {{ y = SequenceMap (s, t) <body = {ADD}> }}", {"s": S, "t": S}),
    "map with a tensor": (f"(Seq s, float[1,3] t) => (Seq y) {{ y = SequenceMap (s, t) <body = {ADD}> }}", {"s": S, "t": S[1]}),
    "identity": ("(Seq s) => (Seq y) { y = Identity (s) }", {"s": S}),
    "known condition": ("(Seq s, Tensor t) => (Seq y) { c = Constant <value = bool {0}> () y = If (c) <"
                        "then_branch = g () => (Seq u) { u = SequenceErase (s) }, "
                        "else_branch = h () => (Seq v) { v = SequenceInsert (s, t) }> }", {"s": S, "t": T}),
    "integers": ("(seq(int32[]) s) => (seq(int32[]) y) { y = SequenceErase (s) }", {"s": [np.arange(3, dtype=np.int32)] * 2}),
    "one element": ("(Seq s) => (Seq y, float[] z) { y = Identity (s) z = SequenceAt (s, P0) }", {"s": [T]}),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAINST_REFERENCE)
def test_operators_agree_with_the_reference(name: str) -> None:
    text, given = AGAINST_REFERENCE[name]
    proto = model(text)
    assert_same(run(proto, given), ReferenceEvaluator(proto).run(None, given))


OPTIONAL = "(Tensor t) => (bool y, float[] z) {{ o = Optional{} (t) y = OptionalHasElement (o) z = OptionalGetElement (o) }}"
EXACT: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    # The reference inserts at position n at the front; the definition allows -n to n, and n is the end.
    "insert after the last": ("(Seq s, Tensor t) => (Seq y) { y = SequenceInsert (s, t, P3) }", {"s": S, "t": T}, [[*S, T]]),
    # The reference makes a list of one element of each optional.
    "optional tensor": (OPTIONAL.format(""), {"t": T}, [np.bool_(True), T]),
    "optional of a declared type": (OPTIONAL.format("<type = Tensor>"), {"t": T}, [np.bool_(True), T]),
    "optional sequence": ("(Seq s) => (bool y, Seq z) { o = Optional (s) y = OptionalHasElement (o) z = OptionalGetElement (o) }",
                          {"s": S}, [np.bool_(True), S]),
    "no element": ("() => (bool y, bool z) { o = Optional <type = Seq> () y = OptionalHasElement (o) z = OptionalHasElement () }", {},
                   [np.bool_(False)] * 2),
    "optional input": ("(optional(Tensor) o) => (bool y, float[] z) { y = OptionalHasElement (o) z = OptionalGetElement (o) }", {"o": [T]},
                       [np.bool_(True), T]),
    "optional input without an element": ("(optional(Seq) o) => (bool y) { y = OptionalHasElement (o) }", {"o": None}, [np.bool_(False)]),
    "optional results": ("(optional(Seq) o, Tensor t) => (optional(Seq) y, optional(float[]) z) { y = Identity (o) "
                         "z = Optional (t) }", {"o": S, "t": T}, [S, T]),
    "element of a tensor": ("(Tensor t) => (bool y, float[] z) { y = OptionalHasElement (t) z = OptionalGetElement (t) }", {"t": T},
                            [np.bool_(True), T]),
    "empty result": ("(Seq s, Tensor t) => (Seq y, float[] z) { y = SequenceErase (s) z = Neg (t) }", {"s": S[:1], "t": T},
                     [[], -T]),
    "map over nothing": ("(Tensor t) => (seq(int64[]) y, int64 z) { s = SequenceEmpty () y = SequenceMap (s) <body = b (float[] p) => "
                         "(int64[] r) { r = Shape (p) }> n = Shape (t) u = SequenceInsert (y, n) z = SequenceLength (u) }",
                         {"t": T}, [[], np.int64(1)]),
    "empty input": ("(Seq s) => (int64 y) { y = SequenceLength (s) }", {"s": []}, [np.int64(0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_operators_where_the_reference_is_wrong(name: str) -> None:
    text, given, expected = EXACT[name]
    assert_same(run(model(text), given), expected)


IF = "(bool c, Seq s) => ({0} y) {{ y = If (c) <then_branch = g () => ({0} u) {{ {1} }}, else_branch = h () => ({0} v) {{ {2} }}> }}"
REORDER = ("a = SequenceAt (s, P0) b = SequenceAt (s, P1) u = SequenceConstruct (a, b)", "d = SequenceAt (s, P0) e = SequenceAt (s, P1) "
           "v = SequenceConstruct (e, d)")  # fmt: skip


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("kind", ["Seq", "optional(Seq)"])
def test_branches_with_sequences_of_one_form(condition: bool, kind: str) -> None:
    then, other = REORDER
    if kind.startswith("optional"):
        then, other = then.replace("u =", "w =") + " u = Optional (w)", other.replace("v =", "w =") + " v = Optional (w)"
    given = {"c": np.array(condition), "s": [T, -T]}
    expected = [[T, -T] if condition else [-T, T]]
    assert_same(run(model(IF.format(kind, then, other)), given), expected)
    assert_same(run(model(IF.format(kind, then, other)), given, compiled=True), expected)


BRANCHES = {
    "lengths": ("Seq", "u = SequenceErase (s)", "v = Identity (s)",
                "output u is a sequence of 1 tensors of float32 in one branch and a sequence of 2 tensors of float32 in the other"),
    "element types": ("Seq", "u = SequenceEmpty () ", "v = SequenceEmpty <dtype = 7> ()", "0 tensors of float32 .* 0 tensors of int64"),
    "shapes": ("Seq", REORDER[0], "d = ConcatFromSequence <axis = 0> (s) v = SequenceConstruct (d, d)", "the result types of the regions"),
    "no element": ("optional(Seq)", "u = Optional <type = Seq> ()", "v = Optional (s)",
                   "an optional sequence of float32 without an element .* an optional with a sequence of 2 tensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_that_differ_are_refused(name: str) -> None:
    kind, then, other, message = BRANCHES[name]
    proto = model(IF.format(kind, then, other))
    given = {"c": np.array(False), "s": [T, -T]}
    with pytest.raises(OnnxImportError, match=message) as raised:
        run(proto, given)
    assert raised.value.wanted == ("c",)
    if name != "element types":  # there the result is empty
        assert run(proto, given, constants={"c": given["c"]})


def test_empty_sequences_and_optionals_flow_out_of_branches() -> None:
    proto = model(
        "(bool c) => (int64 y, bool z) { e, o = If (c) <then_branch = g () => (Seq u, optional(float[]) m) { u = SequenceEmpty () "
        "m = Optional <type = float[]> () }, else_branch = h () => (Seq v, optional(float[]) n) { v = SequenceEmpty () "
        "n = Optional <type = float[]> () }> y = SequenceLength (e) z = OptionalHasElement (o) }"
    )
    assert_same(run(proto, {"c": np.array(True)}), [np.int64(0), np.bool_(False)])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "position": ("(Seq s) => (float[] y) { y = SequenceAt (s, P3) }", {"s": S}, "position 3 is out of range for a sequence of 3 tensors"),
    "negative position": ("(Seq s) => (Seq y) { y = SequenceErase (s, M4) }", {"s": S}, "position -4 is out of range"),
    "position of an insertion": ("(Seq s, Tensor t) => (Seq y) { y = SequenceInsert (s, t, P4) }", {"s": S, "t": T},
                                 "position 4 is out of range for a sequence of 3"),
    "two positions": ("(Seq s) => (float[] y) { p = Constant <value = int64[2] {0, 1}> () y = SequenceAt (s, p) }", {"s": S},
                      "the position has 2 elements; expected 1"),
    "erase of nothing": ("() => (Seq y) { s = SequenceEmpty () y = SequenceErase (s) }", {}, "the sequence is empty"),
    "concatenation of nothing": ("() => (float[] y) { s = SequenceEmpty () y = ConcatFromSequence <axis = 0> (s) }", {},
                                 "the sequence is empty"),
    "no axis": ("(Seq s) => (float[] y) { y = ConcatFromSequence (s) }", {"s": S}, "the attribute axis is missing"),
    "axis": ("(Seq s) => (float[] y) { y = ConcatFromSequence <axis = 2> (s) }", {"s": S}, "axis 2 is out of range"),
    "shapes": ("(Seq s) => (float[] y) { y = ConcatFromSequence <axis = 1> (s) }", {"s": S}, "concat"),
    "element types": ("(Tensor t) => (Seq y) { u = Shape (t) y = SequenceConstruct (t, u) }", {"t": T},
                      "a tensor of int64 in a sequence of float32"),
    "inserted type": ("(Tensor t) => (Seq y) { e = SequenceEmpty <dtype = 7> () y = SequenceInsert (e, t) }", {"t": T},
                      "a tensor of float32 in a sequence of int64"),
    "strings": ("() => (int64 y) { e = SequenceEmpty <dtype = 8> () y = SequenceLength (e) }", {}, "element type string"),
    "construction of nothing": ("() => (Seq y) { y = SequenceConstruct () }", {}, "it has no inputs"),
    "sequence in a sequence": ("(Seq s) => (Seq y) { y = SequenceConstruct (s) }", {"s": S},
                               "input 0 is a sequence of 3 tensors of float32, not a tensor"),
    "tensor for a sequence": ("(Tensor t) => (int64 y) { y = SequenceLength (t) }", {"t": T},
                              "input 0 is a tensor of float32, not a sequence"),
    "sequence for a tensor": ("(Seq s) => (float[] y) { y = Neg (s) }", {"s": S}, "input 0 is a sequence of 3 tensors of float32; the"),
    "sequence as a condition": ("(seq(bool[]) s) => (float y) { y = If (s) <then_branch = g () => (float u) "
                                "{ u = Constant <value = float {0}> () }, "
                                "else_branch = h () => (float v) { v = Constant <value = float {0}> () }> }", {"s": [np.array([True])]},
                                "input 0 is a sequence of 1 tensors of bool; the operator takes tensors"),
    "sum of split": ("(Tensor t) => (Seq y) { n = Constant <value = int64[2] {1, 1}> () y = SplitToSequence <axis = 1> (t, n) }",
                     {"t": T}, "the sum of split, 1, 1, is not the extent 3 of axis 1"),
    "split of 0": ("(Tensor t) => (Seq y) { y = SplitToSequence (t, P0) }", {"t": T}, "split is 0; it must be positive"),
    "parts of 0": ("(Tensor t) => (Seq y) { n = Constant <value = int64[2] {0, 2}> () y = SplitToSequence (t, n) }", {"t": T},
                   "split contains 0; its numbers must be positive"),
    "split of a symbolic size": ("(float[N] t) => (Seq y) { y = SplitToSequence (t) }", {"t": T[0]},
                                 "axis 0 has the symbolic extent N, so the number of parts is unknown"),
    "parts": (f"(float[{MOST_PARTS + 1}] t) => (Seq y) {{ y = SplitToSequence (t) }}", {"t": draw(MOST_PARTS + 1)}, "more than 1024 parts"),
    "lengths of a map": (f"(Seq s, Seq t) => (Seq y) {{ y = SequenceMap (s, t) <body = {ADD}> }}", {"s": S, "t": S[:2]},
                         "sequences of 3 and of 2 tensors; they must have the same length"),
    "inputs of a map": (f"(Seq s) => (Seq y) {{ y = SequenceMap (s) <body = {ADD}> }}", {"s": S}, "1 inputs for a sub-graph with 2"),
    "map of a tensor": (f"(Tensor s, Tensor t) => (Seq y) {{ y = SequenceMap (s, t) <body = {ADD}> }}", {"s": T, "t": T},
                        "the first input is not a sequence"),
    "map of an optional": (f"(Seq s, optional(Tensor) t) => (Seq y) {{ y = SequenceMap (s, t) <body = {ADD}> }}",
                           {"s": S, "t": [T]}, "an omitted or optional input"),
    "map to sequences": ("(Seq s) => (Seq y) { y = SequenceMap (s) <body = b (float[] p) => (Seq r) "
                         "{ r = SequenceConstruct (p) }> }", {"s": S}, "the output r of the sub-graph is a sequence of 1 tensors"),
    "operator in a map": ("(Seq s) => (Seq y) { y = SequenceMap (s) <body = b (float[] p) => (float[] r) { r = Strange (p) }> }",
                          {"s": S}, r"Strange .* there is no converter \[1x: b_0/Strange_0"),
    "element of nothing": ("(optional(float[2]) o) => (float[] y) { y = OptionalGetElement (o) }", {"o": None},
                           "an optional without an element"),
    "result without an element": ("(optional(float[2]) o) => (optional(float[2]) y) { y = Identity (o) }", {"o": None},
                                  "Output .*: y is an optional tensor of float32 without an element"),
    "empty result": ("() => (Seq y) { y = SequenceEmpty () }", {}, r"no result but empty sequences \[1x: y\]"),
    "optional of an optional": ("(optional(float[2]) o) => (bool y) { p = Optional (o) y = OptionalHasElement (p) }", {"o": [T[0, :2]]},
                                "an optional in an optional"),
    "optional of no type": ("() => (bool y) { p = Optional () y = OptionalHasElement (p) }", {}, "neither an input nor the attribute type"),
    "optional of another type": ("(Tensor t) => (bool y) { p = Optional <type = Seq> (t) y = OptionalHasElement (p) }", {"t": T},
                                 "the attribute type is a sequence of float32, and the input is a tensor of float32"),
    "optional of a map": ("() => (bool y) { p = Optional <type = map(int64, float[])> () y = OptionalHasElement (p) }", {},
                          "the attribute type is neither that of a tensor nor"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    text, given, message = REFUSED[name]
    with pytest.raises(OnnxImportError, match=message):
        run(model(text), given)


@pytest.mark.parametrize("operator", ["SequenceAt (s, p)", "SequenceErase (s, p)", "SequenceInsert (s, t, p)", "SplitToSequence (t, p)"])
def test_positions_must_be_known(operator: str) -> None:
    proto = model(f"(Seq s, Tensor t, int64 p) => (Seq y) {{ y = {operator} }}")
    given = {"s": S, "t": T, "p": np.array(1)}
    with pytest.raises(OnnxImportError, match="(?s)is not known at import.*inputs are needed at import: p;") as raised:
        run(proto, given)
    assert raised.value.wanted == ("p",)
    assert_same(run(proto, given, constants={"p": given["p"]}), ReferenceEvaluator(proto).run(None, given))
    inside = model(f"(Seq s, Tensor t, seq(int64) q) => (Seq y) {{ p = SequenceAt (q, P0) y = {operator} }}")
    given["q"] = [given.pop("p")]
    with pytest.raises(OnnxImportError) as raised:
        run(inside, given)
    assert raised.value.wanted == ("q",)
    assert_same(run(inside, given, constants={"q": given["q"]}), ReferenceEvaluator(inside).run(None, given))


# ---- inputs ----


def test_parameters_of_sequences() -> None:
    proto = model("(float[2] a, seq(float[M,3]) s, optional(Tensor) o, optional(seq(int64)) q) => (Seq y) { y = Identity (s) }")
    func = imported(proto, sequences={"s": [("n", 3), (4, 3), ("n", 3)], "q": [()]})
    assert [(p.name, str(p.type)) for p in func.params] == [
        ("a", "float32[2]"), ("s_0", "float32[n, 3]"), ("s_1", "float32[4, 3]"), ("s_2", "float32[n, 3]"), ("o", "float32[2, 3]"),
        ("q_0", "int64[]"),
    ]  # fmt: skip
    assert func.attr("sequences") == '{"y": 3}' and func.result_names == ("y_0", "y_1", "y_2")
    assert parse(func.script()).attrs == func.attrs
    fixed = imported(proto, shapes={"n": 5}, sequences={"s": [("n", 3)], "q": None, "o": None})
    assert [str(p.type) for p in fixed.params] == ["float32[2]", "float32[5, 3]"]


WRONG_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, r"input 's' is a sequence; give the shapes of its elements: sequences={'s': \[shape, ...\]}$"),
    "optional sequence": ({"s": [], "o": None}, r"'q'.*sequences={'q': \[shape, ...\]}, or 'q': None without an element"),
    "no shape": ({"s": [], "q": None}, r"input 'o' has no shape; give it: sequences={'o': \[shape\]}"),
    "unknown": ({"s": [], "q": None, "o": None, "t": []}, r"no sequence or optional as an input 't'. It has: s, o, q"),
    "tensor": ({"s": [], "q": None, "o": None, "a": [(2,)]}, "no sequence or optional as an input 'a'"),
    "absent sequence": ({"s": None}, "the input 's' is not an optional"),
    "one shape": ({"s": (2, 3)}, "the input 's' must have a list of shapes"),
    "number": ({"s": 2}, "the input 's' must have a list of shapes"),
    "two shapes": ({"s": [], "o": [(2,), (2,)]}, "'o' is an optional tensor, so it must have one shape, got 2"),
    "dimensions": ({"s": [(2, 3, 4)]}, r"the tensors of 's' have the shape \['M', 3\], got \[2, 3, 4\]"),
    "extent": ({"s": [(2, 4)]}, r"the tensors of 's' have the shape \['M', 3\], got \[2, 4\]"),
    "empty": ({"s": [(0, 3)]}, "extents of at least 1"),
    "float": ({"s": [(1.5, 3)]}, "extents of at least 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_wrong_shapes_of_inputs(name: str) -> None:
    given, message = WRONG_INPUTS[name]
    proto = model("(float[2] a, seq(float[M,3]) s, optional(float[]) o, optional(seq(int64)) q) => (float[2] y) { y = Neg (a) }")
    with pytest.raises(ModelImportError, match=message):
        from_onnx(proto, sequences=given)


def test_wrong_values_and_types_of_inputs() -> None:
    proto = model("(seq(float[M,3]) s, float[2] t) => (int64 y) { y = SequenceLength (s) }")
    for constants, message in (
        ({"s": T}, "the input 's' is a sequence, so it must be a list of arrays"),
        ({"s": [T, T[0]]}, r"the input 's' is float32\['M', 3\], got float32\[3\]"),
        ({"s": [T.astype(np.int32)]}, "got int32"),
        ({"s": [T], "t": [T]}, "the input 't' is a tensor, so it must be an array"),
    ):
        with pytest.raises(ModelImportError, match=message):
            from_onnx(proto, constants=constants)
    for kind, message in (
        ("map(int64, float[])", "is not a tensor but map"),
        ("seq(map(int64, float[]))", "is not a tensor but a sequence of map"),
        ("seq(Seq)", "is not a tensor but a sequence of sequence"),
        ("optional(seq(map(int64, float[])))", "is not a tensor but an optional of a sequence of map"),
        ("seq(string[])", "unsupported ONNX element type number 8"),
    ):
        with pytest.raises(ModelImportError, match=message):
            from_onnx(model(f"({kind} s) => (float y) {{ y = Constant <value = float {{0}}> () }}"), sequences={"s": []})
    with pytest.raises(ModelImportError, match="an element of a sequence, have the name 's_0'"):
        from_onnx(model("(Seq s, float[2] s_0) => (float[2] y) { y = Neg (s_0) }"), sequences={"s": [(2,)]})


def test_tensors_of_narrow_types() -> None:
    graph = "(float8e4m3fn[4] x, seq(float8e4m3fn[]) s) => (float[] y, seq(float8e4m3fn[]) z) { t = SequenceInsert (s, x) "
    proto = model(graph + "p = SplitToSequence (x, P2) "
                  "q = SequenceMap (p) <body = b (float8e4m3fn[] e) => (float8e4m3fn[] f) { f = Identity (e) }> "
                  "o = Optional (x) g = OptionalGetElement (o) r = SequenceInsert (q, g) c = ConcatFromSequence <axis = 0> (r) "
                  "y = Cast <to = 1> (c) z = Identity (t) }")  # fmt: skip
    codes = np.array([0x30, 0x38, 0xB8, 0x40], np.uint8)
    numbers = np.array([0.5, 1, -1, 2], np.float32)
    assert_same(run(proto, {"x": codes, "s": [codes[:2]]}), [np.concatenate([numbers, numbers]), [codes[:2], codes]])
    mixed = model("(float8e4m3fn[4] x, float[4] t) => (Seq y) { y = SequenceConstruct (t, x) }")
    with pytest.raises(OnnxImportError, match="a tensor of float8_e4m3fn in a sequence of float32"):
        run(mixed, {"x": codes, "t": numbers})


def test_sequences_in_functions_of_the_model_and_with_sizes() -> None:
    text = """<ir_version: 10, opset_import: ["" : 24, "mine" : 1]>
    tested (seq(float[]) s, float[N,3] t) => (float[] y, int64[] z) {
      y = mine.Last (s)  p = Shape (t)  q = SplitToSequence (p)  i = ConcatFromSequence <axis = 0> (q)  z = Identity (i)
    }
    <domain: "mine", opset_import: ["" : 24]>
    Last (s) => (y) { p = Constant <value_int = -1> ()  y = SequenceAt (s, p) }"""
    proto = onnx.parser.parse_model(text)
    given = {"s": S, "t": T}
    assert_same(run(proto, given), ReferenceEvaluator(proto).run(None, given))
