"""Give the identity element of a reduction operation."""

from __future__ import annotations

import numpy as np

from tunesmith.ir.expr import Const, const
from tunesmith.support import dtype as dt


def identity_element(op: str, dtype: str) -> Const:
    """The value that leaves the other operand of `op` (add, mul, min or max) unchanged."""
    if op in ("add", "mul"):
        return const(0 if op == "add" else 1, dtype)
    if dt.is_float(dtype):
        return const(float("-inf") if op == "max" else float("inf"), dtype)
    limits = np.iinfo(dt.to_numpy(dtype))
    return const(int(limits.min if op == "max" else limits.max), dtype)
