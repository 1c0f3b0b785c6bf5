"""Count the lanes of vectors that work under a mask, where the count is known."""

from __future__ import annotations

from tunesmith.ir.poly import ZERO, Poly


def active_lanes(mask: Poly | None, lanes: int) -> Poly | None:
    """How many leading lanes are at work; None for all, 0 for none, where that is known."""
    count = None if mask is None else mask.const
    if count is None or 0 <= count < lanes:
        return mask
    return None if count > 0 else ZERO
