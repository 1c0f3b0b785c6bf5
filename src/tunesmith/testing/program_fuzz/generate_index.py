"""Generate random index expressions that stay in bounds, by construction or under a guard."""

from __future__ import annotations

from tunesmith.testing.program_fuzz import domain
from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.choices import Choices

ZERO = p.Num(0)


def add(a: p.Index, c: int) -> p.Index:
    """The expression `a + c`."""
    if isinstance(a, p.Num):
        return p.Num(a.value + c)
    return a if c == 0 else p.Arith("+" if c > 0 else "-", a, p.Num(abs(c)))


def pattern(c: Choices, names: list[str], extent: p.Index, spaces: list[domain.Points]) -> p.Index:
    """A random index expression of some of the names, for a dimension of `extent`."""
    v: p.Index = p.Name(c.one(names))
    w: p.Index = p.Name(c.one(names))
    k = c.integer(1, 4)
    match c.weighted(_PATTERNS):
        case "plain":
            return v
        case "shift":
            return add(v, c.one([-2, -1, -1, 1, 1, 2, 3]))
        case "reverse":
            return p.Arith("-", add(extent, -1), v)
        case "stride":
            return add(p.Arith("*", v, p.Num(c.integer(2, 3))), c.integer(-1, 2))
        case "window":
            return p.Arith("+", v, w)
        case "difference":
            return add(p.Arith("-", v, w), c.integer(-1, 3))
        case "divide":
            return p.Arith("//", add(p.Arith("*", v, p.Num(c.one([1, 1, 3, -1]))), c.integer(-4, 2)), p.Num(c.one([2, 2, 3, 4])))
        case "modulo":
            return p.Arith("%", add(p.Arith("*", v, p.Num(c.one([1, 2, 3, -1, -2]))), c.integer(-9, 5)), p.Num(k + 1))
        case "wrap":
            return p.Arith("%", add(p.Arith(c.one(["+", "-", "*"]), v, w), c.integer(-5, 5)), extent)
        case "clamp":
            return p.Arith("max", p.Arith("min", add(v, c.integer(-3, 3)), add(extent, -1)), ZERO)
        case "flat":
            return p.Arith("+", p.Arith("*", v, p.Num(k + 1)), w)
        case "divide by variable":
            return p.Arith(c.one(["//", "%"]), v, add(w, c.integer(-2, 1)))
    return p.Num(c.integer(0, 3))


_PATTERNS = {
    "plain": 8.0,
    "shift": 4.0,
    "reverse": 2.0,
    "stride": 1.0,
    "window": 1.5,
    "difference": 0.7,
    "divide": 1.0,
    "modulo": 1.0,
    "wrap": 1.0,
    "clamp": 0.7,
    "flat": 0.7,
    "divide by variable": 0.5,
    "constant": 0.8,
}


def fitting(c: Choices, names: list[str], extent: p.Index, spaces: list[domain.Points], tries: int = 6) -> p.Index:
    """A random index expression that is in [0, extent) at all points."""
    for _ in range(tries if names else 0):
        e = pattern(c, names, extent, spaces)
        if domain.inside(e, extent, spaces):
            return e
    return ZERO


def guarded(c: Choices, names: list[str], extent: p.Index, spaces: list[domain.Points]) -> tuple[p.Index, list[p.IndexCompare]]:
    """A random index expression and the conditions under which it is in [0, extent)."""
    if not names:
        return ZERO, []
    e = pattern(c, names, extent, spaces)
    if domain.inside(e, extent, spaces):
        return e, []
    conds: list[p.IndexCompare] = []
    d = divisor(e)
    if d is not None:
        conds.append(p.IndexCompare(">", d, ZERO))
    kept = domain.holding(spaces, conds)
    if domain.inside(e, extent, kept):
        return e, conds
    below = any((domain.values(e, at) < 0).any() for at in kept)
    above = any((domain.values(e, at) >= domain.values(extent, at)).any() for at in kept)
    if below:
        conds.append(p.IndexCompare(">=", e, ZERO))
    if above:
        conds.append(p.IndexCompare("<", e, extent))
    return e, conds


def divisor(e: p.Index) -> p.Index | None:
    """The divisor of a division by a non-constant expression, or None."""
    return e.b if isinstance(e, p.Arith) and e.op in ("//", "%") and not isinstance(e.b, p.Num) else None


def pattern_without_division(c: Choices, names: list[str], spaces: list[domain.Points]) -> p.Index:
    """A random index expression without divisors that may be <= 0."""
    e = pattern(c, names, p.Num(c.integer(2, 9)), spaces)
    return p.Name(c.one(names)) if any(domain.divides_badly(e, at) for at in spaces) else e
