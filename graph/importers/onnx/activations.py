"""Convert ONNX activation functions, including softmax over one axis and the flattened softmax of operator sets before 13."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.graph.importers.onnx.node import Converted, Converter, OnnxNode, cast_to, is_float, normalised, rank, shape_of
from tunesmith.graph.importers.onnx.values import Datum
from tunesmith.ir.poly import product

_PLAIN = {"HardSwish": "hard_swish", "Softplus": "softplus"}

_WITH_NUMBERS: dict[str, tuple[str, dict[str, tuple[str, float]]]] = {
    "Elu": ("elu", {"alpha": ("alpha", 1.0)}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
    "LeakyRelu": ("leaky_relu", {"slope": ("alpha", 0.01)}),
    "Selu": ("selu", {"alpha": ("alpha", 1.67326319217681884765625), "gamma": ("gamma", 1.05070102214813232421875)}),
}
"""ONNX operator -> graph operator, and attribute -> (ONNX attribute, default)."""


def _plain(operator: str) -> Converter:
    return lambda node: node.b.call(operator, node.input(0))


def _with_numbers(operator: str, attributes: dict[str, tuple[str, float]]) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        return node.b.call(operator, node.input(0), **{k: float(node.attr(*v)) for k, v in attributes.items()})

    return convert


def _relu(node: OnnxNode) -> Converted:
    x = node.input(0)
    return node.b.relu(x) if is_float(x) else node.b.maximum(x, node.like(0, x))


def _gelu(node: OnnxNode) -> Converted:
    return node.b.gelu(node.input(0), approximate=node.attr("approximate", "none"))


def _prelu(node: OnnxNode) -> Converted:
    x, slope, b = node.input(0), node.input(1), node.b
    if is_float(x):
        return b.prelu(x, slope)
    return b.where(b.less(x, node.like(0, x)), b.multiply(x, slope), x)


def _celu(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    alpha = node.like(node.attr("alpha", 1.0), x)
    zero = node.like(0, x)
    low = b.multiply(alpha, b.expm1(b.divide(b.minimum(x, zero), alpha)))
    return b.add(b.maximum(x, zero), low)


def _softsign(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    return b.divide(x, b.add(b.abs(x), node.like(1, x)))


def _mish(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    return b.multiply(x, b.tanh(b.softplus(x)))


def _swish(node: OnnxNode) -> Converted:
    x, b, alpha = node.input(0), node.b, float(node.attr("alpha", 1.0))
    return b.silu(x) if alpha == 1 else b.multiply(x, b.sigmoid(b.multiply(x, node.like(alpha, x))))


def _thresholded_relu(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    return b.where(b.greater(x, node.like(node.attr("alpha", 1.0), x)), x, node.like(0, x))


def _shrink(node: OnnxNode) -> Converted:
    x, b = node.input(0), node.b
    bias, limit = node.like(node.attr("bias", 0.0), x), node.attr("lambd", 0.5)
    low = b.where(b.less(x, node.like(-limit, x)), b.add(x, bias), node.like(0, x))
    return b.where(b.greater(x, node.like(limit, x)), b.subtract(x, bias), low)


def _over_axes(operator: str) -> Converter:
    def convert(node: OnnxNode) -> Converted:
        x, b = node.input(0), node.b
        if node.version >= 13:
            return _along(node, operator, x, normalised(node.attr("axis", -1), rank(x)))
        axis = normalised(node.attr("axis", 1), rank(x))
        if axis == rank(x) - 1:
            return _along(node, operator, x, axis)
        shape = shape_of(x)
        flat = b.reshape(x, shape=(product(shape[:axis]), product(shape[axis:])))
        return b.reshape(_along(node, operator, flat, 1), shape=shape)

    return convert


def _along(node: OnnxNode, operator: str, x: Datum, axis: int) -> Datum:
    b = node.b
    if operator != "hardmax":
        return b.call(operator, x, axis=axis)
    extent = shape_of(x)[axis]
    places = b.arange(start=0, stop=extent, step=1, dtype="int64")
    places = b.reshape(places, shape=tuple([extent if i == axis else 1 for i in range(rank(x))]))
    return cast_to(b, b.equal(b.argmax(x, axis=axis, keepdims=True), places), x.type.dtype)


CONVERTERS: Mapping[str, Converter] = {
    **{name: _plain(operator) for name, operator in _PLAIN.items()},
    **{name: _with_numbers(*entry) for name, entry in _WITH_NUMBERS.items()},
    "Celu": _celu,
    "Gelu": _gelu,
    "Hardmax": _over_axes("hardmax"),
    "LogSoftmax": _over_axes("log_softmax"),
    "Mish": _mish,
    "PRelu": _prelu,
    "Relu": _relu,
    "Shrink": _shrink,
    "Softmax": _over_axes("softmax"),
    "Softsign": _softsign,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
}
