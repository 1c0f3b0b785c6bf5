"""Test that conditions on quotients keep their truth for every value."""

from __future__ import annotations

import pytest

from tunesmith.ir.arith.condition import undivided
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
