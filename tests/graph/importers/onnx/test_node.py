"""Attributes and constant inputs of wrong length, range or type raise an error with node and reason, never a raw Python error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

from tunesmith.graph.importers.onnx.errors import OnnxImportError
from tunesmith.graph.importers.onnx.importer import from_onnx

X = {"x": (1, 4, 6, 6)}
COLUMNS = {"x": (1, 8, 9)}
BLOCKS = {"image": [4, 4], "block": [2, 2]}
IMAGE = {"x": (1, 4, 6, 6), "w": (2, 4, 3, 3)}

CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], dict[str, list[Any]], dict[str, Any], str]] = {
    "pads short": ("Pad", X, {"p": [0, 0, 1, 1, 0, 0, 1]}, {}, "pads has 7 elements, expected 8 for 4 axes"),
    "pads long": ("Pad", X, {"p": [0] * 9}, {}, "pads has 9 elements"),
    "starts short": ("Slice", X, {"s": [0], "e": [1, 2], "a": [0, 1]}, {}, "do not match its inputs"),
    "axes far": ("Slice", X, {"s": [0], "e": [1], "a": [7]}, {}, "axis 7 is out of range for a tensor with 4 dimensions"),
    "repeats short": ("Tile", X, {"r": [1, 2]}, {}, "repeats has 2 elements, expected 4"),
    "k large": ("TopK", X, {"k": [7]}, {}, "count 7 must be from 1 to the extent 6"),
    "k twice": ("TopK", X, {"k": [2, 3]}, {}, "k has 2 elements, expected 1"),
    "strides of an image": ("Col2Im", COLUMNS, BLOCKS, {"strides": [1]}, "strides has 1 elements, expected 2 for 2 dimensions"),
    "columns": ("Col2Im", COLUMNS, BLOCKS, {"strides": [2, 2]}, "9 columns, but the image has 2 x 2 block positions"),
    "channels": ("Col2Im", {"x": (1, 7, 9)}, BLOCKS, {}, "the second extent must be a multiple of the block size 4"),
    "dilation of an image": ("Col2Im", COLUMNS, BLOCKS, {"dilations": [0, 1]}, "dilations must be at least 1"),
    "strides long": ("Conv", IMAGE, {}, {"strides": [1, 1, 1]}, "the attribute strides has 3 elements.*expected 2"),
    "pads of a window": ("Conv", IMAGE, {}, {"pads": [1, 1]}, "the attribute pads has 2 elements.*expected 4"),
    "dilations zero": ("Conv", IMAGE, {}, {"dilations": [0, 1]}, "dilations .* must be at least 1"),
    "another kernel": ("Conv", IMAGE, {}, {"kernel_shape": [5, 5]}, r"kernel_shape is \[5, 5\], but the weights have \[3, 3\]"),
    "kernel short": ("MaxPool", X, {}, {"kernel_shape": [2]}, "the attribute kernel_shape has 1 elements"),
    "kernel long": ("LpPool", X, {}, {"kernel_shape": [2, 2, 2]}, "the attribute kernel_shape has 3 elements"),
    "no power": ("LpPool", X, {}, {"kernel_shape": [2, 2], "p": 0}, "do not match its inputs .*ZeroDivisionError"),
    "flatten": ("Flatten", X, {}, {"axis": 9}, "axis 9 is out of range for a tensor with 4 dimensions"),
    "permutation": ("Transpose", X, {}, {"perm": [0, 1, 2]}, "Transpose"),
    "attribute of another type": ("Transpose", X, {}, {"perm": "abc"}, "Transpose"),
    "reverse": ("ReverseSequence", X, {"n": [2]}, {"time_axis": 100, "batch_axis": 0}, "ReverseSequence"),
    "mode": ("GridSample", {"x": (1, 1, 4, 4), "g": (1, 2, 2, 2)}, {}, {"mode": "WRONG"}, "GridSample"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_errors_name_the_node_and_the_reason(case: str) -> None:
    operator, inputs, constants, attributes, reason = CASES[case]
    made = helper.make_node(operator, [*inputs, *constants], ["y"], name="layer/odd", **attributes)
    graph = helper.make_graph(
        [made],
        "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, shape) for k, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()],
    )
    with pytest.raises(OnnxImportError, match=reason) as found:
        from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert "layer/odd" in str(found.value) and operator in str(found.value)
    assert ("do not match" in str(found.value)) == (found.value.__cause__ is not None)
