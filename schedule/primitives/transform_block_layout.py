"""Change the iteration variables and loops of a block: permute and split them."""

from __future__ import annotations

from tunesmith.ir.poly import Poly, Var, poly
from tunesmith.ir.stmt import Block, For, Iter
from tunesmith.ir.visit import substitute
from tunesmith.schedule.handles import BlockRV, LoopRV
from tunesmith.schedule.layout import Layout, checked_layout, extent_of, original_indices, split_dimensions
from tunesmith.schedule.outside import check_unconditional
from tunesmith.schedule.primitive import primitive
from tunesmith.schedule.primitives.reorder import reorder
from tunesmith.schedule.primitives.split import split_loop
from tunesmith.schedule.state import MAX_INTEGER, ScheduleState


@primitive
def transform_block_layout(s: ScheduleState, block: BlockRV, index_map: Layout) -> None:
    """Permute and split the iteration variables of `block`, and its loops with them.

    In contrast to `split` and `reorder`, the block itself iterates over the parts, so that `reindex` makes a dimension of each.

    Args:
        block: the block; each of its iteration variables is a loop.
        index_map: the new iteration variables, outermost first: an int (that variable, counted from 0), [v, "/", f] (its outer part) or
            [v, "%", f] (its inner part), where f is a sampled factor or an int.
    Rewrite: `transform_block_layout(C, [[1, "/", 4], 0, [1, "%", 4]])`
        for i, j in T.grid(3, 6):
            C[i, j] = A[i, j] + 1.0
      ->
        for j_0, i, j_1 in T.grid(2, 3, 4):
            if j_0 * 4 + j_1 < 6:
                C[i, j_0 * 4 + j_1] = A[i, j_0 * 4 + j_1] + 1.0
    Requires:
        trivial: each iteration variable is a loop of its own, which runs over its whole extent.
        layout: every iteration variable occurs once, or once as "/" and once as "%" with the same factor.
        serial: a loop that is split is serial and carries no annotation.
        bounded: every factor is at most 2**31 - 1.
        nest: the loops belong to one nest, without other statements between them, and no `if` is around the block.
        single-block: the nest contains one block.
        independent: no extent depends on another loop of the nest.
        dependences: instances of the block keep their order if they access one element and one of them writes it, unless they are
            updates of a reduction that can be reassociated.
        block-exists: the block is still in the program.
    Keeps: the set of executed block instances; reductions are reassociated (source: TVM's transform_block_layout, whose index_map is a
        function that may also fuse variables; here the factor need not divide the extent).  An int that divides it needs no guard.
    """
    b = s.block(block)
    check_unconditional(s, b, "nest")
    loops = _own_loops(s, b)
    extents = [it.extent for it in b.iters]
    spec = checked_layout(s, index_map, len(b.iters), f"the iterations of block {b.name}")
    literal = {part[0] for part in index_map or () if not isinstance(part, int) and isinstance(part[2], int)}
    parts: dict[tuple[int, str], Var] = {(d, ""): f.var for d, f in enumerate(loops)}
    for d, factor in sorted(split_dimensions(spec).items()):
        if loops[d].kind != "serial" or loops[d].annotations:
            raise s.refuse("serial", f"loop {loops[d].var.name} is {loops[d].kind} or annotated; transform before marking loops", loops[d])
        s.require_at_most(factor, MAX_INTEGER, "bounded", f"a factor must be at most {MAX_INTEGER}")
        outer, inner = [extent_of(extents, (d, op, factor)) for op in "/%"]
        # A sampled factor divides some extents for some of its values only, and all have the same program.
        divides = d in literal and outer * inner == extents[d]
        parts[d, "/"], parts[d, "%"] = split_loop(s, loops[d], [outer, inner], guarded=not divides)
    new_loops = [parts[d, op] for d, op, _ in spec]
    reorder(s, [LoopRV("", s.number, v) for v in new_loops])
    names = {"": "", "/": "_0", "%": "_1"}
    iters = tuple([Iter(Var(f"{b.iters[d].var.name}{names[op]}"), extent_of(extents, (d, op, f)), b.iters[d].kind) for d, op, f in spec])
    whole = original_indices(spec, [poly(it.var) for it in iters])
    values: dict[Var, Poly] = {it.var: e for it, e in zip(b.iters, whole, strict=True)}

    def rename(c: Block) -> Block:
        init = None if c.init is None else substitute(c.init, values)
        return c.with_(iters=iters, bindings=tuple([poly(v) for v in new_loops]), init=init, body=substitute(c.body, values))

    s.replace_block(b.name, rename)


def _own_loops(s: ScheduleState, b: Block) -> list[For]:
    """The loop of each iteration variable."""
    by_var: dict[Var | None, For] = {f.var: f for f in s.loops_of(b.name)}
    loops = [by_var.get(e.as_var()) for e in b.bindings]
    for it, f in zip(b.iters, loops, strict=True):
        if f is None or loops.count(f) > 1 or f.extent != it.extent:
            what = f"iteration variable {it.var.name} of block {b.name} is not a loop of its own with the extent {it.extent!r}"
            raise s.refuse("trivial", f"{what}; transform the block before its loops are split or fused", b)
    return [f for f in loops if f is not None]
