"""Simplify index expressions of concrete programs, using the ranges of their variables; every rule is a line of a table.

The rules depend on ranges, so they do not commute with substitution: they are for lowering, and scheduling primitives must not use them
(docs/design/001-parametric.md).  Each rule is fuzzed against `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from tunesmith.ir.arith.interval import Range, bounds
from tunesmith.ir.poly import MAKE, ONE, Atom, Monomial, Op, Poly, Var, add, ceildiv, floordiv, mod, mul, poly, scale

Args = tuple[Poly, ...]


def simplify(p: Poly, ranges: Mapping[Var, Range], extents: Mapping[Var, Poly] | None = None) -> Poly:
    """An expression equal to `p` for all values in `ranges`, with fewer or cheaper operations.

    Args:
        p: an expression of a concrete program.
        ranges: lowest and highest value of every variable of `p`, both inclusive.
        extents: for loop variables, the number of their iterations, if it depends on sizes: 0 <= v < extent.

    Raises:
        InternalError: a variable of `p` has no range.
    """
    if is_plain(p, ranges):
        return p
    facts = Facts(ranges, extents)
    for _ in range(_ROUNDS):
        simpler = _round(p, facts)
        if simpler == p:
            break
        p = simpler
    return p


def is_plain(p: Poly, ranges: Mapping[Var, Range]) -> bool:
    """Whether no rule can apply: no operation, and every variable has several values.  Fast path for most expressions."""
    for m, _ in p.terms:
        for a in m:
            known = None if type(a) is Op else ranges.get(a)
            if known is None or known[0] == known[1]:
                return False
    return True


_ROUNDS = 8
"""Maximum rounds.  A round applies one rule to each operation, bottom up; nested index arithmetic converges after two or three."""


class Facts:
    """Bounds and quotients of expressions, computed once each."""

    __slots__ = ("_memo", "_quotients", "extents", "ranges")

    def __init__(self, ranges: Mapping[Var, Range], extents: Mapping[Var, Poly] | None = None) -> None:
        self.ranges = ranges
        self.extents = extents or {}
        self._memo: dict[Poly, Range] = {}
        self._quotients: dict[tuple[Poly, Poly], Poly] = {}

    def range(self, p: Poly) -> Range:
        """Lowest and highest value of `p`."""
        known = self._memo.get(p)
        if known is None:
            known = self._memo[p] = bounds(p, self.ranges)
        return known

    def quotient(self, x: Poly, d: Poly) -> Poly:
        """floordiv(x, d) in the form that the rules give it."""
        known = self._quotients.get((x, d))
        if known is None:
            known = floordiv(x, d)
            self._quotients[x, d] = known  # for the same quotient inside itself
            for _ in range(_ROUNDS):
                simpler = _round(known, self)
                if simpler == known:
                    break
                known = simpler
            self._quotients[x, d] = known
        return known

    def is_positive(self, d: Poly) -> bool:
        """Whether a divisor is always >= 1."""
        return d.const >= 1 if d.const is not None else self.range(d)[0] >= 1

    def bucket(self, x: Poly, d: Poly) -> int | None:
        """c if all values of x are in [c*d, (c + 1)*d), else None."""
        if d.const is not None:
            low, high = self.range(x)
            if low // d.const == high // d.const:
                return low // d.const
        elif self.range(x)[0] >= 0 and self.range(x - d)[1] < 0:
            return 0
        return 0 if self.extents and extent_of(x, self.extents) == d else None


def extent_of(x: Poly, extents: Mapping[Var, Poly]) -> Poly | None:
    """The number of values, from 0 on, of a loop variable v, or of v // d if d divides the extent of its loop; None for others."""
    a = x.as_atom()
    if type(a) is Op and a.op == "floordiv":
        whole = extent_of(a.args[0], extents)
        return None if whole is None else _exact_quotient(whole, a.args[1])
    return None if a is None or type(a) is Op else extents.get(a)


