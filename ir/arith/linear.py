"""Split index expressions into a coefficient of one variable and a rest."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tunesmith.ir.poly import ZERO, Poly, Var, poly


def coefficient(p: Poly, v: Var) -> tuple[int, Poly] | None:
    """(c, rest) with p = c * v + rest and v not in rest; None when p is not linear in v with a constant coefficient."""
    c = 0
    rest: dict[Any, int] = {}
    for m, k in p.terms:
        if m == (v,):
            c = k
        elif any(v in a.vars for a in m):
            return None
        else:
            rest[m] = k
    return c, Poly(tuple(rest.items()))


def linear(p: Poly, v: Var, sizes: Collection[Var]) -> tuple[Poly, Poly] | None:
    """(c, rest) with p = c * v + rest, v not in rest and nothing but `sizes` in c; None when p has no such form."""
    known = coefficient(p, v)
    if known is not None:
        return poly(known[0]), known[1]
    if not sizes:
        return None
    step = ZERO
    rest: dict[Any, int] = {}
    for m, k in p.terms:
        if all(v not in a.vars for a in m):
            rest[m] = k
            continue
        others = tuple([a for a in m if a is not v])
        if len(others) + 1 != len(m) or any(x not in sizes for a in others for x in a.vars):
            return None
        step = step + Poly(((others, k),))
    return step, Poly(tuple(rest.items()))
