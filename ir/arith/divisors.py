"""Decide whether an integer divisor can be 0 or -1, which trap on processors and need extra code."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.arith.interval import Range
from tunesmith.ir.expr import Binary, Broadcast, Cast, Const, Expr, Ramp
from tunesmith.ir.poly import Poly
from tunesmith.support import dtype as dt


def is_usual_divisor(e: Expr, bounds: Callable[[Poly], Range]) -> bool:
    """Whether an integer, or each lane of an integer vector, is known to be neither 0 nor -1.

    Args:
        e: the divisor.
        bounds: returns the lowest and highest value of an index expression.
    """
    if isinstance(e, Const):
        return e.value not in (0, -1)
    if isinstance(e, Broadcast):
        return is_usual_divisor(e.a, bounds)
    if isinstance(e, Binary) and e.op == "max":
        return any(_is_positive(x) for x in (e.a, e.b))
    known = _index_range(e, bounds)
    return known is not None and known[0] >= 1


def _is_positive(e: Expr) -> bool:
    plain = e.a if isinstance(e, Broadcast) else e
    return type(plain) is Const and plain.value >= 1


def _index_range(e: Expr, bounds: Callable[[Poly], Range]) -> Range | None:
    """Lowest and highest value of an index, also after a cast to a type that can represent it; None if unknown."""
    if type(e) is Poly:
        return bounds(e)
    if type(e) is Ramp:
        low, high = bounds(e.base)
        a, b = bounds(e.stride * (e.lanes - 1))
        return low + min(a, 0), high + max(b, 0)
    if type(e) is Broadcast:
        return _index_range(e.a, bounds)
    if type(e) is Cast and dt.is_int(dt.element(e.dtype)):
        known = _index_range(e.a, bounds)
        bits = dt.bits(dt.element(e.dtype)) - (not dt.is_unsigned(e.dtype))
        return known if known is not None and known[0] >= 0 and known[1] < 1 << bits else None
    return None
