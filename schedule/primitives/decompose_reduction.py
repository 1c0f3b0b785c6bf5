"""Split a reduction into an initialisation block and an update block."""

from __future__ import annotations

from collections.abc import Mapping

from tunesmith.ir.analysis.access_regions import Access, accesses, loop_ranges, reads, writes
from tunesmith.ir.analysis.size_ranges import size_ranges
from tunesmith.ir.arith.interval import bounds
from tunesmith.ir.poly import ZERO, Poly, Var, poly, substitute
from tunesmith.ir.stmt import Block, For, Iter, Stmt, seq
from tunesmith.ir.visit import blocks_under, walk_objects
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.schedule.domain import check_first_step, is_repeated
from tunesmith.schedule.footprints import is_tiling
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.order import same_elements
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.state import ScheduleState


@primitive
def decompose_reduction(s: ScheduleState, block: BlockRV, loop: LoopRV) -> BlockRV:
    """Move the init of `block` to a new block directly before `loop`.

    Returns the new block.

    Rewrite: `decompose_reduction(C, k)`
        for i, k in T.grid(4, 16):
            init: C[i] = 0.0
            C[i] = C[i] + A[i, k]
      ->
        for i in T.serial(4):
            C[i] = 0.0
            for k in T.serial(16):
                C[i] = C[i] + A[i, k]
    Requires:
        reduction: the block has an init, which does not depend on its reduction variables.
        loop-of-block: the loop is one of the block's loops.
        reduce-inside: no loop outside `loop` is part of the reduction.
        once: the loop runs each value of every spatial iteration variable once, and each value writes a different element;
            otherwise an element would be accumulated again without its init.  If the loop contains other blocks, its loops tile
            the iteration variables.
        first: the reduction starts once, in the first iteration of its loops, and the loop contains no `if` around the block.
        unseen: nothing inside the loop can observe the earlier init: no other block accesses elements of the output that the
            block has not finished, or writes data that the init reads, and the block reads only the element that it updates.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results.
    """
    path = s.path(block)
    b: Block = path[-1]
    target = s.loop(loop)
    if b.init is None:
        raise s.refuse("reduction", f"block {b.name} has no init", b)
    reduced = {it.var for it in b.iters if it.kind == "R"}
    if any(type(n) is Poly and not n.vars.isdisjoint(reduced) for n in walk_objects(b.init)):
        raise s.refuse("reduction", f"the init of block {b.name} depends on its reduction variables", b)
    if target not in path:
        raise s.refuse("loop-of-block", f"loop {target.var.name} is not around block {b.name}", target)
    cut = path.index(target)
    reducing = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R"]
    for f in path[:cut]:
        if type(f) is For and any(f.var in e.vars for e in reducing):
            raise s.refuse("reduce-inside", f"loop {f.var.name} outside {target.var.name} is part of the reduction", target)
    inner: list[For] = [f for f in path[cut:] if type(f) is For]
    spatial = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "S"]
    spatial_loops = [f for f in inner if any(f.var in e.vars for e in spatial)]
    _check_once(s, b, target, inner, spatial, reducing)
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "first", target)
    check_first_step(s, b, "first")
    _check_unseen(s, b, target, bool(spatial_loops))
    values: dict[Var, Poly] = {f.var: poly(Var(f.var.name)) for f in spatial_loops}
    # The guards of the init are those of the first reduction step, where the removed loops are 0.
    values |= {f.var: ZERO for f in inner if f.var not in values}
    # A reduction over no elements gives its identity: its init runs for sizes for which there is no first step.
    sizes = size_ranges(s.func)
    of_sizes = [it.extent for it in b.iters if it.kind == "R" and it.extent.vars and it.extent.vars <= sizes.keys()]
    empty = {-e for e in of_sizes if bounds(e, sizes)[0] < 1}
    iters = [(it, Iter(Var(it.var.name), substitute(it.extent, values), "S")) for it in b.iters if it.kind == "S"]
    rename: dict[Var, Poly] = {old.var: poly(new.var) for old, new in iters}
    name = s.fresh_name(f"{b.name}_init")
    init: Stmt = Block(
        name,
        tuple([new for _, new in iters]),
        tuple([substitute(e, values) for e in spatial]),
        tuple([q for q in [substitute(p, values) for p in b.predicate] if q not in empty]),
        None,
        substitute_program(b.init, rename),
    )
    for f in reversed(spatial_loops):
        kind = "serial" if f.kind == "parallel" else f.kind
        init = For(values[f.var].as_var(), substitute(f.extent, values), init, kind, f.thread)  # type: ignore[arg-type]
    s.replace_block(b.name, lambda old: old.with_(init=None))
    s.replace_loop(target.var, lambda f: seq([init, f]))
    return s.new_block(name)


