"""Test layout conversion: operators on NHWC images, inverse conversions, branches, and broadcast operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunesmith.graph.ir.builder import GraphBuilder, RegionBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Operand, all_bindings
from tunesmith.graph.ir.script_parser import parse
from tunesmith.graph.passes.convert_layout import convert_layout
from tunesmith.graph.passes.dead_code import dead_code
from tunesmith.graph.passes.fold_constants import fold_constants
from tunesmith.graph.passes.simplify_inference import simplify_inference
from tunesmith.ir.function import IRModule
from tunesmith.ir.poly import Var
from tunesmith.support.seeds import stream

Passed = Callable[..., Any]
N = Var("n")


def converted(mod: IRModule) -> IRModule:
    """Run the pass and the clean-up passes that follow it in the compiler."""
    return dead_code(fold_constants(simplify_inference(convert_layout(mod))))


def data(*shape: int) -> np.ndarray:
    return stream(0, "layout", *shape).standard_normal(shape).astype(np.float32)


def permuted(mod: IRModule) -> int:
    bindings = all_bindings(mod["main"].body)
    return sum(isinstance(b.operation, Call) and b.operation.operator == "permute_dims" for b in bindings)


BLOCK = """
@G.function(sizes=("n",))
def main(x: G.Tensor((n, 2, 4, 4), "float32")):
    w = G.constant([[[[1.0]], [[2.0]]], [[[3.0]], [[4.0]]]], (2, 2, 1, 1), "float32")
    b = G.constant([[[1.0]], [[-1.0]]], (2, 1, 1), "float32")
    s = G.constant(0.5, (), "float32")
    y = G.conv2d(x, w, padding=(1, 0, 0, 1))
    y_1 = G.add(y, b)
    y_2 = G.max_pool2d(y_1, kernel=(2, 2), strides=(2, 2))
    y_3 = G.multiply(y_2, s)
    y_4 = G.concat(y_3, y_2, axis=1)
    y_5 = G.pad(y_4, before=(0, 1, 0, 0), after=(0, 0, 0, 2))
    y_6 = G.strided_slice(y_5, axes=(-3, 2), begin=(1, 0), end=(5, 2))
    y_7 = G.mean(y_6, axes=(-1, -2), keepdims=True)
    y_8 = G.sigmoid(y_7)
    y_9 = G.multiply(y_6, y_8)
    y_10 = G.sum(y_9, axes=(2, 3))
    y_11 = G.reshape(y_8, shape=(n, 4))
    return y_10, y_11
"""


def test_a_block(passed: Passed, assert_golden: Callable[..., None]) -> None:
    """One permutation precedes the block, and none follows it."""
    assert_golden(str(passed(convert_layout, BLOCK)["main"]), "graph/passes/test_convert_layout/test_a_block_alone")
    done = passed(converted, BLOCK)
    assert_golden(str(done["main"]), "graph/passes/test_convert_layout/test_a_block_cleaned")
    assert permuted(done) == 1


BRANCHES = """
@G.function
def main(x: G.Tensor((1, 2, 3, 3), "float32"), c: G.Tensor((), "bool")):
    w = G.constant([[[[1.0]], [[2.0]]], [[[3.0]], [[4.0]]]], (2, 2, 1, 1), "float32")
    if c:
        y = G.conv2d(x, w)
        z = G.relu(y)
        o, p = z, x
    else:
        y = G.conv2d(x, w)
        o, p = y, y
    u = G.relu(o)
    v = G.conv2d(p, w)
    if c:
        t = G.relu(v)
        q = t
    else:
        t = G.conv2d(v, w)
        q = t
    r = G.tanh(v)
    return u, q, r
