"""Test operators on bits in all integer types, shifts by any amount, and reinterpretation."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.testing.graph_operator_conformance import check_operator

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "int64"])
def test_bits_and_shifts(dtype: str) -> None:
    kind = np.dtype(dtype)
    limits = np.iinfo(kind)
    a, b = [RNG.integers(limits.min, limits.max, 12, kind, endpoint=True) for _ in range(2)]
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        check_operator(name, [a, b])
    bits = 8 * kind.itemsize
    amounts = np.array([0, 1, bits - 1, bits, bits + 1, 100, *([-1, -bits] if kind.kind == "i" else [3, 5])]).astype(kind)
    for name in ("shift_left", "shift_right"):
        check_operator(name, [a[:, None], amounts])


def test_shift_right_keeps_the_sign() -> None:
    operator = GRAPH_OPERATORS.get("shift_right")
    made = operator.evaluate([np.int32([-5, 5, -5]), np.int32([1, 1, 40])])[0]
    assert made.tolist() == [-3, 2, -1]


@pytest.mark.parametrize(
    ("old", "new"), [("float32", "int32"), ("int32", "float32"), ("float64", "uint64"), ("int8", "uint8"), ("int16", "int16")]
)
def test_reinterpret(old: str, new: str) -> None:
    check_operator("reinterpret", [(RNG.standard_normal((3, 4)) * 50).astype(old)], dtype=new)


@pytest.mark.parametrize(
    ("name", "types", "attrs", "message"),
    [
        ("bitwise_and", ("bool", "bool"), {}, "it takes integers, not bool; for bool use logical_and"),
        ("shift_left", ("float32", "float32"), {}, "it takes integers, not float32"),
        ("bitwise_or", ("int8", "int32"), {}, "types are never promoted"),
        ("reinterpret", ("float32",), {"dtype": "int64"}, "the types must be numbers of one width"),
        ("reinterpret", ("bool",), {"dtype": "int8"}, "the types must be numbers of one width"),
    ],
)
def test_errors(name: str, types: tuple[str, ...], attrs: dict[str, str], message: str) -> None:
    operator = GRAPH_OPERATORS.get(name)
    with pytest.raises(ScriptError, match=message):
        operator.infer([TensorType.of((2,), t) for t in types], operator.bind(attrs))
