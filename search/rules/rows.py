"""rows: operators that reduce along rows and use the results along the same rows: softmax, norms, row sums.

All stages of a row are computed together, so that a row is read from memory once.  Each reduction is split into vector
lanes, several vectors of them, which are added up at the end of the row (source: Suriana et al., CGO 2017; rfactor).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block
from tunesmith.ir.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.rules.roles import consumers, is_contraction, is_output, is_pointwise, is_reduction
from tunesmith.search.rules.tile_domains import outer_tiles

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target, constants: frozenset[str]) -> list[Named]:
    """Named schedules when every block is pointwise or a reduction of one variable, and one block makes the output."""
    blocks = blocks_under(func.body)
    outputs = [b for b in blocks if is_output(func, b)]
    reductions = [b for b in blocks if is_reduction(b)]
    if len(outputs) != 1 or not reductions or any(is_contraction(b) for b in blocks):
        return []
    if not all(is_pointwise(b) or (is_reduction(b) and _single_axis(b)) for b in blocks):
        return []
    if is_reduction(outputs[0]):
        return []
    rank = len(outputs[0].iters)
    expensive = [
        b.name for b in blocks if is_pointwise(b) and not is_output(func, b) and len(consumers(func, b)) > 1 and len(b.iters) == rank
    ]
    out: list[Named] = []
    for inline in itertools.product((False, True), repeat=min(len(expensive), 2)):
        chosen = frozenset(n for n, yes in zip(expensive, inline, strict=False) if yes)
        name = f"rows{' inline(' + ','.join(sorted(chosen)) + ')' if chosen else ''}"
        out.append((name, lambda s, chosen=chosen: schedule(s, outputs[0].name, chosen, target)))  # type: ignore[misc]
    return out


def _single_axis(b: Block) -> bool:
    return sum(i.kind == "R" for i in b.iters) == 1 and any(i.kind == "S" for i in b.iters)


def schedule(s: Schedule, output: str, inline: frozenset[str], target: Target) -> None:
    """Fuse all stages into the rows of `output`."""
    lanes = target.vector_lanes("float32")
    widths = tuple(lanes * n for n in (1, 2, 3, 4, 6, 8))
    rank = len(s.block(s.get_block(output)).iters)
    for b in [b.name for b in s.blocks() if is_pointwise(b) and not is_output(s.func, b)]:
        # What is computed once for a row (a mean, a reciprocal) would be computed for every element.
        whole = len(s.block(s.get_block(b)).iters) == rank
        if whole and (b in inline or len(consumers(s.func, s.block(s.get_block(b)))) == 1):
            s.compute_inline(s.get_block(b))
    partial: list[tuple[str, str]] = []
    for b in [b.name for b in s.blocks() if is_reduction(b)]:
        partial.append((b, _factor(s, b, widths, lanes)))
    out = s.get_block(output)
    row = _rows(s, s.get_loops(out)[:-1])
    for b in reversed([b.name for b in s.blocks() if b.name != output]):
        h = s.get_block(b)
        row_only = any(b in pair for pair in partial) or len(s.block(h).iters) < rank
        s.set_scope(h, "register" if row_only else "workspace")
        s.compute_at(h, row)
    elementwise = [b.name for b in s.blocks() if is_pointwise(b) and len(b.iters) == rank]
    for b, rf in partial:
        _finish(s, b, rf)
    if partial:
        # A row may end where a page ends, and hardware does not prefetch across pages: fetch the next rows while this one is computed.
        columns = s.block(s.get_block(output)).iters[-1].extent.const or 1
        ahead = s.sample_categorical(tuple(columns * n for n in (0, 1, 2, 3)), "prefetch")
        s.annotate(s.get_block(partial[0][1]), "prefetch", ahead)
    for b in elementwise:
        last = s.get_loops(s.get_block(b))[-1]
        factor = s.sample_tile(last, 2, f"{b}_", [widths], slack=2 * lanes)
        s.vectorize(s.split(last, [None, *factor])[1])
    s.parallel(_outermost(s, out))


def _factor(s: Schedule, b: str, widths: tuple[int, ...], lanes: int) -> str:
    """Split the reduction into vectors of lanes; returns the block of partial results."""
    loop = s.get_loops(s.get_block(b))[-1]
    factor = s.sample_tile(loop, 2, f"{b}_", [widths], slack=2 * lanes)
    lane = s.split(loop, [None, *factor])[1]
    return s.get_block(s.rfactor(lane).block).block


def _rows(s: Schedule, loops: list[LoopRV]) -> LoopRV:
    """Fuse the row loops and cut them into tasks; returns the loop of single rows."""
    fused = s.fuse(loops)
    extent = s.loop(fused).extent.const or 1
    factor = s.sample_tile(fused, 2, "rows", [outer_tiles(extent)])
    return s.split(fused, [None, *factor])[1]


def _finish(s: Schedule, b: str, rf: str) -> None:
    part = s.get_block(rf)
    loops = s.get_loops(part)
    s.vectorize(loops[-1])
    s.decompose_reduction(part, loops[-2])
    total = s.get_block(b)
    lane = s.get_loops(total)[-1]
    s.decompose_reduction(total, lane)
    s.vectorize(lane)


def _outermost(s: Schedule, block: object) -> LoopRV:
    return s.get_loops(block)[0]  # type: ignore[arg-type]
