"""Map operators to small ONNX models, which onnxruntime and OpenVINO read from memory; constants are initialisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunesmith.measure.baselines.onnx_model import CONTRIB, Attribute, Node, encode_model
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.support import dtype as dt


@dataclass(frozen=True, slots=True)
class OperatorModel:
    """An operator as an ONNX model with the output `Y`.

    Attributes:
        nodes: nodes in execution order.
        inputs: arrays to bind, by name.
        constants: initialisers.
        output: memory for the result.
        variant: name of the variant, for tables.
        transposed: the model computes with channels first, the caller expects channels last.
    """

    nodes: Sequence[Node]
    inputs: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray]
    output: np.ndarray
    variant: str
    transposed: bool = False

    def encode(self) -> bytes:
        """The model in ONNX's file format.

        Raises:
            KeyError: ONNX lacks the dtype of an array.
        """
        return encode_model(self.nodes, self.inputs, self.constants, {"Y": self.output})

    def result(self, array: np.ndarray) -> np.ndarray:
        """The output of a run in the layout of the caller, as a view."""
        return np.moveaxis(array, 1, -1) if self.transposed else array


def operator_model(call: OperatorCall) -> OperatorModel | None:
    """The model of an operator in its common form; None if it is not supported."""
    if call.name == "dense":
        return _dense(call)
    if call.name.startswith(("conv", "max_pool", "avg_pool")):
        return _image(call)
    return _simple(call)


def prepacked_product(call: OperatorCall) -> OperatorModel | None:
    """The model of a matrix product with a constant B; None for other operators."""
    if call.name not in ("matmul", "batch_matmul"):
        return None
    nodes, output = [Node("MatMul", ["A", "B"], ["Y"])], np.empty(call.output, dt.to_numpy(call.dtype))
    return OperatorModel(nodes, {"A": call.inputs["A"]}, {"B": call.inputs["B"]}, output, "B packed ahead")


def integer_product(call: OperatorCall, prepacked: bool = False) -> OperatorModel | None:
    """MatMulInteger: a product of bytes in int32 without an epilogue; None for other calls.

    Args:
        call: the call.
        prepacked: make the second factor of a matrix product constant; None if it is constant anyway, as in a dense layer.
    """
    plain = call.is_common and call.dtype == "int32" and call.activation == "none" and "bias" not in call.inputs
    if call.name not in ("matmul", "batch_matmul", "dense") or not plain or (prepacked and call.constants):
        return None
    a, b = call.inputs
    constants = {b: call.inputs[b]} if prepacked or call.constants else {}
    inputs = {name: array for name, array in call.inputs.items() if name not in constants}
    variant = f"MatMulInteger, {b} packed ahead" if constants else "MatMulInteger"
    return OperatorModel([Node("MatMulInteger", [a, b], ["Y"])], inputs, constants, np.empty(call.output, np.int32), variant)


def _simple(call: OperatorCall) -> OperatorModel | None:
    """Operators that consist of one node."""
    constants = call.constants
    inputs = {name: array for name, array in call.inputs.items() if name not in constants}
    attributes: dict[str, Attribute] = {}
    names = [*inputs, *constants]
    if call.name in _NODES:
        op = _NODES[call.name]
    elif call.name in ("softmax", "log_softmax"):
        op, attributes = "Softmax" if call.name == "softmax" else "LogSoftmax", {"axis": call.number("axis")}
    elif call.name == "layer_norm":
        op, attributes = "LayerNormalization", {"axis": -1, "epsilon": call.real("eps")}
    elif call.name == "instance_norm" and call.text("layout") == "NCHW":
        op, attributes = "InstanceNormalization", {"epsilon": call.real("eps")}
    elif call.name in ("sum", "prod", "matrix_norm"):
        op, attributes = {"sum": "ReduceSum", "prod": "ReduceProd"}.get(call.name, "ReduceL2"), {"keepdims": 0}
        axes = (1, 2) if call.name == "matrix_norm" else call.axes("axis")
        constants = {"axes": np.array(axes or range(call.inputs["X"].ndim), np.int64)}
        names.append("axes")
    elif call.name in ("argmax", "argmin"):
        op, attributes = "ArgMax" if call.name == "argmax" else "ArgMin", {"keepdims": 0, "axis": call.number("axis")}
    elif call.name == "cumsum":
        op, constants = "CumSum", {"axis": np.array(call.number("axis"), np.int64)}
        names.append("axis")
    elif call.name in ("gather", "embedding"):
        op, names = "Gather", ["X" if call.name == "gather" else "W", "index"]
    elif call.name == "resize2d":
        op, names = "Resize", ["X", "", "", "sizes"]
        constants = {"sizes": np.array(call.output, np.int64)}
        attributes = {
            "mode": call.text("mode"),
            "coordinate_transformation_mode": call.text("coordinates"),
            "nearest_mode": "floor" if call.text("coordinates") == "asymmetric" else "round_prefer_floor",
        }
    else:
        return None
    return OperatorModel(
        [Node(op, names, ["Y"], attributes)], inputs, constants, np.empty(call.output, dt.to_numpy(call.dtype)), "one node"
    )


_NODES = {"matmul": "MatMul", "batch_matmul": "MatMul", "add": "Add", "relu": "Relu"}
"""Operators whose node has no attributes."""


def _dense(call: OperatorCall) -> OperatorModel:
    """Gemm, which libraries fuse with a relu; for gelu onnxruntime's own fused node, which OpenVINO has too."""
    constants, activation = call.constants, call.activation
    if activation != "gelu":
        nodes = [Node("Gemm", ["A", *constants], ["Y" if activation == "none" else "product"])]
        if activation == "relu":
            nodes.append(Node("Relu", ["product"], ["Y"]))
    elif "bias" in constants:
        nodes = [Node("MatMul", ["A", "W"], ["product"]), Node("BiasGelu", ["product", "bias"], ["Y"], domain=CONTRIB)]
    else:
        nodes = [Node("MatMul", ["A", "W"], ["product"]), Node("Gelu", ["product"], ["Y"], domain=CONTRIB)]
    return OperatorModel(nodes, {"A": call.inputs["A"]}, constants, np.empty(call.output, dt.to_numpy(call.dtype)), "weights packed ahead")


