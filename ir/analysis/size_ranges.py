"""Read the ranges of the symbolic sizes of a function."""

from __future__ import annotations

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import Param, Var
from tunesmith.ir.specialize import sizes_of

Range = tuple[int, int]
"""Lowest and highest value."""
SIZE_RANGES = "size_ranges"
"""Attribute of a function for a part of its sizes: `n=65..128 m=1..16`, in the order of its sizes.  Names are for readers: a script may
rename a size."""
LARGEST_SIZE = 2**31 - 1
"""Largest value of a size."""


def size_ranges(func: PrimFunc) -> dict[Var, Range]:
    """Ranges of the sizes of a function: those of its attribute, else 1 to `LARGEST_SIZE`."""
    given = func.attr(SIZE_RANGES)
    sizes = sizes_of(func)
    listed = [text.partition("=")[2].split("..") for text in given.split()] if isinstance(given, str) else []
    if len(listed) != len(sizes):
        return {v: (1, LARGEST_SIZE) for v in sizes}
    return {v: (int(low), int(high)) for v, (low, high) in zip(sizes, listed, strict=True)}


def symbol_ranges(func: PrimFunc) -> dict[Var, Range]:
    """Ranges of all symbols in the parameters of a function: sizes, and the domains of Params."""
    out: dict[Var, Range] = dict(size_ranges(func))
    for p in func.params:
        for v in () if isinstance(p, Var) else {v for e in p.shape for v in e.vars}:
            out.setdefault(v, (v.domain[0], v.domain[-1]) if isinstance(v, Param) else (1, LARGEST_SIZE))
    return out
