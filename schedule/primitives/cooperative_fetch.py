"""Distribute the iterations of a copy over the threads of a block."""

from __future__ import annotations

from tunesmith.ir.gpu import is_thread_axis
from tunesmith.ir.poly import ceildiv, product
from tunesmith.ir.stmt import Block, For
from tunesmith.schedule.handles import BlockRV, IntRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.fuse import fuse
from tunesmith.schedule.primitives.loop_kind import check_alike
from tunesmith.schedule.primitives.split import split_loop
from tunesmith.schedule.state import ScheduleState


@primitive
def cooperative_fetch(s: ScheduleState, block: BlockRV, vector: IntRV | int = 1) -> list[LoopRV]:
    """Distribute the iterations of the own loops of `block` over the threads around it; adjacent threads run adjacent iterations.

    Returns the loop over the rounds of a thread and the vectorized loop over the elements of one round.

    Args:
        block: a block inside threadIdx loops that computes for all threads, for example a copy to shared memory.
        vector: elements of a thread in one round.
    Rewrite: `cooperative_fetch(S, vector=4)`
        S = T.alloc_buffer((200,), scope="shared")
        for t in T.thread_binding(32, "threadIdx.x"):
            for i in T.serial(200):
                S[i] = A[i]
      ->
        S = T.alloc_buffer((200,), scope="shared")
        for t in T.thread_binding(32, "threadIdx.x"):
            for i_fused_0 in T.unroll(2):
                for i_fused_1 in T.thread_binding(32, "threadIdx.x"):
                    for i_fused_2 in T.vectorized(4):
                        if i_fused_0 * 128 + i_fused_1 * 4 + i_fused_2 < 200:
                            S[i_fused_0 * 128 + i_fused_1 * 4 + i_fused_2] = A[i_fused_0 * 128 + i_fused_1 * 4 + i_fused_2]
    Requires:
        threads-around: a threadIdx loop is around the block.
        own-loops: the innermost loop around the block contains only the block, and is neither marked nor annotated.
        positive: a round has at least one element.
        data-parallel: the block is not a reduction.
        alike: the block does the same work for all threads.
        block-exists: the block is still in the program.
    Keeps: results (source: TVM MetaSchedule's cooperative fetching).
    """
    path = s.path(block)
    b: Block = path[-1]
    if any(it.kind == "R" for it in b.iters):
        raise s.refuse("data-parallel", f"block {b.name} is a reduction", b)
    around = [f for f in path if type(f) is For and f.kind == "thread" and is_thread_axis(f.thread)]
    if not around:
        raise s.refuse("threads-around", f"block {b.name} is in no threadIdx loop", b)
    own: list[For] = []
    for f, below in zip(reversed(path[:-1]), reversed(path), strict=False):
        if type(f) is not For or f.body is not below or f.kind != "serial" or f.annotations:
            break
        own.insert(0, f)
    if not own:
        raise s.refuse("own-loops", f"block {b.name} has no loops of its own", b)
    each = s.value(vector)
    s.require("le0", 1 - each, "positive", "a round has at least one element", each)
    for f in around:
        check_alike(s, b, f)
    # The fastest axis is innermost: z, y, x.
    axes = sorted({f.thread or "": f for f in around}.items(), reverse=True)
    fused = s.loop(fuse(s, [s.new_loop(f.var) for f in own]))
    extents = [f.extent for _, f in axes]
    rounds = ceildiv(fused.extent, product(extents) * each)
    made = split_loop(s, fused, [rounds, *extents, each])
    for var, (tag, _) in zip(made[1:-1], axes, strict=True):
        s.replace_loop(var, lambda f, tag=tag: f.with_(kind="thread", thread=tag))  # type: ignore[misc]
    s.replace_loop(made[0], lambda f: f.with_(kind="unrolled"))
    s.replace_loop(made[-1], lambda f: f.with_(kind="vectorized"))
    return [s.new_loop(made[0]), s.new_loop(made[-1])]
