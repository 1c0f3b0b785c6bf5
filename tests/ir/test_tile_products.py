"""Products of tiles: the numpy models against a second one, rational arithmetic, and the descriptions of the tensor intrinsics."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tunesmith.ir.interpreter.interpret import run
from tunesmith.ir.intrinsics import INTRINSICS, TILE_PRODUCTS
from tunesmith.ir.tensor_intrinsics.intrinsic import TENSOR_INTRINSICS
from tunesmith.ir.tile_products import flushed_fma
from tunesmith.testing import amx_model

LOWEST = np.float32(2.0**-126)


def operands(kind: str, rng: np.random.Generator, exponents: tuple[int, int]) -> list[np.ndarray]:
    """Bytes of A, B and C; the exponents of bfloat16 elements are in the given range, that of 255 includes NaN and infinities."""
    if kind != "tdpbf16ps":
        return [rng.integers(0, 256, (16, 64)).astype(np.uint8) for _ in range(3)]

    def elements(low: int, high: int, shift: int, dtype: str, count: int) -> np.ndarray:
        bits = (rng.integers(low, high + 1, (16, count)) << shift) | rng.integers(0, 1 << shift, (16, count))
        bits |= rng.integers(0, 2, (16, count)) << (shift + 8)
        return bits.astype(dtype).view(np.uint8)

    halves = [elements(*exponents, 7, "uint16", 32) for _ in range(2)]
    return [*halves, elements(*[min(max(2 * e - 127, 0), 254) for e in exponents], 23, "uint32", 16)]


def values(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """The elements of A, B and C, flat, as the interpreter has them."""
    if kind == "tdpbf16ps":
        return [*[(x.view(np.uint16).astype(np.uint32) << 16).view(np.float32).ravel() for x in (a, b)], c.view(np.float32).ravel()]
    types = [{"s": np.int8, "u": np.uint8}[sign] for sign in kind[4:6]]
    return [a.view(types[0]).ravel(), b.view(types[1]).ravel(), c.view(np.int32).ravel()]


@pytest.mark.parametrize("kind", TILE_PRODUCTS)
@pytest.mark.parametrize("exponents", [(0, 255), (120, 134), (58, 68), (200, 254)])
def test_models_agree_bit_by_bit(kind: str, exponents: tuple[int, int]) -> None:
    """Over all bit patterns; in a range around 1; where products are denormal; where sums overflow."""
    rng = np.random.default_rng(exponents[0])
    for _ in range(8):
        a, b, c = operands(kind, rng, exponents)
        x, y, z = values(kind, a, b, c)
        got = INTRINSICS[kind].numpy(z, x, y)
        want = amx_model.product(kind, a, b, c).view(got.dtype).ravel()
        same = got.view(np.uint32) == want.view(np.uint32)
        if got.dtype == np.float32:
            same |= np.isnan(got) & np.isnan(want)
        assert same.all()


@pytest.mark.parametrize("kind", TILE_PRODUCTS)
def test_models_equal_the_descriptions(kind: str) -> None:
    """Integers exactly; floats to 1e-6 of the sum of the absolute terms, because the order of the sums differs."""
    rng = np.random.default_rng(0)
    func = TENSOR_INTRINSICS.get(f"x86.{kind}").function
    x, y, z = values(kind, *operands(kind, rng, (120, 134)))
    pitch = 40 if kind == "tdpbf16ps" else 72
    wide = np.zeros((16, pitch), x.dtype)
    wide[:, : x.size // 16] = x.reshape(16, -1)
    shape = (16, 16, x.size // 256)
    want = run(func, [wide, y.reshape(shape), z.reshape(16, 16).copy()], {func.params[3]: pitch})[2]
    got = INTRINSICS[kind].numpy(z, x, y).reshape(16, 16)
    if kind == "tdpbf16ps":
        terms = run(func, [np.abs(wide), np.abs(y.reshape(shape)), np.abs(z.reshape(16, 16))], {func.params[3]: pitch})[2]
        assert (np.abs(got - want) <= 1e-6 * terms).all()
    else:
        np.testing.assert_array_equal(got, want)


def exact_fma(x: np.float32, y: np.float32, z: np.float32) -> np.float32:
    """x * y + z by exact arithmetic: rounded to 24 bits, ties to even; denormal operands and results are zero."""
    p, q, r = (Fraction(0) if abs(v) < LOWEST else Fraction(float(v)) for v in (x, y, z))
    total = p * q + r
    if total == 0:
        # Zeros of one sign keep it; others, also of a difference of equal numbers, are positive.
        negative = p * q == 0 == r and np.signbit(x) != np.signbit(y) and np.signbit(z)
        return np.float32(-0.0 if negative else 0.0)
    exponent = 0
    while Fraction(2) ** (exponent + 1) <= abs(total):
        exponent += 1
    while Fraction(2) ** exponent > abs(total):
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    rounded = round(total / unit) * unit  # to even
    if abs(rounded) < Fraction(float(LOWEST)):
        return np.float32(-0.0 if total < 0 else 0.0)
    return np.float32(np.copysign(np.inf, float(total)) if abs(rounded) >= 2**128 else float(rounded))


def fma_operands() -> dict[str, list[tuple[float, float, float]]]:
    """Operands of fused multiply-adds by kind; the factors have 8 significant bits."""
    rng = np.random.default_rng(7)

    def factor(low: int, high: int) -> float:
        return float(rng.choice([-1, 1]) * np.ldexp(rng.integers(128, 256) / 128, rng.integers(low, high)))

    def addend(low: int, high: int) -> float:
        return float(rng.choice([-1, 1]) * np.ldexp(rng.integers(1 << 23, 1 << 24) / (1 << 23), rng.integers(low, high)))

    cases: dict[str, list[tuple[float, float, float]]] = {
        "normal": [(factor(-4, 5), factor(-4, 5), addend(-12, 13)) for _ in range(200)],
        "denormal": [(factor(-66, -60), factor(-66, -60), addend(-127, -122)) for _ in range(200)],
        "overflow": [(factor(62, 65), factor(62, 64), addend(122, 128)) for _ in range(100)],
        "far": [(factor(-40, -20), factor(-20, -3), addend(-2, 3)) for _ in range(100)],
        "zeros": [(a, b, c) for a in (0.0, -0.0, 1.5, -1.5) for b in (0.0, -0.0, 3.0) for c in (0.0, -0.0, 2.0, float(LOWEST))],
        "cancellation": [],
        "ties": [],
    }
    for _ in range(100):
        x, y = factor(-4, 5), factor(-4, 5)
        ulps = int(rng.integers(-2, 3))
        cases["cancellation"].append((x, y, float(np.float32(-x * y * (1 + ulps * 2.0**-23)))))
        # Half a unit of the sum's last place, and a quarter more or less.
        z = float(np.ldexp(rng.integers(1 << 23, 1 << 24) / (1 << 23), 3)) * float(rng.choice([-1, 1]))
        cases["ties"].append((float(rng.choice([1.0, 1.5, 0.5, 1.0078125, 0.99609375])) * float(rng.choice([-1, 1])), 2.0**-21, z))
    return cases


FMA_OPERANDS = fma_operands()


@pytest.mark.parametrize("kind", FMA_OPERANDS)
def test_fused_multiply_adds_are_exact_and_rounded_once(kind: str) -> None:
    """Against rational arithmetic, bit by bit."""
    x, y, z = (np.float32(v) for v in zip(*FMA_OPERANDS[kind], strict=True))
    want = np.array([exact_fma(*v) for v in zip(x, y, z, strict=True)])
    for model in (flushed_fma, amx_model.fused):
        with np.errstate(over="ignore"):
            got = np.asarray(model(x, y, z))
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=model.__name__)


def test_results_are_rounded_once_and_denormals_are_zero() -> None:
    one, two = np.float32(1), np.float32(2)
    assert flushed_fma(LOWEST / two, one, LOWEST / two) == 0, "denormal operands"
    assert flushed_fma(LOWEST, np.float32(0.5), np.float32(0)) == 0, "a denormal result"
    assert np.signbit(flushed_fma(-LOWEST, np.float32(0.5), np.float32(0)))
    assert flushed_fma(LOWEST, np.float32(0.5), LOWEST) == LOWEST * np.float32(1.5)
    # 1 + 2**-24 + 2**-60 is above the middle between two numbers; rounded twice it would be 1.
    half = np.float32(2.0**-24)
    assert flushed_fma(np.float32(2.0**-30), np.float32(2.0**-30), one) == 1
    assert flushed_fma(np.float32(1 + 2.0**-7), half, one) == np.nextafter(one, two)
    assert np.isnan(flushed_fma(np.float32(np.inf), np.float32(0), one))
