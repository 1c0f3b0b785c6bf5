"""Test vectorized evaluation over configurations: it agrees with `evaluate`, and errors name the column."""

from __future__ import annotations

import numpy as np
import pytest

from tunesmith.ir.arith.array_eval import CHUNK, compile_polys
from tunesmith.ir.poly import MAKE, Param, Poly, Var, ceildiv, evaluate, floordiv, maximum, minimum, mod, poly
from tunesmith.support.errors import ScriptError
from tunesmith.support.seeds import stream

A, B, C = Param("a", range(1, 50)), Param("b", range(1, 50)), Param("c", range(1, 50))


def random_poly(rng: np.random.Generator, depth: int) -> Poly:
    if depth == 0:
        return poly([A, B, C, int(rng.integers(-9, 10))][rng.integers(4)])
    x, y = random_poly(rng, depth - 1), random_poly(rng, depth - 1)
    kind = rng.integers(7)
    if kind < 3:
        return x + y if kind == 0 else x - y if kind == 1 else x * y
    op = ["floordiv", "mod", "ceildiv", "min"][kind - 3]
    if op == "min":
        return minimum(x, y) + maximum(x, 3 * y)
    return MAKE[op](x, maximum(y, 1))


def test_random_expressions_agree_with_evaluate() -> None:
    rng = stream(0, "array_eval")
    polys = [random_poly(rng, 3) for _ in range(150)]
    rows = rng.integers(1, 50, (CHUNK + 37, 3))
    got = compile_polys(polys, (A, B, C))(rows)
    assert got.shape == (len(rows), len(polys)) and got.dtype == np.int64
    for i in [0, 1, CHUNK - 1, CHUNK, CHUNK + 36]:
        env = dict(zip((A, B, C), (int(x) for x in rows[i]), strict=True))
        assert got[i].tolist() == [evaluate(p, env) for p in polys]


def test_columns_follow_the_order_of_params_and_any_integer_type_and_stride_is_read() -> None:
    rows = np.arange(1, 13, dtype=np.int32).reshape(3, 4)[:, [2, 0]]
    got = compile_polys([poly(A) - B, poly(5), poly(A)], (B, A))(rows)
    assert got.tolist() == [[-2, 5, 1], [-2, 5, 5], [-2, 5, 9]]


def test_exact_beyond_the_precision_of_doubles() -> None:
    big = 2**53 + 1
    got = compile_polys([floordiv(poly(A) * big, 2), ceildiv(poly(A) * big - 1, B)], (A, B))(np.array([[1, 3]]))
    assert got.tolist() == [[big // 2, -(-(big - 1) // 3)]]


def test_negative_numbers_round_to_minus_infinity() -> None:
    p = [floordiv(poly(A) - 20, B), mod(poly(A) - 20, B), ceildiv(poly(A) - 20, B)]
    assert compile_polys(p, (A, B))(np.array([[1, 6]])).tolist() == [[-4, 5, -3]]


def test_division_by_zero_is_zero_without_a_warning() -> None:
    zero = Param("z", (0, 1))
    p = [floordiv(7, zero), mod(7, zero), ceildiv(7, zero)]
    assert compile_polys(p, (zero,))(np.array([[0], [1]])).tolist() == [[0, 0, 0], [7, 0, 7]]


def test_no_rows_and_no_expressions() -> None:
    assert compile_polys([poly(A)], (A,))(np.zeros((0, 1), int)).shape == (0, 1)
    assert compile_polys([], (A,))(np.zeros((4, 1), int)).shape == (4, 0)


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(ScriptError, match=r"contains i, which is not a column of the rows; columns are a, b"):
        compile_polys([poly(A) + Var("i")], (A, B))
    with pytest.raises(ScriptError, match=r"contains c, which is not a column"):
        compile_polys([floordiv(7, C)], (A,))


def test_rows_of_another_width_are_refused() -> None:
    f = compile_polys([poly(A)], (A, B))
    with pytest.raises(ScriptError, match=r"expected rows of 2 columns, \[N, 2\], got an array of shape \[5, 3\]"):
        f(np.zeros((5, 3), int))
