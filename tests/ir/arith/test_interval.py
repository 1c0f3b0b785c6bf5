"""Test symbolic and numeric intervals: typical index code, soundness by fuzzing, and naturality of the symbolic interval."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from tunesmith.ir.arith.interval import Range, bounds, interval
from tunesmith.ir.poly import MAKE, ONE, ZERO, Op, Param, Poly, Var, ceildiv, evaluate, floordiv, maximum, minimum, mod, poly, substitute
from tunesmith.support.errors import InternalError
from tunesmith.support.seeds import stream

i, j, k, o = (Var(n) for n in "ijko")
p, q = Param("p", range(1, 9)), Param("q", range(1, 9))


def x(v: Var) -> Poly:
    return poly(v)


# ---- symbolic


def test_a_tiled_index_spans_the_tile() -> None:
    tile = x(o) * (x(p) * q) + x(i) * q + x(j)
    low, high = interval(tile, {i: x(p) - 1, j: x(q) - 1})
    assert low == x(o) * (x(p) * q)
    assert high - low + 1 == x(p) * q


def test_a_halo_grows_with_the_window() -> None:
    low, high = interval(x(i) * 2 + j, {i: x(p) - 1, j: poly(2)})
    assert (low, high - low + 1) == (ZERO, x(p) * 2 + 1)


def test_a_negative_coefficient_swaps_the_ends() -> None:
    assert interval(poly(7) - x(i) * 3, {i: x(p)}) == (poly(7) - x(p) * 3, poly(7))


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        (floordiv(x(i), 4), ZERO, floordiv(x(p), 4)),
        (ceildiv(x(i), q), ZERO, ceildiv(x(p), q)),
        (ceildiv(x(i) + 1, q), ceildiv(1, q), ceildiv(x(p) + 1, q)),
        (mod(x(i), 4), ZERO, minimum(p, 3)),
        (mod(x(i), q), ZERO, minimum(p, x(q) - 1)),
        (minimum(i, q), minimum(0, q), minimum(p, q)),
        (maximum(i, x(q) + o), maximum(0, x(q) + o), maximum(p, x(q) + o)),
        (x(i) * j, ZERO, x(p) * q),
        (floordiv(o, x(i) + 1), floordiv(o, x(p) + 1), x(o)),
        (floordiv(o, i), ZERO, x(o)),
        (mod(o, x(i) + 1), ZERO, minimum(o, p)),
        (x(o) + 3, x(o) + 3, x(o) + 3),
    ],
)
def test_ends_of_operations(expression: Poly, low: Poly, high: Poly) -> None:
    assert interval(expression, {i: poly(p), j: poly(q)}) == (low, high)


def test_ends_are_free_of_the_relaxed_variables() -> None:
    for case in range(200):
        e = _NonNegative(case).grow(3)
        low, high = interval(e, {i: poly(p), j: x(q) + 1})
        assert not {i, j} & (low.vars | high.vars)


def test_remainders_are_not_shortened_by_proofs() -> None:
    """i < 4 is provable here, but the result is min(3, 4 - 1) by folding, not by a decision."""
    assert interval(mod(x(i), p), {i: poly(3)})[1] == minimum(3, x(p) - 1)
    assert interval(mod(x(i), 4), {i: poly(3)}) == (ZERO, poly(3))


class _NonNegative:
    """Random nonnegative expressions, as in indices: sums, products, divisions, min, max."""

    def __init__(self, seed: int, *, natural: bool = False) -> None:
        self.rng = stream(seed, "fuzz", "interval")
        self.natural = natural

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def pick(self, *xs: object) -> Poly:
        return poly(xs[self.integer(0, len(xs) - 1)])  # type: ignore[arg-type]

    def grow(self, depth: int) -> Poly:
        if depth == 0 or self.rng.random() < 0.15:
            return self.pick(i, j, k, o, p, q, self.integer(0, 5))
        op = self.integer(0, 6)
        if op == 0:
            return self.grow(depth - 1) + self.grow(depth - 1)
        if op == 1:
            return self.grow(depth - 1) * self.grow(depth - 1)
        if op == 2:
            return minimum(self.grow(depth - 1), self.grow(depth - 1))
        if op == 3:
            return maximum(self.grow(depth - 1), self.grow(depth - 1))
        d = self.pick(p, q, x(p) * q, self.integer(1, 6))
        if op == 4:
            return mod(self.pick(i, j) if self.natural else self.grow(depth - 1), d)
        if not self.natural and self.rng.random() < 0.2:
            d = self.grow(1) + 1
        return floordiv(self.grow(depth - 1), d) if op == 5 else ceildiv(self.grow(depth - 1), d)


def test_interval_is_sound() -> None:
    """All values are between the ends, for random expressions, ranges and Params."""
    for case in range(400):
        grow = _NonNegative(case)
        e = grow.grow(3) - grow.grow(2) * grow.integer(0, 1)
        tops = {v: grow.pick(p, q, grow.integer(0, 4), x(p) * q) for v in (i, j)}
        low, high = interval(e, tops)
        row = {p: grow.integer(1, 4), q: grow.integer(1, 4), k: grow.integer(0, 4), o: grow.integer(0, 4)}
        ends = [evaluate(tops[v], row) for v in (i, j)]
        lowest, highest = evaluate(low, row), evaluate(high, row)
        for a, b in itertools.product(*[range(0, n + 1, max(1, n // 5)) for n in ends]):
            assert lowest <= evaluate(e, {**row, i: a, j: b}) <= highest, (e, tops, row, a, b)


def test_interval_is_natural() -> None:
    """Taking ends and substituting numbers for Params give the same normal forms in either order."""
    operations = set()
    for case in range(1500):
        grow = _NonNegative(case, natural=True)
        e = grow.grow(4)
        tops = {v: grow.pick(x(p) - 1, x(q) - 1, x(p) * q, grow.integer(0, 9)) for v in (i, j, k)}
        row = {p: poly(grow.integer(1, 8)), q: poly(grow.integer(1, 8))}
        staged = tuple([substitute(end, row) for end in interval(e, tops)])
        direct = interval(substitute(e, row), {v: substitute(t, row) for v, t in tops.items()})
        assert staged == direct, (e, tops, row)
        operations |= {a.op for m, _ in e.terms for a in m if isinstance(a, Op)}
    assert operations == {"floordiv", "mod", "ceildiv", "min", "max"}


def test_the_naturality_fuzz_detects_a_branch_on_provability() -> None:
    """An interval that replaces x mod d by x if x < d is provable differs between the two orders."""

    def proving(e: Poly, tops: Mapping[Var, Poly]) -> Poly:
        atom = e.as_atom()
        assert isinstance(atom, Op) and atom.op == "mod"
        high, d = interval(atom.args[0], tops)[1], atom.args[1]
        return high if (high - d).const is not None and (high - d).const < 0 else d - 1  # type: ignore[operator]

    e, tops, row = mod(x(i), p), {i: x(q) - 1}, {p: poly(8), q: poly(4)}
    staged = substitute(proving(e, tops), row)
    assert staged != proving(substitute(e, row), {i: poly(3)})
    assert substitute(interval(e, tops)[1], row) == interval(substitute(e, row), {i: poly(3)})[1]


def test_naturality_fails_if_numbers_let_mod_absorb_a_coefficient() -> None:
    e, row = mod(x(i) * q, p), {p: poly(2), q: poly(4)}
    assert substitute(interval(e, {i: poly(5)})[1], row) == ONE
    assert interval(substitute(e, row), {i: poly(5)})[1] == ZERO


# ---- numbers

_R: dict[Var, Range] = {i: (0, 7), j: (0, 15), k: (0, 3), o: (2, 5)}


def _attained(e: Poly, ranges: Mapping[Var, Range]) -> Range:
    """The exact bounds, by enumeration."""
    names = sorted(e.vars, key=lambda v: v.key)
    values = [
        evaluate(e, dict(zip(names, point, strict=True)))
        for point in itertools.product(*[range(r[0], r[1] + 1) for r in map(ranges.__getitem__, names)])
    ]
    return min(values), max(values)


@pytest.mark.parametrize(
    "e",
    [
        poly(5),
        x(i) * 16 + j,
        poly(3) - x(i) * 2 + x(k) * j,
        mod(x(i), 8),
        mod(x(i) + 8, 16),
        mod(x(i) * 16 + j, 16),
        mod(x(i) * 4 + 2, 16),
        mod(x(j) * 6 + x(i) * 9 + 1, 12),
        floordiv(x(i) * 16 + j, 16),
        floordiv(x(i) * 16 + j, 24),
        floordiv(x(i) - 4, 3),
        ceildiv(x(i) - 4, 3),
        ceildiv(x(j) + 1, 4),
        floordiv(j, o),
        minimum(i, x(k) + 2),
        maximum(i, x(k) + 2),
        minimum(x(i) * 8 + 8, 50) - x(i) * 8,
        x(i) * 3 - minimum(x(i) * 3, x(i) + 5),
        maximum(x(i) - 3, 0) - x(i),
        x(j) - floordiv(x(j), 4) * 4,
        x(j) - mod(x(j), 4),
        ceildiv(x(j), 4) * 4 - x(j),
        (x(i) - 3) * (x(i) - 3) - x(i) * x(i) + x(i) * 6,
        mod(x(k), o),
        mod(x(k), x(o) + 4),
    ],
)
def test_bounds_are_exact_on_index_code(e: Poly) -> None:
    assert bounds(e, _R) == _attained(e, _R)


def test_a_square_is_not_negative() -> None:
    assert bounds(x(i) * i, {i: (-3, 2)}) == (0, 9)
    assert bounds(x(i) * i * i, {i: (-3, 2)}) == (-27, 8)
    assert bounds(x(i) * i * j, {i: (-3, -2), j: (-1, 2)}) == (-9, 18)


def test_bounds_are_sound() -> None:
    """For random expressions of any sign and ranges that may be negative."""
    tight = 0
    for case in range(600):
        grow = _NonNegative(case)
        e = grow.grow(3) - grow.grow(2) - grow.grow(2) * grow.integer(0, 1)
        lows = {v: grow.integer(-2, 3) if v in (k, o) else grow.integer(0, 3) for v in (i, j, k, o)}
        ranges: dict[Var, Range] = {v: (n, n + grow.integer(0, 3)) for v, n in lows.items()}
        for v in (p, q):
            n = grow.integer(1, 3)
            ranges[v] = (n, n + grow.integer(0, 2))
        if any(a.op in ("floordiv", "mod", "ceildiv") and bounds(a.args[1], ranges)[0] < 1 for a in reversed(_ops(e))):
            continue
        low, high = bounds(e, ranges)
        lowest, highest = _attained(e, ranges)
        assert low <= lowest and highest <= high, (e, ranges)
        tight += (low, high) == (lowest, highest)
    assert tight > 250


def _ops(e: Poly) -> list[Op]:
    found = [a for m, _ in e.terms for a in m if isinstance(a, Op)]
    return found + [inner for a in found for y in a.args for inner in _ops(y)]


def test_a_variable_without_a_range_is_named() -> None:
    with pytest.raises(InternalError, match="no range is known for the variable o of "):
        bounds(floordiv(x(i) + o, 4), {i: (0, 3)})


def test_divisors_of_any_sign_are_bounded() -> None:
    """All values are within the bounds, also for zero and negative divisors, and the bounds of quotients are attained."""
    for make, ends in itertools.product((floordiv, mod, ceildiv), itertools.product((-4, -1, 0, 2, 4), repeat=4)):
        xs, ds = sorted(ends[:2]), sorted(ends[2:])
        low, high = bounds(make(i, o), {i: (xs[0], xs[1]), o: (ds[0], ds[1])})
        values = [evaluate(make(i, o), {i: a, o: b}) for a in range(xs[0], xs[1] + 1) for b in range(ds[0], ds[1] + 1)]
        assert low <= min(values) and max(values) <= high, (make, xs, ds)
        assert make is mod or (low, high) == (min(values), max(values)), (make, xs, ds)


class _AnySign(_NonNegative):
    """Random expressions whose parts and divisors may be negative or 0."""

    def grow(self, depth: int) -> Poly:
        e = super().grow(depth)
        if depth > 1 and self.rng.random() < 0.4:
            e = e - self.pick(i, j, k, self.integer(1, 6))
        if depth > 1 and self.rng.random() < 0.2:
            make = MAKE[("floordiv", "mod", "ceildiv")[self.integer(0, 2)]]
            d = self.pick(i, j) - self.integer(0, 2)
            e = make(e, d)
        return e


def test_interval_is_sound_for_possibly_negative_expressions() -> None:
    for case in range(600):
        grow = _AnySign(case)
        e = grow.grow(3)
        tops = {v: grow.pick(p, q, grow.integer(0, 4), x(p) * q) for v in (i, j)}
        low, high = interval(e, tops)
        row = {p: grow.integer(1, 4), q: grow.integer(1, 4), k: grow.integer(0, 4), o: grow.integer(0, 4)}
        ends = [evaluate(tops[v], row) for v in (i, j)]
        lowest, highest = evaluate(low, row), evaluate(high, row)
        for a, b in itertools.product(*[range(0, n + 1, max(1, n // 5)) for n in ends]):
            assert lowest <= evaluate(e, {**row, i: a, j: b}) <= highest, (e, tops, row, a, b)


def test_a_remainder_of_a_possibly_negative_expression_reaches_its_divisor() -> None:
    assert interval(mod(x(i) - 8, 4), {i: poly(7)}) == (ZERO, poly(3))
    assert interval(mod(x(i) - 3, 16), {i: poly(2)}) == (ZERO, poly(15))
