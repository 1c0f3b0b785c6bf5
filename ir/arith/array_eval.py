"""Polynomials over Params on whole arrays of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tunesmith.ir.poly import Op, Param, Poly

Rows = npt.NDArray[np.int64]


def compile_polys(polys: Sequence[Poly], params: Sequence[Param]) -> Callable[[Rows], Rows]:
    """A function from rows [N, P] to values [N, len(polys)]; shared subexpressions are computed once."""
    column = {p: i for i, p in enumerate(params)}

    def run(rows: Rows) -> Rows:
        memo: dict[object, Rows] = {}

        def atom(a: object) -> Rows:
            v = memo.get(a)
            if v is None:
                if type(a) is Op:
                    xs = [value(x) for x in a.args]
                    v = _OPS[a.op](xs)
                else:
                    v = rows[:, column[a]]  # type: ignore[index]
                memo[a] = v
            return v

        def value(p: Poly) -> Rows:
            v = memo.get(p)
            if v is None:
                v = np.zeros(len(rows), np.int64)
                for m, c in p.terms:
                    t: Rows | None = None
                    for a in m:
                        t = atom(a) if t is None else t * atom(a)
                    v = v + (c if t is None else c * t)
                memo[p] = v
            return v

        return np.stack([value(p) for p in polys], axis=1) if polys else np.zeros((len(rows), 0), np.int64)

    return run


def _fold(f: Callable[[Rows, Rows], Rows]) -> Callable[[list[Rows]], Rows]:
    def run(xs: list[Rows]) -> Rows:
        out = xs[0]
        for x in xs[1:]:
            out = f(out, x)
        return out

    return run


_OPS: dict[str, Callable[[list[Rows]], Rows]] = {
    "floordiv": lambda x: x[0] // x[1],
    "mod": lambda x: x[0] % x[1],
    "ceildiv": lambda x: -(-x[0] // x[1]),
    "min": _fold(np.minimum),
    "max": _fold(np.maximum),
}
