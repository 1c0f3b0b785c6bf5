"""Test operators whose shapes depend on the elements of tensors, with several calls of one compiled model, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from tunesmith.graph.importers.onnx.errors import OnnxImportError  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.ir import interpret  # noqa: E402
from tunesmith.support.errors import RunError  # noqa: E402

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4), dtype=np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def sparse(*shape: int) -> list[np.ndarray]:
    """Tensors with none, some and all elements other than zero."""
    full = RNG.integers(1, 5, shape).astype(np.float32)
    return [full * (RNG.random(shape) < p) for p in (0, 0.3, 1)]


def test_non_zero(agrees: Any, graph_model: Any) -> None:
    nodes = [node("NonZero", ["x"], ["y"])]
    agrees(graph_model(nodes, {"x": (FLOAT, (3, 4, 5))}, ["y"]), [(x,) for x in sparse(3, 4, 5)])
    agrees(graph_model(nodes, {"x": (FLOAT, ("n", 4))}, ["y"]), [(x,) for k in (0, 1, 7) for x in sparse(k, 4)])
    agrees(graph_model(nodes, {"x": (BOOL, ("n",))}, ["y"]), [(x > 0,) for k in (0, 1, 7) for x in sparse(k)])
    agrees(graph_model(nodes, {"x": (FLOAT, (3, 4))}, ["y"]), [(np.where(X > 0, np.float32(np.nan), 0),), (X * -0.0,)])


def test_compress(agrees: Any, graph_model: Any) -> None:
    inputs = {"x": (FLOAT, (3, 4)), "c": (BOOL, ("k",))}
    for axis in ({}, {"axis": 0}, {"axis": -1}):
        calls = [(X, RNG.random(k) < p) for p in (0, 0.5, 1) for k in (0, 2, 3)]
        agrees(graph_model([node("Compress", ["x", "c"], ["y"], **axis)], inputs, ["y"]), calls)


def test_two_selections_by_one_condition_have_one_extent(agrees: Any, graph_model: Any) -> None:
    """Boxes and scores of one mask, for example: they are combined afterwards."""
    nodes = [
        node("Compress", ["x", "c"], ["p"], axis=1),
        node("Compress", ["w", "c"], ["q"], axis=0),
        node("MatMul", ["p", "q"], ["r"]),
        node("NonZero", ["c"], ["at"]),
        node("Squeeze", ["at", "zero"], ["i"]),
        node("Gather", ["w", "i"], ["same"]),
        node("Sub", ["same", "q"], ["nothing"]),
        node("Shape", ["q"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Concat", ["nothing", "q", "zeros"], ["y"], axis=0),
    ]
    w = RNG.standard_normal((4, 2), dtype=np.float32)
    inputs = {"x": (FLOAT, (3, 4)), "w": (FLOAT, (4, 2)), "c": (BOOL, (4,))}
    calls = [(X, w, np.array(c, bool)) for c in ([0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1])]
    agrees(graph_model(nodes, inputs, ["r", "y"], {"zero": ints(0)}), calls)


def unique(axis: int | None, in_order: bool) -> Callable[[np.ndarray], list[np.ndarray]]:
    def expected(x: np.ndarray) -> list[np.ndarray]:
        values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        inverse = inverse.ravel()
        if not in_order:
            order = np.argsort(first, kind="stable")
            values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        return [values, first, inverse, counts]

    return expected


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("axis", "rows"), [(None, 4), (None, "n"), (0, 4), (0, "n"), (1, 4)])
def test_unique(agrees: Any, graph_model: Any, axis: int | None, rows: Any, in_order: bool) -> None:
    of_axis = {} if axis is None else {"axis": axis}
    outputs = ["y", "i", "v", "c"]
    counts = [4] if rows == 4 else [1, 3, 30]
    calls = [(RNG.integers(0, high, (k, 3)).astype(np.float32),) for high in (1, 2, 100) for k in counts]
    nodes = [node("Unique", ["x"], outputs, sorted=int(in_order), **of_axis)]
    agrees(graph_model(nodes, {"x": (FLOAT, (rows, 3))}, outputs), calls, unique(axis, in_order))


def test_unique_of_nan_bools_and_nothing(agrees: Any, graph_model: Any) -> None:
    nodes, outputs = [node("Unique", ["x"], ["y", "i", "v", "c"])], ["y", "i", "v", "c"]
    nan = np.array([2, np.nan, 1, np.nan, 2], np.float32)
    agrees(graph_model(nodes, {"x": (FLOAT, ("n",))}, outputs), [(nan,), (nan[:0],), (nan[1:2],)], unique(None, True))
    agrees(graph_model(nodes, {"x": (BOOL, (3,))}, outputs), [(np.array(b),) for b in ([True] * 3, [False, True, False])],
           unique(None, True))  # fmt: skip


def boxes(b: int, c: int, n: int, grid: int, center: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes with corners on a grid, some of them without area, and scores with ties."""
    corners = RNG.integers(0, grid, (b, n, 4)).astype(np.float32)
    if center:
        corners[..., 2:] -= 1
    return corners, (RNG.integers(0, 8, (b, c, n)) / 8).astype(np.float32)


