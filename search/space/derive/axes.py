"""Find the iteration variables of different blocks that are one axis of the computation.

A producer and a consumer share an axis if the consumer reads the intermediate buffer at a plain variable where the producer writes it at a
plain variable.  An index `v // n` shares the producer's axis with the outer part of v, as in a group norm.  Other indices, such as h + kh
or a looked-up index, share none.  No two variables of one block become the same axis: D[i, j] = N[i] + N[j] shares one axis with N, and N
is recorded as read at two places.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.analysis.access_regions import plain_iter, reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.poly import Op, Poly
from tunesmith.ir.stmt import Block

Axis = tuple[str, int, bool]
"""A representative: block, position of an iteration variable, and whether it is the outer part of that variable."""

HALO = 16
"""Distance of two reads along an axis beyond which the producer is not computed inside the consumer's tiles."""


class AxisClasses:
    """The axes of blocks that belong to one function.

    Variables with one iteration belong to no axis.

    Attributes:
        read_apart: blocks whose values are read at several axes of one block, so that they cannot be computed inside its tiles.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = {b.name: b for b in blocks}
        self._parent: dict[Axis, Axis] = {}
        self._members: dict[Axis, dict[str, Axis]] = {}
        self.read_apart: set[str] = set()
        self._divisors: dict[tuple[str, int], int] = {}
        written: dict[Buffer, tuple[Block, tuple[Poly, ...]]] = {}
        for b in blocks:
            for w in writes(b):
                written.setdefault(w.buffer, (b, w.indices))
        for c in blocks:
            for a in reads(c):
                producer, indices = written.get(a.buffer, (c, ()))
                if producer is not c:
                    for e, f in zip(a.indices, indices, strict=True):
                        self._join_indices(c, e, producer, f)

    def _join_indices(self, c: Block, e: Poly, producer: Block, f: Poly) -> None:
        there = plain_iter(f, producer)
        if there is None:
            return
        here = plain_iter(e, c)
        if here is not None:
            self._join((c.name, here, False), (producer.name, there, False), producer.name)
            return
        if any((e - it.var).const is not None and abs((e - it.var).as_int()) > HALO for it in c.iters):
            self.read_apart.add(producer.name)
            return
        quotient = _quotient(e, c)
        if quotient is not None:
            position, divisor = quotient
            if self._divisors.setdefault((c.name, position), divisor) == divisor:
                self._join((c.name, position, True), (producer.name, there, False), producer.name)

    def _root(self, a: Axis) -> Axis:
        while a in self._parent:
            a = self._parent[a]
        return a

    def _join(self, a: Axis, b: Axis, producer: str) -> None:
        a, b = self._root(a), self._root(b)
        if a == b:
            return
        mine, other = self._members.get(a, {a[0]: a}), self._members.get(b, {b[0]: b})
        if any(mine.get(block, v) != v for block, v in other.items()):
            self.read_apart.add(producer)
            return
        self._parent[a] = b
        self._members[b] = {**mine, **other}

    def axis(self, block: str, position: int) -> Axis:
        """The axis of an iteration variable."""
        return self._root((block, position, False))

    def outer_part(self, block: str, position: int) -> tuple[Axis, int] | None:
        """The axis of `v // n` and n for an iteration variable v that an index divides; None for others."""
        n = self._divisors.get((block, position))
        return None if n is None else (self._root((block, position, True)), n)

    def spatial(self, block: str) -> dict[Axis, int]:
        """Extents of a block's spatial axes, with the outer parts of divided variables."""
        out: dict[Axis, int] = {}
        for n, it in enumerate(self._blocks[block].iters):
            extent = it.extent.const
            if it.kind == "S" and extent is not None and extent != 1:
                out[self.axis(block, n)] = extent
                outer = self.outer_part(block, n)
                if outer is not None:
                    out[outer[0]] = extent // outer[1]
        return out

    def axes(self, block: str) -> set[Axis]:
        """All axes of a block."""
        return {self.axis(block, n) for n, it in enumerate(self._blocks[block].iters) if it.extent.const != 1}

    def shared(self, blocks: Sequence[str]) -> dict[Axis, int]:
        """Extents of the axes that are spatial in all of the blocks."""
        common = self.spatial(blocks[0])
        for b in blocks[1:]:
            mine = self.spatial(b)
            common = {a: n for a, n in common.items() if a in mine}
        return common


def _quotient(e: Poly, block: Block) -> tuple[int, int] | None:
    """(position of v, n) for an index v // n with a constant n that divides the extent of v."""
    op = e.as_atom()
    if type(op) is not Op or op.op != "floordiv":
        return None
    position, n = plain_iter(op.args[0], block), op.args[1].const
    if position is None or not n:
        return None
    extent = block.iters[position].extent.const
    return (position, n) if extent is not None and extent % n == 0 else None
