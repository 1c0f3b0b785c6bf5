"""Schedule operators that reduce along rows and use the results in the same rows: softmax, norms, row sums.

All stages of a row are fused, so that a row is read from memory once.  Each reduction is split into the lanes of several vectors, which
are combined at the end of the row (source: Suriana et al., CGO 2017; rfactor).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunesmith.ir.analysis.work import worth_serial
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import (
    consumers,
    has_own_nests,
    is_contraction,
    is_output,
    is_pointwise,
    is_reduction,
    producers,
    reads_rows_once,
)
from tunesmith.search.space.rules.tile_domains import outer_tiles

KEPT = ("scratch", "output", "twice")
"""Storage of a stage with several consumers: scratch memory of the task, the output's buffer, or none (recomputed by each consumer)."""

GROUPS = (1, 2, 4)
"""Numbers of rows that are interleaved, so that combining the lanes of one row overlaps with the work on another."""

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules if every block is pointwise or a reduction of one variable, and exactly one block writes the output.  Contractions
    have none, except products of a matrix and a vector.

    Each has threads; if the work is small, there is also one without threads.
    """
    if not has_own_nests(func):
        return []
    blocks = blocks_under(func.body)
    outputs = [b for b in blocks if is_output(func, b)]
    reductions = [b for b in blocks if is_reduction(b)]
    if len(outputs) != 1 or not reductions or any(is_contraction(b) and not reads_rows_once(b) for b in blocks):
        return []
    if not all(is_pointwise(b) or (is_reduction(b) and _single_axis(b)) for b in blocks):
        return []
    if is_reduction(outputs[0]) or len(outputs[0].iters) < 2:
        return []
    rank = len(outputs[0].iters)
    shared = [b.name for b in blocks if is_pointwise(b) and not is_output(func, b) and len(consumers(func, b)) > 1 and len(b.iters) == rank]
    out: list[Named] = []
    for kept in itertools.product(KEPT, repeat=min(len(shared), 2)):
        plan = dict(zip(shared, kept, strict=False))
        for threads in (True, False) if worth_serial(func, target) else (True,):
            name = " ".join(["rows", *[f"{b} {how}" for b, how in plan.items()], *([] if threads else ["serial"])])
            out.append((name, lambda s, plan=plan, threads=threads: schedule(s, outputs[0].name, plan, target, threads)))  # type: ignore[misc]
    return out


def _single_axis(b: Block) -> bool:
    return sum(i.kind == "R" for i in b.iters) == 1 and any(i.kind == "S" for i in b.iters)


def schedule(s: Schedule, output: str, kept: Mapping[str, str], target: Target, threads: bool) -> None:
    """Fuse all stages into the rows of `output`; `kept` maps each stage with several consumers to its storage, see `KEPT`."""
    lanes = target.vector_lanes("float32")
    widths = tuple(lanes * n for n in (1, 2, 3, 4, 6, 8))
    rank = len(s.block(s.get_block(output)).iters)
    for b in [b.name for b in s.blocks() if is_pointwise(b) and not is_output(s.func, b)]:
        # Values computed once per row (a mean, a reciprocal) are not inlined: they would be recomputed for every element.
        whole = len(s.block(s.get_block(b)).iters) == rank
        if whole and (kept.get(b) == "twice" or len(consumers(s.func, s.block(s.get_block(b)))) == 1):
            s.compute_inline(s.get_block(b))
    partial = [_factor(s, b, widths, lanes) for b in [b.name for b in s.blocks() if is_reduction(b)]]
    lane_blocks = {b for p in partial for b in (p.total, p.part)}
    out = s.get_block(output)
    group = _rows(s, s.get_loops(out)[:-1])
    for b in reversed([b.name for b in s.blocks() if b.name != output]):
        h = s.get_block(b)
        s.set_scope(h, "register" if b in lane_blocks or len(s.block(h).iters) < rank else "workspace")
        s.compute_at(h, group)
    elementwise = [b.name for b in s.blocks() if is_pointwise(b) and len(b.iters) == rank]
    for p in partial:
        _finish(s, p)
    if partial:
        # Hardware does not prefetch across pages, and a row may end at a page boundary: prefetch the next rows during the current one.
        columns = s.block(s.get_block(output)).iters[-1].extent.const or 1
        ahead = s.sample_categorical(tuple(columns * n for n in (0, 1, 2, 3)), "prefetch")
        s.annotate(s.get_block(partial[0].part), "prefetch", ahead)
    for b in elementwise:
        last = s.get_loops(s.get_block(b))[-1]
        reducer = next((p for p in partial if b in [x.name for x in producers(s.func, s.block(s.get_block(p.part)))]), None)
        if reducer is not None:
            s.vectorize(s.split(last, [None, *reducer.lanes])[1])
            _merge(s, b, reducer.part)
        else:
            s.vectorize(s.split(last, [None, *s.sample_tile(last, 2, f"{b}_", [widths], slack=2 * lanes)])[1])
    for b in [b for b in elementwise if kept.get(b) == "output"]:
        s.reuse_buffer(s.get_block(b), out)
    for b in [b.name for b in s.blocks()]:
        # Buffers in registers must be indexed by constants only, so the loops over them are unrolled.
        for x in s.get_loops(s.get_block(b))[2 : 3 if b == output else 1 + rank]:
            if s.loop(x).kind == "serial":
                s.unroll(x)
    if threads:
        s.parallel(s.get_loops(out)[0])


@dataclass(frozen=True, slots=True)
class _Partial:
    """A reduction split into vector lanes: its block, the block of the partial results, and the number of lanes."""

    total: str
    part: str
    lanes: list[IntRV]


def _factor(s: Schedule, b: str, widths: tuple[int, ...], lanes: int) -> _Partial:
    """Split the reduction into vector lanes."""
    loop = s.get_loops(s.get_block(b))[-1]
    factor = s.sample_tile(loop, 2, f"{b}_", [widths], slack=2 * lanes)
    lane = s.split(loop, [None, *factor])[1]
    return _Partial(b, s.get_block(s.rfactor(lane).block).block, factor)


def _rows(s: Schedule, loops: list[LoopRV]) -> LoopRV:
    """Split the last row loop into groups, and the fused row loops into tasks; returns the loop over the groups of a task."""
    extents = [s.loop(x).extent.const or 1 for x in loops]
    factor = s.sample_tile(loops[-1], 2, "group", [tuple([n for n in GROUPS if n <= extents[-1]])])
    groups, _ = s.split(loops[-1], [None, *factor])
    fused = s.fuse([*loops[:-1], groups])
    tasks = s.sample_tile(fused, 2, "rows", [outer_tiles(math.prod(extents))])
    return s.split(fused, [None, *tasks])[1]


def _finish(s: Schedule, p: _Partial) -> None:
    part = s.get_block(p.part)
    loops = s.get_loops(part)
    s.vectorize(loops[-1])
    s.decompose_reduction(part, loops[-2])
    total = s.get_block(p.total)
    lane = s.get_loops(total)[-1]
    s.decompose_reduction(total, lane)
    s.vectorize(lane)


def _merge(s: Schedule, stage: str, part: str) -> None:
    """Merge the loops of an elementwise stage and of its partial reduction, down to the vectors."""
    depth = 2
    while depth < len(s.get_loops(s.get_block(part))) - 1:
        s.merge(s.get_loops(s.get_block(stage))[depth], s.get_loops(s.get_block(part))[depth])
        depth += 1
