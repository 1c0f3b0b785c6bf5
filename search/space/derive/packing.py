"""Pack an operand of a contraction into panels of the register tile's width."""

from __future__ import annotations

from collections.abc import Container

from tunesmith.ir.analysis.access_regions import reads, writes
from tunesmith.ir.buffer import Buffer
from tunesmith.ir.stmt import Block
from tunesmith.schedule.handles import IntRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.derive.plans import rows_of
from tunesmith.search.space.rules.block_classes import Operand, access_to_pack, operands


def packed_operand(b: Block, axis: int, contiguous: bool, excluded: Container[Buffer] = ()) -> Operand | None:
    """The operand of a contraction to pack: one that rows of the tile reuse, and that is not contiguous along the vector axis.

    Args:
        b: the contraction.
        axis: position of the vector axis.
        contiguous: whether an operand that is contiguous along the vector axis is packed, too.
        excluded: buffers that cannot be packed, because they are computed in the nest.
    """
    vector = b.iters[axis].var
    rows = {b.iters[n].var for n in rows_of(b)}
    packable = {a.buffer for a in reads(b) if any(e.as_var() is vector for e in a.indices)}
    for o in operands(b):
        if vector not in o.iters or o.buffer in excluded or rows <= o.iters or o.buffer not in packable:
            continue
        if contiguous or vector not in o.contiguous:
            return o
    return None


def pack(s: Schedule, name: str, axis: int, width: IntRV, contiguous: bool, threads: bool) -> None:
    """Pack an operand before the nest of a contraction that is in its place; only results of other nests and parameters can be packed.

    The layout is [batch dimensions, vector axis / width, the other dimensions, vector axis % width].
    """
    block = s.get_block(name)
    b = s.block(block)
    here = s.root_index(name)
    made_here = {w.buffer for c in s.blocks() if s.root_index(c.name) == here for w in writes(c)}
    operand = packed_operand(b, axis, contiguous, made_here)
    if operand is None:
        return
    vector = b.iters[axis].var
    access, indices = access_to_pack(b, operand.buffer, vector)
    at = next(d for d, e in enumerate(indices) if e.as_var() is vector)
    spatial = {it.var for it in b.iters if it.kind == "S"}
    batch = [d for d in range(len(indices)) if d != at and indices[d].vars <= spatial]
    rest = [d for d in range(len(indices)) if d != at and d not in batch]
    copy = s.cache_read(block, operand.buffer.name, "global", [*batch, [at, "/", width], *rest, [at, "%", width]], **access)
    loops = s.get_loops(copy)
    s.vectorize(loops[-1])
    tasks = s.fuse(loops[: len(batch) + 1])
    if threads:
        s.parallel(tasks)
