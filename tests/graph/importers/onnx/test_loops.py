"""Test Loop and Scan: known and unknown trip counts, conditions of data, scan outputs, captured values, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from tunesmith.graph.importers.onnx.errors import OnnxImportError  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.importers.onnx.loops import MOST_TRIPS  # noqa: E402
from tunesmith.graph.ir.node import Loop, While, all_bindings  # noqa: E402

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).standard_normal(4, dtype=np.float32)
HALF = {"half": np.float32(0.5)}
node = helper.make_node


def info(name: str, kind: int = FLOAT, shape: Sequence[int] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def body(nodes: Sequence[Any], outputs: Sequence[str], number: Sequence[int] = ()) -> Any:
    """A body that carries s."""
    inputs = [info("i", INT, number), info("c", BOOL, number), info("s", FLOAT, [4])]
    return helper.make_graph(list(nodes), "body", inputs, [info(o) for o in outputs])


def loop(graph: Any, inputs: str, outputs: str) -> Any:
    return node("Loop", ["" if x == "-" else x for x in inputs.split()], outputs.split(), body=graph)


STEP = [node("Cast", ["i"], ["f"], to=FLOAT), node("Mul", ["s", "half"], ["m"]), node("Add", ["m", "f"], ["s2"]),
        node("Add", ["s2", "s2"], ["row"])]  # fmt: skip
SAME = node("Identity", ["c"], ["c2"])
BELOW = [node("ReduceSum", ["s2"], ["total"], keepdims=0), node("Less", ["total", "limit"], ["c2"])]
COUNTED = body([*STEP, SAME], ["c2", "s2", "row"])
CONDITIONAL = body([*STEP, *BELOW], ["c2", "s2", "row"])


def iterated(x: np.ndarray, most: float, limit: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """The results of the bodies above."""
    rows, s, i = [], x, 0
    while i < most:
        s = (s * np.float32(0.5) + np.float32(i)).astype(np.float32)
        rows.append(s * 2)
        i += 1
        if not s.sum() < limit:
            break
    return s, np.stack(rows) if rows else np.zeros((0, 4), np.float32)


def operations(proto: Any) -> list[type]:
    func: Any = from_onnx(proto)["main"]
    return [type(b.operation) for b in all_bindings(func.body) if isinstance(b.operation, (Loop, While))]


@pytest.mark.parametrize("trips", [0, 1, 5, MOST_TRIPS + 10])
def test_a_constant_trip_count(agrees: Any, graph_model: Any, trips: int) -> None:
    proto = graph_model([loop(COUNTED, "M - x", "y rows")], {"x": (FLOAT, (4,))}, ["y", "rows"], {"M": np.array(trips), **HALF})
    agrees(proto, [(X,)], lambda x: iterated(x, trips))
    assert operations(proto) == ([] if not trips else [Loop] if trips <= MOST_TRIPS else [While])


def test_conditions_that_are_known(agrees: Any, graph_model: Any) -> None:
    for value, trips in ((True, 3), (False, 0)):
        weights = {"M": np.array([3]), "t": np.array([value]), **HALF}
        agrees(graph_model([loop(COUNTED, "M t x", "y rows")], {"x": (FLOAT, (4,))}, ["y", "rows"], weights), [(X,)],
               lambda x, n=trips: iterated(x, n))  # fmt: skip
    once = body([*STEP, node("Not", ["c"], ["c2"])], ["c2", "s2", "row"])
    agrees(graph_model([loop(once, "- - x", "y rows")], {"x": (FLOAT, (4,))}, ["y", "rows"], HALF), [(X,)], lambda x: iterated(x, 1))


def test_a_trip_count_and_a_condition_that_are_inputs(agrees: Any, graph_model: Any) -> None:
    inputs = {"M": (INT, ()), "x": (FLOAT, (4,))}
    calls: list[Any] = [(np.array(k), X) for k in (0, 1, 7, -3)]
    agrees(graph_model([loop(COUNTED, "M - x", "y rows")], inputs, ["y", "rows"], HALF), calls, lambda k, x: iterated(x, k))
    inputs = {"M": (INT, (1,)), "t": (BOOL, (1,)), "x": (FLOAT, (4,))}
    calls = [(np.array([k]), np.array([t]), X) for k in (0, 1, 7) for t in (True, False)]
    ones = body([*STEP, SAME], ["c2", "s2", "row"], [1])
    proto = graph_model([loop(ones, "M t x", "y rows")], inputs, ["y", "rows"], HALF)
    agrees(proto, calls, lambda k, t, x: iterated(x, k[0] * t[0]))


@pytest.mark.parametrize("keep", [0, 1])
def test_a_condition_of_data(agrees: Any, graph_model: Any, keep: int) -> None:
    inputs = {"x": (FLOAT, (4,)), "limit": (FLOAT, ())}
    calls = [(X, np.float32(n)) for n in (-99, 5, 30, 1e9)]
    below = [node("ReduceSum", ["s2"], ["total"], keepdims=keep), BELOW[1]]
    graph = body([*STEP, *below], ["c2", "s2", "row"])
    proto = graph_model([loop(graph, "M - x", "y rows")], inputs, ["y", "rows"], {"M": np.array(20), **HALF})
    agrees(proto, calls, lambda x, limit: iterated(x, 20, limit))
    state = body([*STEP, *below], ["c2", "s2"])
    agrees(graph_model([loop(state, "- - x", "y")], inputs, ["y"], HALF), calls[:3], lambda x, limit: iterated(x, 999, limit)[:1])
    most = {"M": np.array(2**63 - 1), **HALF}
    proto = graph_model([loop(state, "M t x", "y")], {**inputs, "t": (BOOL, ())}, ["y"], most)
    calls = [(*c, np.array(t)) for c in calls[:3] for t in (True, False)]
    agrees(proto, calls, lambda x, limit, t: iterated(x, 999 * t, limit)[:1])


def test_slices_by_the_number_of_the_iteration(agrees: Any, graph_model: Any) -> None:
    weights = {"zero": np.array([0]), "one": np.array([1])}
    ends = [node("Unsqueeze", ["i", "zero"], ["b"]), node("Add", ["b", "one"], ["e"]), node("Slice", ["w", "b", "e"], ["p"])]
    sliced = body([*ends, node("Add", ["s", "p"], ["s2"]), node("Gather", ["w", "i"], ["row"]), SAME], ["c2", "s2", "row"])
    w = np.arange(6, dtype=np.float32)
    inputs = {"x": (FLOAT, (4,)), "w": (FLOAT, (6,))}
    proto = graph_model([loop(sliced, "M - x", "y rows")], inputs, ["y", "rows"], {"M": np.array(6), **weights})
    agrees(proto, [(X, w)], lambda x, w: (x + w.sum(), w))
    gathered = body([node("Gather", ["w", "i"], ["row"]), node("Add", ["s", "row"], ["s2"]), SAME], ["c2", "s2", "row"])
    proto = graph_model([loop(gathered, "M - x", "y rows")], {"M": (INT, ()), **inputs}, ["y", "rows"])
    agrees(proto, [(np.array(k), X, w) for k in (0, 3, 6)], lambda k, x, w: (x + w[:k].sum(), w[:k]))


def test_loops_in_loops(agrees: Any, graph_model: Any) -> None:
    steps = [node("Mul", ["q", "half"], ["q1"]), node("Add", ["q1", "s"], ["q2"]), node("Identity", ["d"], ["d2"])]
    inputs = [info("j", INT, ()), info("d", BOOL, ()), info("q", FLOAT, [4])]
    inner = helper.make_graph(steps, "inner", inputs, [info("d2", BOOL), info("q2")])
    outer = body([loop(inner, "i - s", "q"), node("Mul", ["q", "half"], ["s2"]), SAME], ["c2", "s2"])

    def expected(k: Any, x: np.ndarray) -> list[np.ndarray]:
        s = x
        for i in range(int(k)):
            q = s
            for _ in range(i):
                q = (q * np.float32(0.5) + s).astype(np.float32)
            s = q * np.float32(0.5)
        return [s]

    proto = graph_model([loop(outer, "M - x", "y")], {"M": (INT, ()), "x": (FLOAT, (4,))}, ["y"], HALF)
    agrees(proto, [(np.array(k), X) for k in (0, 1, 4)], expected)
    proto = graph_model([loop(outer, "M - x", "y")], {"x": (FLOAT, (4,))}, ["y"], {"M": np.array(4), **HALF})
    agrees(proto, [(X,)], lambda x: expected(4, x))


@pytest.mark.parametrize("known", [False, True])
def test_shapes_that_depend_on_data_in_a_body(agrees: Any, graph_model: Any, known: bool) -> None:
    nodes = [
        node("Cast", ["i"], ["f"], to=FLOAT),
        node("Greater", ["s", "f"], ["g"]),
        node("NonZero", ["g"], ["at"]),
        node("Gather", ["s", "at"], ["p"]),
        node("ReduceSum", ["p"], ["row"], keepdims=0),
        node("Add", ["s", "s"], ["s2"]),
        SAME,
    ]

    def expected(k: Any, x: np.ndarray) -> list[np.ndarray]:
        rows = []
        for i in range(int(k)):
            rows.append(x[x > i].sum(dtype=np.float32))
            x = x + x
        return [x, np.array(rows, np.float32)]

    inputs = {"M": (INT, ()), "x": (FLOAT, (4,))}
    calls: list[Any] = [(np.array(k), X) for k in (0, 1, 5)]
    weights = {}
    if known:
        del inputs["M"]
        calls, weights = [(X,)], {"M": np.array(4)}
    proto = graph_model([loop(body(nodes, ["c2", "s2", "row"]), "M - x", "y rows")], inputs, ["y", "rows"], weights)
    agrees(proto, calls, (lambda x: expected(4, x)) if known else expected)


def test_a_carried_value_that_grows_is_unrolled(agrees: Any, graph_model: Any) -> None:
    graph = body([node("Concat", ["s", "s"], ["s2"], axis=0), SAME], ["c2", "s2"])
    proto = graph_model([loop(graph, "M - x", "y")], {"x": (FLOAT, (4,))}, ["y"], {"M": np.array(3)})
    assert not operations(proto)
    agrees(proto, [(X,)], lambda x: [np.tile(x, 8)])


@pytest.mark.parametrize("steps", [300, "n"])
@pytest.mark.parametrize(("back", "out_back", "axis"), [(0, 0, 0), (1, 1, 1), (0, 1, 1)])
def test_scan(agrees: Any, graph_model: Any, steps: Any, back: int, out_back: int, axis: int) -> None:
    nodes = [node("Add", ["s", "e"], ["s2"]), node("Mul", ["s2", "e"], ["o"])]
    graph = helper.make_graph(nodes, "step", [info("s", FLOAT, [3]), info("e", FLOAT, [3])], [info("s2"), info("o")])
    directions = {"scan_input_directions": [back], "scan_output_directions": [out_back], "scan_output_axes": [axis]}
    scan = node("Scan", ["z", "x"], ["y", "o"], body=graph, num_scan_inputs=1, **directions)

    def expected(x: np.ndarray) -> list[np.ndarray]:
        s, rows = np.zeros(3, np.float32), []
        for e in x[::-1] if back else x:
            s = s + e
            rows.append(s * e)
        made = np.stack(rows) if rows else np.zeros((0, 3), np.float32)
        return [s, np.moveaxis(made[::-1] if out_back else made, 0, axis)]

    rng = np.random.default_rng(1)
    calls = [((rng.standard_normal((k, 3)) * 0.1).astype(np.float32),) for k in ([300] if steps == 300 else [0, 1, 5])]
    agrees(graph_model([scan], {"x": (FLOAT, (steps, 3))}, ["y", "o"], {"z": np.zeros(3, np.float32)}), calls, expected)


def grown() -> Any:
    return body([node("Concat", ["s", "s"], ["s2"], axis=0), SAME], ["c2", "s2"])


def ragged() -> Any:
    nodes = [node("NonZero", ["s"], ["at"]), node("Identity", ["s"], ["s2"]), SAME]
    return body(nodes, ["c2", "s2", "at"])


REFUSED: list[tuple[str, Callable[[], Any], str, str, str]] = [
    (
        "grows",
        grown,
        "M - x",
        "y",
        r"the carried value s is float32\[4\], and float32\[8\] after an iteration.*M; pass them with constants",
    ),
    ("rows of the iteration", ragged, "M - x", "y rows", r"the scan output \w+ is int64\[1, count\], which depends on the iteration"),
    ("no limit of rows", lambda: CONDITIONAL, "- - x", "y rows", "scan outputs of a loop with no maximum trip count: give the model"),
    ("never ends", lambda: body([*STEP, SAME], ["c2", "s2"]), "- - x", "y", "a loop without a trip count and a condition never ends"),
    ("arity", lambda: COUNTED, "M -", "y rows", "a body with 3 inputs and 3 outputs for 0 carried values"),
    (
        "in the body",
        lambda: body([node("Nothing", ["s"], ["s2"]), SAME], ["c2", "s2"]),
        "M - x",
        "y",
        r"Nothing \(ai.onnx 20\): there is no",
    ),
]


@pytest.mark.parametrize(("graph", "inputs", "outputs", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(graph_model: Any, graph: Callable[[], Any], inputs: str, outputs: str, message: str) -> None:
    given = {"M": (INT, ()), "x": (FLOAT, (4,)), "limit": (FLOAT, ())}
    proto = graph_model([loop(graph(), inputs, outputs)], given, outputs.split(), HALF)
    with pytest.raises(OnnxImportError, match=f"(?s){message}"):
        from_onnx(proto)


def test_too_many_rows_are_refused(graph_model: Any) -> None:
    given = {"x": (FLOAT, (4,)), "limit": (FLOAT, ())}
    proto = graph_model([loop(CONDITIONAL, "M - x", "y rows")], given, ["y", "rows"], {"M": np.array(2**63 - 1), **HALF})
    with pytest.raises(OnnxImportError, match="a maximum trip count of 9223372036854775807: give the model a trip count of at most"):
        from_onnx(proto)