def _exact_quotient(x: Poly, d: Poly) -> Poly | None:
    """x / d for products x and d of which one contains the other, None for others."""
    if len(x.terms) != 1 or len(d.terms) != 1:
        return None
    (m, c), (divisor, b) = x.terms[0], d.terms[0]
    left = list(m)
    for a in divisor:
        if a not in left:
            return None
        left.remove(a)
    return Poly(((tuple(left), c // b),)) if b and c % b == 0 else None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite of one operation.

    Attributes:
        op: the operation that the rule matches.
        text: the rule, for readers.
        apply: maps (arguments, facts) to the simpler expression, or None if the rule does not apply.
    """

    op: str
    text: str
    apply: Callable[[Args, Facts], Poly | None]


RULES: tuple[Rule, ...] = (
    Rule("floordiv", "x // d -> c  when x stays in [c*d, (c+1)*d)", lambda a, f: _constant(f.bucket(a[0], a[1]))),
    Rule("floordiv", "(x // a + c) // b -> (x + a*c) // (a*b)", lambda a, f: _merged("floordiv", a, f)),
    Rule("floordiv", "(g*k + r) // (g*d) -> (k + c) // d  when r stays in [c*g, (c+1)*g)", lambda a, f: _split_floordiv(a, f)),
    Rule("mod", "x % d -> x - c*d  when x stays in [c*d, (c+1)*d)", lambda a, f: _shifted(a, f.bucket(a[0], a[1]))),
    Rule("mod", "(c*(x % a) + y) % d -> (c*x + y) % d  when d divides c*a", lambda a, f: _inner_mod(a)),
    Rule("mod", "(g*k + r) % (g*d) -> g*((k + c) % d) + r - c*g  when r stays in [c*g, (c+1)*g)", lambda a, f: _split_mod(a, f)),
    Rule("ceildiv", "ceil(x / d) -> c  when x stays in ((c-1)*d, c*d]", lambda a, f: _constant(f.bucket(a[0] + a[1] - 1, a[1]))),
    Rule("ceildiv", "ceil((ceil(x / a) + c) / b) -> ceil((x + a*c) / (a*b))", lambda a, f: _merged("ceildiv", a, f)),
    Rule("ceildiv", "ceil((g*k + r) / (g*d)) -> ceil((k + c) / d)  when r stays in ((c-1)*g, c*g]", lambda a, f: _split_ceildiv(a, f)),
    Rule("min", "min(x, y, ...) -> min(x, ...)  when x <= y everywhere", lambda a, f: _undominated("min", a, f)),
    Rule("max", "max(x, y, ...) -> max(x, ...)  when x >= y everywhere", lambda a, f: _undominated("max", a, f)),
)


def _round(p: Poly, facts: Facts) -> Poly:
    """One bottom-up round over `p`."""
    if not _varies(p, facts.ranges):
        low, high = facts.range(p)
        if low == high:
            return poly(low)
    out: dict[Monomial, int] = {}
    changed = False
    for m, c in p.terms:
        value: Poly | None = None
        for i, a in enumerate(m):
            new = _atom_round(a, facts)
            if new is not None and value is None:
                value = Poly(((m[:i], 1),))
            if value is not None:
                value = mul(value, poly(a) if new is None else new)
        changed |= value is not None
        for tm, tc in ((m, 1),) if value is None else value.terms:
            out[tm] = out.get(tm, 0) + c * tc
    if changed:
        p = _sum(out)
    return _recombined(p, facts)


def _varies(p: Poly, ranges: Mapping[Var, Range]) -> bool:
    """Whether a variable with several values occurs exactly once, as a linear term, so that `p` is not constant: cheaper than bounds."""
    if not all([v in ranges for v in p.vars]):
        return False
    for m, _ in p.terms:
        if len(m) == 1 and type(m[0]) is not Op:
            v: Any = m[0]
            low, high = ranges[v]
            if low < high and sum([v in a.vars for other, _ in p.terms for a in other]) == 1:
                return True
    return False


def _atom_round(a: Atom, facts: Facts) -> Poly | None:
    """The simpler form of an atom, None if there is none."""
    if type(a) is not Op:
        low, high = facts.ranges[a]
        return poly(low) if low == high else None
    args = tuple([_round(x, facts) for x in a.args])
    if args != a.args:
        return MAKE[a.op](*args)  # the next round simplifies the result
    for rule in _BY_OP[a.op]:
        done = rule.apply(a.args, facts)
        if done is not None:
            return done
    return None


_BY_OP = {op: [r for r in RULES if r.op == op] for op in MAKE}


def _sum(terms: dict[Monomial, int]) -> Poly:
    out = Poly(())
    for m, c in terms.items():
        if c:
            out = add(out, Poly(((m, c),)))
    return out


def _constant(c: int | None) -> Poly | None:
    return None if c is None else poly(c)


def _shifted(args: Args, bucket: int | None) -> Poly | None:
    return None if bucket is None else add(args[0], scale(args[1], -bucket))


def _merged(op: str, args: Args, facts: Facts) -> Poly | None:
    """(x op a + c) op b = (x + a*c) op (a*b), for floordiv and ceildiv by positive divisors."""
    x, d = args
    for i, (m, c) in enumerate(x.terms):
        if c == 1 and len(m) == 1 and type(m[0]) is Op and m[0].op == op:
            inner, a = m[0].args
            if facts.is_positive(a) and facts.is_positive(d):
                return MAKE[op](add(inner, mul(Poly(x.terms[:i] + x.terms[i + 1 :]), a)), mul(a, d))
    return None


def _splits(args: Args) -> Iterator[tuple[Poly, Poly, int, int]]:
    """Decompositions x = g*k + r for divisors g > 1 of d = g*e, as (k, r, g, e), the largest g first."""
    x, d = args
    number = d.const
    if number is None:
        return
    for g in sorted({gcd(c, number) for m, c in x.terms if m} - {1}, reverse=True):
        k = Poly(tuple([(m, c // g) for m, c in x.terms if m and c % g == 0]))
        r = Poly(tuple([(m, c) for m, c in x.terms if not m or c % g]))
        yield k, r, g, number // g


def _split_floordiv(args: Args, facts: Facts) -> Poly | None:
    for k, r, g, e in _splits(args):
        c = facts.bucket(r, poly(g))
        if c is not None:
            return floordiv(k + c, e)
    return None


def _split_ceildiv(args: Args, facts: Facts) -> Poly | None:
    for k, r, g, e in _splits(args):
        c = facts.bucket(r + (g - 1), poly(g))
        if c is not None:
            return ceildiv(k + c, e)
    return None


def _split_mod(args: Args, facts: Facts) -> Poly | None:
    for k, r, g, e in _splits(args):
        c = facts.bucket(r, poly(g))
        if c is not None:
            return add(scale(mod(k + c, e), g), add(r, poly(-c * g)))
    return None


def _inner_mod(args: Args) -> Poly | None:
    """Remove a nested remainder if the outer divisor divides the multiple that the inner one subtracts."""
    x, d = args
    number = d.const
    if number is None:
        return None
    for i, (m, c) in enumerate(x.terms):
        if len(m) == 1 and type(m[0]) is Op and m[0].op == "mod":
            inner, a = m[0].args
            if a.const is not None and (c * a.const) % number == 0:
                return mod(add(scale(inner, c), Poly(x.terms[:i] + x.terms[i + 1 :])), d)
    return None


def _undominated(op: str, args: Args, facts: Facts) -> Poly | None:
    """Remove arguments that never determine the result; of two equal arguments the first stays."""
    keep = list(args)
    for x in args:
        for y in args:
            if x is not y and x in keep and y in keep and _never_beyond(op, x, y, facts):
                keep.remove(y)
    return None if len(keep) == len(args) else MAKE[op](*keep)


def _never_beyond(op: str, x: Poly, y: Poly, facts: Facts) -> bool:
    low, high = facts.range(x - y)
    return high <= 0 if op == "min" else low >= 0


def _recombined(p: Poly, facts: Facts) -> Poly:
    """c*d*(x // d) + c*(x % d) -> c*x for d != 0, the pattern left by a split and a fuse of the same loop.

    The quotient may have another form, such as y // (a*d) for x = y // a.
    """
    coefficients: dict[Monomial, int] | None = None
    for m, c in p.terms:
        for i, a in enumerate(m):
            if type(a) is not Op or a.op != "mod":
                continue
            coefficients = dict(p.terms) if coefficients is None else coefficients
            x, d = a.args
            if not facts.is_positive(d):
                continue
            factor = Poly(((m[:i] + m[i + 1 :], c),)) if len(m) > 1 else scale(ONE, c)
            for quotient in (poly(Op("floordiv", (x, d))), facts.quotient(x, d)):
                whole = mul(mul(factor, d), quotient)
                if whole.terms and all(coefficients.get(n) == k for n, k in whole.terms):
                    return _recombined(p - whole - mul(factor, poly(a)) + mul(factor, x), facts)
    return p
