"""Specialising functions: sizes become numbers, in shapes, loops and bodies; impossible sizes are refused."""

from __future__ import annotations

import pytest

from tunesmith import te
from tunesmith.ir import structural
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.specialize import sizes_of, specialize
from tunesmith.support.errors import UserError


def scaled(n: te.Index, m: te.Index) -> PrimFunc:
    x = te.placeholder((n, m), name="X")
    t = te.compute((n, m), lambda i, j: x[i, j] * 2.0, "T")
    return te.create_prim_func([x, te.compute((n, m), lambda i, j: t[i, j] + 1.0, "Y")], "scaled")


def test_a_specialised_function_is_the_function_of_these_shapes() -> None:
    n, m = te.var("n"), te.var("m")
    f = scaled(n, m)
    assert [v.name for v in sizes_of(f)] == ["n", "m"]
    assert structural.equal(specialize(f, {"n": 3, "m": 5}), scaled(3, 5))
    half = specialize(f, {"n": 3})
    assert [v.name for v in sizes_of(half)] == ["m"]
    assert structural.equal(specialize(half, {"m": 5}), scaled(3, 5))
    assert structural.equal(specialize(f, {}), f)


def test_refusals() -> None:
    n = te.var("n")
    x = te.placeholder((n,), name="X")
    f = te.create_prim_func([x, te.compute((n - 3,), lambda i: x[i + 3], "Y")], "f")
    with pytest.raises(UserError, match="f has no size m; it has n"):
        specialize(f, {"m": 3})
    with pytest.raises(UserError, match="f is not defined for n = 2: the extent .* of Y is negative"):
        specialize(f, {"n": 2})
    with pytest.raises(UserError, match="scaled has no size n; it has no dynamic sizes"):
        specialize(scaled(3, 5), {"n": 3})
