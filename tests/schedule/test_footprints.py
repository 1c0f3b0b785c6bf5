"""Test is_tiling: sums of loops that give every value once, with numbers and with Params."""

from __future__ import annotations

import itertools

import pytest

from tunesmith.ir.poly import Param, Poly, Var, evaluate, floordiv, mod, poly, substitute
from tunesmith.schedule.footprints import is_tiling

FIRST, J, K, OUT = Var("i"), Var("j"), Var("k"), Var("o")
A, B = Param("a", range(1, 9)), Param("b", range(1, 9))
i, j, k, o, a, b = [poly(v) for v in (FIRST, J, K, OUT, A, B)]


def tiling(e: Poly, **extents: Poly | int) -> bool:
    loops = {"i": FIRST, "j": J, "k": K}
    return is_tiling(e, {loops[n]: poly(x) - 1 for n, x in extents.items()})


@pytest.mark.parametrize(
    ("e", "extents"),
    [
        (i * 4 + j, {"i": 3, "j": 4}),
        (i * 8 + j * 4 + k, {"i": 2, "j": 2, "k": 4}),
        (o * 12 + i * 4 + j + 5, {"i": 3, "j": 4}),
        (o * 12 + floordiv(o, 3), {"i": 3}),
        (i + j * 7, {"i": 7, "j": 1}),
        (i + j, {"i": 1, "j": 5}),
        (i + j, {"i": 5, "j": 1}),
        (i * 5 + j + k, {"i": 1, "j": 1, "k": 5}),
        (i * a * b + j * b + k, {"i": 3, "j": a, "k": b}),
        (i * b + j, {"i": a, "j": b}),
        (mod(o, 4) + i, {"i": 3, "j": 4}),
    ],
)
def test_tilings(e: Poly, extents: dict[str, Poly | int]) -> None:
    assert tiling(e, **extents)


@pytest.mark.parametrize(
    ("e", "extents"),
    [
        (i * 3 + j, {"i": 3, "j": 4}),  # overlapping: a halo
        (i * 5 + j, {"i": 3, "j": 4}),  # with gaps
        (i * 4, {"i": 3}),
        (i + j, {"i": 3, "j": 4}),
        (-i, {"i": 3}),
        (i * a + j, {"i": 3, "j": b}),  # only if a == b
        (floordiv(i, 2), {"i": 4}),
        (mod(i, 2), {"i": 2}),
        (i * j, {"i": 2, "j": 1}),
        (i * o + j, {"i": 2, "j": 3}),
    ],
)
def test_not_a_tiling(e: Poly, extents: dict[str, Poly | int]) -> None:
    assert not tiling(e, **extents)


def test_a_tiling_gives_every_value_once() -> None:
    """Compare with enumeration, for all sums of up to three loops with small steps and extents."""
    loops = (FIRST, J, K)
    found = 0
    for steps in itertools.product((0, 1, 2, 3, 4, 6), repeat=3):
        for extents in itertools.product((1, 2, 3), repeat=3):
            used = [(v, s, n) for v, s, n in zip(loops, steps, extents, strict=True) if s]
            e = sum([poly(v) * s for v, s, _ in used], poly(0))
            if is_tiling(e, {v: poly(n - 1) for v, _, n in used}):
                values = [
                    evaluate(e, dict(zip([v for v, _, _ in used], at, strict=True)))
                    for at in itertools.product(*[range(n) for _, _, n in used])
                ]
                assert sorted(values) == list(range(len(values))), (steps, extents)
                found += 1
    assert found > 50


def test_a_tiling_with_params_is_a_tiling_with_numbers() -> None:
    e, extents = i * a * b + j * b + k, {FIRST: poly(2), J: a - 1, K: b - 1}
    assert is_tiling(e, extents)
    for x, y in itertools.product(A.domain, B.domain):
        values = {A: poly(x), B: poly(y)}
        assert is_tiling(substitute(e, values), {v: substitute(n, values) for v, n in extents.items()})
