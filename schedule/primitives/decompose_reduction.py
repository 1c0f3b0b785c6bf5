"""decompose_reduction: the initialisation of a reduction becomes a block of its own."""

from __future__ import annotations

from tunesmith.ir.analysis.access_regions import loop_ranges
from tunesmith.ir.poly import ZERO, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, For, Iter, Stmt, seq
from tunesmith.ir.visit import blocks_under
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.schedule.boxes import is_tiling
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def decompose_reduction(s: ScheduleState, block: BlockRV, loop: LoopRV) -> BlockRV:
    """Put the init of `block` into its own nest, directly before `loop`; the update keeps the rest.

    Rewrite:
        for i, k in grid(4, 8): { init: C[i] = 0 } C[i] = C[i] + A[i, k]
      ->
        for i in range(4):
            C_init[i] = 0
            for k in range(8): C[i] = C[i] + A[i, k]
    Requires:
        reduction: the block has an init.
        loop-of-block: the loop is one of the block's loops.
        reduce-inside: no loop outside `loop` takes part in the reduction.
        once: the loop holds only this block, or the loops inside are a tiling of every spatial iteration variable; else some
            element may be computed again, which adds to it again.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results.
    """
    path = s.path(block)
    b: Block = path[-1]
    target = s.loop(loop)
    if b.init is None:
        raise s.refuse("reduction", f"block {b.name} has no init", b)
    if target not in path:
        raise s.refuse("loop-of-block", f"loop {target.var.name} is not around block {b.name}", target)
    cut = path.index(target)
    reducing = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R"]
    for f in path[:cut]:
        if type(f) is For and any(f.var in e.vars for e in reducing):
            raise s.refuse("reduce-inside", f"loop {f.var.name} outside {target.var.name} takes part in the reduction", target)
    inner: list[For] = [f for f in path[cut:] if type(f) is For]
    spatial = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "S"]
    kept = [f for f in inner if any(f.var in e.vars for e in spatial)]
    _check_once(s, b, target, inner, spatial, reducing)
    values: dict[Var, Poly] = {f.var: poly(Var(f.var.name)) for f in kept}
    # A guard holds for the init exactly when it holds at the first reduction step, where the dropped loops are at 0.
    values |= {f.var: ZERO for f in inner if f.var not in values}
    iters = [(it, Iter(Var(it.var.name), it.extent, "S")) for it in b.iters if it.kind == "S"]
    rename: dict[Var, Poly] = {old.var: poly(new.var) for old, new in iters}
    name = s.fresh_name(f"{b.name}_init")
    init: Stmt = Block(
        name,
        tuple([new for _, new in iters]),
        tuple([substitute(e, values) for e in spatial]),
        tuple([substitute(p, values) for p in b.predicate]),
        None,
        substitute_program(b.init, rename),
    )
    for f in reversed(kept):
        init = For(values[f.var].as_var(), f.extent, init, "serial" if f.kind == "parallel" else f.kind)  # type: ignore[arg-type]
    s.replace_block(b.name, lambda old: old.with_(init=None))
    s.replace_loop(target.var, lambda f: seq([init, f]))
    return s.new_block(name)


def _check_once(s: ScheduleState, b: Block, target: For, inner: list[For], spatial: list[Poly], reducing: list[Poly]) -> None:
    if blocks_under(target) == [b]:
        return
    ranges = loop_ranges([(f.var, f.extent) for f in inner])
    repeated = [f.var.name for f in inner if all(f.var not in e.vars for e in (*spatial, *reducing))]
    if repeated or not all(is_tiling(e, ranges) for e in spatial):
        raise s.refuse("once", f"loop {target.var.name} holds other blocks, and may compute an element of {b.name} more than once", target)
