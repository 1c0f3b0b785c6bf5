"""Schedule scans on CPUs: the axis that is computed in order stays serial, others are parallel, and lanes or rows hide its latency."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import accesses
from tunesmith.ir.poly import Poly, poly, substitute
from tunesmith.ir.stmt import Block, BufferStore
from tunesmith.ir.target.target import Target
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.tile_domains import outer_tiles

ROWS = (1, 2, 4, 8)
"""Numbers of independent rows that are computed in turns: a row waits for its last result, and the others use the time."""
VECTORS = (1, 2, 4, 8, 16)
"""Numbers of vectors of neighbouring elements that are computed in turns."""


def scan_axis(b: Block) -> int | None:
    """The position of the iteration variable along which a scan is computed in order; None for other blocks.

    A scan stores one element for each value of its spatial variables, and loads elements that it has stored at smaller values of one of
    them.
    """
    body = b.body
    if type(body) is not BufferStore or b.init is not None:
        return None
    at = [_variable(e, b) for e in body.indices]
    found = {n for n in at if n is not None}
    if any(it.extent.const != 1 and at.count(n) != 1 for n, it in enumerate(b.iters)):
        return None
    before = [a.indices for a in accesses(b) if not a.is_write and a.buffer is body.buffer and a.indices != body.indices]
    axes = [n for n in found if before and all(_is_before(b, n, body.indices, indices) for indices in before)]
    return axes[0] if axes and all(it.kind == "S" for n, it in enumerate(b.iters) if n != axes[0]) else None


def _variable(e: Poly, b: Block) -> int | None:
    """The position of the variable of an index `v + c` or `c - v`; None for other indices."""
    return next((n for n, it in enumerate(b.iters) for v in [poly(it.var)] if (e - v).const is not None or (e + v).const is not None), None)


def _is_before(b: Block, n: int, stored: tuple[Poly, ...], loaded: tuple[Poly, ...]) -> bool:
    """Whether an instance loads what the one with a smaller variable n, and otherwise equal variables, stores."""
    v = b.iters[n].var
    d = next(d for d, e in enumerate(stored) if v in e.vars)
    distance = (stored[d] - loaded[d]).const
    if distance is None:
        return False
    if (stored[d] + poly(v)).const is not None:
        distance = -distance
    return distance > 0 and loaded == tuple([substitute(e, {v: poly(v) - distance}) for e in stored])


def nest(s: Schedule, name: str, target: Target, threads: bool) -> None:
    """Schedule a scan in a nest of its own.

    Neighbouring elements are vectorised if they are on another axis than the scan's; otherwise rows are computed in turns.  The first
    iteration, which has no element before it, is apart from the others.
    """
    block = s.get_block(name)
    b = s.block(block)
    axis = scan_axis(b)
    assert axis is not None
    loops = s.get_loops(block)
    last = _contiguous(b)
    others = [x for n, x in enumerate(loops) if n != axis and (n != last or last == axis)]
    ordered = loops[axis]
    s.reorder([*others, ordered, *([loops[last]] if last is not None and last != axis else [])])
    if last is not None and last != axis:
        lanes = target.vector_lanes("float32")
        width = s.sample_tile(loops[last], 2, f"{name}_", [tuple(lanes * n for n in VECTORS)], waste=1.0, slack=lanes)
        outer, inner = s.split(loops[last], [None, *width])
        s.reorder([outer, ordered, inner])
        s.vectorize(inner)
        others.append(outer)
    elif others:
        fused = s.fuse(others)
        rows = s.sample_tile(fused, 2, f"{name}_", [ROWS], waste=1.0)
        outer, inner = s.split(fused, [None, *rows])
        s.reorder([outer, ordered, inner])
        s.unroll(inner)
        others = [outer]
    if (b.iters[axis].extent.const or 0) > 1:
        s.loop_partition(ordered, [1])
    if others:
        fused = s.fuse(others)
        chunk = s.sample_tile(fused, 2, f"{name}_task", [outer_tiles(s.loop(fused).extent.const or 1)], waste=1.0)
        task = s.split(fused, [None, *chunk])[0]
        if threads:
            s.parallel(task)


def _contiguous(b: Block) -> int | None:
    """The position of the variable whose neighbouring values are neighbours in memory."""
    assert isinstance(b.body, BufferStore)
    pairs = list(zip(b.body.indices, b.body.buffer.shape, strict=True))
    return next((n for e, extent in reversed(pairs) if extent.const != 1 and (n := _variable(e, b)) is not None), None)
