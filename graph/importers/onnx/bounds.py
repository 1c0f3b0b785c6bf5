"""Compare sizes at import: prove that an index expression is at least 0, or assume it, which each call of the function checks."""

from __future__ import annotations

from tunesmith.graph.importers.onnx.values import FoldingBuilder, least
from tunesmith.ir.poly import Index, Op, Poly, from_terms, less_than, maximum, minimum, poly

_DEPTH = 6
"""Maximum number of minima, maxima and divisions that one proof replaces."""


def is_natural(p: Index, depth: int = _DEPTH) -> bool:
    """Whether an index expression is at least 0 for all sizes, as far as can be proved."""
    p = poly(p)
    bound = least(p)
    if bound is not None and bound >= 0:
        return True
    if not depth:
        return False
    for monomial, c in p.terms:
        if len(monomial) == 1 and isinstance(monomial[0], Op):
            return _is_natural_with(p - from_terms({monomial: c}), monomial[0], c, depth - 1)
    return False


def _is_natural_with(rest: Poly, atom: Op, c: int, depth: int) -> bool:
    """Whether rest + c * atom is at least 0: the atom is replaced by numbers that it is between."""
    if atom.op in ("min", "max"):
        each = [is_natural(rest + c * a, depth) for a in atom.args]
        return any(each) if (atom.op == "min") == (c < 0) else all(each)
    x, divisor = atom.args
    d = divisor.const
    if d is None or d < 1:
        return False
    if atom.op == "mod":
        return is_natural(rest + min(c, 0) * (d - 1), depth)
    low, high = (x - (d - 1), x) if atom.op == "floordiv" else (x, x + (d - 1))
    return is_natural(rest * d + c * (low if c > 0 else high), depth)


def assured(b: FoldingBuilder, p: Index) -> bool:
    """Whether an index expression is at least 0: proved, or assumed if it is so for all sizes but small ones."""
    p = poly(p)
    if is_natural(p):
        return True
    grows = p.const is None and all(c > 0 for monomial, c in p.terms if monomial)
    return grows and is_unbounded(p) and b.assume(less_than(-1, p))


def is_unbounded(p: Index) -> bool:
    """Whether an index expression has no minimum, maximum or remainder: a model that limits a number does not ask for small sizes."""
    return not any(isinstance(a, Op) and a.op in ("min", "max", "mod") for monomial, _ in poly(p).terms for a in monomial)


def not_below(b: FoldingBuilder, end: Index, begin: Index) -> Index:
    """`end`, or `begin` where it is greater."""
    return end if assured(b, poly(end) - begin) else maximum(end, begin)


def not_above(b: FoldingBuilder, end: Index, begin: Index) -> Index:
    """`end`, or `begin` where it is less."""
    return end if assured(b, poly(begin) - end) else minimum(end, begin)


def unknown_sign(p: Index) -> bool:
    """Whether an index expression may be negative for some sizes, and not for others."""
    p = poly(p)
    return p.const is None and not is_natural(p) and not is_natural(-1 - p)
