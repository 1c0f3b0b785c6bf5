"""Bind the spatial loops that a schedule has left unbound to thread blocks and threads, one iteration per thread."""

from __future__ import annotations

from tunesmith.ir.stmt import Block, For
from tunesmith.schedule.handles import BlockRV, IntRV
from tunesmith.schedule.independence import is_independent
from tunesmith.schedule.schedule import Schedule

THREADS = 256
"""Default number of threads per thread block, used without a search."""


def bind_rest(s: Schedule, threads: IntRV | int = THREADS) -> None:
    """Bind the nests without bound loops (source: TVM MetaSchedule's AutoBind)."""
    for b in [b.name for b in s.blocks()]:
        loops = s.loops_of(b)
        if any(f.kind == "thread" for f in loops):
            continue
        bind_spatial(s, s.get_block(b), threads)


def bind_spatial(s: Schedule, block: BlockRV, threads: IntRV | int) -> None:
    """Fuse the spatial loops of a block and bind them to thread blocks of `threads` threads; without spatial loops nothing is bound.

    Loops whose iterations depend on each other, as those of scans and scatters, are inside: each thread runs them in order.
    """
    b: Block = s.block(block)
    reducing = {v for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R" for v in e.vars}
    handles = s.get_loops(block)
    own: list[For] = [s.loop(x) for x in handles]
    reducing |= {f.var for f in own if f.var not in reducing and not is_independent(s, f)}
    # Loops with one iteration are left out, because they only make the fused indices harder to analyse.
    wide = [f for f in own if f.var not in reducing and f.extent != 1] or [f for f in own if f.var not in reducing]
    spatial = [x for x, f in zip(handles, own, strict=True) if f in wide]
    rest = [x for x, f in zip(handles, own, strict=True) if f not in wide]
    if rest and spatial:
        s.reorder([*spatial, *rest])
    if not spatial:
        return
    outer, inner = s.split(s.fuse(spatial), [None, threads])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
