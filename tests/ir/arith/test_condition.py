"""Test that conditions on quotients keep their truth for every value."""

from __future__ import annotations

from functools import partial

import pytest

from tunesmith.ir.arith.condition import undivided, without_remainder
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.poly import Param, Var, evaluate, floordiv, mod, poly

X = Var("x")
x, y = poly(X), poly(Var("y"))


@pytest.mark.parametrize("c", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("k", [-7, -1, 0, 1, 2, 6])
@pytest.mark.parametrize("d", [2, 5])
def test_a_quotient_is_written_as_its_dividend(c: int, k: int, d: int) -> None:
    p = floordiv(x * 2 - 3, d) * c + k
    q = undivided(p)
    assert "//" not in str(q)
    for i in range(-20, 20):
        assert (evaluate(p, {X: i}) < 0) == (evaluate(q, {X: i}) < 0), (p, q, i)


def test_equal_conditions_have_equal_forms() -> None:
    assert undivided(floordiv(x, 13) - 1) == x - 13
    assert undivided(-floordiv(x, 13) - 1) == -1 - x


@pytest.mark.parametrize(
    "p", [x - 3, floordiv(x, 2) + y, mod(x, 4) - 1, floordiv(x, 2) * floordiv(y, 2) - 1, floordiv(x, Param("p", (2, 3))) - 1, poly(-1)]
)
def test_others_are_unchanged(p: object) -> None:
    assert undivided(p) is p  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [-65, -64, -63, -16, -3, 0, 5, 64])
@pytest.mark.parametrize("high", [3, 14, 15, 16, 31])
@pytest.mark.parametrize("sign", [1, -1])
def test_variables_that_cannot_decide_are_dropped(k: int, high: int, sign: int) -> None:
    """All values of y are between two multiples of 16, or the condition stays as it is."""
    p = x * 16 * sign + y + k
    (variable,) = y.vars
    q = without_remainder(p, partial(bounds, ranges={X: (0, 9), variable: (0, high)}))
    assert (variable not in q.vars) == (k % 16 + high < 16) and (q is p) == (variable in q.vars)
    for i in range(10):
        for j in range(high + 1):
            assert (evaluate(p, {X: i, variable: j}) < 0) == (evaluate(q, {X: i, variable: j}) < 0), (p, q, i, j)


def test_the_largest_unit_is_used() -> None:
    (variable,) = y.vars
    z = Var("z")
    ranges = {X: (0, 9), variable: (0, 1), z: (0, 15)}
    assert without_remainder(x * 32 + y * 16 + poly(z) - 64, partial(bounds, ranges=ranges)) == x - 2
    assert without_remainder(x * 16 - 64, partial(bounds, ranges=ranges)) == x * 16 - 64, "nothing to drop"
