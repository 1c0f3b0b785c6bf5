"""Test quantised ONNX models: results of onnx's reference evaluator up to one step, and products of bytes in the compiled functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tunesmith.driver.compile_model import compile_model  # noqa: E402
from tunesmith.graph.importers.onnx.errors import OnnxImportError  # noqa: E402
from tunesmith.graph.importers.onnx.importer import from_onnx  # noqa: E402
from tunesmith.graph.ir.interpret import run  # noqa: E402
from tunesmith.graph.passes.pipelines import GRAPH  # noqa: E402
from tunesmith.ir.buffer import Buffer  # noqa: E402
from tunesmith.ir.function import IRModule, PrimFunc  # noqa: E402
from tunesmith.ir.target.target import Target  # noqa: E402
from tunesmith.lower.fallback.default_schedule import default_schedule  # noqa: E402
from tunesmith.support.seeds import stream  # noqa: E402

TARGET = Target("llvm").with_attributes(num_cores=2)


class Onnx:
    """A model that is made node by node.

    Args:
        x: the argument.
        batch: name of the first extent, if it is dynamic.
    """

    def __init__(self, x: np.ndarray, batch: str = "") -> None:
        self.x, self.nodes, self.constants = x, list[Any](), dict[str, np.ndarray]()
        shape = [batch or x.shape[0], *x.shape[1:]]
        self.input = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), shape)

    def constant(self, value: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"n{len(self.nodes)}", **attributes))
        return name

    def pair(self, scale: float, zero: int, dtype: str = "uint8") -> tuple[str, str]:
        return self.constant(scale), self.constant(zero, dtype)

    def quantized(self, x: str, scale: float, zero: int, dtype: str = "uint8") -> str:
        """QuantizeLinear and DequantizeLinear."""
        pair = self.pair(scale, zero, dtype)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *pair), *pair)

    def weights(self, q: np.ndarray, scale: Any, zero: Any, axis: int) -> str:
        scale = self.constant(scale)
        return self.node("DequantizeLinear", self.constant(q, q.dtype.name), scale, self.constant(zero, q.dtype.name), axis=axis)

    def model(self, *outputs: str) -> Any:
        made = [numpy_helper.from_array(v, k) for k, v in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", [self.input], [helper.make_empty_tensor_value_info(o) for o in outputs], made)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def check(self, outputs: Sequence[str], steps: Sequence[float], products: int, floats: int = 0) -> IRModule:
        """Results within one step of the reference, interpreted and compiled; functions with products of bytes, and with float weights."""
        model = self.model(*outputs)
        want = ReferenceEvaluator(model).run(None, {"x": self.x})
        mod = from_onnx(model)
        made = compile_model(mod, TARGET, untuned=default_schedule)(self.x)
        for found in (run(mod["main"], [self.x]), [made] if len(want) == 1 else made):  # type: ignore[arg-type]
            for a, b, step in zip(found, want, steps, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                off = np.abs(a.astype(np.float64) - b.astype(np.float64)) / step
                assert off.max() <= 1.01 and np.mean(off > 0.5) < 0.05
        assert sorted(contractions(mod)) == [*["bytes"] * products, *["float32"] * floats]
        return mod


def contractions(mod: IRModule) -> list[str]:
    """What the functions of the compiled module multiply that have a convolution or a product: bytes or float32."""
    found = [f for f in GRAPH(mod, TARGET).values() if isinstance(f, PrimFunc) and any(n in f.name for n in ("conv2d", "matmul"))]
    types = [[p.dtype for p in f.params if isinstance(p, Buffer)] for f in found]
    return ["bytes" if t[1] == "int8" and t[0] in ("int8", "uint8") else "float32" for t in types]


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return stream(seed, "onnx quantised", *shape).standard_normal(shape).astype(np.float32)


def bytes_of(*shape: int, dtype: str = "int8", low: int = -128, high: int = 128) -> np.ndarray:
    return stream(1, "onnx bytes", *shape).integers(low, high, shape).astype(dtype)


def scales(n: int) -> np.ndarray:
    return stream(2, "onnx scales", n).uniform(0.002, 0.01, n).astype(np.float32)


@pytest.mark.parametrize("batch", ["", "N"])
@pytest.mark.parametrize("activation", [("uint8", 114), ("int8", -14)])
@pytest.mark.parametrize("channels", [3, 4])
def test_a_residual_block(batch: str, activation: tuple[str, int], channels: int) -> None:
    """Conv with a quantised bias, Relu, quantised sum, in the form of onnxruntime's static quantisation."""
    m = Onnx(data(2, channels, 7, 6), batch)
    dtype, zero = activation
    x = m.quantized("x", 0.03, zero, dtype)
    s1, s2 = scales(8), scales(9)[:8]
    bias = m.node("DequantizeLinear", m.constant(bytes_of(8) * np.int32(50), "int32"), m.constant(s1 * np.float32(0.03)), axis=0)
    w1 = m.weights(bytes_of(8, channels, 3, 3), s1, np.zeros(8), 0)
    y = m.node("Relu", m.node("Conv", x, w1, bias, pads=[1, 1, 1, 1], kernel_shape=[3, 3]))
    y = m.quantized(y, 0.02, 0)
    z = m.quantized(m.node("Conv", y, m.weights(bytes_of(8, 8, 1, 1), s2, np.zeros(8), 0)), 0.1, 130)
    end = m.quantized(m.node("Relu", m.node("Add", z, y)), 0.1, 0)
    m.check([end], [0.1], 2)


