"""Test range-based simplification: results on index code, and preservation of values."""

from __future__ import annotations

import itertools

import pytest

from tunesmith.ir.arith.interval import Range
from tunesmith.ir.arith.simplify import RULES, Facts, simplify
from tunesmith.ir.poly import MAKE, Op, Poly, Var, ceildiv, evaluate, floordiv, maximum, minimum, mod, poly
from tunesmith.lower.simplifier import Simplifier
from tunesmith.support.errors import InternalError
from tunesmith.support.seeds import stream

i, j, k, n, u = (Var(s) for s in "ijknu")
_R: dict[Var, Range] = {i: (0, 7), j: (0, 15), k: (0, 3), n: (17, 40), u: (0, 0)}


def x(v: Var) -> Poly:
    return poly(v)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (x(u) * 5 + i, x(i)),
        (floordiv(x(j), 16), poly(0)),
        (floordiv(x(i) * 16 + j, 16), x(i)),
        (mod(x(i) * 16 + j, 16), x(j)),
        (floordiv(j, n), poly(0)),
        (mod(j, n), x(j)),
        (floordiv(x(j) + 32, 16), poly(2)),
        (mod(x(i) + 8, 16), x(i) + 8),
        (mod(x(i) - 8, 16), x(i) + 8),
        (floordiv(floordiv(j, 2), 4), floordiv(j, 8)),
        (floordiv(floordiv(j, 2) + x(k) * 8, 4), x(k) * 2 + floordiv(j, 8)),
        (floordiv(x(i) * 4 + k, 8), floordiv(i, 2)),
        (mod(x(i) * 4 + k, 8), mod(i, 2) * 4 + k),
        (floordiv(x(i) * 4 + x(k) + 4, 8), floordiv(x(i) + 1, 2)),
        (mod(mod(x(j) + 5, 8) + i, 4), mod(x(j) + i + 1, 4)),
        (mod(mod(x(i) + x(j), 8) * 2 + k, 16), mod(x(i) * 2 + x(j) * 2 + k, 16)),
        (ceildiv(j, 16), ceildiv(j, 16)),
        (ceildiv(x(j) + 1, 16), poly(1)),
        (ceildiv(x(i) * 4 + 1 + k, 8), ceildiv(x(i) + 1, 2)),
        (ceildiv(ceildiv(j, 2), 4), ceildiv(j, 8)),
        (minimum(j, n), x(j)),
        (maximum(j, n, k), x(n)),
        (minimum(x(i) * 8 + 8, 64), x(i) * 8 + 8),
        (minimum(x(i) * 8 + 8, 50), minimum(x(i) * 8 + 8, 50)),
        (floordiv(x(j) + i, 4) * 4 + mod(x(j) + i, 4), x(i) + j),
        (floordiv(x(j) + i, n) * n * k + mod(x(j) + i, n) * k, x(i) * k + x(j) * k),
        (floordiv(mod(x(k) * 16 + j, 16) + x(i) * 16, 16), x(i)),
    ],
)
def test_index_code_gets_simpler(before: Poly, after: Poly) -> None:
    assert simplify(before, _R) == after


