"""Encode small ONNX models as bytes, without the `onnx` package, which these few messages do not need.

The format is protocol buffers (a tag, then a varint, 4 bytes, or a length and bytes) with the field numbers of
`onnx.proto`: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Attribute = int | float | str | tuple[int, ...]

IR_VERSION = 9
OPSET = 20
CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""

DATA_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}

_VARINT, _BYTES, _FIXED32 = 0, 2, 5


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: type, names of inputs and outputs, attributes, domain."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""


def encode_model(
    nodes: Sequence[Node],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
) -> bytes:
    """Encode a ModelProto.

    Args:
        nodes: nodes in execution order.
        inputs: arrays that give names, dtypes and shapes of the graph's inputs; their values are not used.
        constants: initialisers, with their values.
        outputs: as `inputs`, for the graph's outputs.
    """
    graph = b"".join(_message(1, _node(node)) for node in nodes)
    graph += _text(2, "graph")
    graph += b"".join(_message(5, _tensor(name, value)) for name, value in constants.items())
    graph += b"".join(_message(11, _value_info(name, value)) for name, value in inputs.items())
    graph += b"".join(_message(12, _value_info(name, value)) for name, value in outputs.items())
    opsets = b"".join(_message(8, _text(1, domain) + _integer(2, version)) for domain, version in (("", OPSET), (CONTRIB, 1)))
    # In the order of the field numbers: OpenVINO recognises no model whose opsets precede the graph.
    return _integer(1, IR_VERSION) + _text(2, "tunesmith") + _message(7, graph) + opsets


def _node(node: Node) -> bytes:
    body = b"".join(_text(1, name) for name in node.inputs) + b"".join(_text(2, name) for name in node.outputs)
    body += _text(4, node.op) + _text(7, node.domain)
    return body + b"".join(_message(5, _attribute(name, value)) for name, value in node.attributes.items())


def _attribute(name: str, value: Attribute) -> bytes:
    """AttributeProto: name 1, value 2 (float), 3 (int), 4 (bytes) or 8 (ints), type 20."""
    if isinstance(value, float):
        return _text(1, name) + _tag(2, _FIXED32) + struct.pack("<f", value) + _integer(20, 1)
    if isinstance(value, int):
        return _text(1, name) + _integer(3, value) + _integer(20, 2)
    if isinstance(value, str):
        return _text(1, name) + _text(4, value) + _integer(20, 3)
    return _text(1, name) + b"".join(_integer(8, item) for item in value) + _integer(20, 7)


def _tensor(name: str, value: np.ndarray) -> bytes:
    """TensorProto: dims 1, data type 2, name 8, raw data 9 in little-endian order."""
    dims = b"".join(_integer(1, extent) for extent in value.shape)
    data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
    return dims + _integer(2, DATA_TYPES[str(value.dtype)]) + _text(8, name) + _message(9, data)


def _value_info(name: str, value: np.ndarray) -> bytes:
    """ValueInfoProto: name 1, type 2; in it tensor type 1, in it element type 1 and shape 2 with dimensions 1."""
    shape = b"".join(_message(1, _integer(1, extent)) for extent in value.shape)
    tensor = _integer(1, DATA_TYPES[str(value.dtype)]) + _message(2, shape)
    return _text(1, name) + _message(2, _message(1, tensor))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are written in two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _integer(number: int, value: int) -> bytes:
    return _tag(number, _VARINT) + _varint(value)


def _message(number: int, body: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(body)) + body


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode())