@pytest.mark.parametrize(
    ("q", "zero", "products"),
    [
        (bytes_of(16, 5), np.zeros(5), 1),
        (bytes_of(16, 5, dtype="uint8", low=0, high=256), np.full(5, 128), 1),
        (bytes_of(16, 5, low=0, high=100), np.int64([0, -3, 5, -27, 9]), 1),
        (bytes_of(16, 5, dtype="uint8", low=0, high=256), np.full(5, 100), 0),  # up to 155, which is no int8
    ],
)
def test_products_with_scales_of_columns(q: np.ndarray, zero: np.ndarray, products: int) -> None:
    if not products:
        q[0] = 255
    m = Onnx(data(3, 4, 16), "N")
    y = m.node("MatMul", m.quantized("x", 0.02, 128), m.weights(q, scales(5), zero, 1))
    m.check([m.quantized(m.node("Add", y, m.constant(data(5))), 0.05, 128)], [0.05], products, 1 - products)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    m = Onnx(data(3, 16))
    q, axis = (bytes_of(5, 16), 0) if transposed else (bytes_of(16, 5), 1)
    w = m.weights(q, scales(5), np.zeros(5), axis)
    y = m.node("Gemm", m.quantized("x", 0.02, 100), w, m.constant(data(5)), transB=transposed)
    m.check([m.quantized(y, 0.05, 128), y], [0.05, 1e-4], 1)


def test_transposed_weights() -> None:
    m = Onnx(data(3, 16))
    w = m.node("Transpose", m.weights(bytes_of(5, 16), scales(5), np.zeros(5), 0), perm=[1, 0])
    m.check([m.quantized(m.node("MatMul", m.quantized("x", 0.02, 100), w), 0.05, 128)], [0.05], 1)


def test_weights_that_the_model_quantises() -> None:
    """Float weights with QuantizeLinear, as quantisation-aware training exports them, and a scale that is computed."""
    m = Onnx(data(1, 4, 6, 6))
    scale = m.node("Mul", m.constant(scales(8)), m.constant(3.0))
    q = m.node("QuantizeLinear", m.constant(data(8, 4, 3, 3) * np.float32(0.2)), scale, m.constant(np.zeros(8), "int8"), axis=0)
    w = m.node("DequantizeLinear", q, scale, m.constant(np.zeros(8), "int8"), axis=0)
    y = m.node("Conv", m.quantized("x", 0.02, 3), w, auto_pad="SAME_UPPER", strides=[2, 2])
    m.check([m.quantized(y, 0.02, 128)], [0.02], 1)


