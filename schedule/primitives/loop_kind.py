"""Mark how a loop is executed: parallel, vectorized, unrolled, or bound to a thread axis."""

from __future__ import annotations

from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.gpu import AXES, is_block_axis, is_thread_axis
from tunesmith.ir.poly import Poly, substitute
from tunesmith.ir.stmt import Block, For, Seq, Stmt
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.schedule.handles import LoopRV
from tunesmith.schedule.independence import check_independent
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


def _mark(s: ScheduleState, target: For, kind: str) -> None:
    if target.kind not in ("serial", kind):
        raise s.refuse("serial", f"loop {target.var.name} is already {target.kind}", target)
    s.replace_loop(target.var, lambda f: f.with_(kind=kind))


def _blocks_in_lockstep(s: ScheduleState, target: For) -> list[Block]:
    """The blocks that a loop to vectorize contains, one after the other, in loops that all lanes run together."""
    at = target.body
    while type(at) is For and at.kind in ("serial", "unrolled") and target.var not in at.extent.vars:
        at = at.body
    found = at.stmts if type(at) is Seq else (at,)
    blocks = [b for b in found if type(b) is Block]
    if len(blocks) == len(found):
        return blocks
    if type(at) is For:
        what = f"loop {at.var.name}, which is {at.kind} or has an extent that depends on it: use reorder to make it the innermost loop"
    else:
        what = "several statements with loops, or statements outside of blocks: vectorize a loop around blocks"
    raise s.refuse("innermost", f"loop {target.var.name} must contain blocks in its serial loops, and contains {what}", target)


def _used_by_reduction(b: Block, target: For) -> bool:
    return any(it.kind == "R" and target.var in e.vars for it, e in zip(b.iters, b.bindings, strict=True))


@primitive
def parallel(s: ScheduleState, loop: LoopRV) -> None:
    """Run the iterations of `loop` on several threads of the CPU.

    Requires:
        serial: the loop is not marked otherwise.
        data-parallel: no block inside uses the loop for a reduction.
        independent: different iterations access different elements of the buffers they write.  Intermediate buffers that are used only
            inside the loop are private to an iteration.
        loop-exists: the loop is still in the program.
    Keeps: results, because iterations do not conflict.
    """
    target = s.loop(loop)
    for b in blocks_under(target):
        if _used_by_reduction(b, target):
            raise s.refuse("data-parallel", f"block {b.name} reduces over loop {target.var.name}; use rfactor first", target)
    check_independent(s, target, "independent", same_values=False)
    _mark(s, target, "parallel")


@primitive
def vectorize(s: ScheduleState, loop: LoopRV, max_lanes: int = 512) -> None:
    """Run the iterations of `loop` as vector operations; lowering splits it into vectors of the target.

    Loops inside run serially around the vectors: the lanes of a vector are in the same iteration of each of them.

    The loop of a reduction C[i] = C[i] op x is allowed after decompose_reduction: it becomes a horizontal reduction.

    Requires:
        serial: the loop is not marked otherwise.
        length: the extent is at most `max_lanes`.
        innermost: the loop contains one block, or several in a row, directly or in serial and unrolled loops whose extents do not depend
            on the loop; no loop around it is vectorized.
        data-parallel: a block that reduces over the loop is alone in it and has no init; use reorder and decompose_reduction first.
        independent: different iterations access different elements of the buffers they write, or write the same values, or are
            updates of a reduction that can be reassociated.
        loop-exists: the loop is still in the program.
    Keeps: results; a horizontal reduction is reassociated.
    """
    target = s.loop(loop)
    blocks = _blocks_in_lockstep(s, target)
    outer = next((f for f in s.loops_of(blocks[0].name) if f.kind == "vectorized" and f is not target), None)
    if outer is not None:
        raise s.refuse("innermost", f"loop {outer.var.name} around block {blocks[0].name} is vectorized already", outer)
    reduced = next((b for b in blocks if _used_by_reduction(b, target)), None)
    if reduced is not None and target.body is not reduced:
        what = f"block {reduced.name} reduces over loop {target.var.name}, which contains other loops or blocks; use reorder to make it the"
        raise s.refuse("data-parallel", f"{what} innermost loop", target)
    if reduced is not None and reduced.init is not None:
        what = f"block {reduced.name} initialises and reduces over loop {target.var.name}; use decompose_reduction first"
        raise s.refuse("data-parallel", what, target)
    if reduced is None or not _is_folded(reduced, target):
        check_independent(s, target, "independent", private=False)
    _length(s, target.extent, max_lanes)
    _mark(s, target, "vectorized")


