"""Index expressions at many points at once: for questions that are settled by looking at every iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tunesmith.ir.poly import Op, Poly, Var


def values_at(p: Poly, points: Mapping[Var, Any], size: int) -> np.ndarray:
    """The values of an index, int64 [size].

    Args:
        p: the index.
        points: for each of its variables its values, an array of `size` integers or one for all.
        size: how many points there are.
    """
    out = np.zeros(size, np.int64)
    for m, c in p.terms:
        term: Any = c
        for a in m:
            term = term * (_operation(a, points, size) if type(a) is Op else points[a])  # type: ignore[index]
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
