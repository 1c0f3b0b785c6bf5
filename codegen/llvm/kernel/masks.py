"""Compute the number of active lanes of masked vectors."""

from __future__ import annotations

from tunesmith.ir.poly import ZERO, Poly


def active_lanes(mask: Poly | None, lanes: int) -> Poly | None:
    """Number of leading active lanes; None for all, 0 for none, if the count is constant."""
    count = None if mask is None else mask.const
    if count is None or 0 <= count < lanes:
        return mask
    return None if count > 0 else ZERO
