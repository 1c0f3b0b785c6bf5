"""Assign the elements of a register buffer to variables, so that a compiler keeps them in registers."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.codegen.cpu.active_lanes import active_lanes, inactive_lanes_are_unused
from tunesmith.ir.buffer import Buffer, BufferLoad
from tunesmith.ir.stmt import BufferStore, Stmt
from tunesmith.ir.visit import walk_objects
from tunesmith.support import dtype as dt


@dataclass(frozen=True, slots=True)
class Registers:
    """The variables of a register buffer.

    Attributes:
        lanes: lanes of the variable that starts at an element, by element.
        whole: whether a masked store may write all lanes, because no access uses the others.
        blended: the elements of variables of which a store writes some lanes only, and keeps the others.
    """

    lanes: dict[int, int]
    whole: bool
    blended: frozenset[int]


def variables_of(buffer: Buffer, body: Stmt) -> Registers | None:
    """The variables for a buffer that only `body` accesses; None if an index varies, or vectors overlap in part."""
    lanes: dict[int, int] = {}
    stores: list[tuple[int, int, bool]] = []
    for n in walk_objects(body):
        if not isinstance(n, BufferLoad | BufferStore) or n.buffer is not buffer:
            continue
        count = n.lanes if isinstance(n, BufferLoad) else dt.lanes(n.value.dtype)
        at = n.indices[0].const
        if at is None or (count > 1 and n.stride is not None and n.stride.const != 1):
            return None
        lanes[at] = max(lanes.get(at, 1), count)
        if isinstance(n, BufferStore):
            stores.append((at, count, active_lanes(n.mask, count) is not None))
    held: dict[int, int] = {}
    end = None
    for at in sorted(lanes):
        if end is None or at >= end:
            held[at], end = lanes[at], at + lanes[at]
        elif lanes[at] > 1:
            return None
    if any(held.get(at, 1) != count for at, count, _ in stores if count > 1):
        return None
    whole = inactive_lanes_are_unused(buffer, body)
    kept = {at for at, _, masked in stores if masked and not whole}
    kept |= {max(start for start in held if start <= at) for at, count, _ in stores if count == 1 and held.get(at) != 1}
    loads_in_part = any(
        isinstance(n, BufferLoad) and n.buffer is buffer and n.lanes > 1 and held.get(n.indices[0].as_int()) != n.lanes
        for n in walk_objects(body)
    )
    return None if loads_in_part else Registers(held, whole, frozenset(kept))
