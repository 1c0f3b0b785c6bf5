"""Compare the stated growth of rounding errors with that of float32 arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from tunesmith.ir.script.parser import parse
from tunesmith.schedule.primitives.strassen import GROWTH, LEFT, RESULT, RIGHT
from tunesmith.schedule.schedule import Schedule
from tunesmith.schedule.winograd_matrices import POINTS, error_growth, winograd_matrices
from tunesmith.support.seeds import stream
from tunesmith.testing.primitive_samples import PRODUCT, TAPS

CHANNELS = 128
Array = np.ndarray


def sums(left: Array, right: Array) -> Array:
    """[..., c] times [..., c, o], added channel by channel in float32."""
    out = np.zeros((*left.shape[:-1], right.shape[-1]), np.float32)
    for c in range(left.shape[-1]):
        out += left[..., c : c + 1] * right[..., c, :]
    return out


def error(made: Array, exact: Array) -> float:
    return float(np.sqrt(np.mean((made - exact) ** 2)))


@pytest.mark.parametrize(("tile", "taps"), [(m, r) for m in range(2, 7) for r in (2, 3, 5) if m + r - 2 in POINTS])
def test_the_stated_error_of_a_tile(tile: int, taps: int) -> None:
    """Two dimensions, rectified normal images."""
    rng = stream(0, "winograd", tile, taps)
    at, g, bt = [np.array(m, float) for m in winograd_matrices(tile, taps)]
    points = tile + taps - 1
    image = np.maximum(rng.standard_normal((64, points, points, CHANNELS)), 0).astype(np.float32)
    taps_of = rng.standard_normal((taps, taps, CHANNELS, 8)).astype(np.float32)
    filters = np.einsum("ai,bj,ijco->abco", g, g, taps_of.astype(float)).astype(np.float32)
    half = np.einsum("ai,tijc->tajc", bt.astype(np.float32), image)
    products = sums(np.einsum("bj,tajc->tabc", bt.astype(np.float32), half), filters[None])
    half = np.einsum("xa,tabo->txbo", at.astype(np.float32), products)
    made = np.einsum("yb,txbo->txyo", at.astype(np.float32), half)
    exact, direct = np.zeros(made.shape), np.zeros(made.shape, np.float32)
    for i in range(taps):
        for j in range(taps):
            part = image[:, i : i + tile, j : j + tile]
            exact += np.einsum("txyc,co->txyo", part.astype(float), taps_of[i, j].astype(float))
            for c in range(CHANNELS):
                direct += part[..., c : c + 1] * taps_of[i, j, c]
    measured, stated = error(made, exact) / error(direct, exact), error_growth(tile, taps) ** 2
    assert 0.6 * stated <= measured <= 1.3 * stated, (measured, stated)


def quarters(x: Array) -> list[Array]:
    i, j = x.shape[0] // 2, x.shape[1] // 2
    return [x[:i, :j], x[:i, j:], x[i:, :j], x[i:, j:]]


def combined(row: Sequence[Fraction], terms: Sequence[Array]) -> Array:
    out = np.zeros_like(terms[0])
    for c, term in zip(row, terms, strict=True):
        out += np.float32(int(c)) * term
    return out


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("depth", [64, 512])
def test_the_stated_error_of_products_of_quarters(rectified: bool, depth: int) -> None:
    rng = stream(0, "strassen", depth)
    a, b = rng.standard_normal((64, depth)).astype(np.float32), rng.standard_normal((depth, 64)).astype(np.float32)
    a = np.maximum(a, 0) if rectified else a
    left, right = quarters(a), quarters(b)
    products = []
    for of_left, of_right in zip(LEFT, RIGHT, strict=True):
        products.append(sums(combined(of_left, left)[:, None], combined(of_right, right)[None])[:, 0])
    parts = [combined(row, products) for row in RESULT]
    made = np.block([[parts[0], parts[1]], [parts[2], parts[3]]])
    exact = a.astype(float) @ b.astype(float)
    measured = error(made, exact) / error(sums(a[:, None], b[None])[:, 0], exact)
    assert 0.6 * GROWTH <= measured <= 1.1 * GROWTH, measured


def test_steps_multiply_and_refused_steps_do_not_count() -> None:
    s = Schedule(PRODUCT)
    products = s.strassen(s.get_block("C"), [0, 1, 2])[2]
    assert s.error_growth == GROWTH
    assert not s.accepts(lambda: s.strassen(products, [0, 1, 9]))
    assert s.accepts(lambda: s.strassen(products, [1, 2, 3])) and s.error_growth == GROWTH
    s.strassen(products, [1, 2, 3])
    assert s.error_growth == pytest.approx(GROWTH**2)


def test_smaller_errors_do_not_compensate_larger_ones() -> None:
    s = Schedule(TAPS)
    s.winograd(s.get_block("C"), 2)
    assert error_growth(2, 3) < 1 and s.error_growth == 1
    assert Schedule(parse(str(s.func))).error_growth == 1
