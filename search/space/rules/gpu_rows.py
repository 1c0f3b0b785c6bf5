"""Schedule operators that reduce along rows and use the results in the same rows on GPUs: softmax, norms.

One group of threads processes a row, and a block processes several rows.  Each thread reads its elements once, keeps them in registers,
and combines its partial results with the other threads of the group.  Short rows are processed by one warp without barriers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from tunesmith.ir.function import PrimFunc
from tunesmith.ir.stmt import Block
from tunesmith.ir.target.target import Target
from tunesmith.ir.visit import blocks_under
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.schedule import Schedule
from tunesmith.search.space.rules.block_classes import consumers, has_own_nests, is_contraction, is_output, is_pointwise, is_reduction
from tunesmith.search.space.rules.gpu_limits import fetch_widths

KEPT = ("kept", "twice")
"""Storage of a stage with several consumers: registers, or none (recomputed by each consumer)."""
GROUPS = (1, 2, 4, 8)
"""Rows per block."""
THREADS = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Threads per row."""
MAX_KEPT = 64
"""Maximum number of elements of a row that a thread keeps in registers."""

Named = tuple[str, Callable[[Schedule], None]]


def sketches(func: PrimFunc, target: Target) -> list[Named]:
    """Named schedules if every block is pointwise or a reduction of one variable, and exactly one block writes the output."""
    blocks = blocks_under(func.body)
    outputs = [b for b in blocks if is_output(func, b)]
    if not has_own_nests(func) or len(outputs) != 1 or not any(is_reduction(b) for b in blocks) or any(is_contraction(b) for b in blocks):
        return []
    if not all(is_pointwise(b) or (is_reduction(b) and _single_axis(b)) for b in blocks):
        return []
    if is_reduction(outputs[0]) or len(outputs[0].iters) < 2:
        return []
    rank = len(outputs[0].iters)
    several = [
        b.name for b in blocks if is_pointwise(b) and not is_output(func, b) and len(consumers(func, b)) > 1 and len(b.iters) == rank
    ]
    out: list[Named] = []
    for kept in itertools.product(KEPT, repeat=min(len(several), 2)):
        plan = dict(zip(several, kept, strict=False))
        name = " ".join(["gpu rows", *[f"{b} {how}" for b, how in plan.items()]])
        out.append((name, lambda s, plan=plan: schedule(s, outputs[0].name, plan, target)))  # type: ignore[misc]
    return out


def _single_axis(b: Block) -> bool:
    return sum(i.kind == "R" for i in b.iters) == 1 and any(i.kind == "S" for i in b.iters)


def schedule(s: Schedule, output: str, kept: Mapping[str, str], target: Target) -> None:
    """Fuse all stages into the rows of `output`; `kept` maps each stage with several consumers to its storage, see `KEPT`."""
    rank = len(s.block(s.get_block(output)).iters)
    for b in [b.name for b in s.blocks() if is_pointwise(b) and not is_output(s.func, b)]:
        whole = len(s.block(s.get_block(b)).iters) == rank
        if whole and (kept.get(b) == "twice" or len(consumers(s.func, s.block(s.get_block(b)))) == 1):
            s.compute_inline(s.get_block(b))
    out = s.get_block(output)
    *rows, column = s.get_loops(out)
    threads = tuple(t for t in THREADS if t <= target.max_threads_per_block)
    widths = fetch_widths(s.block(out).body.buffer, target)  # type: ignore[attr-defined]
    share = s.sample_tile(column, 3, "column", [threads, widths], waste=0.5, slack=32)
    group = _rows(s, rows, share[0], target)
    reductions = [(b.name, _factor(s, b.name, share)) for b in s.blocks() if is_reduction(b)]
    for b in reversed([b.name for b in s.blocks() if b.name != output]):
        h = s.get_block(b)
        s.set_scope(h, "local")
        s.compute_at(h, group)
    for b in [b.name for b in s.blocks() if is_pointwise(b) and len(b.iters) == rank]:
        _share(s, s.get_block(b), share)
    for total, part in reductions:
        combine(s, s.get_block(part), s.get_block(total))
    if any(how == "kept" for how in kept.values()):
        s.step = "registers"
        turns = s.loop(s.get_loops(out)[-3]).extent
        s.require("le0", turns * share[1].expr - MAX_KEPT, "registers", "the elements of a row per thread do not fit the registers")


def _rows(s: Schedule, loops: list[LoopRV], threads: IntRV, target: Target) -> LoopRV:
    """Distribute the rows over blocks; returns the loop over the rows of a block."""
    fused = s.fuse(loops)
    group = s.sample_tile(fused, 2, "rows", [GROUPS], slack=8)
    s.limit([threads, *group], target.max_threads_per_block, "threads")
    outer, inner = s.split(fused, [None, *group])
    s.bind(outer, "blockIdx.x")
    s.bind(inner, "threadIdx.y")
    return inner


def _factor(s: Schedule, b: str, share: list[IntRV]) -> str:
    """Split a reduction among threads; returns the name of the block of partial results."""
    loop = s.get_loops(s.get_block(b))[-1]
    thread = s.split(loop, [None, *share])[1]
    return s.block(s.rfactor(thread)).name


def _share(s: Schedule, block: BlockRV, share: list[IntRV]) -> None:
    """Distribute the elements of a row over its threads."""
    turns, thread, lane = s.split(s.get_loops(block)[-1], [None, *share])
    s.unroll(turns)
    s.bind(thread, "threadIdx.x")
    s.vectorize(lane)


def combine(s: Schedule, part: BlockRV, total: BlockRV) -> None:
    """Reduce the elements of each thread in vectors, then combine the threads' results.

    Args:
        s: the schedule.
        part: the block of partial results; its three innermost loops are the turns of a thread and the elements of a turn, in this order,
            and the threads, at any position.
        total: the block that combines the partial results.
    """
    inner = s.get_loops(part)[-3:]
    own = s.block(part).iters[-1].var
    binding = next(e for it, e in zip(s.block(part).iters, s.block(part).bindings, strict=True) if it.var is own)
    thread = next(x for x in inner if s.loop(x).var in binding.vars)
    turns, lane = [x for x in inner if x is not thread]
    s.reorder([thread, turns, lane])
    s.decompose_reduction(part, turns)
    s.vectorize(lane)
    s.set_scope(part, "local")
    s.bind(thread, "threadIdx.x")
    s.bind(s.get_loops(total)[-1], "threadIdx.x")
