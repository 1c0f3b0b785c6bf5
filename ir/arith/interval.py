"""Bound index expressions: symbolic intervals for scheduling primitives, integer bounds for lowering.

`interval` returns symbolic ends and never branches on provability, so that it commutes with the substitution of numbers for Params
(docs/design/001-parametric.md).  `bounds` returns integers, as tight as possible, for concrete programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tunesmith.ir.poly import MAKE, ONE, ZERO, Atom, Monomial, Op, Poly, Var, add, from_terms, maximum, minimum, mul, poly, product, scale
from tunesmith.support.errors import InternalError

Range = tuple[int, int]
"""Lowest and highest value, both inclusive."""


# ---- symbolic ----------------------------------------------------------------------------------------------------------


def interval(p: Poly, ranges: Mapping[Var, Poly]) -> tuple[Poly, Poly]:
    """The lowest and highest value of `p` when each variable v of `ranges` runs over [0, ranges[v]], both ends included.

    Variables are >= 0.  If all atoms of a monomial are syntactically nonnegative, the monomial is monotone in each of them, and its ends
    are obtained by substituting the ends of the atoms; otherwise they are the extremes over the corners.  The ends are sound but not always
    attained, because monomials are bounded one by one.

    `interval` commutes with the substitution of numbers for all Params, except where the numbers let `mod` absorb a coefficient (q*i mod p
    with q a multiple of p) or show that a possibly negative expression is nonnegative.

    Args:
        p: the expression.
        ranges: the highest value of each variable to relax; it must not contain a relaxed variable itself.

    Returns:
        (low, high), free of the relaxed variables.
    """
    if p.vars.isdisjoint(ranges):
        return p, p
    low: dict[Monomial, int] = {}
    high: dict[Monomial, int] = {}
    for m, c in p.terms:
        relaxed = [a for a in m if not a.vars.isdisjoint(ranges)]
        if not relaxed:
            lo = hi = Poly(((m, 1),))
        elif all([type(a) is not Op for a in m]):
            rest = tuple([a for a in m if a not in relaxed]) if len(relaxed) < len(m) else ()
            lo, hi = ZERO, mul(Poly(((rest, 1),)), product([ranges[a] for a in relaxed]))  # type: ignore[index]
        else:
            lo = hi = ONE
            for a in m:
                lo, hi = _times(lo, hi, *_atom_interval(a, ranges))
        if c < 0:
            lo, hi = hi, lo
        for end, found in ((lo, low), (hi, high)):
            for x, k in end.terms:
                found[x] = found.get(x, 0) + c * k
    return from_terms(low), from_terms(high)


def nested_interval(p: Poly, ranges: Mapping[Var, Poly]) -> tuple[Poly, Poly]:
    """As `interval`, where the highest value of a variable may depend on other variables of `ranges`, as in triangular loops."""
    low, high = interval(p, ranges)
    for _ in range(len(ranges)):
        if (low.vars | high.vars).isdisjoint(ranges):
            break
        low, high = interval(low, ranges)[0], interval(high, ranges)[1]
    return low, high


def _atom_interval(a: Atom, ranges: Mapping[Var, Poly]) -> tuple[Poly, Poly]:
    if a.vars.isdisjoint(ranges):
        same = poly(a)
        return same, same
    if type(a) is not Op:
        return ZERO, ranges[a]
    ends = [interval(x, ranges) for x in a.args]
    if a.op in ("min", "max"):
        return MAKE[a.op](*[e[0] for e in ends]), MAKE[a.op](*[e[1] for e in ends])
    (low, high), (d_low, d_high) = ends
    relaxed = not a.args[1].vars.isdisjoint(ranges)
    if relaxed and not _is_positive(d_low):
        return _any_division(a.op, low, high, d_low, d_high)
    if a.op == "mod":
        # Never x itself, even if x < d is provable: more is provable once Params are numbers, and the ends would differ.
        if not is_nonnegative(low):
            # Shift x by the least multiple of d that makes it nonnegative, which does not change x mod d.
            high = d_high if relaxed else high + mul(MAKE["ceildiv"](maximum(scale(low, -1), 0), d_high), d_high)
        return ZERO, minimum(high, d_high - 1)
    if relaxed and not is_nonnegative(low):
        return minimum(MAKE[a.op](low, d_low), MAKE[a.op](low, d_high)), maximum(MAKE[a.op](high, d_low), MAKE[a.op](high, d_high))
    return MAKE[a.op](low, d_high), MAKE[a.op](high, d_low)


def _any_division(op: str, low: Poly, high: Poly, d_low: Poly, d_high: Poly) -> tuple[Poly, Poly]:
    """Ends for a divisor that may be negative or 0 (result 0): |quotient| <= |dividend| and |remainder| < |divisor|."""
    if op == "mod":
        return minimum(d_low + 1, 0), maximum(d_high - 1, 0)
    if is_nonnegative(d_low) and is_nonnegative(low):
        return ZERO, high
    return minimum(low, scale(high, -1), 0), maximum(high, scale(low, -1), 0)


def _times(low: Poly, high: Poly, a_low: Poly, a_high: Poly) -> tuple[Poly, Poly]:
    """The ends of a product of two intervals."""
    if low is ONE and high is ONE:
        return a_low, a_high
    if (is_nonnegative(a_low) or low == high) and (is_nonnegative(low) or a_low == a_high):
        if is_nonnegative(a_low) or is_nonnegative(low):
            return mul(low, a_low), mul(high, a_high)
    corners = [mul(x, y) for x in (low, high) for y in (a_low, a_high)]
    return minimum(*corners), maximum(*corners)


def is_nonnegative(p: Poly) -> bool:
    """Whether `p` is syntactically >= 0: a sum of products of nonnegative factors."""
    return all([c > 0 and all([_is_nonnegative_atom(a) for a in m]) for m, c in p.terms])


def _is_nonnegative_atom(a: Atom) -> bool:
    if type(a) is not Op:
        return True
    if a.op == "max":
        return any([is_nonnegative(x) for x in a.args])
    if a.op == "mod":
        return is_nonnegative(a.args[1])
    return all([is_nonnegative(x) for x in a.args])


def _is_positive(p: Poly) -> bool:
    """Whether `p` is syntactically >= 1."""
    t = p.terms
    return bool(t) and not t[0][0] and is_nonnegative(p)


# ---- numbers -----------------------------------------------------------------------------------------------------------


def bounds(p: Poly, ranges: Mapping[Var, Range]) -> Range:
    """Integer bounds of `p`: always sound, and exact for typical index code.

    Args:
        p: an expression whose variables all have a range.
        ranges: lowest and highest value of each variable, both inclusive; negative values are allowed.

    Raises:
        InternalError: a variable of `p` has no range.
    """
    try:
        return _bounds(p, ranges)
    except KeyError as e:
        raise InternalError(f"no range is known for the variable {e.args[0]!r} of {p!r}") from None


def _bounds(p: Poly, ranges: Mapping[Var, Range]) -> Range:
    low = high = ops = 0
    for m, c in p.terms:
        if len(m) == 1:
            a = m[0]
            if type(a) is Op:
                ops += 1
                lo, hi = _op_bounds(a.op, a.args, ranges)
            else:
                lo, hi = ranges[a]
        elif m:
            lo, hi = _monomial_bounds(m, ranges)
        else:
            lo = hi = 1
        if c < 0:
            lo, hi = hi, lo
        low += c * lo
        high += c * hi
    return _correlated(p, low, high, ranges) if ops and len(p.terms) > 1 and low != high else (low, high)


def _monomial_bounds(m: Monomial, ranges: Mapping[Var, Range]) -> Range:
    """Bounds of a product of atoms; equal atoms are grouped into a power, so that a square is never negative."""
    low = high = 1
    i = 0
    while i < len(m):
        a, n = m[i], m.count(m[i])
        lo, hi = _op_bounds(a.op, a.args, ranges) if type(a) is Op else ranges[a]
        if n % 2 == 0 and lo < 0:
            lo, hi = (0 if hi > 0 else hi**n), max(lo**n, hi**n)
        else:
            lo, hi = lo**n, hi**n
        corners = (low * lo, low * hi, high * lo, high * hi)
        low, high = min(corners), max(corners)
        i += n
    return low, high


def _op_bounds(op: str, args: tuple[Poly, ...], ranges: Mapping[Var, Range]) -> Range:
    x = _bounds(args[0], ranges)
    if op == "min" or op == "max":
        pick = min if op == "min" else max
        ends = [x, *[_bounds(y, ranges) for y in args[1:]]]
        return pick([e[0] for e in ends]), pick([e[1] for e in ends])
    low, high = x
    d_low, d_high = _bounds(args[1], ranges)
    if d_low < 1:
        return _any_division_bounds(op, args[0], (low, high), (d_low, d_high))
    if op == "mod":
        return _mod_bounds(args[0], low, high, d_low, d_high)
    return _quotient_bounds(op, low, high, d_low, d_high)


def _quotient_bounds(op: str, low: int, high: int, d_low: int, d_high: int) -> Range:
    sign = 1 if op == "floordiv" else -1  # ceildiv(x, d) is -floordiv(-x, d)
    return (
        sign * (sign * low // (d_high if low >= 0 else d_low)),
        sign * (sign * high // (d_low if high >= 0 else d_high)),
    )


def _any_division_bounds(op: str, x: Poly, span: Range, divisors: Range) -> Range:
    """Bounds for divisors of any sign: division by 0 gives 0; x / -d is -x / d, and x mod -d is -(-x mod d)."""
    (low, high), (d_low, d_high) = span, divisors
    found = [(0, 0)] if d_high >= 0 else []
    if d_high >= 1:
        found.append(_mod_bounds(x, low, high, 1, d_high) if op == "mod" else _quotient_bounds(op, low, high, 1, d_high))
    if d_low < 0:
        least, most = max(-d_high, 1), -d_low
        if op == "mod":
            a, b = _mod_bounds(scale(x, -1), -high, -low, least, most)
            found.append((-b, -a))
        else:
            found.append(_quotient_bounds(op, -high, -low, least, most))
    return min([r[0] for r in found]), max([r[1] for r in found])


def _mod_bounds(x: Poly, low: int, high: int, d_low: int, d_high: int) -> Range:
    if low >= 0 and high < d_low:
        return low, high
    if d_low != d_high:
        return 0, min(high, d_high - 1) if low >= 0 else d_high - 1
    d = d_low
    if low // d == high // d:
        return low % d, high % d
    # All values of x are `rest` plus a multiple of g, and so are their remainders, because g divides d.
    g, rest = d, 0
    for m, c in x.terms:
        if m:
            g = gcd(g, c)
        else:
            rest = c
    return rest % g, min(high, d - g + rest % g) if low >= 0 else d - g + rest % g


_CORRELATED_OPS = 4
"""Maximum number of operations for `_correlated`, whose work doubles with each; beyond it, operations are bounded independently."""


def _correlated(p: Poly, low: int, high: int, ranges: Mapping[Var, Range]) -> Range:
    """Tighten [low, high] if an operation and the rest of the sum share variables, as in min(8, n - 8*i) + 8*i.

    The first such operation is expanded by an identity and the sum is bounded again:
    min(a, b) + u = min(a + u, b + u), and x mod d = x - d*(x // d).
    """
    if sum(type(a) is Op for m, _ in p.terms for a in m) > _CORRELATED_OPS:
        return low, high
    for i, (m, c) in enumerate(p.terms):
        if len(m) != 1 or type(m[0]) is not Op:
            continue
        op = m[0]
        rest = Poly(p.terms[:i] + p.terms[i + 1 :])
        if op.vars.isdisjoint(rest.vars):
            continue
        if op.op in ("min", "max"):
            pick = min if (op.op == "min") == (c > 0) else max
            ends = [_bounds(add(scale(x, c), rest), ranges) for x in op.args]
            return max(low, pick([e[0] for e in ends])), min(high, pick([e[1] for e in ends]))
        lo, hi = _divided(op, c, rest, ranges)
        return max(low, lo), min(high, hi)
    return low, high


def _divided(op: Op, c: int, rest: Poly, ranges: Mapping[Var, Range]) -> Range:
    """Bounds of c*op + rest for a division or remainder `op`, by x = d*(x // d) + x mod d; unbounded if d does not divide c."""
    x, d = op.args
    number = d.const
    if number is None:
        return _UNBOUNDED
    if op.op == "mod":
        outside, factor = add(scale(x, c), rest), -c * number
        inside = _op_bounds("floordiv", (x, d), ranges)
    elif c % number == 0:
        outside, factor = add(scale(x, c // number), rest), c // number
        if op.op == "floordiv":
            factor, inside = -factor, _op_bounds("mod", (x, d), ranges)
        else:
            inside = _op_bounds("mod", (scale(x, -1), d), ranges)
    else:
        return _UNBOUNDED
    low, high = _bounds(outside, ranges)
    a, b = factor * inside[0], factor * inside[1]
    return low + min(a, b), high + max(a, b)


_UNBOUNDED = (-(1 << 200), 1 << 200)
