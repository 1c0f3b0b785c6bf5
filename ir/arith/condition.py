"""Write a condition on a quotient as a condition on its dividend."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.arith.interval import Range
from tunesmith.ir.poly import Op, Poly, split_constant


def undivided(p: Poly) -> Poly:
    """`q` with q < 0 exactly where p < 0; if p is c * floordiv(x, d) + k with constant c, d and k, q has no division.

    Equal conditions then have equal forms: i // 13 < 1 is i < 13.
    """
    rest, k = split_constant(p)
    ((m, c),) = rest.terms if len(rest.terms) == 1 else (((), 0),)
    a = m[0] if len(m) == 1 else None
    if type(a) is not Op or a.op != "floordiv":
        return p
    x, d = a.args
    if d.const is None or d.const < 1:
        return p
    if c > 0:  # floordiv(x, d) < n
        return x - d * -(k // c)
    return d * (k // -c + 1) - 1 - x  # floordiv(x, d) >= n


def without_remainder(p: Poly, bounds: Callable[[Poly], Range]) -> Poly:
    """`q` with q < 0 exactly where p < 0, without the variables that cannot decide: 16 * i + j < 64 is i < 4 if j is in [0, 16).

    Args:
        p: an index of which only the sign matters.
        bounds: the lowest and the highest value of an index.
    """
    rest, k = split_constant(p)
    for unit in sorted({abs(c) for _, c in rest.terms if abs(c) > 1}, reverse=True):
        whole = [(m, c // unit) for m, c in rest.terms if c % unit == 0]
        low, high = bounds(Poly(tuple([(m, c) for m, c in rest.terms if c % unit])) + k % unit)
        if len(whole) < len(rest.terms) and low // unit == high // unit:
            return Poly(tuple(whole)) + (k // unit + low // unit)
    return p