@pytest.mark.parametrize(
    ("center", "filtered", "shape"), [(0, True, "bcn"), (1, False, "bcn"), (0, False, (2, 3, 20)), (1, True, (2, 3, 20))]
)
def test_non_max_suppression(agrees: Any, graph_model: Any, center: int, filtered: bool, shape: Any) -> None:
    inputs = {"boxes": (FLOAT, (shape[0], shape[2], 4)), "scores": (FLOAT, tuple(shape)), "most": (INT, (1,)), "iou": (FLOAT, (1,))}
    if filtered:
        inputs["least"] = (FLOAT, (1,))
    calls = []
    for k in range(8):
        b, c, n = (2, 3, 20) if shape[0] == 2 else [int(v) for v in RNG.integers(1, (3, 4, 25))] if k else (2, 1, 0)
        threshold = (0.0, 0.3, 0.5, 1.0)[k % 4]
        limits = [ints((100, 1, 0, 3)[k % 4]), np.array([threshold], np.float32), np.array([0.4], np.float32)]
        calls.append((*boxes(b, c, n, 6 if k < 4 else 40, center), *limits[: 3 if filtered else 2]))
    agrees(graph_model([node("NonMaxSuppression", list(inputs), ["y"], center_point_box=center)], inputs, ["y"]), calls)


def test_non_max_suppression_with_constant_limits(agrees: Any, graph_model: Any) -> None:
    inputs = {"boxes": (FLOAT, (1, 30, 4)), "scores": (FLOAT, (1, 2, 30))}
    weights = {"most": ints(3), "iou": np.float32([0.5])}
    nodes = [node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["y"])]
    agrees(graph_model(nodes, inputs, ["y"], weights), [boxes(1, 2, 30, 9, 0) for _ in range(3)])
    nothing = from_onnx(graph_model([node("NonMaxSuppression", ["boxes", "scores"], ["y"])], inputs, ["y"]))
    (made,) = interpret.run(nothing["main"], list(boxes(1, 2, 30, 9, 0)), nothing)  # by default, no box is selected
    assert made.shape == (0, 3)


