"""Estimate the registers per thread of a GPU kernel."""

from __future__ import annotations

from tunesmith.ir.buffer import Buffer
from tunesmith.ir.stmt import Allocate, Stmt
from tunesmith.support import dtype as dt

ADDRESSES = 24
"""Registers of a thread besides its arrays: indices, addresses, loads in flight."""


def register_estimate(kernel: Stmt) -> int:
    """Registers per thread of a lowered kernel: arrays live at the same time, plus `ADDRESSES`."""
    return _live(kernel) + ADDRESSES


def _live(n: Stmt) -> int:
    inside = 0

    def kid(k: object) -> None:
        nonlocal inside
        if isinstance(k, Stmt):
            inside = max(inside, _live(k))

    n.each_child(kid)
    return inside + (_words(n.buffer) if type(n) is Allocate and n.buffer.scope == "local" else 0)


def _words(b: Buffer) -> int:
    return -(-(b.shape[0].const or 0) * max(dt.nbytes(b.dtype), 2) // 4)
