"""Bind the spatial loops that a schedule has left unbound to thread blocks and threads, one iteration per thread."""

from __future__ import annotations

from tunesmith.ir.stmt import Block, For, If
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
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


def independent_loops(s: Schedule, block: BlockRV, private: bool) -> list[LoopRV]:
    """The outermost loops around a block that can be fused to parallel tasks, outermost first.

    They form one perfect nest, no block in them reduces over them, and their iterations are independent.

    Args:
        s: the schedule.
        block: the block.
        private: an intermediate buffer that is used only inside a loop is private to an iteration.
    """
    found: list[LoopRV] = []
    chain: list[For] = []
    for x, f in zip(s.get_loops(block), s.loops_of(block), strict=True):
        if (chain and chain[-1].body is not f) or s.find_loop(s.func.body, f.var) is None:
            break
        if not f.extent.vars.isdisjoint([g.var for g in chain]) or _reduces(f) or not is_independent(s, f, private):
            break
        found.append(x)
        chain.append(f)
    return found


def _reduces(loop: For) -> bool:
    """Whether a block in the loop reduces over it."""
    return any(it.kind == "R" and loop.var in e.vars for b in blocks_under(loop) for it, e in zip(b.iters, b.bindings, strict=True))


def bind_spatial(s: Schedule, block: BlockRV, threads: IntRV | int) -> None:
    """Fuse the spatial loops of a block and bind them to thread blocks of `threads` threads; without spatial loops nothing is bound.

    Loops whose iterations depend on each other, as those of scans and scatters, are inside: each thread runs them in order.  In a nest
    with several statements, conditions, or extents that depend on other loops, the outermost independent loops are bound.
    """
    b: Block = s.block(block)
    if not _is_rectangular(s, block):
        _bind(s, independent_loops(s, block, private=False), threads)
        return
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
    _bind(s, spatial, threads)


def _is_rectangular(s: Schedule, block: BlockRV) -> bool:
    """Whether the loops around the block are one perfect nest, without conditions, and no extent depends on another of them."""
    path, loops = s.path(block), s.loops_of(block)
    perfect = all(type(n) is For for n in path[-1 - len(loops) : -1]) and not any(type(n) is If for n in path)
    return perfect and all(f.extent.vars.isdisjoint([g.var for g in loops]) for f in loops)


def _bind(s: Schedule, spatial: list[LoopRV], threads: IntRV | int) -> None:
    if not spatial:
        return
    outer, inner = s.split(s.fuse(spatial), [None, threads])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.x")
