"""Fuzz models whose shapes depend on data: random nodes around selections and loops, interpreted and compiled, against ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

from tunesmith.support.seeds import stream  # noqa: E402

WIDTH = 3
COUNT = 8
node = helper.make_node


class RandomModel:
    """Nodes on matrices of WIDTH columns: groups of matrices with the same number of rows, which is known only when the model runs.

    Attributes:
        nodes: the nodes.
        groups: names of matrices by the name of what their rows have in common.
    """

    def __init__(self, seed: int) -> None:
        self.rng = stream(seed, "onnx dynamic shapes")
        self.nodes: list[Any] = []
        self.groups: dict[str, list[str]] = {"x": ["x", "z"]}
        self._made = 0
        for _ in range(COUNT):
            self.step()
        self.outputs = [self.pick(names[-2:]) for names in self.groups.values()]

    def pick(self, items: Any) -> Any:
        return list(items)[int(self.rng.integers(len(items)))]

    def add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        self._made += 1
        self.nodes.append(node(operator, inputs, [f"v{self._made}"], **attributes))
        return f"v{self._made}"

    def step(self) -> None:
        group = self.pick(self.groups)
        v = self.pick(self.groups[group])
        recipe = self.pick(
            ("pointwise", "pointwise", "matmul", "compress", "nonzero", "unique", "concat", "range", "slice", "loop", "reduce")
        )
        getattr(self, recipe)(group, v)

    def pointwise(self, group: str, v: str) -> None:
        operator = self.pick(("Add", "Sub", "Mul", "Max"))
        self.groups[group].append(self.add("Tanh", [self.add(operator, [v, self.pick(self.groups[group])])]))

    def matmul(self, group: str, v: str) -> None:
        self.groups[group].append(self.add("MatMul", [v, "w"]))

    def flags(self, v: str) -> str:
        """Which rows have a sum beyond a limit: none, some or all."""
        total = self.add("ReduceSum", [v, "columns"], keepdims=0)
        return self.add("Greater", [total, self.pick(("zero", "zero", "huge", "least"))])

    def compress(self, group: str, v: str) -> None:
        flags = self.flags(v)
        chosen = [v, self.pick(self.groups[group])]
        made = [self.add("Compress", [c, flags], axis=0) for c in dict.fromkeys(chosen)]
        self.groups[made[0]] = made

    def nonzero(self, group: str, v: str) -> None:
        at = self.add("Squeeze", [self.add("NonZero", [self.flags(v)]), "row"])
        made = [self.add("Gather", [c, at], axis=0) for c in dict.fromkeys([v, self.pick(self.groups[group])])]
        self.groups[made[0]] = made

    def unique(self, group: str, v: str) -> None:
        rounded = self.add("Floor", [self.add("Add", [v, "shift"])])  # sums of terms that cancel are not at a step
        self._made += 1
        made = f"u{self._made}"
        axis = {"axis": 0} if self.rng.random() < 0.5 else {}
        self.nodes.append(node("Unique", [rounded], [made, f"{made}_first", f"{made}_inverse", f"{made}_count"], **axis))
        if axis:
            counts = self.add("Unsqueeze", [self.add("Cast", [f"{made}_count"], to=TensorProto.FLOAT), "columns"])
            self.groups[made] = [made, self.add("Mul", [made, counts])]
        else:
            column = self.add("Unsqueeze", [made, "columns"])
            self.groups[made] = [self.add("Mul", [column, "bias"])]

    def concat(self, group: str, v: str) -> None:
        made = self.add("Concat", [v, self.pick(self.groups[self.pick(self.groups)])], axis=0)
        self.groups[made] = [made]

    def range(self, group: str, v: str) -> None:
        """The position of each row, added to it."""
        rows = self.add("Gather", [self.add("Shape", [v]), "index"])
        every = self.add("Unsqueeze", [self.add("Cast", [self.add("Range", ["index", rows, "one"])], to=TensorProto.FLOAT), "columns"])
        self.groups[group].append(self.add("Tanh", [self.add("Add", [v, every])]))

    def slice(self, group: str, v: str) -> None:
        """Rows from a position of data to the end."""
        total = self.add("Cast", [self.add("ReduceSum", [v], keepdims=0)], to=TensorProto.INT64)
        start = self.add("Unsqueeze", [self.add("Mod", [total, "three"]), "row"])
        made = self.add("Slice", [v, start, "far", "row"])
        self.groups[made] = [made]

    def loop(self, group: str, v: str) -> None:
        """Iterations on a matrix: a number of data, or until a sum is small."""
        state = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)
        inputs = [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            state,
        ]
        body = [
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Add", ["s", "f"], ["t"]),
            node("Mul", ["t", "half"], ["s2"]),
            node("ReduceSum", ["s2"], ["total"], keepdims=0),
            node("Less", ["total", "most"], ["c2"]) if self.rng.random() < 0.5 else node("Identity", ["c"], ["c2"]),
        ]
        made = [helper.make_tensor_value_info("c2", TensorProto.BOOL, None), helper.make_tensor_value_info("s2", TensorProto.FLOAT, None)]
        count = self.add("Mod", [self.add("Gather", [self.add("Shape", [v]), "index"]), "three"])
        trips = self.pick(("three", count))
        graph = helper.make_graph(body, "body", inputs, made)
        self.groups[group].append(self.add("Loop", [trips, "true", v], body=graph))  # the reference takes an omitted condition as false

    def reduce(self, group: str, v: str) -> None:
        """A matrix minus the mean of its rows, which are none, some or all."""
        mean = self.add("ReduceSum", [v, "row"], keepdims=1)
        self.groups[group].append(self.add("Tanh", [self.add("Sub", [v, mean])]))


WEIGHTS = {
    "w": np.eye(WIDTH, dtype=np.float32)[::-1] * np.float32(0.5),
    "bias": np.float32([0.5, -1, 2]),
    "columns": np.array([1]),
    "row": np.array([0]),
    "zero": np.float32(0.0137),
    "shift": np.float32(0.3137),
    "huge": np.float32(1e9),
    "least": np.float32(-1e9),
    "index": np.array(0),
    "one": np.array(1),
    "three": np.array(3),
    "far": np.array([2**40]),
    "half": np.float32(0.5),
    "most": np.float32(1),
    "true": np.array(True),
}


@pytest.mark.parametrize("seed", range(12))
def test_random_models(agrees: Any, graph_model: Any, seed: int) -> None:
    made = RandomModel(seed)
    symbolic = seed % 2 == 1
    inputs = {k: (TensorProto.FLOAT, ("n" if symbolic else 5, WIDTH)) for k in ("x", "z")}
    used = {i for n in made.nodes for i in n.input} | {i for n in made.nodes for a in n.attribute for m in a.g.node for i in m.input}
    weights = {k: v for k, v in WEIGHTS.items() if k in used}
    calls = []
    for count in (5, 1, 7) if symbolic else (5, 5, 5):
        calls.append(tuple([(made.rng.integers(-8, 9, (count, WIDTH)) / 4).astype(np.float32) for _ in range(2)]))
    agrees(graph_model(made.nodes, inputs, list(dict.fromkeys(made.outputs)), weights), calls)