SHAPES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "ConstantOfShape": (node("ConstantOfShape", ["s"], ["y"]), {"s": (INT, (2,))}, [(ints(2, 3),), (ints(0, 3),), (ints(1, 1),)]),
    "Reshape": (
        node("Reshape", ["x", "s"], ["y"]),
        {"x": (FLOAT, (3, 4)), "s": (INT, (2,))},
        [(X, ints(*s)) for s in ((2, 6), (-1, 2), (0, 4), (12, 1), (0, -1))],
    ),
    "Expand": (
        node("Expand", ["x", "s"], ["y"]),
        {"x": (FLOAT, (3, 1)), "s": (INT, (3,))},
        [(X[:, :1], ints(*s)) for s in ((2, 3, 6), (1, 1, 1), (1, 3, 0))],
    ),
    "Tile": (node("Tile", ["x", "s"], ["y"]), {"x": (FLOAT, (3, 4)), "s": (INT, (2,))}, [(X, ints(*s)) for s in ((2, 3), (1, 1), (0, 2))]),
    "Slice": (
        node("Slice", ["x", "b", "e"], ["y"]),
        {"x": (FLOAT, (3, 4)), "b": (INT, (2,)), "e": (INT, (2,))},
        [(X, ints(*b), ints(*e)) for b, e in (((0, 1), (2, 3)), ((-2, -9), (9, -1)), ((2, 3), (1, 4)), ((9, 9), (99, 99)))],
    ),
    "Slice of a symbolic extent": (
        node("Slice", ["x", "b", "e", "a", "t"], ["y"]),
        {"x": (FLOAT, ("n", 4)), "b": (INT, (1,)), "e": (INT, (1,))},
        [(X, ints(0), ints(2)), (X, ints(-3), ints(9)), (X, ints(2), ints(1)), (X[:0], ints(0), ints(9))],
    ),
    "Pad": (
        node("Pad", ["x", "p", "v"], ["y"]),
        {"x": (FLOAT, (3, 4)), "p": (INT, (4,)), "v": (FLOAT, ())},
        [(X, ints(*p), np.float32(3)) for p in ((0, 1, 2, 0), (0, 0, 0, 0), (2, 2, 1, 1))],
    ),
    "Pad by the outermost elements": (
        node("Pad", ["x", "p"], ["y"], mode="edge"),
        {"x": (FLOAT, (3, 4)), "p": (INT, (4,))},
        [(X, ints(*p)) for p in ((0, 1, 2, 0), (1, 1, 2, 3), (0, 0, 0, 0))],
    ),
    "TopK": (node("TopK", ["x", "k"], ["y", "i"]), {"x": (FLOAT, (3, 4)), "k": (INT, (1,))}, [(X, ints(k)) for k in (1, 4, 2)]),
    "OneHot": (
        node("OneHot", ["i", "d", "v"], ["y"]),
        {"i": (INT, (3,)), "d": (INT, ()), "v": (FLOAT, (2,))},
        [(ints(0, 2, -1), np.array(d), np.float32([1, 5])) for d in (3, 5, 1)],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_are_inputs(agrees: Any, graph_model: Any, name: str) -> None:
    tested, inputs, calls = SHAPES[name]
    agrees(graph_model([tested], inputs, list(tested.output), {"a": ints(0), "t": ints(2)}), calls)


def test_a_function_of_many_sizes_some_of_which_are_0(agrees: Any, graph_model: Any) -> None:
    inputs = {"x": (FLOAT, (3, 4, 5)), "b": (INT, (3,)), "e": (INT, (3,))}
    x = RNG.standard_normal((3, 4, 5), dtype=np.float32)
    bounds = [((0, 0, 0), (9, 9, 9)), ((0, 1, 0), (2, 1, 9)), ((3, 4, 5), (3, 4, 5)), ((0, -3, 1), (1, 9, -1))]
    agrees(graph_model([node("Slice", ["x", "b", "e"], ["y"])], inputs, ["y"]), [(x, ints(*b), ints(*e)) for b, e in bounds])


@pytest.mark.parametrize(("kind", "dtype"), [(INT, np.int64), (TensorProto.INT32, np.int32), (FLOAT, np.float32)])
def test_range(agrees: Any, graph_model: Any, kind: int, dtype: Any) -> None:
    calls = [tuple([np.array(v, dtype) for v in call]) for call in ((0, 5, 1), (3, -4, -2), (0, 0, 1), (5, 0, 1), (1, 8, 3))]
    model = agrees(graph_model([node("Range", list("abc"), ["y"])], {k: (kind, ()) for k in "abc"}, ["y"]), calls)
    with pytest.raises(RunError, match="the size count is read from a tensor, which must be at least 0, and is -1"):
        model(*[np.array(v, dtype) for v in (0, 5, 0)])


def test_pads_that_crop(agrees: Any, graph_model: Any) -> None:
    tested, inputs, _ = SHAPES["Pad"]
    agrees(graph_model([tested], inputs, ["y"]), [(X, ints(-1, 1, 2, -3), np.float32(7))],
           lambda x, p, v: [np.pad(x[1:, :1], ((0, 2), (1, 0)), constant_values=v)])  # fmt: skip


def test_a_minus_one_in_a_shape_of_which_parts_are_read(agrees: Any, graph_model: Any) -> None:
    nodes = [
        node("Unsqueeze", ["n", "zero"], ["rows"]),
        node("Concat", ["rows", "rest"], ["s"], axis=0),
        node("Reshape", ["x", "s"], ["y"]),
    ]
    proto = graph_model(nodes, {"x": (FLOAT, (3, 4)), "n": (INT, ())}, ["y"], {"zero": ints(0), "rest": ints(-1)})
    agrees(proto, [(X, np.array(n)) for n in (1, 2, 6, 12)])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Reshape", (X, ints(5, 2))),
        ("Reshape", (X, ints(-1, 5))),
        ("Reshape", (X, ints(-1, -1))),
        ("Expand", (X[:, :1], ints(1, 2, 4))),
        ("ConstantOfShape", (ints(-1, 2),)),
        ("TopK", (X, ints(5))),
        ("OneHot", (ints(0, 0, 0), np.array(-2), np.float32([0, 1]))),
        ("Tile", (X, ints(-1, 1))),
        ("Pad", (X, ints(-5, 0, 0, 0), np.float32(0))),
    ],
)
def test_numbers_that_are_wrong_are_reported_when_the_model_runs(graph_model: Any, name: str, call: Any) -> None:
    tested, inputs, _ = SHAPES[name]
    module = from_onnx(graph_model([tested], inputs, list(tested.output)))
    with pytest.raises(RunError, match="is read from a tensor, which must be at least 0, and is -"):
        interpret.run(module["main"], list(call), module)