def _check_once(s: ScheduleState, b: Block, target: For, inner: list[For], spatial: list[Poly], reducing: list[Poly]) -> None:
    ranges = loop_ranges([(f.var, f.extent) for f in inner])
    repeated = [f.var.name for f in inner if f.extent != 1 and all(f.var not in e.vars for e in (*spatial, *reducing))]
    alone = blocks_under(target) == [b]
    if not alone and (repeated or not all(is_tiling(e, ranges) for e in spatial)):
        raise s.refuse(
            "once", f"loop {target.var.name} contains other blocks, and may compute an element of {b.name} more than once", target
        )
    # A digit of a fused loop, such as f % n, repeats its values: the digits are distinct only together.
    if repeated or (not all(_is_distinct(e, ranges) for e in spatial) and is_repeated(s, b, inner)):
        raise s.refuse("once", f"loop {target.var.name} computes elements of {b.name} more than once", target)
    moving = {it.var for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "S" and not e.vars.isdisjoint(ranges)}
    extents = {it.var: it.extent - 1 for it in b.iters if it.var in moving}
    for w in writes(b):
        if not all(any(v in e.vars for e in w.indices) for v in moving) or not all(_is_distinct(e, extents) for e in w.indices):
            raise s.refuse("once", f"several instances of block {b.name} may accumulate into one element of {w.buffer.name}", b)


def _is_distinct(e: Poly, ranges: Mapping[Var, Poly]) -> bool:
    """Whether no two iterations give `e` the same value: a tiling, or a single loop."""
    inner = [a for m, _ in e.terms for a in m if not a.vars.isdisjoint(ranges)]
    return is_tiling(e, ranges) or (len(inner) == 1 and isinstance(inner[0], Var))


def _check_unseen(s: ScheduleState, b: Block, target: For, several: bool) -> None:
    """Refuse a loop in which a block could observe that all elements are initialised before the loop."""
    made = {w.buffer for w in writes(b)}
    if several and any(a.buffer in made for a in reads(b)):
        raise s.refuse("unseen", f"block {b.name} reads elements of its output that would already be initialised", b)
    started = {a.buffer for a in accesses(b.with_(body=b.init)) if not a.is_write}
    order = s.blocks()
    for c in blocks_under(target):
        for a in accesses(c) if c is not b else ():
            if a.buffer in (made | started if a.is_write else made) and not _is_later(s, b, c, a, order):
                what = f"block {b.name} cannot be initialised before loop {target.var.name}: block {c.name} in it accesses {a.buffer.name}"
                raise s.refuse("unseen", what, c)


def _is_later(s: ScheduleState, b: Block, c: Block, a: Access, order: list[Block]) -> bool:
    """Whether `c` only reads elements that `b` has finished, or that no block has written."""
    if a.is_write:
        return False
    if a.buffer in s.func.allocs and not any(w.buffer is a.buffer for x in order if x is not b for w in writes(x)):
        return True
    both = [f for f in s.loops_of(b.name) if f in s.loops_of(c.name)]
    return order.index(c) > order.index(b) and all(same_elements(s, b, w, c, a, both) for w in writes(b) if w.buffer is a.buffer)
