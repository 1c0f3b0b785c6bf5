"""Run operators with onnxruntime's CPU provider (MLAS); constants are initialisers, so that they are packed ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    def low_precision_variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """Products of bytes without epilogue; onnxruntime's CPU provider has no 16-bit contractions."""
        model = self.integer_model(call)
        run = None if model is None else _session(model, self.threads)
        return [] if run is None else [run]

    def integer_model(self, call: OperatorCall) -> _Model | None:
        """MatMulInteger; a constant B is packed ahead."""
        if call.name not in ("matmul", "batch_matmul", "dense") or not call.is_common or call.dtype != "int32":
            return None
        if call.activation != "none" or "bias" in call.inputs:
            return None
        packed = ", weights packed ahead" if call.constants else ""
        inputs = {name: array for name, array in call.inputs.items() if name not in call.constants}
        nodes, output = [Node("MatMulInteger", list(call.inputs), ["Y"])], np.empty(call.output, np.int32)
        return _Model(nodes, inputs, call.constants, output, f"MatMulInteger{packed}")

    def model(self, call: OperatorCall) -> _Model | None:
        """The model of an operator; None if it is not supported."""
        if call.name == "dense":
            return _dense(call)
        if call.name.startswith(("conv", "max_pool", "avg_pool")):
            return _image(call)
        return _simple(call)


class OnnxRuntimePrepackedBaseline(OnnxRuntimeBaseline):
    """Matrix products with constant B, packed outside the call; other operators are excluded, because they are always packed."""

    name: ClassVar[str] = "onnxruntime_prepacked"

    def integer_model(self, call: OperatorCall) -> _Model | None:
        """MatMulInteger with a constant B."""
        model = super().integer_model(call)
        if model is None or call.constants:
            return None
        return replace(model, inputs={"A": call.inputs["A"]}, constants={"B": call.inputs["B"]}, variant="MatMulInteger, B packed ahead")

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
    return _Model([Node(op, names, ["Y"], attributes)], inputs, constants, np.empty(call.output, call.dtype), "one node")


_NODES = {"matmul": "MatMul", "batch_matmul": "MatMul", "add": "Add", "relu": "Relu"}
"""Operators whose node has no attributes."""


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


def _image(call: OperatorCall) -> _Model:
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
    return _Model(nodes, {"X": x}, constants, np.empty(output, call.dtype), variant, transposed)


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
        return np.moveaxis(array, 1, -1) if model.transposed else array

    return PreparedCall(model.variant, run, output)
