"""Run operators with ncnn in float32, as nets of one or two layers on one sample; weights are transformed when the net is loaded.

ncnn stores a tensor of one sample, with channels first, and packs channels itself in each call.  A net is a text of layers, whose
parameters are numbered as in https://github.com/Tencent/ncnn/wiki/operators, and a file of weights.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tunesmith.measure.baselines.baseline import Baseline, PreparedCall
from tunesmith.measure.baselines.operator_call import OperatorCall
from tunesmith.support.temporary_folder import temporary_folder

_MAGIC = 7767517
_FLOAT32 = b"\0\0\0\0"
"""Precedes arrays that may be stored in other formats: those of weights, not of biases and scales."""
_NARROW = ("use_fp16", "use_bf16")
"""Beginnings of the options for computing in narrower formats than float32."""
_RELU: dict[int, float] = {9: 1}
"""The activation of convolutions and InnerProduct."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer: its type, parameters by number, and weights in the order of the file."""

    type: str
    params: Mapping[int, float] = field(default_factory=dict)
    weights: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class _Net:
    """A chain of layers; the first one has all inputs.  `channels_last`: the result of ncnn has channels first, the caller's last."""

    layers: Sequence[_Layer]
    inputs: Sequence[np.ndarray]
    variant: str
    channels_last: bool = False


class NcnnBaseline(Baseline):
    """ncnn on the CPU, for float32 operators on batches of one; without float16, bfloat16, and the Winograd convolution F(6, 3).

    The errors of F(6, 3), which ncnn prefers for few channels, exceed the tolerance of float32; those of F(2, 3) and F(4, 3) do not.
    """

    name: ClassVar[str] = "ncnn"
    package: ClassVar[str] = "ncnn"

    def variants(self, call: OperatorCall) -> Sequence[PreparedCall]:
        """The nets of the operator: dense layers have two, other operators one."""
        make = _NETS.get(call.name)
        if make is None or not call.is_common or any(array.dtype != np.float32 for array in call.inputs.values()):
            return []
        return [_prepared(net, call, self.threads) for net in make(call)]


def _convolution(call: OperatorCall) -> list[_Net]:
    """Convolution1D, Convolution and Convolution3D; their depthwise forms are those with groups."""
    if call.inputs["X"].shape[0] != 1:
        return []
    w, groups, rank = call.inputs["W"], call.number("groups"), len(call.window)
    channels_last = call.text("layout").endswith("C")
    if channels_last:
        w = np.moveaxis(w, (-1, -2), (0, 1))
    params: dict[int, float] = {0: w.shape[0], **_per_axis(1, call.window), **_per_axis(2, [call.number("dilation")] * rank)}
    params |= {**_per_axis(3, [call.number("stride")] * rank), 4: call.number("pad"), 6: w.size}
    if groups > 1:
        params[7] = groups
    weights = [_FLOAT32 + _data(w)]
    if "bias" in call.inputs:
        params[5] = 1
        weights.append(_data(call.inputs["bias"]))
    kind = f"Convolution{'DepthWise' if groups > 1 else ''}{'' if rank == 2 else f'{rank}D'}"
    relu = _RELU if call.activation == "relu" else {}
    return [_Net([_Layer(kind, params | relu, weights)], [_sample(call, channels_last)], "weights packed ahead", channels_last)]


def _pooling(call: OperatorCall) -> list[_Net]:
    if call.inputs["X"].shape[0] != 1:
        return []
    rank, channels_last = len(call.window), call.text("layout").endswith("C")
    params: dict[int, float] = {**_per_axis(1, call.window), **_per_axis(2, [call.number("stride")] * rank)}
    params |= {3: call.number("pad"), 5: 1}
    if call.name.startswith("avg"):
        params |= {0: 1, 6: call.number("count_include_pad")}
    layer = _Layer("Pooling" if rank == 2 else f"Pooling{rank}D", params)
    return [_Net([layer], [_sample(call, channels_last)], "one layer", channels_last)]


def _dense(call: OperatorCall) -> list[_Net]:
    """InnerProduct, which applies a relu, and Gemm."""
    x, w, bias = call.inputs["A"], call.inputs["W"], call.inputs.get("bias")
    k, n = w.shape
    weights = _FLOAT32 + _data(w.T)
    biases = [] if bias is None else [_data(bias)]
    relu = _RELU if call.activation == "relu" else {}
    gelu = [_Layer("GELU")] if call.activation == "gelu" else []
    product = _Layer("InnerProduct", {0: n, 1: len(biases), 2: w.size} | relu, [weights, *biases])
    # Both factors as rows of k; B and, if it exists, C[n] are constants.
    constants: dict[int, float] = {3: 1, 5: 1, 6: 1, 8: n, 9: k, 10: 4 if biases else -1}
    gemm = _Layer("Gemm", constants, [weights, *[_FLOAT32 + data for data in biases]])
    return [
        _Net([product, *gelu], [x], "InnerProduct, weights packed ahead"),
        _Net([gemm, *([_Layer("ReLU")] if relu else gelu)], [x], "Gemm, weights packed ahead"),
    ]


def _product(call: OperatorCall) -> list[_Net]:
    return [_Net([_Layer("MatMul")], list(call.inputs.values()), "one layer")]


