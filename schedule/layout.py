"""Interpret the layouts of primitives: a list of dimensions, permuted and split, that a trace records as plain data.

An entry is an int (that dimension), [d, "/", f] (its outer part) or [d, "%", f] (its inner part), where f is a sampled factor or an int.
Every dimension occurs once, or once as "/" and once as "%" with the same factor, so a layout maps different indices to different places.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.poly import ZERO, Poly, ceildiv, floordiv, mod
from tunesmith.ir.stmt import BufferStore
from tunesmith.ir.visit import walk
from tunesmith.schedule.handles import IntRV
from tunesmith.schedule.state import ScheduleState
from tunesmith.support import dtype as dt

Layout = Sequence["int | Sequence[int | str | IntRV]"]

Dim = tuple[int, str, "Poly | None"]
"""An entry: dimension, "/" or "%" or "" for the whole dimension, factor."""


def checked_layout(s: ScheduleState, layout: Layout | None, rank: int, name: str) -> list[Dim]:
    """The entries of a layout of `name`, which has `rank` dimensions; None keeps the order.  Refuses (layout) any other argument."""
    if layout is None:
        return [(d, "", None) for d in range(rank)]
    spec: list[Dim] = []
    if not isinstance(layout, (list, tuple)):
        raise s.refuse("layout", f"the layout is {layout!r}; it must be a list with an entry for each dimension")
    for item in layout:
        entry = tuple(item) if isinstance(item, (list, tuple)) else (item,)
        if len(entry) == 1 and isinstance(entry[0], int):
            spec.append((entry[0], "", None))
        elif len(entry) == 3 and isinstance(entry[0], int) and entry[1] in ("/", "%") and isinstance(entry[2], (int, IntRV)):
            spec.append((entry[0], str(entry[1]), s.value(entry[2])))
        else:
            raise s.refuse("layout", f"a layout entry is an int, [d, '/', f] or [d, '%', f]; got {item!r}")
    beyond = sorted({d for d, _, _ in spec if not 0 <= d < rank})
    if beyond:
        raise s.refuse("layout", f"the layout names dimension {beyond[0]}, but {name} has {rank} dimensions, counted from 0")
    for d in range(rank):
        parts = [(op, f) for dim, op, f in spec if dim == d]
        whole = parts == [("", None)]
        halves = len(parts) == 2 and {op for op, _ in parts} == {"/", "%"} and parts[0][1] == parts[1][1]
        if not (whole or halves):
            raise s.refuse("layout", f"dimension {d} of {name} must occur in the layout once, or as '/' and '%' with one factor")
    for _, _, f in spec:
        if f is not None:
            s.require("le0", 1 - f, "layout", "a dimension is split by a factor of at least 1", f)
    return spec


def extent_of(shape: Sequence[Poly], dim: Dim) -> Poly:
    """The extent of an entry; a dimension that the factor does not divide is padded."""
    d, op, f = dim
    if f is None:
        return shape[d]
    return ceildiv(shape[d], f) if op == "/" else f


def index_in(indices: Sequence[Poly], dim: Dim) -> Poly:
    """The index of an entry for an element with the given indices of the original dimensions."""
    d, op, f = dim
    if f is None:
        return indices[d]
    return floordiv(indices[d], f) if op == "/" else mod(indices[d], f)


def original_indices(spec: Sequence[Dim], indices: Sequence[Poly]) -> list[Poly]:
    """The indices of the original dimensions for an element with one index for each entry."""
    out = [ZERO] * len({d for d, _, _ in spec})
    for (d, op, f), e in zip(spec, indices, strict=True):
        out[d] = out[d] + (e if f is None or op == "%" else e * f)
    return out


def split_dimensions(spec: Sequence[Dim]) -> dict[int, Poly]:
    """The factor of each dimension that is split."""
    return {d: f for d, _, f in spec if f is not None}


def check_scalar_accesses(s: ScheduleState, buffer: Buffer) -> None:
    """Refuse (scalar) a buffer that the script accesses by vectors, whose lanes have consecutive places of the old layout."""
    for n in walk(s.func.body):
        lanes = n.lanes if type(n) is BufferLoad else dt.lanes(n.value.dtype) if type(n) is BufferStore else 1
        if lanes != 1 and n.buffer is buffer:
            raise s.refuse("scalar", f"{buffer.name} is accessed by vectors of {lanes} elements, whose places would change", n)