@primitive
def bind(s: ScheduleState, loop: LoopRV, thread: str) -> None:
    """Bind `loop` to an axis of thread blocks, of the threads in a block, or of virtual threads.

    Args:
        loop: the loop to bind.
        thread: `blockIdx.x`, `threadIdx.x`, `vthread.x`, or y, or z.  A thread interleaves all virtual threads, so that data that they
            share is fetched once.  Loops of one threadIdx may be nested: all threads run the outer one, and divide the work of the inner
            one.
    Rewrite: `bind(i, "threadIdx.x")`
        for i in T.serial(16):
            C[i] = A[i]
      ->
        for i in T.thread_binding(16, "threadIdx.x"):
            C[i] = A[i]
    Requires:
        known-thread: the thread axis exists.
        serial: the loop is not marked otherwise.
        data-parallel: no block inside uses the loop for a reduction.  Exception for threadIdx: the block is alone in the loop and
            reduces over this loop only; then the threads combine their values.
        independent: different iterations of blockIdx and vthread access different elements of the buffers they write; those of threadIdx
            may also write the same values, and barriers order instances of different blocks, or lowering refuses the function.
        nested: no blockIdx loop is inside a threadIdx or vthread loop, and no loop is inside one of the same axis, except for threadIdx.
        agree: all loops of the same threadIdx in this nest have the same extent.
        alike: the body of a threadIdx loop inside another one of the same axis does not depend on the outer loop.
        loop-exists: the loop is still in the program.
    Keeps: results, because iterations access different elements or write the same values (source: TVM's bind; Halide's gpu_blocks).
    """
    target = s.loop(loop)
    if thread not in AXES:
        raise s.refuse("known-thread", f"there is no thread axis {thread!r}; there are {', '.join(AXES)}", target)
    together = is_thread_axis(thread)
    for b in blocks_under(target):
        if _used_by_reduction(b, target) and not (together and _is_combination(b, target)):
            raise s.refuse("data-parallel", f"block {b.name} reduces over loop {target.var.name}; use rfactor first", target)
    if not (together and any(_used_by_reduction(b, target) for b in blocks_under(target))):
        check_independent(s, target, "independent", within_blocks=together, same_values=together)
    root = next(x for x in s.root_stmts() if x is target or ScheduleState.find_loop(x, target.var) is not None)
    for f in [f for f in walk(root) if type(f) is For and f is not target and f.kind == "thread"]:
        if together and f.thread == thread:
            what = f"loops {f.var.name} and {target.var.name} of {thread} have different extents, {f.extent!r} and {target.extent!r}"
            s.require("eq0", f.extent - target.extent, "agree", what)
        related = ScheduleState.find_loop(f.body, target.var) is not None or ScheduleState.find_loop(target.body, f.var) is not None
        inner, outer = (thread, f.thread or "") if ScheduleState.find_loop(f.body, target.var) is not None else (f.thread or "", thread)
        if related and ((inner == outer and not together) or (is_block_axis(inner) and not is_block_axis(outer))):
            raise s.refuse("nested", f"a loop of {inner} would be inside a loop of {outer}", target)
        if related and inner == outer:
            first, second = (f, target) if ScheduleState.find_loop(f.body, target.var) is not None else (target, f)
            check_alike(s, second, first)
    if target.kind != "serial":
        raise s.refuse("serial", f"loop {target.var.name} is already {target.kind}", target)
    s.replace_loop(target.var, lambda f: f.with_(kind="thread", thread=thread))


def check_alike(s: ScheduleState, inside: Stmt, outer: For) -> None:
    """Refuse blocks in `inside` that depend on the thread loop `outer`, because its threads would divide their work.

    Guards that are undecided here may exclude threads; lowering refuses those that do.
    """
    for b in [inside] if type(inside) is Block else blocks_under(inside):
        if any(outer.var in e.vars for e in b.bindings):
            what = f"block {b.name} depends on loop {outer.var.name} of {outer.thread}, so its threads cannot divide the work of the block"
            raise s.refuse("alike", what, b)


def _is_combination(b: Block, target: For) -> bool:
    """Whether the block is alone in the loop, reduces over this loop only, and can be reassociated: C[i] = C[i] op x."""
    reducing = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R"]
    alone = target.body is b and [e.as_var() for e in reducing] == [target.var]
    return alone and b.init is not None and reassociable_update(b) is not None


def _is_folded(b: Block, target: For) -> bool:
    """Whether all iterations of the loop update one element and can be reassociated: a horizontal reduction."""
    values = {it.var: e for it, e in zip(b.iters, b.bindings, strict=True)}
    update = reassociable_update(b)
    return update is not None and all(target.var not in substitute(i, values).vars for i in update.store.indices)


def _length(s: ScheduleState, extent: Poly, limit: int) -> None:
    s.require("le0", extent - limit, "length", f"a vectorized loop has at most {limit} iterations", extent)


@primitive
def unroll(s: ScheduleState, loop: LoopRV, max_copies: int = 512) -> None:
    """Unroll `loop` completely.

    Requires:
        serial: the loop is not marked otherwise.
        length: the extent is at most `max_copies`.
        loop-exists: the loop is still in the program.
    Keeps: the order of executed block instances.
    """
    target = s.loop(loop)
    s.require(
        "le0", target.extent - max_copies, "length", f"a loop of at most max_copies={max_copies} iterations is unrolled", target.extent
    )
    _mark(s, target, "unrolled")