def _image(call: OperatorCall) -> OperatorModel:
    """Convolutions and pooling support only NCHW: the input is transposed ahead, the output is a transposed view."""
    transposed = call.text("layout").endswith("C")
    x, constants, output = call.inputs["X"], call.constants, call.output
    if transposed:
        x, output = np.ascontiguousarray(np.moveaxis(x, -1, 1)), (output[0], output[-1], *output[1:-1])
        constants |= {"W": np.ascontiguousarray(np.moveaxis(constants["W"], (-1, -2), (0, 1)))} if "W" in constants else {}
    rank, params = len(call.window), call.workload.params
    attributes: dict[str, Attribute] = {
        "kernel_shape": call.window,
        "strides": (call.number("stride"),) * rank,
        "pads": (call.number("pad"),) * (2 * rank),
    }
    if "groups" in params:
        attributes |= {"dilations": (call.number("dilation"),) * rank, "group": call.number("groups")}
    if "output_pad" in params:
        attributes["output_padding"] = (call.number("output_pad"),) * rank
    if "count_include_pad" in params:
        attributes["count_include_pad"] = call.number("count_include_pad")
    kinds = {"max_pool": "MaxPool", "avg_pool": "AveragePool"}
    op = kinds.get(call.name[:8], "ConvTranspose" if call.name.endswith("_transpose") else "Conv")
    relu = params.get("relu")
    nodes = [Node(op, ["X", *constants], ["sums" if relu else "Y"], attributes)]
    if relu:
        nodes.append(Node("Relu", ["sums"], ["Y"]))
    variant = "NCHW, weights packed ahead" if constants else "NCHW"
    return OperatorModel(nodes, {"X": x}, constants, np.empty(output, dt.to_numpy(call.dtype)), variant, transposed)