SOME: dict[str, Any] = {"x": (FLOAT, (3, 4)), "s": (INT, (2,)), "c": (BOOL, (4,)), "k": (INT, ("k",)), "u": (FLOAT, ("u",))}
REFUSED: list[tuple[str, Any, str, tuple[str, ...]]] = [
    ("a number", node("NonZero", ["one"], ["y"]), "a number without axes; reshape it", ()),
    ("a matrix as a condition", node("Compress", ["x", "xb"], ["y"]), "the condition must be a vector, got bool", ()),
    ("a long condition", node("Compress", ["x", "c"], ["y"], axis=0), "a condition of 4 elements for an axis of 3", ()),
    ("wide slices", node("Unique", ["wide"], ["y"], axis=0), "slices of 128 elements; there must be 1 to 64", ()),
    ("boxes of others", node("NonMaxSuppression", ["b1", "b2"], ["y"]), "do not match scores", ()),
    ("half boxes", node("NonMaxSuppression", ["h1", "h2"], ["y"]), "boxes of float16 and scores of float16; both must be float32", ()),
    ("a shape of unknown length", node("Reshape", ["x", "k"], ["y"]), r"input 1 \(shape\) is not known at import", ("k",)),
    ("an expansion that nothing checks", node("Expand", ["x", "s"], ["y"]), r"input 1 \(shape\) is not known at import", ("s",)),
    ("an unknown step", node("Slice", ["x", "s", "s", "axes", "s"], ["y"]), r"input 4 \(steps\) is not known at import", ("s",)),
    (
        "a negative step",
        node("Slice", ["x", "s", "s", "axes", "back"], ["y"]),
        "a step of -1 with bounds that are not known at import",
        ("s",),
    ),
    ("reflection", node("Pad", ["x", "four"], ["y"], mode="reflect"), "the mode reflect with pads that are not known at import", ("four",)),
    ("k of a symbolic axis", node("TopK", ["u", "one_k"], ["y", "i"]), "an axis of the extent u with a k that is not known", ("one_k",)),
]


