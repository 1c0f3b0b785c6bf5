"""Transpose register tiles of strided stores whose equal lanes are adjacent in memory, and store them whole.

The tile of a convolution in NCHW has its channels in lanes and its pixels in different vectors.  Storing such a vector needs a scatter,
one element at a time; after a transposition in registers, each vector holds the pixels of one channel and is stored whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tunesmith.codegen.llvm.kernel.masks import active_lanes
from tunesmith.codegen.llvm.text import vector_literal
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import ONE, Poly, split_constant
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt


@dataclass(frozen=True, slots=True)
class Tile:
    """Strided stores to adjacent addresses.

    Attributes:
        stores: in address order; equal stride and number of lanes; at least half as many stores as lanes.
        lanes: active lanes of each store.
        stride: elements between lanes.
    """

    stores: tuple[BufferStore, ...]
    lanes: int
    stride: Poly

    @property
    def buffer(self) -> Buffer:
        """The destination."""
        return self.stores[0].buffer


def find_tiles(stmts: Sequence[Stmt]) -> list[Stmt | Tile]:
    """The statements in order, with strided stores grouped into tiles."""
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
    """Group consecutive strided stores; stores stay as they are if one of them reads a buffer that another writes."""
    written = {s.buffer for s in stores}
    if any(type(x) is BufferLoad and x.buffer in written for s in stores for x in walk_objects(s.value)):
        return list(stores)
    out: list[Stmt | Tile] = []
    for batch in _disjoint_batches(stores):
        groups: dict[object, list[_Placed]] = {}
        for p in batch:
            s = p.store
            groups.setdefault((s.buffer, s.value.dtype, s.stride, s.mask, p.varying), []).append(p)
        for group in groups.values():
            group.sort(key=lambda p: p.offset)
            lanes = dt.lanes(group[0].store.value.dtype)
            run: list[_Placed] = []
            for p in group:
                if run and (p.offset != run[-1].offset + 1 or len(run) == lanes):
                    out.extend(_closed(run, lanes))
                    run = []
                run.append(p)
            out.extend(_closed(run, lanes))
    return out


@dataclass(frozen=True, slots=True)
class _Placed:
    """A strided store and the address of its first lane.

    Attributes:
        store: the store.
        varying: its index without the constant term.
        offset: the constant term.
    """

    store: BufferStore
    varying: Poly
    offset: int


def _disjoint_batches(stores: list[BufferStore]) -> Iterator[list[_Placed]]:
    """The stores in order, split so that no two stores of a batch may write the same element; a batch can be reordered."""
    batch: list[_Placed] = []
    written: dict[Buffer, _Written] = {}
    for s in stores:
        p = _Placed(s, *split_constant(s.indices[0]))
        w = written.get(s.buffer)
        if w is not None and not w.add(p):
            yield batch
            batch, written, w = [], {}, None
        if w is None:
            written[s.buffer] = _Written(p)
        batch.append(p)
    yield batch


class _Written:
    """Elements of one buffer written with one varying part and one stride: runs of multiples of the stride, by remainder."""

    def __init__(self, first: _Placed) -> None:
        self.varying, self.stride = first.varying, first.store.stride
        self._runs: dict[int, list[tuple[int, int]]] = {}
        self.add(first)

    def add(self, p: _Placed) -> bool:
        """Add the elements of `p` if they are certainly disjoint from all earlier ones; returns whether they are."""
        step = p.store.stride.const if p.store.stride is not None else None
        if not step or p.varying != self.varying or p.store.stride != self.stride:
            return False
        active = active_lanes(p.store.mask, dt.lanes(p.store.value.dtype))
        count = dt.lanes(p.store.value.dtype) if active is None or active.const is None else active.const
        low, remainder = divmod(p.offset, abs(step))
        first, end = (low, low + count) if step > 0 else (low - count + 1, low + 1)
        runs = self._runs.setdefault(remainder, [])
        if any(first < e and f < end for f, e in runs):
            return False
        runs.append((first, end))
        return True


def _closed(run: list[_Placed], lanes: int) -> list[Stmt | Tile]:
    stores = tuple([p.store for p in run])
    first = stores[0]
    active = active_lanes(first.mask, lanes)
    count = lanes if active is None else active.const
    strides = first.stride.const if first.stride is not None else None
    # Rows longer than the stride would overlap the next lane, and the order of overlapping writes would change.
    if not count or 2 * len(run) < lanes or lanes & (lanes - 1) or strides is None or abs(strides) < len(run):
        return list(stores)
    assert first.stride is not None
    return [Tile(stores, count, first.stride)]


def transpose(values: Sequence[str], vector: str, lanes: int, op: Callable[[str], str]) -> list[str]:
    """`lanes` vectors, of which vector l holds lane l of all values; missing values are poison.

    log2(lanes) perfect shuffles of all elements; each moves one bit from the vector number to the lane number.

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
