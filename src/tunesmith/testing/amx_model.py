"""Compute the products of Intel AMX with numpy, bit for bit, as expected values of tests; configurations and random elements for them.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: TDPBF16PS, TDPFP16PS, TDPBSSD and its siblings.  Products of
floats are two chains of fused multiply-adds from 0, over the even and over the odd elements of pairs; their sum is added to C.  Denormals
of float32 and bfloat16 are zeros, those of float16 are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

TINY = 2.0**-126 - 2.0**-151
"""Smallest magnitude that rounds to a normal number of float32 where the range of exponents has no end."""


def widen(x: np.ndarray) -> np.ndarray:
    """float32 as float64, with denormals as zeros."""
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) < 2.0**-126, np.copysign(0.0, wide), wide)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded once to nearest even; denormals in and out are zeros.  The product must be exact in float64."""
    p, z = widen(a) * widen(b), widen(c)
    s = p + z
    back = s - p
    error = (p - (s - back)) + (z - back)
    # Rounded to odd, so that the second rounding, to float32, is that of the exact value.
    nudged = np.isfinite(s) & (error != 0) & (s.view(np.int64) & 1 == 0)
    s = np.where(nudged, np.nextafter(s, np.copysign(np.inf, error)), s)
    return np.where(np.abs(s) < TINY, np.copysign(0.0, s), s).astype(np.float32)


def float_model(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Shapes: a (m, k, 2), b (k, n, 2), c (m, n), all float32."""
    one = np.ones((), np.float32)
    chains = [np.zeros_like(c), np.zeros_like(c)]
    for y in range(a.shape[1]):
        chains = [fused(a[:, y, q][:, None], b[y, :, q][None], chains[q]) for q in range(2)]
    return fused(c, one, fused(chains[0], one, chains[1]))


def integer_model(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Shapes: a (m, k, 4), b (k, n, 4), c (m, n); integers."""
    return (c.astype(np.int64) + np.einsum("mkq,knq->mn", a.astype(np.int64), b.astype(np.int64))).astype(np.int32)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """float32 values of bit patterns in uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_float16(bits: np.ndarray) -> np.ndarray:
    """float32 values of bit patterns in uint16."""
    return bits.view(np.float16).astype(np.float32)


ELEMENTS: dict[str, tuple[type, Callable[[np.ndarray], np.ndarray], type, Callable[[np.ndarray], np.ndarray]]] = {
    "tdpbf16ps": (np.uint16, from_bfloat16, np.uint16, from_bfloat16),
    "tdpfp16ps": (np.uint16, from_float16, np.uint16, from_float16),
    "tdpbssd": (np.int8, np.array, np.int8, np.array),
    "tdpbsud": (np.int8, np.array, np.uint8, np.array),
    "tdpbusd": (np.uint8, np.array, np.int8, np.array),
    "tdpbuud": (np.uint8, np.array, np.uint8, np.array),
}
"""Product -> storage type of the elements of A and their values; the same of B."""


def product(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Bytes of C after a product: `kind` is the instruction in lower case; shapes are a (m, 4 k), b (k, 4 n), c (m, 4 n), all uint8."""
    type_a, value_a, type_b, value_b = ELEMENTS[kind]
    width = 4 // np.dtype(type_a).itemsize
    wide_a = value_a(a.view(type_a)).reshape(len(a), -1, width)
    wide_b = value_b(b.view(type_b)).reshape(len(b), -1, width)
    with np.errstate(all="ignore"):
        result = float_model(wide_a, wide_b, c.view(np.float32)) if width == 2 else integer_model(wide_a, wide_b, c.view(np.int32))
    return result.view(np.uint8)


def configuration(shapes: dict[int, tuple[int, int]], palette: int = 1, start_row: int = 0) -> np.ndarray:
    """The operand of ldtilecfg, 64 bytes; `shapes` maps numbers of tiles to rows and bytes a row."""
    data = np.zeros(64, np.uint8)
    data[:2] = palette, start_row
    for tile, (rows, colsb) in shapes.items():
        data[48 + tile] = rows
        data[16 + 2 * tile : 18 + 2 * tile].view(np.uint16)[0] = colsb
    return data


def random_bytes(rng: np.random.Generator, kind: str, values: str, rows: int, columns: int, accumulator: bool = False) -> np.ndarray:
    """Bytes (rows, columns) of random elements of A and B, or of C if `accumulator`.

    Args:
        values: "bits" for all bit patterns; for floats also "ordinary" and "tiny" magnitudes, among which are a few special numbers.
    """
    data = rng.integers(0, 256, (rows, columns), np.uint8)
    if values == "bits" or kind not in ("tdpbf16ps", "tdpfp16ps"):
        return data
    # Products of tiny elements are about as large as the smallest normal number of float32, or elements are denormals of float16.
    exponent = {"ordinary": 0, "tiny": -63 if kind == "tdpbf16ps" else -14}[values] * (2 if accumulator else 1)
    floats = np.ldexp(rng.standard_normal((rows, columns // (4 if accumulator else 2))), exponent).astype(np.float32)
    special = [0.0, -0.0, 1e-40, -1e-41, 2.0**-126, 2.0**-24, *([np.inf, np.nan] if values == "ordinary" else [])]
    floats = np.where(rng.random(floats.shape) < 0.02, rng.choice(np.array(special, np.float32), floats.shape), floats)
    if accumulator:
        return floats.view(np.uint8)
    halves = floats.astype(np.float16).view(np.uint16) if kind == "tdpfp16ps" else (floats.view(np.uint32) >> 16).astype(np.uint16)
    return halves.view(np.uint8)