@pytest.mark.parametrize(("tested", "message", "wanted"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(graph_model: Any, tested: Any, message: str, wanted: tuple[str, ...]) -> None:
    half = TensorProto.FLOAT16
    inputs = {
        **SOME,
        "one": (FLOAT, ()),
        "xb": (BOOL, (3, 4)),
        "wide": (FLOAT, (3, 128)),
        "b1": (FLOAT, (1, 3, 4)),
        "b2": (FLOAT, (1, 1, 5)),
        "h1": (half, (1, 3, 4)),
        "h2": (half, (1, 1, 3)),
        "four": (INT, (4,)),
        "one_k": (INT, (1,)),
    }
    proto = graph_model([tested], inputs, list(tested.output), {"axes": ints(0, 1), "back": ints(-1, -1)})
    with pytest.raises(OnnxImportError, match=message) as caught:
        from_onnx(proto)
    assert set(wanted) <= set(caught.value.wanted)


def test_a_shape_that_must_be_known_names_the_input(graph_model: Any) -> None:
    """An extent that is read cannot equal one of another tensor, unless the input is known at import."""
    nodes = [node("Reshape", ["x", "s"], ["p"]), node("MatMul", ["p", "w"], ["y"])]
    proto = graph_model(nodes, {"x": (FLOAT, (3, 4)), "s": (INT, (2,))}, ["y"], {"w": np.zeros((6, 2), np.float32)})
    with pytest.raises(OnnxImportError, match="MatMul") as caught:
        from_onnx(proto)
    assert caught.value.wanted == ("s",)
    module = from_onnx(proto, constants={"s": ints(2, 6)})
    assert interpret.run(module["main"], [X], module)[0].shape == (2, 2)


def test_an_expansion_of_an_extent_that_is_read_is_refused(graph_model: Any) -> None:
    """Whether the extent is 1, and repeated, is known only when the model runs."""
    nodes = [node("NonZero", ["u"], ["at"]), node("Expand", ["at", "s"], ["y"])]
    proto = graph_model(nodes, {"u": (FLOAT, (5,))}, ["y"], {"s": ints(1, 5)})
    with pytest.raises(OnnxImportError, match="the extents count and 5: whether the first one is 1 is known only when the model runs"):
        from_onnx(proto)


def sizes_of_x() -> list[Any]:
    """Nodes that compute `n`, the extent of axis 0 of `x`, in one element, and `few`, at most 3 of it."""
    return [node("Shape", ["x"], ["n"], start=0, end=1), node("Min", ["n", "three"], ["few"])]


ROWS = {"x": (FLOAT, ("n", 4))}
NUMBERS = {"zero": ints(0), "one": ints(1), "two": ints(2), "three": ints(3), "seven": ints(7), "back": ints(-1), "far": ints(-(2**62))}


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        ("few", "zero", "one"),
        ("few", "two", "two"),
        ("zero", "two", "back"),
        ("few", "far", "back"),
        ("far", "two", "back"),
        ("less", "n", "one"),
    ],
)
def test_slices_by_sizes_that_may_be_empty(agrees: Any, graph_model: Any, start: str, end: str, step: str) -> None:
    nodes = [*sizes_of_x(), node("Sub", ["few", "two"], ["less"]), node("Slice", ["x", start, end, "zero", step], ["y"])]
    constant = start == "far"  # a bound that makes every slice empty
    proto = graph_model([*nodes, node("Concat", ["y", "x"], ["z"], axis=0)], ROWS, ["z"] if constant else ["y", "z"], NUMBERS)
    agrees(proto, [(RNG.standard_normal((n, 4), dtype=np.float32),) for n in (1, 2, 3, 9)])


def test_an_empty_slice_has_the_shape_of_its_other_axes(agrees: Any, graph_model: Any) -> None:
    bounds = {"b": ints(-1, 0, -(2**62)), "e": ints(-9, 2, -2), "a": ints(0, 1, 2), "t": ints(-2, 2, -1)}
    proto = graph_model(
        [node("Slice", ["x", "b", "e", "a", "t"], ["y"]), node("Neg", ["x"], ["z"])], {"x": (FLOAT, (4, 4, 2))}, "yz", bounds
    )
    agrees(proto, [(RNG.standard_normal((4, 4, 2), dtype=np.float32),)])


@pytest.mark.parametrize(("start", "limit", "step"), [("few", "n", "one"), ("n", "two", "one"), ("two", "n", "back"), ("two", "n", "few")])
def test_ranges_of_sizes_that_may_be_empty(agrees: Any, graph_model: Any, start: str, limit: str, step: str) -> None:
    scalars = [node("Squeeze", [name], [f"{name}_"]) for name in ("n", "few")]
    nodes = [*sizes_of_x(), *scalars, node("Range", [f"{name}_" for name in (start, limit, step)], ["y"])]
    proto = graph_model(nodes, ROWS, ["y"], {**NUMBERS, **{f"{k}_": v[0] for k, v in NUMBERS.items()}})
    model = agrees(proto, [(RNG.standard_normal((n, 4), dtype=np.float32),) for n in (2, 3, 9)])
    if step == "few":  # the range is longer for larger sizes: it is assumed to have no negative length
        with pytest.raises(RunError, match="requires n > 1, and the inputs have n = 1"):
            model(X[:1])


