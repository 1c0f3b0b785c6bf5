"""Schedule elementwise operators on GPUs: inline into the output, distribute vectors of elements over threads."""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import has_own_nests, is_output, is_pointwise
from tunesmith.search.space.rules.gpu_limits import fetch_widths

THREADS = (32, 64, 128, 256, 512, 1024)
TURNS = (1, 2, 4, 8)
"""Vectors per thread."""

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule if every block is pointwise; none for scalars, which need only one thread."""
    blocks = blocks_under(func.body)
    if not blocks or not all(is_pointwise(b) and b.iters for b in blocks) or not has_own_nests(func):
        return []
    return [("gpu pointwise", lambda s: schedule(s, target))]


def schedule(s: Schedule, target: Target) -> None:
    """Inline, and distribute the elements over threads."""
    for b in [b.name for b in s.blocks() if not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))
    threads = tuple(t for t in THREADS if t <= target.max_threads_per_block)
    for b in [b.name for b in s.blocks()]:
        block = s.get_block(b)
        widths = fetch_widths(s.block(block).body.buffer, target)  # type: ignore[attr-defined]
        loop = s.fuse(s.get_loops(block))
        factors = s.sample_tile(loop, 4, f"{b}_", [TURNS, threads, widths], waste=0.25, slack=1024)
        outer, turns, thread, lane = s.split(loop, [None, *factors])
        s.unroll(turns)
        s.bind(outer, "blockIdx.x")
        s.bind(thread, "threadIdx.x")
        s.vectorize(lane)
