"""Test proofs that one expression of Params is at most another: they hold for every value, and find the forms that schedules make."""

from __future__ import annotations

import itertools

import pytest

from tunesmith.ir.arith.order import is_at_most
from tunesmith.ir.poly import Param, Poly, ceildiv, evaluate, maximum, minimum, poly

p, q = Param("p", (1, 3, 8, 16, 250)), Param("q", (1, 2, 7, 16, 300))


def padded(n: int, by: Param) -> Poly:
    """n rounded up to a multiple."""
    return poly(by) * ceildiv(n, by)


PROVED = [
    (poly(200), padded(200, p)),
    (poly(200), maximum(padded(200, p), minimum(padded(200, q), 200))),
    (ceildiv(200, q), ceildiv(padded(200, p), q)),
    (ceildiv(200, q), ceildiv(maximum(padded(200, p), padded(200, q)), q)),
    (minimum(padded(200, p), 200), poly(200)),
    (maximum(poly(100), minimum(p, 200)), poly(200)),
    (poly(3), minimum(padded(3, p), padded(3, q))),
]
NOT_PROVED = [
    (padded(200, p), poly(200)),
    (poly(200), minimum(padded(200, p), p)),
    (maximum(p, 3), poly(3)),
    (ceildiv(7, p), ceildiv(7, q)),
]


@pytest.mark.parametrize(("a", "b"), PROVED)
def test_proofs(a: Poly, b: Poly) -> None:
    assert is_at_most(a, b)
    for x, y in itertools.product(p.domain, q.domain):
        assert evaluate(a, {p: x, q: y}) <= evaluate(b, {p: x, q: y})


@pytest.mark.parametrize(("a", "b"), NOT_PROVED)
def test_what_does_not_hold_is_not_proved(a: Poly, b: Poly) -> None:
    assert not is_at_most(a, b)
    assert any(evaluate(a, {p: x, q: y}) > evaluate(b, {p: x, q: y}) for x, y in itertools.product(p.domain, q.domain))