def test_grouped_convolutions_stay_float32() -> None:
    m = Onnx(data(1, 8, 6, 6))
    w = m.weights(bytes_of(8, 1, 3, 3), scales(8), np.zeros(8), 0)
    y = m.node("Conv", m.quantized("x", 0.02, 100), w, group=8)
    m.check([m.quantized(y, 0.02, 100)], [0.02], 0, 1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("kind", [("uint8", 120, "int8", 0), ("int8", -7, "int8", 0), ("uint8", 4, "uint8", 128)])
def test_qlinear_conv(bias: bool, channels: bool, kind: tuple[str, int, str, int]) -> None:
    """Results are bytes: up to one step."""
    dtype, zero, stored, origin = kind
    q = bytes_of(6, 4, 3, 3, dtype=stored, low=0 if stored == "uint8" else -128, high=256 if stored == "uint8" else 128)
    x = bytes_of(2, 4, 6, 5, dtype=dtype, low=0 if dtype == "uint8" else -128, high=256 if dtype == "uint8" else 128)
    m = Onnx(x)
    w_scale = scales(6) if channels else np.float32(0.004)
    w_zero = np.full(6, origin) if channels else origin
    inputs = [
        "x",
        *m.pair(0.02, zero, dtype),
        m.constant(q, stored),
        m.constant(w_scale),
        m.constant(w_zero, stored),
        *m.pair(0.05, zero, dtype),
    ]
    inputs += [m.constant(bytes_of(6) * np.int32(40), "int32")] if bias else []
    m.check([m.node("QLinearConv", *inputs, pads=[1, 0, 1, 1])], [1.0], 1)


@pytest.mark.parametrize("kind", [("uint8", 120, "int8", 0), ("int8", -7, "int8", 3), ("uint8", 4, "uint8", 128)])
def test_qlinear_matmul(kind: tuple[str, int, str, int]) -> None:
    dtype, zero, stored, origin = kind
    q = bytes_of(16, 5, dtype=stored, low=0 if stored == "uint8" else -120, high=256 if stored == "uint8" else 128)
    x = bytes_of(3, 16, dtype=dtype, low=0 if dtype == "uint8" else -128, high=256 if dtype == "uint8" else 128)
    m = Onnx(x)
    pairs = m.pair(0.02, zero, dtype), m.pair(0.004, origin, stored), m.pair(0.05, zero, dtype)
    y = m.node("QLinearMatMul", "x", *pairs[0], m.constant(q, stored), *pairs[1], *pairs[2])
    m.check([y], [1.0], 1)


def test_qlinear_matmul_with_scales_of_columns() -> None:
    """onnx's evaluator has no such scales; the reference is exact arithmetic."""
    m = Onnx(bytes_of(3, 16, dtype="uint8", low=0, high=256))
    q, scale = bytes_of(16, 5), scales(5)
    columns = m.constant(q, "int8"), m.constant(scale), m.constant(np.zeros(5), "int8")
    mod = from_onnx(m.model(m.node("QLinearMatMul", "x", *m.pair(0.02, 120), *columns, *m.pair(0.05, 9))))
    real = (m.x.astype(np.int64) - 120) @ q.astype(np.int64) * (np.float64(np.float32(0.02)) * scale)
    want = np.clip(np.rint(real / np.float32(0.05)) + 9, 0, 255)
    for found in (run(mod["main"], [m.x])[0], compile_model(mod, TARGET, untuned=default_schedule)(m.x)):  # type: ignore[arg-type]
        assert np.abs(found - want).max() <= 1 and found.dtype == np.uint8
    assert contractions(mod) == ["bytes"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_elements_beyond_the_type_are_clamped(dtype: str) -> None:
    m = Onnx(np.float32([3e9, -3e9, np.inf, -np.inf, 2.5, 40000.0]))
    mod = from_onnx(m.model(m.node("QuantizeLinear", "x", *m.pair(1.0, 0, dtype))))
    held = np.iinfo(dtype)
    for found in (run(mod["main"], [m.x])[0], compile_model(mod, TARGET, untuned=default_schedule)(m.x)):  # type: ignore[arg-type]
        largest = 2**31 - 128 if dtype == "int32" else held.max  # the largest float32 in the type
        assert found.tolist() == [largest, held.min, largest, held.min, 2, min(40000, held.max)] and found.dtype == dtype


@pytest.mark.parametrize("zero", [False, True])
def test_zero_points_are_optional(zero: bool) -> None:
    m = Onnx(np.float32([[0.4, 1.6, 300.0, -1.0]]))
    more = [m.constant(0, "uint8")] if zero else []
    q = m.node("QuantizeLinear", "x", m.constant(0.5), *more)
    m.check([q, m.node("DequantizeLinear", q, m.constant(0.5), *more)], [1.0, 0.5], 0)


def test_refusals() -> None:
    m = Onnx(data(4, 6))
    with pytest.raises(OnnxImportError, match="quantisation to uint32"):
        from_onnx(m.model(m.node("QuantizeLinear", "x", *m.pair(0.1, 0, "uint32"))))
    m = Onnx(data(4, 6))
    with pytest.raises(OnnxImportError, match="a scale of 2 dimensions without block_size"):
        from_onnx(m.model(m.node("QuantizeLinear", "x", m.constant(np.ones((4, 2))), m.constant(np.zeros((4, 2)), "uint8"))))
