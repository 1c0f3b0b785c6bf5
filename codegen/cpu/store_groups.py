"""Group strided stores whose equal lanes are adjacent in memory, so that they are rearranged in registers and stored whole.

The tile of a convolution in NCHW has its channels in lanes and its pixels in different vectors.  Storing such a vector needs a scatter,
one element at a time; after a transposition in registers, each vector holds the pixels of one channel and is stored whole.  Vectors that
fill the gaps of each other, as in a packed operand of a dot product, are interleaved and stored at once.  Products of tiles are grouped to
be ordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunesmith.codegen.cpu.active_lanes import active_lanes
from tunesmith.ir.buffer import TILE_SCOPE, Buffer, BufferLoad
from tunesmith.ir.expr import Call
from tunesmith.ir.intrinsics import TILE_PRODUCTS
from tunesmith.ir.poly import ONE, Poly, split_constant
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt


@dataclass(frozen=True, slots=True)
class _Strided:
    """Strided stores to one buffer, in address order, with equal numbers of lanes.

    Attributes:
        stores: the stores.
        lanes: active lanes of each store.
    """

    stores: tuple[BufferStore, ...]
    lanes: int

    @property
    def buffer(self) -> Buffer:
        """The destination."""
        return self.stores[0].buffer


@dataclass(frozen=True, slots=True)
class Tile(_Strided):
    """Strided stores to adjacent addresses, at least half as many as lanes.

    Attributes:
        stride: elements between lanes, of each store.
    """

    stride: Poly


@dataclass(frozen=True, slots=True)
class Interleaved(_Strided):
    """Strided stores, a power of two, that together write each element of a contiguous range once."""


@dataclass(frozen=True, slots=True)
class Products:
    """Products of tiles that are added to different sums, and read no sums besides their own."""

    stores: tuple[BufferStore, ...]


Grouped = Stmt | Tile | Interleaved | Products


def grouped_stores(stmts: Sequence[Stmt]) -> list[Grouped]:
    """The statements in order, with strided stores and products of tiles grouped."""
    out: list[Grouped] = []
    at = 0
    while at < len(stmts):
        if products := _products(stmts, at):
            out.append(Products(tuple(products)))
            at += len(products)
            continue
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


def _products(stmts: Sequence[Stmt], first: int) -> list[BufferStore]:
    """The consecutive products from the statement number `first` on, if there are several."""
    out: list[BufferStore] = []
    sums: set[tuple[Buffer, Poly]] = set()
    for n in range(first, len(stmts)):
        s = stmts[n]
        if type(s) is not BufferStore or type(s.value) is not Call or s.value.name not in TILE_PRODUCTS:
            break
        place = s.buffer, s.indices[0]
        if place in sums:
            break
        sums.add(place)
        out.append(s)
    return out if len(out) > 1 else []


def _is_strided(s: Stmt) -> bool:
    if type(s) is not BufferStore or s.buffer.scope == TILE_SCOPE:  # tile registers have no addresses
        return False
    return s.stride is not None and s.stride != ONE and dt.lanes(s.value.dtype) > 1


def _tiles_of(stores: list[BufferStore]) -> list[Grouped]:
    """Group consecutive strided stores; stores stay as they are if one of them reads a buffer that another writes."""
    written = {s.buffer for s in stores}
    if any(type(x) is BufferLoad and x.buffer in written for s in stores for x in walk_objects(s.value)):
        return list(stores)
    out: list[Grouped] = []
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


def _closed(run: list[_Placed], lanes: int) -> list[Grouped]:
    stores = tuple([p.store for p in run])
    first = stores[0]
    active = active_lanes(first.mask, lanes)
    count = lanes if active is None else active.const
    strides = first.stride.const if first.stride is not None else None
    if count and strides == len(run) and len(run) & (len(run) - 1) == 0:
        return [Interleaved(stores, count)]
    # Rows longer than the stride would overlap the next lane, and the order of overlapping writes would change.
    if not count or 2 * len(run) < lanes or lanes & (lanes - 1) or strides is None or abs(strides) < len(run):
        return list(stores)
    assert first.stride is not None
    return [Tile(stores, count, first.stride)]