def test_counts_and_pads_that_are_sizes(agrees: Any, graph_model: Any) -> None:
    nodes = [
        *sizes_of_x(),
        node("TopK", ["x", "few"], ["top", "at"], axis=1),
        node("Concat", ["zero", "few", "few", "one"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["wide"]),
        node("Expand", ["few", "n"], ["all"]),
    ]
    agrees(graph_model(nodes, ROWS, ["top", "at", "wide", "all"], NUMBERS), [(X[:n],) for n in (1, 2, 3)])
    limited = from_onnx(graph_model([sizes_of_x()[0], node("TopK", ["x", "n"], ["y", "i"], axis=1)], ROWS, "yi"))
    with pytest.raises(RunError, match="is -1"):
        interpret.run(limited["main"], [np.zeros((5, 4), np.float32)], limited)


def test_an_empty_tensor_with_sizes_is_only_joined(agrees: Any, graph_model: Any) -> None:
    nodes = [
        *sizes_of_x(),
        node("Concat", ["n", "zero"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["nothing"]),
        node("Concat", ["nothing", "x"], ["y"], axis=1),
        node("Shape", ["nothing"], ["same"]),
    ]
    agrees(graph_model(nodes, ROWS, ["y", "same"], NUMBERS), [(X,), (X[:1],)])
    with pytest.raises(OnnxImportError, match="nothing is empty: float32.n, 0."):
        from_onnx(graph_model(nodes, ROWS, ["nothing", "y"], NUMBERS))
    with pytest.raises(OnnxImportError, match=r"Neg .*: input 0, float32\[n, 0\], has no elements, and its shape is not constant"):
        from_onnx(graph_model([*nodes, node("Neg", ["nothing"], ["z"])], ROWS, ["y"], NUMBERS))


@pytest.mark.parametrize(("mode", "least"), [("reflect", 3), ("edge", 1), ("wrap", 1)])
def test_pads_of_too_few_elements_are_errors(agrees: Any, graph_model: Any, mode: str, least: int) -> None:
    """They would be read beyond the tensor."""
    pad = node("Pad", ["u", "p"], ["y"], mode=mode)
    model = agrees(graph_model([pad], {"u": (FLOAT, ("n",))}, ["y"], {"p": ints(2, 1)}), [(X.ravel()[:n],) for n in (least, 5)])
    with pytest.raises(RunError, match=f"requires n > {least - 1}, and the inputs have n = {least - 1}"):
        model(X.ravel()[: least - 1])
    nodes = [node("Compress", ["x", "c"], ["u"]), pad]
    inputs = {"x": (FLOAT, (6,)), "c": (BOOL, (6,))}
    model = agrees(graph_model(nodes, inputs, ["y"], {"p": ints(2, 1)}), [(X.ravel()[:6], np.arange(6) < n) for n in (least, 5)])
    with pytest.raises(RunError, match="the size extent is read from a tensor, which must be at least 0, and is -1"):
        model(X.ravel()[:6], np.arange(6) < least - 1)


def test_pads_of_no_elements(agrees: Any, graph_model: Any) -> None:
    inputs = {"x": (FLOAT, ("n", 4)), "p": (INT, (4,)), "v": (FLOAT, ())}
    calls = [(X[:n], ints(*p), np.float32(3)) for n, p in ((0, (0, 1, 2, 0)), (0, (0, 0, 0, 0)), (3, (2, 2, 1, 1)))]
    agrees(graph_model([node("Pad", ["x", "p", "v"], ["y"])], inputs, ["y"]), calls)
    edge = from_onnx(graph_model([node("Pad", ["x", "p"], ["y"], mode="edge")], {k: inputs[k] for k in "xp"}, ["y"]))
    with pytest.raises(RunError, match="the size extent is read from a tensor, which must be at least 0, and is -1"):
        interpret.run(edge["main"], [X[:0], ints(1, 0, 0, 0)], edge)
