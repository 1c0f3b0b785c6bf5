"""Evaluate index expressions at all instances of a block, to generate in-bounds accesses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunesmith.testing.program_fuzz import program as p
from tunesmith.testing.program_fuzz.numbers import compare

Array = np.ndarray[Any, Any]
Points = dict[str, Array]
"""Values of all names at all instances, as one array per name."""


def points(loops: list[tuple[str, p.Index]], sizes: dict[str, int]) -> Points:
    """All iterations of a loop nest, one array entry per iteration."""
    rows: list[dict[str, int]] = [dict(sizes)]
    for var, extent in loops:
        rows = [{**r, var: i} for r in rows for i in range(int(values(extent, {k: np.int64(v) for k, v in r.items()})))]
    names = [*sizes, *[v for v, _ in loops]]
    return {n: np.array([r[n] for r in rows], np.int64) for n in names}


def values(e: p.Index, at: Any) -> Any:
    """Values of an index expression at all points; division by zero gives 0."""
    if isinstance(e, p.Num):
        return np.int64(e.value)
    if isinstance(e, p.Name):
        return at[e.name]
    a, b = values(e.a, at), values(e.b, at)
    with np.errstate(all="ignore"):
        match e.op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "//":
                return np.floor_divide(a, b)
            case "%":
                return np.mod(a, b)
            case "min":
                return np.minimum(a, b)
    return np.maximum(a, b)


def divides_badly(e: p.Index, at: Any) -> bool:
    """Whether any divisor is <= 0 at some point, which index expressions must not have."""
    if not isinstance(e, p.Arith):
        return False
    bad = e.op in ("//", "%") and bool(np.any(values(e.b, at) <= 0))
    return bad or divides_badly(e.a, at) or divides_badly(e.b, at)


def inside(e: p.Index, extent: p.Index, spaces: list[Points]) -> bool:
    """Whether 0 <= e < extent at all points of all calls, and all divisors are >= 1."""
    for at in spaces:
        v = values(e, at)
        if np.any(v < 0) or np.any(v >= values(extent, at)) or divides_badly(e, at):
            return False
    return True


def holding(spaces: list[Points], guards: list[p.IndexCompare]) -> list[Points]:
    """The points where all guards hold."""
    out = []
    for at in spaces:
        count = len(next(iter(at.values()))) if at else 0
        keep = np.ones(count, bool)
        for g in guards:
            keep &= np.broadcast_to(np.asarray(compare(g.op, values(g.a, at), values(g.b, at))), (count,))
        out.append({k: v[keep] for k, v in at.items()})
    return out


def empty(spaces: list[Points]) -> bool:
    """Whether there are no points."""
    return all(not len(v) for at in spaces for v in list(at.values())[:1])
