"""Test quantisation and dequantisation: exact values, ties, saturation of every integer type, axes, 16-bit floats, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tunesmith.graph.ir.node import TensorType
from tunesmith.graph.ir.operator import GRAPH_OPERATORS
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream
from tunesmith.testing.graph_operator_conformance import check_operator

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
QUANTIZE, DEQUANTIZE = GRAPH_OPERATORS.get("quantize"), GRAPH_OPERATORS.get("dequantize")


def nearest(value: Fraction) -> int:
    """The nearest integer, half to even."""
    below = value.numerator // value.denominator
    rest = value - below
    return below + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1))


def exact(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """The quantised elements in rational arithmetic; infinities are clamped."""
    held = np.iinfo(zero.dtype)
    out = np.empty(np.broadcast_shapes(x.shape, scale.shape, zero.shape), zero.dtype)
    values, units, shifts = (np.broadcast_to(a, out.shape) for a in (x, scale, zero))
    for at in np.ndindex(out.shape):
        v = float(values[at])
        if np.isinf(v):
            out[at] = held.max if v > 0 else held.min
            continue
        q = nearest(Fraction(v) / Fraction(float(units[at]))) + int(shifts[at])
        out[at] = min(max(q, held.min), held.max)
    return out


def quantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    check_operator("quantize", [x, scale, zero])
    return QUANTIZE.evaluate([x, scale, zero])[0]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("floats", [np.float32, np.float64])
def test_exact_values_of_all_integer_types(dtype: str, floats: type) -> None:
    """Scales are powers of two, so that quotients are exact; elements beyond the type are clamped to its ends."""
    held = np.iinfo(dtype)
    x = np.concatenate([stream(0, "quantise", dtype).uniform(-300, 300, 60), [0.25, -0.25, 0.75, 1.25, -1.25, 0.0, -0.0]]).astype(floats)
    for scale, zero in ((0.5, 0), (0.5, 1), (2.0, 7), (2.0**-20, 3)):
        made = quantized(x, np.asarray(scale, floats), np.asarray(zero, dtype))
        want = exact(x, np.asarray(scale, floats), np.asarray(zero, dtype))
        # Numbers beyond the significand of the float type have no unit place.
        digits = float(2.0 ** (31 - np.finfo(floats).nmant if held.bits > 16 else 0))
        assert np.abs(made.astype(np.float64) - want.astype(np.float64)).max() <= (
            digits if np.abs(want.astype(np.float64)).max() > 2**23 else 0
        )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_elements_beyond_the_type_are_clamped(dtype: str) -> None:
    held = np.iinfo(dtype)
    for floats in (np.float16, np.float32, np.float64):
        big = np.finfo(floats).max
        x = np.array([np.inf, -np.inf, big, -big], floats)
        made = quantized(x, np.asarray(2.0**-14, floats), np.asarray(0, dtype)).tolist()
        assert made[0] == made[2] or floats is np.float16, "infinity and the largest number are beyond the type, except for float16"
        # The largest float that is in the type: 2 ** 31 - 128 of int32 in float32.
        spacing = 0 if held.bits < 24 or (held.bits == 32 and floats is np.float64) else held.max // 2**23
        assert held.max - spacing <= made[0] <= held.max and made[1] == held.min, (floats, made)


@pytest.mark.parametrize(("dtype", "zero"), [("int8", -3), ("int8", 0), ("uint8", 128), ("int16", 5), ("uint16", 40000)])
def test_ties_are_rounded_to_even_before_the_zero_point_is_added(dtype: str, zero: int) -> None:
    halves = np.arange(-9, 10, dtype=np.float32) / 2
    made = quantized(halves, np.float32(1), np.asarray(zero, dtype)).astype(np.int64) - zero
    want = [nearest(Fraction(float(h))) for h in halves]
    low, high = np.iinfo(dtype).min - zero, np.iinfo(dtype).max - zero
    assert made.tolist() == [min(max(w, low), high) for w in want] and 0 in made and 2 in made and 1 in made


def test_scales_that_are_no_powers_of_two_are_divided_by() -> None:
    """A product with the reciprocal of the scale differs for some elements, which are close to ties."""
    scale = np.float32(0.1)
    x = (np.arange(-200, 200) * np.float64(0.05)).astype(np.float32)
    want = np.clip(np.rint(x / scale), -128, 127).astype(np.int8)
    assert (quantized(x, scale, np.int8(0)) == want).all()
    inverse = np.clip(np.rint(x * (np.float32(1) / scale)), -128, 127).astype(np.int8)
    assert (inverse != want).any(), "the data does not tell them apart"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1), (4,)])
def test_scales_for_each_slice_of_an_axis(dtype: str, shape: tuple[int, ...]) -> None:
    rng = stream(1, "axes", dtype, *shape)
    x = rng.uniform(-40, 40, (2, 3, 2, 4)).astype(np.float32)
    scale = np.exp2(rng.integers(-3, 3, shape)).astype(np.float32)
    zero = rng.integers(0, 100, shape).astype(dtype)
    assert (quantized(x, scale, zero) == exact(x, scale, zero)).all()
    q = rng.integers(0, 100, x.shape).astype(dtype)
    check_operator("dequantize", [q, scale, zero])
    want = (q.astype(np.float64) - zero) * scale
    assert (DEQUANTIZE.evaluate([q, scale, zero])[0] == want).all()


def test_a_zero_point_and_a_scale_may_be_broadcast_to_different_axes() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    made = quantized(x, np.float32([[1], [2], [4]]), np.uint8([0, 10, 20, 30]))
    assert made.tolist() == [[0, 11, 22, 33], [2, 12, 23, 34], [2, 12, 22, 33]]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("floats", [np.float16, np.float32, np.float64])
def test_all_bytes_survive_a_round_trip(dtype: str, floats: type) -> None:
    held = np.iinfo(dtype)
    q = np.arange(held.min, held.max + 1).astype(dtype)
    for zero in (held.min, 0, 7, held.max):
        pair = np.asarray(0.037, floats), np.asarray(zero, dtype)
        check_operator("dequantize", [q, *pair])
        x = DEQUANTIZE.evaluate([q, *pair])[0]
        assert x.dtype == floats and (quantized(x, *pair) == q).all()


def test_float16_is_divided_in_float32() -> None:
    """32767 is no float16: the zero point would be rounded to 32768, which is no int16."""
    x = np.float16([0, 1, 100, 60000, -60000])
    assert quantized(x, np.float16(1), np.int16(32767)).tolist() == [32767, 32767, 32767, 32767, -27233]
    assert quantized(x, np.float16(1), np.uint16(5535)).tolist() == [5535, 5536, 5635, 65535, 0]


def operand(dtype: str, *shape: int) -> TensorType:
    return TensorType.of(shape, dtype)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("int32", "float32", "int8"), "the operands are int32 and float32, but types are never promoted"),
        (("int32", "int32", "int8"), "it takes floats, not int32"),
        (("float32", "float16", "int8"), "the operands are float32 and float16"),
        (("float32", "float32", "float32"), "the zero point has the type of the result, an integer type, not float32"),
        (("float32", "float32", "bool"), "the zero point has the type of the result, an integer type, not bool"),
    ],
)
def test_refused_quantisation(types: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        QUANTIZE.infer([operand(t, 2) for t in types])


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (("int8", "int32", "int8"), "it takes floats, not int32"),
        (("int8", "float32", "uint8"), "the operand and the zero point have one integer type, not int8 and uint8"),
        (("float32", "float32", "float32"), "the operand and the zero point have one integer type, not float32 and float32"),
        (("bool", "float32", "bool"), "the operand and the zero point have one integer type, not bool and bool"),
    ],
)
def test_refused_dequantisation(types: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        DEQUANTIZE.infer([operand(t, 2) for t in types])


def test_extents_that_cannot_be_broadcast_are_refused() -> None:
    with pytest.raises(ScriptError, match="cannot be broadcast: axis -1 is 4 in one and 3 in another"):
        QUANTIZE.infer([operand("float32", 2, 4), operand("float32", 3), operand("int8")])
