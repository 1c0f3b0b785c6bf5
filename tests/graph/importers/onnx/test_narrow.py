"""Test narrow element types of ONNX models against the package ml_dtypes, which knows nothing of the importer."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tunesmith
from tunesmith.graph.importers.onnx.errors import OnnxImportError
from tunesmith.graph.importers.onnx.importer import from_onnx
from tunesmith.graph.importers.onnx.narrow import TYPES, NarrowType, narrow_type, stored
from tunesmith.graph.ir.interpret import run
from tunesmith.support.seeds import stream

onnx = pytest.importorskip("onnx")
FLOATS = [t for t in TYPES.values() if not t.is_integer]
NUMBER = {t.name: n for n, t in TYPES.items()}


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[int]]], output: int, shape: list[int], weights: list[Any] = []) -> Any:  # noqa: B006
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "narrow", [value(n, t, s) for n, (t, s) in inputs.items()], [value("y", output, shape)], initializer=weights
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])


def cast(source: int, target: int, n: int, **attributes: Any) -> Any:
    return from_onnx(model([onnx.helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)], {"x": (source, [n])}, target, [n]))


def numbers(kind: NarrowType, seed: int) -> np.ndarray:
    """Numbers of all sizes, all numbers of the type, the midpoints between them and their neighbours, infinities, NaN and zeros."""
    own = kind.numbers.astype(np.float64)
    middle = ((own[1:] + own[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(middle, np.float32(s * np.inf)) for s in (1, -1)]
    wide = np.exp(stream(seed, "narrow").uniform(-20, 20, 500)).astype(np.float32)
    top = own[-1] * np.array([1.01, 1.03, 1.0625, 1.125, 1.2, 2, 1e6])
    found = np.concatenate([kind.numbers, middle, *near, wide, top.astype(np.float32), np.array([0, np.inf], np.float32)])
    return np.concatenate([found, -found, np.array([np.nan], np.float32)]).astype(np.float32)


@pytest.mark.parametrize("kind", [t for t in FLOATS if t.signed], ids=lambda t: t.name)
@pytest.mark.parametrize("saturate", [0, 1])
def test_numbers_are_rounded_as_in_ml_dtypes(kind: NarrowType, saturate: int) -> None:
    x = numbers(kind, 0)
    mod = cast(1, NUMBER[kind.name], len(x), saturate=saturate)
    (codes,) = run(mod["main"], [x], mod)
    dtype = np.dtype(getattr(ml_dtypes, kind.name))
    largest = kind.numbers[-1]
    with np.errstate(all="ignore"):
        expected = (np.clip(x, -largest, largest) if saturate else x).astype(dtype)
    found = codes.view(dtype)
    same = (found == expected) & (np.signbit(found.astype("f4")) == np.signbit(expected.astype("f4")))
    odd = ~(same | (np.isnan(found.astype("f4")) & np.isnan(expected.astype("f4"))))
    assert codes.dtype == np.uint8 and not odd.any(), (x[odd][:5], found[odd][:5], expected[odd][:5])


@pytest.mark.parametrize("kind", FLOATS, ids=lambda t: t.name)
def test_codes_are_the_numbers_of_ml_dtypes(kind: NarrowType) -> None:
    codes = np.arange(1 << kind.bits, dtype=np.uint8)
    mod = cast(NUMBER[kind.name], 1, len(codes))
    (found,) = run(mod["main"], [codes], mod)
    expected = codes.view(getattr(ml_dtypes, kind.name)).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected))[~np.isnan(found)].all()
    if kind.numbers.max() <= 65504:
        half = cast(NUMBER[kind.name], 10, len(codes))
        np.testing.assert_array_equal(run(half["main"], [codes], half)[0], expected.astype(np.float16))


@pytest.mark.parametrize("mode", ["up", "down"])
def test_powers_of_two(mode: str) -> None:
    x = np.array([0.75, 1, 1.5, 2, 3, 2.0**-120, 1.1 * 2.0**-120, 1e38], np.float32)
    mod = cast(1, 24, len(x), round_mode=mode)
    (codes,) = run(mod["main"], [x], mod)
    exact = np.log2(x.astype(np.float64))
    assert codes.tolist() == ((np.ceil if mode == "up" else np.floor)(exact) + 127).astype(int).tolist()


@pytest.mark.parametrize("kind", [t for t in TYPES.values() if t.is_integer], ids=lambda t: t.name)
def test_integers(kind: NarrowType) -> None:
    x = np.array([-9, -8, -3, -2, -1, 0, 1, 2, 3, 4, 7, 8, 15, 16, 200], np.float32)
    mod = cast(1, NUMBER[kind.name], len(x))
    (found,) = run(mod["main"], [x], mod)
    expected = x.astype(np.int32).astype(getattr(ml_dtypes, kind.name)).astype(np.int32)
    assert found.dtype == kind.storage and found.tolist() == expected.tolist()
    back = cast(NUMBER[kind.name], 6, len(x))
    assert run(back["main"], [found], back)[0].tolist() == expected.tolist()


def test_weights_of_eight_bits_in_a_compiled_model() -> None:
    rng = stream(0, "weights")
    w = rng.standard_normal((16, 8)).astype(ml_dtypes.float8_e4m3fn)
    scale = rng.uniform(0.5, 2, 8).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        onnx.helper.make_node("DequantizeLinear", ["t", "scale"], ["d"], axis=0),
        onnx.helper.make_node("Transpose", ["d"], ["u"], perm=[1, 0]),
        onnx.helper.make_node("MatMul", ["x", "u"], ["y"]),
    ]
    weights = [onnx.numpy_helper.from_array(a, n) for n, a in (("w", w), ("scale", scale))]
    mod = from_onnx(model(nodes, {"x": (1, [4, 16])}, 1, [4, 8], weights))
    x = rng.standard_normal((4, 16)).astype(np.float32)
    expected = x @ (w.astype(np.float32) * scale)
    np.testing.assert_allclose(tunesmith.compile(mod)(x), expected, rtol=1e-5, atol=1e-5)


def test_other_operators_refuse_narrow_types() -> None:
    graph = model([onnx.helper.make_node("Add", ["x", "x"], ["y"])], {"x": (17, [4])}, 17, [4])
    with pytest.raises(OnnxImportError, match="elements of the type float8_e4m3fn: convert them by Cast or DequantizeLinear before it"):
        from_onnx(graph)


def test_arrays_of_ml_dtypes() -> None:
    assert narrow_type(np.zeros(1, np.float32)) is None
    assert stored(np.array([[1, -2]], ml_dtypes.int4)).tolist() == [[1, -2]]
    assert stored(np.array([1, -2], ml_dtypes.float8_e5m2)).tolist() == [0x3C, 0xC0]
