"""Schedule matrix products and convolutions with few results on GPUs: the threads of a block divide the reduction.

A product of one row, or a convolution of a small image, has too few results to fill a GPU with one thread for each tile.  Each thread
sums a part of the reduction for a tile of results in registers, the parts meet in shared memory, and each thread adds up some results.
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.ir.analysis.access_regions import writes
from tunesmith.ir.function import PrimFunc
from tunesmith.ir.poly import product
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.auto_bind import bind_rest
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import (
    consumers,
    has_own_nests,
    is_contraction,
    is_output,
    is_pointwise,
    producers,
    vector_axis,
)
from tunesmith.search.space.rules.gpu_limits import limit_shared, tile_bytes, widths_of

Named = tuple[str, Callable[[Schedule], None]]

COLUMNS = (8, 16, 32, 64, 128)
"""Threads along the vector axis."""
PARTS = (2, 4, 8, 16, 32)
"""Parts of the reduction, each of which is summed by a thread."""
ROWS = (1, 2, 4, 8)
"""Results of a thread along the longest other axis."""
STEPS = (1, 2, 4, 8)
"""Consecutive terms of a thread."""
MAX_ACCUMULATORS = 32
MAX_UNROLLED = 128
"""Multiply-adds in the unrolled part of the loop, whose operands come from global memory behind guards of their own."""
MAX_RESULTS = 2048
"""Results for each multiprocessor at most: with more, threads with results of their own fill the GPU."""
LEAST_TERMS = 16
"""Terms of a sum at least."""


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """One schedule for a function with exactly one contraction, all of whose other blocks are pointwise, if its results are few."""
    blocks = blocks_under(func.body)
    mains = [b for b in blocks if is_contraction(b)]
    if len(mains) != 1 or not has_own_nests(func) or vector_axis(mains[0]) is None:
        return []
    main = mains[0]
    if not all(is_pointwise(b) for b in blocks if b is not main) or len(consumers(func, main)) > 1:
        return []
    extents = {kind: product([i.extent for i in main.iters if i.kind == kind]).const for kind in "SR"}
    few, terms = extents["S"], extents["R"]
    if few is None or terms is None or few > MAX_RESULTS * (target.num_cores or 1) or terms < LEAST_TERMS:
        return []
    before = [p.name for p in producers(func, main) if is_pointwise(p)]
    return [("gpu split reduction", lambda s: schedule(s, main.name, before, target))]


def schedule(s: Schedule, main: str, before: list[str], target: Target) -> None:
    """Split the reduction of block `main` among threads; the blocks `before` are inlined into it."""
    for b in [b.name for b in s.blocks() if is_pointwise(b) and b.name not in (main, *before) and not is_output(s.func, b)]:
        s.compute_inline(s.get_block(b))
    for b in before:
        s.compute_inline(s.get_block(b))
    total = s.get_block(main)
    block = s.block(total)
    column = vector_axis(block)
    assert column is not None  # checked in `sketches`
    after = consumers(s.func, block)
    rank = sum(it.kind == "S" for it in block.iters)
    part, parts, step = _factor(s, total)
    copy = s.cache_write(part, "local")
    s.set_scope(copy, "shared")
    if after:
        s.set_scope(total, "local")
        last = s.get_block(after[0].name)
    else:
        last = s.cache_write(total, "local")
    threads, rows, width, inner = _results(s, total, last, column, target)
    s.compute_at(copy, s.get_loops(total)[0])
    limit_shared(s, [tile_bytes(s, copy, rank + 1)], target)
    _share(s, total, inner, parts)
    s.limit([threads, parts], target.max_threads_per_block, "threads")
    s.limit([*rows, width], MAX_ACCUMULATORS, "accumulators")
    s.limit([*rows, width, step], MAX_UNROLLED, "written-out")
    _parts(s, part, copy, column, width)
    bind_rest(s)


def _factor(s: Schedule, total: BlockRV) -> tuple[BlockRV, IntRV, IntRV]:
    """Split the reduction; returns the block of partial results, the number of parts, and the terms of a step."""
    loops = s.get_loops(total)
    kinds = [it.kind for it in s.block(total).iters]
    reduction = [x for x, kind in zip(loops, kinds, strict=True) if kind == "R"]
    s.reorder([*reduction, *[x for x, kind in zip(loops, kinds, strict=True) if kind == "S"]])
    fused = s.fuse(reduction)
    extent = s.loop(fused).extent.const or 1
    domains = [tuple(p for p in PARTS if 2 * p <= extent), STEPS]
    parts, step = s.sample_tile(fused, 3, "k", domains, slack=8)
    _, thread, _ = s.split(fused, [None, parts, step])
    return s.rfactor(thread, 0), parts, step


def _results(s: Schedule, total: BlockRV, last: BlockRV, column: int, target: Target) -> tuple[IntRV, list[IntRV], IntRV, list[LoopRV]]:
    """Distribute the results, which `last` writes, over blocks and columns; returns threads, rows and width of a tile, and its loops."""
    block = s.block(total)
    spatial = [(n, x) for n, (it, x) in enumerate(zip(block.iters, s.get_loops(total), strict=True)) if it.kind == "S"]
    terms = [x for it, x in zip(block.iters, s.get_loops(total), strict=True) if it.kind == "R"]
    others = sorted(
        [n for n, _ in spatial if n != column and block.iters[n].extent.const != 1], key=lambda n: block.iters[n].extent.const or 0
    )
    outer: list[LoopRV] = []
    inner: list[LoopRV] = []
    rows: list[IntRV] = []
    for n, x in spatial:
        if n == column:
            extent = block.iters[n].extent.const or 1
            domains = [tuple(c for c in COLUMNS if c < 2 * extent) or COLUMNS[:1], widths_of(writes(block)[0].buffer.dtype, target)]
            threads, width = s.sample_tile(x, 3, s.loop(x).var.name, domains, slack=16)
            first, thread, lane = s.split(x, [None, threads, width])
            outer.append(first)
            inner.append(lane)
        elif others and n == others[-1]:
            rows += s.sample_tile(x, 2, s.loop(x).var.name, [ROWS], slack=8)
            first, row = s.split(x, [None, *rows])
            outer.append(first)
            inner.append(row)
        else:
            outer.append(x)
    s.reorder([*outer, thread, *inner, *terms])
    s.reverse_compute_at(last, inner[-1])
    blocks = s.fuse(outer)
    s.bind(blocks, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    return threads, rows, width, inner


def _share(s: Schedule, total: BlockRV, inner: list[LoopRV], parts: IntRV) -> None:
    """Let the threads of the parts share the results of a tile."""
    turns, own = s.split(s.fuse(inner), [None, parts])
    s.bind(own, "threadIdx.y")
    s.unroll(turns)
    s.unroll(s.get_loops(total)[-1])


def _parts(s: Schedule, part: BlockRV, copy: BlockRV, column: int, width: IntRV) -> None:
    """Sum the parts in registers, one in each thread, and copy them to shared memory."""
    rank = sum(it.kind == "S" for it in s.block(copy).iters)
    thread, *tile = s.get_loops(copy)[-rank:]
    at = sum(it.kind == "S" for it in s.block(part).iters[:column])
    columns, lane = s.split(tile[at], [None, width])
    s.reorder([columns, thread, *[x for i, x in enumerate(tile) if i != at], lane])
    s.compute_at(part, thread)
    own = s.get_loops(part)[-len(s.block(part).iters) :]
    kinds = [it.kind for it in s.block(part).iters]
    results = [x for x, kind in zip(own, kinds, strict=True) if kind == "S"]
    terms = [x for x, kind in zip(own, kinds, strict=True) if kind == "R"]
    factored = results.pop()
    ordered = [*[x for i, x in enumerate(results) if i != at], results[at]]
    s.reorder([factored, *terms, *ordered])
    init = s.decompose_reduction(part, terms[0])
    s.unroll(terms[-1])
    for block in (init, part, copy):
        loops = s.get_loops(block)[-len(ordered) :]
        for x in loops[:-1]:
            s.unroll(x)
        s.vectorize(loops[-1])
    s.bind(columns, "threadIdx.x")
    s.bind(thread, "threadIdx.y")
