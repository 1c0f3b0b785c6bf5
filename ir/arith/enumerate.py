"""Evaluate index expressions at many points at once, for decisions by enumeration of all iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tunesmith.ir.poly import Op, Poly, Var


def values_at(p: Poly, points: Mapping[Var, Any], size: int) -> np.ndarray:
    """The values of an index expression, int64 [size].

    Args:
        p: the index expression.
        points: the values of each of its variables, an array of `size` integers or a single integer for all points.
        size: number of points.
    """
    out = np.zeros(size, np.int64)
    for m, c in p.terms:
        term: Any = c
        for a in m:
            term = term * (_operation(a, points, size) if type(a) is Op else points[a])
        out += term
    return out


def _operation(a: Op, points: Mapping[Var, Any], size: int) -> np.ndarray:
    x, *rest = [values_at(p, points, size) for p in a.args]
    with np.errstate(divide="ignore"):  # x // 0 and x % 0 are 0, in numpy and in programs
        for y in rest:
            if a.op == "floordiv":
                x = x // y
            elif a.op == "ceildiv":
                x = -(-x // y)
            elif a.op == "mod":
                x = x % y
            else:
                x = np.minimum(x, y) if a.op == "min" else np.maximum(x, y)
    return x
