"""Compiled dot-product instructions equal their numpy models bit for bit, and their descriptions to rounding."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith import build
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.intrinsics import INTRINSICS
from tunesmith.ir.script.parser import parse
from tunesmith.ir.target.target import Target
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.schedule.schedule import Schedule

ml_dtypes = pytest.importorskip("ml_dtypes")
HERE = Target.detect()
ROWS = 256


def rows(name: str) -> PrimFunc:
    """The description of an intrinsic, for many rows, tensorized."""
    intrinsic = TENSOR_INTRINSICS.get(name)
    a, b, c = intrinsic.function.params
    lanes, group = (e.as_int() for e in b.shape)  # type: ignore[union-attr]
    source = f"""
@T.prim_func
def rows(A: T.Buffer(({ROWS}, {group}), "{a.dtype}"), B: T.Buffer(({ROWS}, {lanes}, {group}), "{b.dtype}"), C: T.Buffer(({ROWS}, {lanes}), "{c.dtype}")):
    for i, j, k in T.grid({ROWS}, {lanes}, {group}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            C[vi, vj] = C[vi, vj] + T.cast("{c.dtype}", A[vi, vk]) * T.cast("{c.dtype}", B[vi, vj, vk])
"""  # noqa: E501
    s = Schedule(parse(source))
    s.tensorize(s.get_loops(s.get_block("C"))[1], name)
    return s.func


def model(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """C after the instruction, by its numpy model."""
    function, lanes = INTRINSICS[name.split(".")[1]].numpy, c.shape[1]
    with np.errstate(all="ignore"):
        return np.stack([function(c[i], np.tile(a[i], lanes), b[i].ravel()) for i in range(ROWS)])


def floats(bits: np.ndarray) -> np.ndarray:
    """bfloat16 given as uint16, as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@pytest.mark.parametrize("name", [n for n in TENSOR_INTRINSICS.names() if n.startswith("x86.vpdpbusd")])
def test_bytes(name: str) -> None:
    func = rows(name)
    if not TENSOR_INTRINSICS.get(name).is_available(HERE.features):
        pytest.skip(f"this processor does not have {name}")
    lanes = func.params[2].shape[1].as_int()  # type: ignore[union-attr]
    rng = np.random.default_rng(lanes)
    low, high = (-128, 128) if "s8s8" in name else (0, 256)
    a = rng.integers(low, high, (ROWS, 4)).astype("int8" if low else "uint8")
    b = rng.integers(-128, 128, (ROWS, lanes, 4)).astype("int8")
    c = rng.integers(-(2**31), 2**31, (ROWS, lanes)).astype("int32")
    a[:2], b[:2], c[:2] = high - 1, -128, -(2**31)
    a[2:4] = low
    got = c.copy()
    build(func, HERE)["rows"](a, b, got)
    if not low:
        np.testing.assert_array_equal(got, model(name, a, b, c))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, run(func, [a, b, c])[-1])


@pytest.mark.parametrize("values", ["normal", "far apart", "any bits"])
@pytest.mark.parametrize("name", [n for n in TENSOR_INTRINSICS.names() if n.startswith("x86.vdpbf16ps")])
def test_bfloat16(name: str, values: str) -> None:
    """`any bits` contains NaN, infinities and denormals; NaN is equal to NaN, whatever its payload."""
    func = rows(name)
    if not TENSOR_INTRINSICS.get(name).is_available(HERE.features):
        pytest.skip(f"this processor does not have {name}")
    lanes = func.params[2].shape[1].as_int()  # type: ignore[union-attr]
    rng = np.random.default_rng(lanes)
    a_bits, b_bits = (rng.integers(0, 2**16, s).astype(np.uint16) for s in ((ROWS, 2), (ROWS, lanes, 2)))
    c = rng.integers(0, 2**32, (ROWS, lanes), dtype=np.uint64).astype(np.uint32).view(np.float32)
    if values != "any bits":
        spread = 18 if values == "far apart" else 0

        def drawn(shape: tuple[int, ...]) -> np.ndarray:
            return (rng.standard_normal(shape) * 10.0 ** rng.integers(-spread, spread + 1, shape)).astype(np.float32)

        a_bits, b_bits = ((drawn(x.shape).view(np.uint32) >> 16).astype(np.uint16) for x in (a_bits, b_bits))
        c = drawn(c.shape)
    got = c.copy()
    build(func, HERE)["rows"](a_bits.view(ml_dtypes.bfloat16), b_bits.view(ml_dtypes.bfloat16), got)
    a, b = floats(a_bits), floats(b_bits)
    want = model(name, a, b, c)
    both_nan = np.isnan(got) & np.isnan(want)
    np.testing.assert_array_equal(np.where(both_nan, 0, got.view(np.uint32)), np.where(both_nan, 0, want.view(np.uint32)))
    if values == "normal":
        scale = np.abs(c) + np.abs(a[:, None] * b).sum(-1)
        assert (np.abs(got - run(func, [a, b, c])[-1]) <= 1e-6 * scale).all()