"""


def test_values_converted_in_a_branch_are_not_used_outside(passed: Passed, assert_golden: Callable[..., None]) -> None:
    assert_golden(str(passed(convert_layout, BRANCHES)["main"]))


def fits(*shapes: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


SHAPES = [(), (1,), (5,), (4, 1), (4, 5), (3, 1, 1), (3, 4, 5), (1, 1, 1), (2, 3, 4, 5), (1, 3, 1, 1), (2, 1, 4, 1), (1, 1, 1, 1)]


@pytest.mark.parametrize("lead", (1, 2))
@pytest.mark.parametrize("constant", (True, False))
def test_broadcast_operands(passed: Passed, lead: int, constant: bool) -> None:
    """On either side of an image, including images of one pixel or one channel."""
    for image in ((lead, 3, 4, 5), (lead, 3, 1, 1), (1, 1, 1, 1)):
        b = GraphBuilder("main")
        y = b.conv2d(b.input("x", image), b.constant(data(image[1], image[1], 1, 1)))
        others = [s for s in SHAPES if fits(s, image)]
        operands = [b.constant(data(*s)) if constant else b.input(f"y{i}", s) for i, s in enumerate(others)]
        sums = [b.add(y, o) for o in operands] + [b.subtract(o, y) for o in operands]
        b.output(*sums, b.where(b.greater(y, operands[-1]), operands[0], y), b.relu(y), b.add(y, y))
        passed(convert_layout, b.finish())


def test_weights_used_twice_and_results_that_are_operands(passed: Passed) -> None:
    b = GraphBuilder("main")
    x, w = b.input("x", (N, 2, 5, 5)), b.constant(data(2, 2, 3, 3), "w")
    y = b.conv2d(b.conv2d(x, w), w)
    done = passed(converted, b.finish(y, w, x))
    assert done["main"].results[1] is w and done["main"].results[2] is x
    passed(convert_layout, b.finish(y, w, x))


def _rank5(b: RegionBuilder, y: Operand) -> Operand:
    return b.add(y, b.constant(data(2, 1, 1, 1, 1)))


USERS: dict[str, Callable[[RegionBuilder, Operand], Any]] = {
    "five dimensions": _rank5,
    "a reshape": lambda b, y: b.reshape(y, shape=(2, 48)),
    "a softmax": lambda b, y: b.softmax(y, axis=1),
    "other axes": lambda b, y: b.sum(y, axes=(1,)),
    "all axes": lambda b, y: b.max(y),
    "layout": lambda b, y: b.conv2d(y, b.constant(data(1, 1, 4, 2)), layout="NHWC"),
    "pools of the other layout": lambda b, y: b.max_pool2d(y, kernel=(2, 2), strides=(1, 1), layout="NHWC"),
    "an image as weights": lambda b, y: b.conv2d(b.constant(data(1, 3, 8, 8)), y),
    "a batch norm": lambda b, y: b.batch_norm(y, *[b.constant(data(4) ** 2)] * 4, eps=1.0, axis=-1),
    "batch norm of channels": lambda b, y: b.batch_norm(y, *[b.constant(data(3) ** 2)] * 4, eps=1.0),
    "pools": lambda b, y: b.avg_pool2d(y, kernel=(3, 2), strides=(2, 1), padding=(1, 0, 0, 1), ceil_mode=True),
    "a depthwise convolution": lambda b, y: b.conv2d(y, b.constant(data(3, 1, 2, 2)), groups=3),
    "a depthwise convolution without an axis of input channels": lambda b, y: b.conv2d(y, b.constant(data(3, 2, 2))),
    "groups": lambda b, y: b.conv2d(y, b.constant(data(6, 1, 2, 2)), groups=3, strides=(2, 1), dilation=(1, 2)),
    "concat with others": lambda b, y: b.concat(b.constant(data(2, 3, 4, 2)), y, axis=-1),
    "a slice along batches": lambda b, y: b.strided_slice(y, axes=(0, 3), begin=(1, 3), end=(2, 0), strides=(1, -2)),
    "pad": lambda b, y: b.pad(y, before=(0, 0, 1, 2), after=(1, 0, 0, 0), mode="reflect"),
    "types": lambda b, y: b.where(b.cast(y, dtype="bool"), b.cast(b.cast(y, dtype="float64"), dtype="float32"), y),
}


@pytest.mark.parametrize("name", USERS)
def test_users_of_a_convolution(passed: Passed, name: str) -> None:
    """Operators with and without a layout rule read the right elements."""
    b = GraphBuilder("main")
    y = b.conv2d(b.input("x", (2, 2, 4, 4)), b.constant(data(3, 2, 1, 1)))
    passed(convert_layout, b.finish(USERS[name](b, y), b.relu(y)))


def unaffected() -> GraphFunc:
    b = GraphBuilder("main")
    x = b.input("x", (2, 4, 4, 3))
    y = b.conv2d(x, b.constant(data(1, 1, 3, 2)), layout="NHWC")
    z = b.avg_pool2d(y, kernel=(2, 2), strides=(2, 2), layout="NHWC")
    return b.finish(z, b.concat(x, x, axis=1), b.pad(x, before=(0, 0, 0, 1), after=(0, 0, 0, 0)), b.mean(x, axes=(2, 3)), b.relu(x))


def test_unaffected_functions(unchanged: Passed) -> None:
    unchanged(convert_layout, unaffected())


def test_image_layout_is_not_converted() -> None:
    text = """
@G.function
def main(x: G.Tensor((1, 6, 7, 3), "float32"), w: G.Tensor((5, 3, 3, 3), "float32")):
    y = G.conv2d(x, w, layout="NCHW", image_layout="NHWC")
    return y
"""
    mod = IRModule({"main": parse(text)})
    assert convert_layout(mod)["main"] is mod["main"]


@pytest.mark.parametrize(
    ("groups", "each", "layout"),
    [(4, 16, "NHWC"), (4, 32, "NHWC"), (4, 4, "NCHW"), (4, 10, "NCHW"), (2, 24, "NCHW"), (8, 1, "NHWC"), (8, 2, "NCHW"), (1, 10, "NHWC")],
)
def test_groups_that_are_no_whole_vectors_stay_in_nchw(passed: Passed, groups: int, each: int, layout: str) -> None:
    """Eight channels; depthwise convolutions with one result for each channel are converted."""
    b = GraphBuilder("main")
    y = b.conv2d(b.input("x", (1, 8, 5, 6)), b.constant(data(groups * each, 8 // groups, 3, 3)), groups=groups, padding=(1, 1, 1, 1))
    done = passed(convert_layout, b.finish(b.relu(y)))
    (found,) = [b.operation.attr("layout") for b in done["main"].body.bindings if b.operation.operator == "conv2d"]
    assert found == layout


def test_depthwise_filters_of_three_dimensions_ignore_the_groups(passed: Passed) -> None:
    b = GraphBuilder("main")
    y = b.conv2d(b.input("x", (1, 8, 5, 6)), b.constant(data(8, 3, 3)), groups=2, padding=(1, 1, 1, 1))
    done = passed(convert_layout, b.finish(b.relu(y)))
    assert [x.operation.attr("layout") for x in done["main"].body.bindings if x.operation.operator == "conv2d"] == ["NHWC"]
