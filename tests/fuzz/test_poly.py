"""Fuzz index arithmetic: building with Params and then substituting numbers gives the same normal form as building with the numbers
(substitution is a homomorphism), and every normal form has the right value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tunesmith.ir import poly as index
from tunesmith.ir import structural
from tunesmith.ir.expr import Binary, binary, compare, const
from tunesmith.ir.poly import Op, Param, Poly, Var, evaluate, poly, substitute
from tunesmith.support import dtype as dt
from tunesmith.support.seeds import stream

Tree = tuple[object, ...]
"""("leaf", Var | Param | int), ("square", Param, Param) or (operation, tree, tree)."""

_OPS = ("add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max")
_DIVISIONS = ("floordiv", "mod", "ceildiv")
_VALUE: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


class Case:
    """A random tree over three variables and three Params, with values for all of them."""

    def __init__(self, seed: int, depth: int = 4) -> None:
        self.rng = stream(seed, "fuzz", "poly")
        self.vars = [Var(f"x{i}") for i in range(3)]
        self.params = [Param(f"p{i}", range(1, 7)) for i in range(3)]
        self.tree = self.grow(depth)
        self.row = {p: self.integer(1, 6) for p in self.params}

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pick(self, xs: list[object]) -> object:
        return xs[self.integer(0, len(xs) - 1)]

    def grow(self, depth: int) -> Tree:
        if depth == 0 or self.rng.random() < 0.2:
            return ("leaf", self.pick([*self.vars, *self.params, self.integer(0, 6)]))
        op = _OPS[self.integer(0, len(_OPS) - 1)]
        if op in _DIVISIONS:
            simple = self.rng.random() < 0.6
            d = (
                ("leaf", self.pick([*self.params, self.integer(1, 6)]))
                if simple
                else ("square", self.pick([*self.params]), self.pick([*self.params]))
            )
            return (op, self.grow(depth - 1), d)
        return (op, self.grow(depth - 1), self.grow(depth - 1))


def build(t: Tree, s: Mapping[Var, Poly]) -> Poly:
    """The tree built by the constructors, with variables at the leaves substituted by `s`."""
    if t[0] == "leaf":
        x = t[1]
        return s[x] if isinstance(x, Var) and x in s else poly(x)  # type: ignore[arg-type]
    if t[0] == "square":
        return build(("leaf", t[1]), s) * build(("leaf", t[2]), s)
    a, b = build(t[1], s), build(t[2], s)  # type: ignore[arg-type]
    if t[0] in ("add", "sub", "mul"):
        return _VALUE[t[0]](a, b)  # type: ignore[arg-type, return-value]
    return index.MAKE[t[0]](a, b)  # type: ignore[index]


def value(t: Tree, env: Mapping[Var, int]) -> int:
    """The value of the tree, computed with Python ints."""
    if t[0] == "leaf":
        return env[t[1]] if isinstance(t[1], Var) else t[1]  # type: ignore[return-value]
    if t[0] == "square":
        return env[t[1]] * env[t[2]]  # type: ignore[index]
    return _VALUE[t[0]](value(t[1], env), value(t[2], env))  # type: ignore[index, arg-type]


def disagreements(count: int, first: int = 0) -> list[tuple[Tree, Poly, Poly]]:
    """Trees whose staged normal form differs from the direct one.  Wrong values raise at once."""
    found = []
    for seed in range(first, first + count):
        case = Case(seed)
        symbolic = build(case.tree, {})
        numbers = {p: poly(n) for p, n in case.row.items()}
        staged, direct = substitute(symbolic, numbers), build(case.tree, numbers)
        for _ in range(3):
            env = {v: case.integer(0, 9) for v in case.vars}
            expected = value(case.tree, {**env, **case.row})
            assert evaluate(staged, env) == expected, (case.tree, staged, env)
            assert evaluate(direct, env) == expected, (case.tree, direct, env)
            assert evaluate(symbolic, {**env, **case.row}) == expected, (case.tree, symbolic, env)
        if staged != direct:
            found.append((case.tree, staged, direct))
    return found


def test_staged_and_direct_normal_forms_are_equal() -> None:
    assert disagreements(3000) == []


def test_substitution_by_expressions_preserves_values() -> None:
    for seed in range(300):
        case, other = Case(seed, 3), Case(seed + 100_000, 2)
        v = case.vars[0]
        p = build(case.tree, {})
        inside = build(other.tree, {})
        env = {x: case.integer(0, 9) for x in (*case.vars, *other.vars)} | case.row | other.row
        assert evaluate(substitute(p, {v: inside}), env) == value(case.tree, {**env, v: evaluate(inside, env)})


def test_renaming_variables_only_reorders_terms() -> None:
    """Rebuilding by the constructors changes nothing else, for any creation order of the variables."""
    for seed in range(2000):
        case = Case(seed)
        swapped = [Var(f"y{i}") for i in range(3)][::-1]
        there = {v: poly(w) for v, w in zip(case.vars, swapped, strict=True)}
        back = {w: poly(v) for v, w in zip(case.vars, swapped, strict=True)}
        p = build(case.tree, {})
        assert substitute(substitute(p, there), back) == p
        assert substitute(p, there) == build(case.tree, there)


def test_a_valid_but_not_confluent_rule_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """(x // a) // b -> x // (a*b) is valid, but Params hide the inner division until they are substituted."""
    plain = index.floordiv

    def merging(x: Poly | Var | int, d: Poly | Var | int) -> Poly:
        atom = poly(x).as_atom()
        if type(atom) is Op and atom.op == "floordiv":
            return merging(atom.args[0], atom.args[1] * poly(d))
        return plain(x, d)

    monkeypatch.setitem(index.MAKE, "floordiv", merging)  # type: ignore[arg-type]
    assert disagreements(1500), "values are right, but normal forms differ: the fuzzer must report this"


def test_equal_polynomials_have_equal_hashes() -> None:
    seen = 0
    for seed in range(400):
        case = Case(seed)
        a, b = build(case.tree, {}), build(case.tree, {})
        assert a == b and hash(a) == hash(b)
        seen += not isinstance(a.const, int)
    assert seen > 200


def test_constant_terms_split_and_recombine() -> None:
    for seed in range(400):
        p = build(Case(seed).tree, {})
        rest, c = index.split_constant(p)
        assert not any(m == () for m, _ in rest.terms) and rest.vars == p.vars
        for k in (0, -c, 3):
            moved = index.shifted(rest, c + k)
            assert moved == Poly(moved.terms) == index.add(poly(k), p) and moved.vars == p.vars
            assert hash(moved) == hash(Poly(moved.terms))
    assert index.split_constant(poly(7)) == (index.ZERO, 7)


def test_large_coefficients_stay_exact() -> None:
    x = Var("x")
    p = index.floordiv(poly(x) * (2**70) + 5, 3)
    for n in np.arange(5):
        assert evaluate(p, {x: int(n)}) == (int(n) * 2**70 + 5) // 3


def test_arithmetic_of_two_literals_of_index_type_is_in_normal_form() -> None:
    """Digests of functions, the keys of their records, depend on it."""
    ten, three = const(10, dt.INDEX), const(3, dt.INDEX)
    folded = {"add": 13, "sub": 7, "mul": 30, "floordiv": 3, "mod": 1, "min": 3, "max": 10}
    for op, number in folded.items():
        assert structural.equal(binary(op, ten, three), poly(number)), op
    truths = {"lt": False, "le": False, "gt": True, "ge": True}
    for op, truth in truths.items():
        assert structural.equal(compare(op, ten, three), const(truth, "bool")), op
    assert isinstance(binary("sub", const(10, "int32"), const(3, "int32")), Binary)
