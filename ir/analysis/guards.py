"""Replace an expression bounded by a guard with a single variable, which reverses a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunesmith.ir.poly import ONE, ZERO, Poly, Var, is_param_only, mul, poly


def step_of(e: Poly, loop: Var) -> Poly | None:
    """The increment of `e` between iterations of `loop`; None if it is not constant."""
    step = ZERO
    for m, c in e.terms:
        if any(loop in a.vars for a in m):
            rest = list(m)
            if loop not in rest:
                return None
            rest.remove(loop)
            step = step + Poly(((tuple(rest), c),))
    return step if is_param_only(step) else None


def bounded_part(guard: Poly, ranges: Mapping[Var, Poly]) -> tuple[Poly, Poly] | None:
    """(e, n) for a guard e < n, where e sums loops of `ranges`, one with coefficient 1, and n does not depend on them; else None."""
    inner = Poly(tuple([(m, c) for m, c in guard.terms if any(not a.vars.isdisjoint(ranges) for a in m)]))
    steps = [step_of(inner, v) for v in inner.vars if v in ranges]
    limit = ZERO - (guard - inner)
    linear = all(sum(not a.vars.isdisjoint(ranges) for a in m) == 1 and c > 0 for m, c in inner.terms)
    known = linear and all(x is not None for x in steps) and ONE in steps and limit.vars.isdisjoint(ranges)
    return (inner, limit) if known else None


def collapsed(inner: Poly, variable: Var, exprs: Sequence[Poly], ranges: Mapping[Var, Poly]) -> list[Poly] | None:
    """The expressions with `inner` replaced by `variable`; None if they also use the loops of `inner` in another form."""
    loops = {v for v in inner.vars if v in ranges}
    unit = next(v for v in loops if step_of(inner, v) == ONE)
    out: list[Poly] = []
    for e in exprs:
        c = step_of(e, unit)
        if c is None:
            return None
        new = e + mul(c, poly(variable) - inner) if c.terms else e
        if not new.vars.isdisjoint(loops):
            return None
        out.append(new)
    return out
