"""Choose the domains of tile sizes: dense for register tiles, derived from the extent for cache blocks."""

from __future__ import annotations

import math

from tunesmith.ir.analysis.access_regions import reads
from tunesmith.ir.poly import Op, Poly, Var
from tunesmith.ir.stmt import Block

ROWS = (*range(1, 17), 18, 20, 22, 24, 26, 28, 30)
"""Numbers of rows of a register tile."""
VECTORS = (1, 2, 3, 4, 5, 6)
"""Numbers of vectors of a register tile."""
FEW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
"""Sizes of a cache block in inner tiles."""


def vector_tiles(lanes: int, registers: int) -> tuple[int, ...]:
    """Numbers of columns of a register tile: 1 to min(6, max(registers // 4, 2)) whole vectors."""
    return tuple(lanes * n for n in VECTORS if n <= max(registers // 4, 2))


def vector_widths(b: Block, axis: int, lanes: int, registers: int) -> tuple[int, ...]:
    """Numbers of columns of a register tile: whole vectors, and if the columns are in groups, only numbers that divide the group, so that
    each tile reads the input channels of one group.  Groups of a few columns are not respected: their vectors would be mostly empty."""
    widths = vector_tiles(lanes, registers)
    group = math.gcd(*[n for a in reads(b) for e in a.indices for n in _quotients(e, b.iters[axis].var)])
    if group * 2 < lanes:
        return widths
    return (
        tuple([n for n in widths if group % n == 0]) or tuple([n for n in range(lanes // 2, max(widths) + 1) if group % n == 0]) or widths
    )


def _quotients(e: Poly, v: Var) -> list[int]:
    """The numbers by which an index divides the variable."""
    ops = [a for monomial, _ in e.terms for a in monomial if isinstance(a, Op) and v in a.vars]
    own = [n for a in ops if a.op == "floordiv" and a.args[0].as_var() is v and (n := a.args[1].const) is not None]
    return [*own, *[n for a in ops for arg in a.args for n in _quotients(arg, v)]]


def middle_tiles(extent: int, inner: tuple[int, ...], limit: int = 64) -> tuple[int, ...]:
    """Numbers of inner tiles in a cache block: small numbers, powers of two, and those that cover the extent in 1 to 8 blocks."""
    found = {n for n in FEW if n <= extent}
    n = 1
    while n <= extent:
        found.add(n)
        n *= 2
    for t in inner:
        if t <= extent:
            found |= {-(-extent // (t * blocks)) for blocks in (1, 2, 3, 4, 6, 8)}
    ordered = sorted(found)
    return (
        tuple(ordered)
        if len(ordered) <= limit
        else tuple(sorted(set(ordered[:: -(-len(ordered) // limit)]) | {ordered[-1], *[n for n in ordered if n <= 8]}))
    )


def outer_tiles(extent: int) -> tuple[int, ...]:
    """Numbers of blocks in one task of the parallel loop."""
    return tuple(n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n <= extent)
