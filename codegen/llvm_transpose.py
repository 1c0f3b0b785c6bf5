"""Tiles that are written across: vectors whose lanes lie far apart, but whose elements of one lane lie side by side.

The tile of a convolution in NCHW has its channels in lanes and its pixels in different vectors.  Storing such a vector needs a
scatter, one element at a time; transposed in registers, the vectors hold the pixels of one channel each, and are stored whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tunesmith.codegen.llvm_text import vector_literal
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import ONE, Poly, split_constant
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.visit import walk
from tunesmith.support import dtype as dt


@dataclass(frozen=True, slots=True)
class Tile:
    """Strided stores to consecutive places.

    Attributes:
        stores: in the order of their places; all of one stride and as many lanes, at least half as many as there are lanes.
        lanes: of each that are stored.
        stride: between lanes, in elements.
    """

    stores: tuple[BufferStore, ...]
    lanes: int
    stride: Poly

    @property
    def buffer(self) -> Buffer:
        """What is written."""
        return self.stores[0].buffer


def find_tiles(stmts: Sequence[Stmt]) -> list[Stmt | Tile]:
    """The statements in order, strided stores that make up a tile in one piece."""
    out: list[Stmt | Tile] = []
    at = 0
    while at < len(stmts):
        end = at
        while end < len(stmts) and _is_strided(stmts[end]):
            end += 1
        if end == at:
            out.append(stmts[at])
            end = at + 1
        else:
            out.extend(_tiles_of([s for s in stmts[at:end] if type(s) is BufferStore]))
        at = end
    return out


def _is_strided(s: Stmt) -> bool:
    return type(s) is BufferStore and s.stride is not None and s.stride != ONE and dt.lanes(s.value.dtype) > 1


def _tiles_of(stores: list[BufferStore]) -> list[Stmt | Tile]:
    """Strided stores that follow each other; as they are when their order matters, because some of what is written is read."""
    written = {s.buffer for s in stores}
    if any(type(x) is BufferLoad and x.buffer in written for s in stores for x in walk(s.value)):
        return list(stores)
    groups: dict[object, list[tuple[int, BufferStore]]] = {}
    for s in stores:
        varying, offset = split_constant(s.indices[0])
        groups.setdefault((s.buffer, s.value.dtype, s.stride, s.mask, varying), []).append((offset, s))
    out: list[Stmt | Tile] = []
    for group in groups.values():
        group.sort(key=lambda pair: pair[0])
        lanes = dt.lanes(group[0][1].value.dtype)
        run: list[tuple[int, BufferStore]] = []
        for offset, s in group:
            if run and (offset != run[-1][0] + 1 or len(run) == lanes):
                out.extend(_closed(run, lanes))
                run = []
            run.append((offset, s))
        out.extend(_closed(run, lanes))
    return out


def _closed(run: list[tuple[int, BufferStore]], lanes: int) -> list[Stmt | Tile]:
    first = run[0][1]
    count = lanes if first.mask is None else first.mask.const
    strides = first.stride.const if first.stride is not None else None
    # Lanes that lie closer than the tile is wide would overwrite each other in another order than scatters do.
    if count is None or 2 * len(run) < lanes or lanes & (lanes - 1) or strides is None or abs(strides) < len(run):
        return [s for _, s in run]
    assert first.stride is not None
    return [Tile(tuple([s for _, s in run]), count, first.stride)]


def transpose(values: Sequence[str], vector: str, lanes: int, op: Callable[[str], str]) -> list[str]:
    """`lanes` vectors, of which vector l holds lane l of all values, as far as there are values.

    A perfect shuffle of all elements, log2(lanes) times: each takes one bit from the number of the vector to the number of the lane.

    Args:
        values: at most `lanes` LLVM values.
        vector: their LLVM type.
        lanes: a power of two.
        op: emits an instruction and returns its result.
    """
    rows = [*values, *["poison"] * (lanes - len(values))]
    half = lanes // 2
    picks = [vector_literal([str(first + k // 2 + k % 2 * lanes) for k in range(lanes)], "i32") for first in (0, half)]
    for _ in range(lanes.bit_length() - 1):
        shuffled: list[str] = []
        for a, b in zip(rows[:half], rows[half:], strict=True):
            none = a == "poison" and b == "poison"
            shuffled += ["poison" if none else op(f"shufflevector {vector} {a}, {vector} {b}, <{lanes} x i32> {ids}") for ids in picks]
        rows = shuffled
    return rows