@pytest.mark.parametrize("width", [8, 16, 40, 64, 112, 300])
def test_digits_of_a_fused_loop_recombine_for_every_split(width: int) -> None:
    """Three contiguous loops, fused and split again: the address is linear in the new loops, so that it can be vectorised."""
    outer, lane = Var("outer"), Var("lane")
    ranges = {outer: (0, -(-8 * 56 * 56 // width) - 1), lane: (0, width - 1)}
    f = poly(outer) * width + lane
    digits = [simplify(d, ranges) for d in (floordiv(f, 56 * 56), mod(floordiv(f, 56), 56), mod(f, 56))]
    assert simplify(digits[0] * 3136 + digits[1] * 56 + digits[2], ranges) == f


def test_unchanged_expressions_return_the_same_object() -> None:
    e = floordiv(x(i) * 3 + j, 5) + minimum(i, j)
    assert simplify(e, _R) is e


def test_a_variable_without_a_range_is_refused() -> None:
    with pytest.raises(InternalError, match="no range is known for the variable w"):
        simplify(poly(Var("w")) + i, _R)


class _IndexCode:
    """Random expressions like those from tiling, fusing and packing, with random ranges."""

    def __init__(self, seed: int) -> None:
        self.rng = stream(seed, "fuzz", "simplify")
        self.ranges: dict[Var, Range] = {}
        for v in (i, j, k):
            low = self.integer(0, 2)
            self.ranges[v] = (low, low + self.integer(0, 7))
        d = self.integer(1, 12)
        self.ranges[n] = (d, d + self.integer(0, 1)) if self.integer(0, 3) else (self.integer(-2, 0), d)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def grow(self, depth: int) -> Poly:
        if depth == 0:
            v = (i, j, k)[self.integer(0, 2)]
            return poly(v) * (1, 1, 2, 3, 4, 8)[self.integer(0, 5)] + self.integer(-1, 4) * self.integer(0, 1)
        op = self.integer(0, 8)
        a = self.grow(depth - 1)
        if op <= 1:
            return a + self.grow(depth - 1)
        if op == 2:
            return a * (2, 4, 8, 3)[self.integer(0, 3)] + self.grow(0)
        if op <= 4:
            return MAKE["min" if op == 3 else "max"](a, self.grow(depth - 1), self.integer(0, 40))
        if op == 5 and self.integer(0, 1):
            d = poly(n) if self.integer(0, 1) else poly(self.integer(2, 8))
            return floordiv(a, d) * d + mod(a, d)
        d = poly((2, 3, 4, 6, 8, 12, 16)[self.integer(0, 6)]) if self.integer(0, 4) else poly(n)
        return (floordiv, mod, ceildiv)[op - 6 if op > 5 else 0](a, d)

    def points(self) -> list[dict[Var, int]]:
        names = list(self.ranges)
        grid = itertools.product(*[range(a, b + 1) for a, b in self.ranges.values()])
        points = [dict(zip(names, p, strict=True)) for p in grid]
        return points[:: max(1, len(points) // 25)] + points[-1:]


def test_values_are_preserved_and_simplification_is_idempotent() -> None:
    smaller = 0
    for seed in range(1500):
        code = _IndexCode(seed)
        e = code.grow(3)
        s = simplify(e, code.ranges)
        for env in code.points():
            assert evaluate(s, env) == evaluate(e, env), (e, s, code.ranges, env)
        assert simplify(s, code.ranges) == s, (e, s)
        smaller += len(repr(s)) < len(repr(e))
    assert smaller > 500


def test_every_rule_applies_and_is_sound_alone() -> None:
    """Each rule of the table, applied alone, preserves the value."""
    fired = dict.fromkeys([r.text for r in RULES], 0)
    for seed in range(1500):
        code = _IndexCode(seed)
        facts = Facts(code.ranges)
        for a in _ops(code.grow(3)):
            for rule in RULES:
                done = rule.apply(a.args, facts) if rule.op == a.op else None
                if done is not None:
                    fired[rule.text] += 1
                    for env in code.points()[::3]:
                        assert evaluate(done, env) == evaluate(poly(a), env), (rule.text, a, done, code.ranges, env)  # type: ignore[arg-type]
    assert min(fired.values()) >= 5, fired


def test_extents_of_sizes_decide_quotients_and_remainders() -> None:
    """The digits of a fused loop whose extent depends on a size, split again."""
    ranges: dict[Var, Range] = {i: (0, 127), n: (65, 128)}
    whole = ceildiv(n, 4) * 4
    assert simplify(floordiv(i, whole), ranges, {i: whole}) == 0
    assert simplify(mod(i, whole), ranges, {i: whole}) == poly(i)
    assert simplify(mod(floordiv(i, ceildiv(n, 4)), 4), ranges, {i: whole}) == floordiv(i, ceildiv(n, 4))
    assert simplify(mod(floordiv(i, ceildiv(n, 4)), 2), ranges, {i: whole}) == mod(floordiv(i, ceildiv(n, 4)), 2)
    assert simplify(mod(i, n), ranges, {i: whole}) == mod(i, n)


def test_values_are_preserved_for_loops_whose_extent_depends_on_sizes() -> None:
    smaller = 0
    for seed in range(1500):
        rng = stream(seed, "fuzz", "extents")
        factors = [poly(n), ceildiv(n, 4), ceildiv(n, 3), poly(k), ceildiv(k, 2), poly(4), poly(6), poly(2)]
        extent = poly(1)
        chosen = [factors[f] for f in rng.integers(0, len(factors), rng.integers(1, 4))]
        for f in chosen:
            extent = extent * f
        sizes = {n: (1, 9), k: (1, 4)}
        high = max(evaluate(extent, {n: a, k: b}) for a in (1, 9) for b in (1, 4))
        assert isinstance(high, int)
        ranges: dict[Var, Range] = {**sizes, i: (0, high - 1), j: (0, 3)}
        e = poly(i)
        for _ in range(int(rng.integers(1, 4))):
            d = ([*chosen, extent] if rng.integers(0, 4) else factors)[int(rng.integers(0, len(chosen)))]
            e = (floordiv, mod)[int(rng.integers(0, 2))](e, d)
            e = e * int(rng.integers(1, 4)) + j if rng.integers(0, 3) == 0 else e
        s = simplify(e, ranges, {i: extent})
        known = Simplifier(ranges)
        known.extents[i] = extent
        low, top = known.bounds(s)
        for a, b in itertools.product(range(1, 10), range(1, 5)):
            count = evaluate(extent, {n: a, k: b})
            assert isinstance(count, int)
            for at in {0, 1, count // 2, count - 2, count - 1, int(rng.integers(0, count))} & set(range(count)):
                env = {n: a, k: b, i: at, j: int(rng.integers(0, 4))}
                assert evaluate(s, env) == evaluate(e, env), (e, s, extent, env)
                assert low <= evaluate(s, env) <= top, (s, low, top, extent, env)
        smaller += len(repr(s)) < len(repr(simplify(e, ranges)))
    assert smaller > 200


def test_the_fuzz_detects_a_wrong_rule() -> None:
    """x // d -> c with the bucket of the lowest value only is wrong, and a point of the fuzz detects it."""
    wrong = 0
    for seed in range(200):
        code = _IndexCode(seed)
        facts = Facts(code.ranges)
        for a in _ops(code.grow(3)):
            if a.op == "floordiv" and a.args[1].const is not None:
                guess = facts.range(a.args[0])[0] // a.args[1].const
                wrong += any(evaluate(poly(a), env) != guess for env in code.points())  # type: ignore[arg-type]
    assert wrong > 20


def _ops(e: Poly) -> list[Op]:
    found = [a for m, _ in e.terms for a in m if isinstance(a, Op)]
    return found + [inner for a in found for y in a.args for inner in _ops(y)]
