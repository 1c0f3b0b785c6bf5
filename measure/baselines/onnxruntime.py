"""Run operators with onnxruntime's CPU provider (MLAS); constants are initialisers, so that they are packed ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.onnx_model import CONTRIB, DATA_TYPES, Attribute, Node, encode_model
from tunesmith.measure.baselines.operator_call import OperatorCall


@dataclass(frozen=True, slots=True)
class _Model:
    """Contents of a session.  `transposed`: the model computes in NCHW, the caller expects NHWC."""

    nodes: Sequence[Node]
    inputs: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray]
    output: np.ndarray
    variant: str
    transposed: bool = False


class OnnxRuntimeBaseline(Baseline):
    """onnxruntime.  In matrix products B is an input, so packing it is part of the call."""

    name: ClassVar[str] = "onnxruntime"
    package: ClassVar[str] = "onnxruntime"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """One variant per operator."""
        if call.dtype not in DATA_TYPES or not call.is_common:
            return []
        model = self.model(call)
        if model is None:
            return []
        run = _session(model, self.threads)
        return [] if run is None else [run]

    def model(self, call: OperatorCall) -> _Model | None:
        """The model of an operator; None if it is not supported."""
        if call.name == "dense":
            return _dense(call)
        if call.name == "conv2d":
            return _conv2d(call)
        return _simple(call)


class OnnxRuntimePrepackedBaseline(OnnxRuntimeBaseline):
    """Matrix products with constant B, packed outside the call; other operators are excluded, because they are always packed."""

    name: ClassVar[str] = "onnxruntime_prepacked"

    def model(self, call: OperatorCall) -> _Model | None:
        """The model of a matrix product with a constant B."""
        if call.name not in ("matmul", "batch_matmul"):
            return None
        inputs = {"A": call.inputs["A"]}
        nodes = [Node("MatMul", ["A", "B"], ["Y"])]
        return _Model(nodes, inputs, {"B": call.inputs["B"]}, np.empty(call.output, call.dtype), "B packed ahead")


def _simple(call: OperatorCall) -> _Model | None:
    """Operators that consist of one node."""
    constants = call.constants
    inputs = {name: array for name, array in call.inputs.items() if name not in constants}
    attributes: dict[str, Attribute] = {}
    if call.name in ("matmul", "batch_matmul"):
        op = "MatMul"
    elif call.name == "add":
        op = "Add"
    elif call.name == "relu":
        op = "Relu"
    elif call.name == "softmax":
        op, attributes = "Softmax", {"axis": -1}
    elif call.name == "layer_norm":
        op, attributes = "LayerNormalization", {"axis": -1, "epsilon": call.real("eps")}
    elif call.name == "sum":
        op, attributes = "ReduceSum", {"keepdims": 0}
        constants = {"axes": np.array(call.axes("axis") or range(call.inputs["X"].ndim), np.int64)}
    else:
        return None
    node = Node(op, [*inputs, *constants], ["Y"], attributes)
    return _Model([node], inputs, constants, np.empty(call.output, call.dtype), "one node")


def _dense(call: OperatorCall) -> _Model:
    """Gemm, which onnxruntime fuses with a relu; for gelu onnxruntime's own fused node."""
    constants, activation = call.constants, call.activation
    if activation != "gelu":
        nodes = [Node("Gemm", ["A", *constants], ["Y" if activation == "none" else "product"])]
        if activation == "relu":
            nodes.append(Node("Relu", ["product"], ["Y"]))
    elif "bias" in constants:
        nodes = [Node("MatMul", ["A", "W"], ["product"]), Node("BiasGelu", ["product", "bias"], ["Y"], domain=CONTRIB)]
    else:
        nodes = [Node("MatMul", ["A", "W"], ["product"]), Node("Gelu", ["product"], ["Y"], domain=CONTRIB)]
    return _Model(nodes, {"A": call.inputs["A"]}, constants, np.empty(call.output, call.dtype), "weights packed ahead")


def _conv2d(call: OperatorCall) -> _Model:
    """Conv supports only NCHW: the input is transposed ahead, the output is a transposed view."""
    transposed = call.text("layout") == "NHWC"
    x, constants = call.inputs["X"], call.constants
    output = call.output
    if transposed:
        x, constants["W"] = (np.ascontiguousarray(x.transpose(0, 3, 1, 2)), np.ascontiguousarray(constants["W"].transpose(3, 2, 0, 1)))
        output = (output[0], output[3], output[1], output[2])
    stride, pad, dilation, relu = (call.number(name) for name in ("stride", "pad", "dilation", "relu"))
    attributes: dict[str, Attribute] = {
        "kernel_shape": (call.number("kh"), call.number("kw")),
        "strides": (stride, stride),
        "pads": (pad, pad, pad, pad),
        "dilations": (dilation, dilation),
        "group": call.number("groups"),
    }
    nodes = [Node("Conv", ["X", *constants], ["sums" if relu else "Y"], attributes)]
    if relu:
        nodes.append(Node("Relu", ["sums"], ["Y"]))
    return _Model(nodes, {"X": x}, constants, np.empty(output, call.dtype), "NCHW, weights packed ahead", transposed)


def _session(model: _Model, threads: int) -> PreparedCall | None:
    """Compile the model; inputs and output are bound to memory once, so that a run copies nothing."""
    import onnxruntime as ort

    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    data = encode_model(model.nodes, model.inputs, model.constants, {"Y": model.output})
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        session: Any = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except errors.NotImplemented:  # in ONNX for this dtype, but not in onnxruntime
        return None
    except errors.InvalidGraph as error:
        if "Type Error" in str(error):  # not in ONNX for this dtype
            return None
        raise
    binding: Any = session.io_binding()
    for name, value in model.inputs.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    result: Any = ort.OrtValue.ortvalue_from_numpy(model.output)
    binding.bind_ortvalue_output("Y", result)

    def run() -> object:
        session.run_with_iobinding(binding)
        return result

    def output(value: Any) -> np.ndarray:
        array: np.ndarray = value.numpy()
        return array.transpose(0, 2, 3, 1) if model.transposed else array

    return PreparedCall(model.variant, run, output)
