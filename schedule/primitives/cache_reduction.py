"""Accumulate a blocked reduction in a cache, which is loaded before and stored after each block of the reduction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunesmith.ir.analysis.access_regions import accesses, plain_iter, region, writes
from tunesmith.ir.analysis.reduction_update import reassociable_update
from tunesmith.ir.arith.interval import interval
from tunesmith.ir.buffer import SCOPES, BufferLoad
from tunesmith.ir.expr import Expr, conjunction, select
from tunesmith.ir.poly import ONE, Param, Poly, Var, less_than, poly
from tunesmith.ir.stmt import Block, BufferStore, For, Iter, Stmt, nest, seq, store
from tunesmith.ir.visit import blocks_under, walk
from tunesmith.ir.visit import substitute as substitute_program
from tunesmith.schedule.domain import check_first_step, is_repeated
from tunesmith.schedule.footprints import footprint_guards, is_tiling
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.outside import check_in_blocks, check_unconditional
from tunesmith.schedule.placement import ranges_under
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.cache_write import redirect_to
from tunesmith.schedule.state import ScheduleState


@primitive
def cache_reduction(s: ScheduleState, block: BlockRV, loop: LoopRV, scope: str) -> list[BlockRV]:
    """Accumulate in a cache inside `loop`.

    At the start of an iteration of `loop` a block fills the cache: with the init at the first block of the reduction, and with the
    partial results afterwards.  At the end another block writes the cache back.  If another block has initialised the result (see
    decompose_reduction), the cache is always filled with partial results.

    Returns the filling and the writing block.

    Rewrite: `split(k, [None, 8]); reorder([k_0, i, k_1]); cache_reduction(C, i, "workspace")`
        for i, k in T.grid(4, 16):
            init: C[i] = 0.0
            C[i] = C[i] + A[i, k]
      ->
        C_workspace = T.alloc_buffer((4,), scope="workspace")
        for k_0, i in T.grid(2, 4):
            C_workspace[i] = T.select(k_0 * 8 < 1, 0.0, C[i])
            for k_1 in T.serial(8):
                C_workspace[i] = C_workspace[i] + A[i, k_0 * 8 + k_1]
            C[i] = C_workspace[i]
    Requires:
        scope: the scope exists.
        reduction: the body of the block, and its init if it has one, are single stores to one buffer, at its own spatial iteration
            variables, each once; it reads that element, and no other of that buffer.
        guard: each guard of the block depends on its own extents, on outer loops, or on its reduction; the loop contains no `if`.
        first: the reduction starts once; with an init, in the first iteration of its loops, for all values of its guards.
        loop-of-block: the loop is one of the block's loops.
        blocked: the binding of every reduction variable is a sum of a part in inner loops and a part in outer loops.
        read-after: no other block inside the loop accesses the buffer, because it is written back at the end.
        dense: the footprint of the writes in one iteration has no gaps.
        box: the extents of this footprint do not depend on loop variables.
        in-blocks: no statement outside of blocks, and no condition of an `if`, accesses the data of the block.
        block-exists: the block is still in the program.
        loop-exists: the loop is still in the program.
    Keeps: results (source: BLIS, Van Zee and van de Geijn, TOMS 2015: C is updated once for each block of k).
    """
    if scope not in SCOPES:
        raise s.refuse("scope", f"unknown scope {scope!r}; scopes are {', '.join(SCOPES)}")
    path = s.path(block)
    b: Block = path[-1]
    target = s.loop(loop)
    init = b.init
    if type(b.body) is not BufferStore or not (init is None or (type(init) is BufferStore and init.buffer is b.body.buffer)):
        raise s.refuse("reduction", f"block {b.name} stores more than one element", b)
    if init is None and reassociable_update(b) is None:
        raise s.refuse("reduction", f"block {b.name} has no init, and is not of the form C[...] = C[...] + term", b)
    positions = [p for e in b.body.indices if (p := plain_iter(e, b)) is not None and b.iters[p].kind == "S"]
    if len(set(positions)) < len(b.body.indices) or (init is not None and init.indices != b.body.indices):
        raise s.refuse("reduction", f"block {b.name} does not store at its own spatial iteration variables, each once", b)
    if any(a.indices != b.body.indices for a in accesses(b) if a.buffer is b.body.buffer):
        raise s.refuse("reduction", f"block {b.name} reads an element of {b.body.buffer.name} other than the one it updates", b)
    used = {v for n in (walk(init.value) if init is not None else ()) if type(n) is Poly for v in n.vars}
    if any(it.var in used for n, it in enumerate(b.iters) if n not in positions):
        raise s.refuse("reduction", f"the init of block {b.name} depends on iteration variables that do not index its element", b)
    if target not in path:
        raise s.refuse("loop-of-block", f"loop {target.var.name} is not around block {b.name}", target)
    old = b.body.buffer
    early = [c.name for c in blocks_under(target) if c is not b and any(a.buffer is old for a in accesses(c))]
    if early:
        raise s.refuse("read-after", f"{old.name} is used by {', '.join(early)} inside loop {target.var.name}", target)
    new = old.like(f"{old.name}_{scope}", scope=scope)
    ranges = ranges_under(target, b.name)
    footprint = region(b, writes(b)[-1].indices, ranges)
    for _, extent in footprint:
        bound = sorted(v.name for v in extent.vars if not isinstance(v, Param))
        if bound:
            raise s.refuse("box", f"the footprint of block {b.name} has an extent that depends on {', '.join(bound)}: {extent!r}", b)
    if not all(is_tiling(b.bindings[p], ranges) for p in positions):
        raise s.refuse("dense", f"block {b.name} writes {old.name} with gaps in one iteration of {target.var.name}", target)
    reducing = [e for it, e in zip(b.iters, b.bindings, strict=True) if it.kind == "R"]
    if not all(_is_blocked(e, ranges) for e in reducing):
        raise s.refuse("blocked", f"loop {target.var.name} does not divide the reduction of block {b.name} into blocks", target)
    check_in_blocks(s, b, "in-blocks")
    check_unconditional(s, b, "guard", target)
    if init is not None:
        check_first_step(s, b, "first")
    if is_repeated(s, b, [f for f in path[path.index(target) :] if type(f) is For]):
        raise s.refuse(
            "first", f"loop {target.var.name} repeats the reduction of block {b.name}, which the cache would start only once", target
        )
    outer_guards = footprint_guards(s, b, ranges)
    firsts = [interval(e, ranges)[0] for e in reducing]
    fill_name, write_name = s.fresh_name(f"{b.name}_fill"), s.fresh_name(f"{b.name}_write")

    def make(name: str, fill: bool) -> Stmt:
        spatial = [Iter(Var(f"v{d}"), b.iters[p].extent, "S") for d, p in enumerate(positions)]
        steps = [Iter(Var(f"r{d}"), it.extent, "R") for d, it in enumerate(i for i in b.iters if i.kind == "R")]
        loops = [(Var(f"ax{d}"), extent) for d, (_, extent) in enumerate(footprint)]
        at = tuple([poly(i.var) for i in spatial])
        if fill:
            value: Expr = BufferLoad(old, at)
            if init is not None:
                start: Expr = _value_at(init, dict(zip([e.as_var() for e in init.indices], at, strict=True)))
                value = select(conjunction(tuple([less_than(i.var, ONE) for i in steps])), start, value)
            body = store(new, at, value)
        else:
            body = store(old, at, BufferLoad(new, at))
        places = [low + v for (low, _), (v, _) in zip(footprint, loops, strict=True)]
        guards = [p - i.extent for p, i in zip(places, spatial, strict=True)]
        guards += [first - i.extent for first, i in zip(firsts, steps, strict=True)]
        return nest(loops, Block(name, (*spatial, *steps), (*places, *firsts), (*guards, *outer_guards), None, body))

    redirect_to(s, b.name, old, new)
    s.replace_block(b.name, lambda x: x.with_(init=None))
    s.replace_loop(target.var, lambda f: f.with_(body=seq([make(fill_name, True), f.body, make(write_name, False)])))
    s.add_allocs(new)
    return [s.new_block(fill_name), s.new_block(write_name)]


def _is_blocked(e: Poly, ranges: Mapping[Var, Poly]) -> bool:
    """Whether no operation and no product mixes loops of `ranges` with other loops, so that the inner part can be set to 0."""
    return all(
        part.isdisjoint(ranges) or all(v in ranges or isinstance(v, Param) for v in part)
        for m, _ in e.terms
        for part in [frozenset().union(*[a.vars for a in m])]
    )


def _value_at(init: BufferStore, at: dict[Any, Poly]) -> Expr:
    return substitute_program(init.value, {v: p for v, p in at.items() if v is not None})
