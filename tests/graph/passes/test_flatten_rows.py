"""Test the flattening of matmuls with matrices, subsequent row-wise operators, and shapes that are not rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.node import Call, Operand, all_bindings
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.flatten_rows import flatten_rows
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
N, S = Var("n"), Var("s")


def data(*shape: int) -> np.ndarray:
    return stream(0, "rows", *shape).standard_normal(shape).astype(np.float32)


BLOCK = """
@G.function(sizes=("n", "s"))
def main(x: G.Tensor((n, s, 2), "float32"), m: G.Tensor((n, s, 1), "float32")):
    w = G.constant([[1.0, 2.0], [3.0, 4.0]], (2, 2), "float32")
    b = G.constant([0.5, 1.0], (2,), "float32")
    c = G.constant([[[0.5, 1.0]]], (1, 1, 2), "float32")
    h = G.constant([[[0.5]]], (1, 1, 1), "float32")
    y = G.matmul(x, w)
    y_1 = G.add(b, y)
    y_2 = G.gelu(y_1)
    y_3 = G.matmul(y_2, w)
    y_4 = G.add(y_3, x)
    y_5 = G.layer_norm(y_4, b, b, axes=(2,))
    y_6 = G.multiply(y_5, c)
    y_7 = G.multiply(h, y_6)
    y_8 = G.softmax(y_7, axis=2)
    y_9 = G.reshape(y_8, shape=(n, s, 1, 2))
    y_10 = G.multiply(y_8, m)
    return y_9, y_10
"""


def test_a_block(passed: Passed, assert_golden: Callable[..., None]) -> None:
    def cleaned(mod: IRModule) -> IRModule:
        return dead_code(flatten_rows(mod))

    assert_golden(str(passed(cleaned, BLOCK)["main"]))


BRANCHES = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2, 2), "float32"), s: G.Tensor((n, 2, 2), "float32"), c: G.Tensor((), "bool")):
    w = G.constant([[1.0, 2.0], [3.0, 4.0]], (2, 2), "float32")
    y = G.matmul(x, w)
    if c:
        z = G.matmul(s, w)
        t = G.relu(y)
        o, p = z, t
    else:
        t = G.exp(x)
        o, p = t, y
    u = G.relu(o)
    v = G.add(u, y)
    q = G.matmul(s, w)
    return v, p, q
"""


def test_values_flattened_in_a_branch_are_not_used_outside(passed: Passed, assert_golden: Callable[..., None]) -> None:
    assert_golden(str(passed(flatten_rows, BRANCHES)["main"]))


@pytest.mark.parametrize("lead", ((1, 1), (2, 1), (1, 3), (2, 3), (2, 1, 3), (N, S), (N, 3)))
def test_operands_of_all_shapes(passed: Passed, lead: tuple[Any, ...]) -> None:
    """Operands of the same shape, one row, one number; operands of other and larger shapes use the unflattened value."""
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (*lead, 4)), b.constant(data(4, 5), "w"))
    shapes = [(*lead, 5), (*lead, 1), (5,), (1, 5), (*[1] * len(lead), 5), (), (1,), (1,) * (len(lead) + 1), (1,) * (len(lead) + 2)]
    shapes += [(1,) * (len(lead) + 1) + (5,), (2, *[1] * (len(lead) + 1)), (*lead[1:], 5), (*lead[-1:], 1)]
    given = [b.input(f"y{i}", s) for i, s in enumerate(shapes)]
    found = [v for o in given for v in (b.add(y, o), b.subtract(o, y))]
    b.output(*found, b.where(b.greater(y, given[2]), given[5], y))
    passed(flatten_rows, b.finish())


USERS: dict[str, Callable[[RegionBuilder, Operand], Any]] = {
    "norm of other axes": lambda b, y: b.layer_norm(y, axes=(1, 2)),
    "norm of rows": lambda b, y: b.rms_norm(y, b.constant(data(3)), axes=(-1,), eps=0.1),
    "softmax of columns": lambda b, y: b.softmax(y, axis=1),
    "log softmax": lambda b, y: b.log_softmax(y, axis=-1),
    "batch norm of columns": lambda b, y: b.batch_norm(y, *[b.constant(data(3) ** 2)] * 4, eps=1.0, axis=-1),
    "batch norm of rows": lambda b, y: b.batch_norm(y, *[b.constant(data(3) ** 2)] * 4, eps=1.0, axis=1),
    "reductions": lambda b, y: b.sum(y, axes=(1,)),
    "products": lambda b, y: b.matmul(y, y),
    "types": lambda b, y: b.cast(b.cast(y, dtype="float64"), dtype="float32"),
    "a vector": lambda b, y: b.matmul(y, b.constant(data(3))),
    "left operand": lambda b, y: b.matmul(b.constant(data(3, 3)), y),
}


