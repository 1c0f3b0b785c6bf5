"""Decide whether a block has a structure, so that it can be tiled and vectorised, and computed inside the tiles of another block."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, writes
from tunesmith.ir.stmt import Block, BufferStore, For, If
from tunesmith.ir.visit import walk
from tunesmith.schedule.independence import is_independent
from tunesmith.schedule.state import ScheduleState
from tunesmith.search.space.derive.scans import scan_axis
from tunesmith.search.space.derive.scatters import is_scatter
from tunesmith.search.space.rules.block_classes import is_pointwise, is_reduction


def is_regular(b: Block) -> bool:
    """Whether the block is elementwise, or a reduction into its own variables, and can be computed in the tiles of another block."""
    return is_pointwise(b) or (is_reduction(b) and type(b.body) is BufferStore and _accumulates_at_variables(b))


def irregularity(b: Block) -> str:
    """Why the block has no structure; empty if it has one.  Such a block keeps its loops; independent outer loops run in parallel."""
    if is_regular(b) or scan_axis(b) is not None or is_scatter(b):
        return ""
    if type(b.body) is not BufferStore:
        return _of_statements(b)
    if is_reduction(b):
        return "it accumulates at indices that are not its spatial iteration variables, each once"
    if any(not a.is_write and a.buffer is b.body.buffer and a.indices != b.body.indices for a in accesses(b)):
        return "it reads elements that its other instances write"
    if any(it.kind == "R" for it in b.iters):
        return "it has reduction variables, but no init and update of the form C[...] = C[...] op value"
    return "it does not store at its iteration variables, each once"


def _of_statements(b: Block) -> str:
    """Why a block whose body is not a single store has no structure."""
    inside = list(walk(b.body))
    if sum(type(n) is BufferStore for n in inside) > 1:
        return "it stores several values in one instance"
    if any(type(n) is For for n in inside):
        return "it has a loop inside the block"
    if any(type(n) is If for n in inside):
        return "its store is conditional: elements for which the condition is false keep their value"
    return "its store is part of a larger statement"


def serial_part(s: ScheduleState, b: Block) -> str:
    """Why a block with a structure runs serially, over all of its iterations; empty if it does not, or has no structure."""
    axis = scan_axis(b)
    if axis is not None:
        long = [n for n, it in enumerate(b.iters) if it.extent.const != 1]
        return "each element needs the one before it, and there is no other axis" if long == [axis] else ""
    if not is_scatter(b):
        return ""
    loops = [n for n in s.path(b.name) if type(n) is For and n.extent.const != 1]
    if not loops or any(is_independent(s, x) for x in loops):
        return ""
    return "updates of one element stay in order, and each of its loops may update an element twice"


def _accumulates_at_variables(b: Block) -> bool:
    index = [plain_iter(e, b) for e in writes(b)[0].indices]
    spatial = {n for n, it in enumerate(b.iters) if it.kind == "S" and it.extent.const != 1}
    return None not in index and len(set(index)) == len(index) and spatial <= set(index)