def _pointwise(layer: _Layer) -> Callable[[OperatorCall], list[_Net]]:
    """A layer without weights on arrays of one shape: rows are channels, over which ncnn distributes threads."""

    def made(call: OperatorCall) -> list[_Net]:
        arrays = list(call.inputs.values())
        if any(array.shape != call.output for array in arrays):
            return []
        rows = [array.reshape(-1, 1, array.shape[-1]) if array.ndim > 1 else array for array in arrays]
        return [_Net([layer], rows, "rows as channels")]

    return made


def _softmax(call: OperatorCall) -> list[_Net]:
    return [_Net([_Layer("Softmax", {0: call.number("axis") % 2, 1: 1})], list(call.inputs.values()), "one layer")]


def _norm(kind: str) -> Callable[[OperatorCall], list[_Net]]:
    """A norm over the last axis, with scale and perhaps shift."""

    def made(call: OperatorCall) -> list[_Net]:
        x, *weights = call.inputs.values()
        layer = _Layer(kind, {0: call.number("n"), 1: call.real("eps"), 2: 1}, [_data(w) for w in weights])
        return [_Net([layer], [x], "one layer")]

    return made


_NETS: dict[str, Callable[[OperatorCall], list[_Net]]] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _convolution),
    **{f"{kind}_pool{rank}d": _pooling for kind in ("max", "avg") for rank in (1, 2, 3)},
    "dense": _dense,
    "matmul": _product,
    "batch_matmul": _product,
    "relu": _pointwise(_Layer("ReLU")),
    "add": _pointwise(_Layer("BinaryOp")),
    "softmax": _softmax,
    "layer_norm": _norm("LayerNorm"),
    "rms_norm": _norm("RMSNorm"),
}


def _per_axis(number: int, values: Sequence[int]) -> dict[int, int]:
    """A parameter of each axis: that of the last axis has the number, those before it the number plus 10 and 20."""
    return {number + 10 * i: value for i, value in enumerate(reversed(values))}


def _sample(call: OperatorCall, channels_last: bool) -> np.ndarray:
    """The image, with channels first."""
    x = call.inputs["X"][0]
    return np.ascontiguousarray(np.moveaxis(x, -1, 0)) if channels_last else x


def _data(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).astype("<f4", copy=False).tobytes()


def _text(net: _Net) -> str:
    """The net in ncnn's text format: the numbers of layers and blobs, a line for each input, and one for each layer."""
    names = [f"in{i}" for i in range(len(net.inputs))]
    lines = [f"Input {name} 0 1 {name}" for name in names]
    for i, layer in enumerate(net.layers):
        result = "out" if i == len(net.layers) - 1 else f"t{i}"
        params = " ".join([f"{number}={value!r}" for number, value in layer.params.items()])
        lines.append(f"{layer.type} {layer.type}{i} {len(names)} 1 {' '.join(names)} {result} {params}")
        names = [result]
    return f"{_MAGIC}\n{len(lines)} {len(lines)}\n" + "\n".join(lines) + "\n"


def configure(net: Any, threads: int) -> None:
    """Set the options of an `ncnn.Net` that is not loaded yet: threads, memory from pools, and float32."""
    options = net.opt
    options.num_threads = threads
    options.blob_allocator, options.workspace_allocator = _pools()
    for name in dir(options):
        if name.startswith(_NARROW):
            setattr(options, name, False)


def _prepared(net: _Net, call: OperatorCall, threads: int) -> PreparedCall:
    """Load the net.  Inputs are copied to ncnn's memory once; results are allocated from a pool."""
    import ncnn

    made: Any = ncnn.Net()
    configure(made, threads)
    made.opt.use_winograd63_convolution = False
    with temporary_folder("tunesmith-ncnn-") as folder:
        weights = Path(folder, "net.bin")
        weights.write_bytes(b"".join([data for layer in net.layers for data in layer.weights]))
        _check(made.load_param_mem(_text(net)), "load_param_mem")
        _check(made.load_model(str(weights)), "load_model")
    mats: Any = [ncnn.Mat(array).clone() for array in net.inputs]

    def run() -> Any:
        extractor = made.create_extractor()
        for i, mat in enumerate(mats):
            _check(extractor.input(f"in{i}", mat), "input")
        status, result = extractor.extract("out")
        _check(status, "extract")
        return result

    def output(result: Any) -> np.ndarray:
        array = np.array(result)
        return (np.moveaxis(array, 0, -1) if net.channels_last else array).reshape(call.output)

    return PreparedCall(net.variant, run, output, precision="f32")


@cache
def _pools() -> tuple[Any, Any]:
    """Memory of results and of layers, for all nets of the process.

    ncnn ends the process if a pool is destroyed before the last array in it; their reference counts never reach zero.
    """
    import ncnn

    pools = ncnn.UnlockedPoolAllocator(), ncnn.PoolAllocator()
    for pool in pools:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    return pools


def _check(status: int, function: str) -> None:
    """Raise RuntimeError if a function of ncnn failed; ncnn prints the reason to stderr."""
    if status != 0:
        raise RuntimeError(f"{function} of ncnn returned {status}")