@pytest.mark.parametrize("name", USERS)
def test_users_of_a_product(passed: Passed, name: str) -> None:
    """The numbers of rows and columns are equal, so that types do not reveal confused axes."""
    b = GraphBuilder("main")
    y = b.matmul(b.input("x", (3, 3, 3)), b.constant(data(3, 3)))
    passed(flatten_rows, b.finish(USERS[name](b, y), b.relu(y)))


def test_weights_used_twice(passed: Passed) -> None:
    b = GraphBuilder("main")
    x, w = b.input("x", (N, 3, 4)), b.constant(data(4, 4), "w")
    done = passed(flatten_rows, b.finish(b.matmul(b.matmul(x, w), w), x, w))["main"]
    products = [o.operation for o in all_bindings(done.body) if isinstance(o.operation, Call) and o.operation.operator == "matmul"]
    assert len(products) == 2 and all(p.args[1] is w for p in products) and done.results[1:] == (x, w)


def test_unaffected_functions(unchanged: Passed) -> None:
    b = GraphBuilder("main")
    x, y = b.input("x", (2, 3, 4)), b.input("y", (3, 4))
    w, batch = b.constant(data(4, 5)), b.constant(data(2, 4, 5))
    values = [b.matmul(y, w), b.matmul(x, batch), b.matmul(b.reshape(y, shape=(12,)), b.constant(data(12, 2)))]
    unchanged(flatten_rows, b.finish(*values, b.add(x, x), b.layer_norm(x, axes=(-1,)), b.matmul(x, b.constant(data(4)))))


CONVOLUTION = """
@G.function
def main(x: G.Tensor((2, 3, 4, 2), "float32"), r: G.Tensor((2, 3, 4, 2), "float32")):
    w = G.constant([[[[1.0, 2.0], [3.0, 4.0]]]], (1, 1, 2, 2), "float32")
    b = G.constant([0.5, 1.0], (2,), "float32")
    y = G.conv2d(x, w, layout="NHWC")
    y_1 = G.add(y, b)
    y_2 = G.add(y_1, r)
    y_3 = G.relu(y_2)
    y_4 = G.conv2d(y_3, w, layout="NHWC")
    return y_4
"""


def test_a_convolution_of_one_pixel(passed: Passed, assert_golden: Callable[..., None]) -> None:
    def cleaned(mod: IRModule) -> IRModule:
        return dead_code(flatten_rows(mod))

    assert_golden(str(passed(cleaned, CONVOLUTION)["main"]))


@pytest.mark.parametrize(
    ("filters", "attributes"),
    [
        ((1, 1, 4, 6), {"strides": (2, 1)}),
        ((1, 1, 4, 6), {"padding": (0, 0, 1, 0)}),
        ((3, 1, 4, 6), {}),
        ((1, 2, 4, 6), {}),
        ((1, 1, 2, 6), {"groups": 2}),
        ((1, 1, 4), {"groups": 4}),
        ((1, 1, 5, 6), {"image_layout": "NCHW"}),
        ((6, 4, 1, 1), {"layout": "NCHW"}),
    ],
)
def test_other_convolutions(unchanged: Passed, filters: tuple[int, ...], attributes: dict[str, Any]) -> None:
    b = GraphBuilder("main")
    shape = (2, 4, 5, 3) if attributes.get("layout") == "NCHW" else (2, 5, 3, 4)
    unchanged(flatten_rows, b.finish(b.conv2d(b.input("x", shape), b.constant(data(*filters)), **{"layout": "NHWC", **attributes})))


def test_convolutions_of_other_types(unchanged: Passed) -> None:
    b = GraphBuilder("main")
    w = b.constant(data(1, 1, 4, 6).astype(np.float64))
    unchanged(flatten_rows, b.finish(b.conv2d(b.input("x", (2, 5, 3, 4), "float64"), w, layout="NHWC")))
